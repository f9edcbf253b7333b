package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"
)

// Server answers the API over a unix socket.
type Server struct {
	Service Service
	Log     *slog.Logger
	// Binary is the identity of the executable that answers; a request that names another one is refused with CodeStale,
	// but for status and stop.
	Binary string
	// Peer judges a connection before anything is read from it. nil: CheckPeer.
	Peer func(*net.UnixConn) error
}

// Serve answers until ctx ends, then lets running requests finish for a second.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	peer := s.Peer
	if peer == nil {
		peer = CheckPeer
	}
	hs := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: ReadTimeout,
		ReadTimeout:       ReadTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    MaxHeader,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if hs.Shutdown(grace) != nil {
			_ = hs.Close() // what did not finish is cut
		}
	}()
	err := hs.Serve(&checked{UnixListener: l, peer: peer, log: s.Log})
	if ctx.Err() == nil {
		return fmt.Errorf("serve control api: %w", err)
	}
	<-stopped
	return nil
}

// checked hands out only connections whose peer passed.
type checked struct {
	*net.UnixListener
	peer func(*net.UnixConn) error
	log  *slog.Logger
}

func (c *checked) Accept() (net.Conn, error) {
	for {
		conn, err := c.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if err := c.peer(conn); err != nil {
			c.log.Warn("control connection refused", slog.String("error", err.Error()))
			_ = conn.Close() // refused: it gets no answer
			continue
		}
		return conn, nil
	}
}

// Handler is the API without the peer check.
func (s *Server) Handler() http.Handler {
	v := s.Service
	mux := http.NewServeMux()
	handle(mux, s, "GET /v1/status", func(r *http.Request, _ none) (Status, error) { return v.Status(r.Context()) })
	handle(mux, s, "GET /v1/boxes", func(r *http.Request, _ none) ([]Box, error) { return v.Boxes(r.Context()) })
	handle(mux, s, "POST /v1/boxes", func(r *http.Request, q BoxRequest) (Box, error) { return v.CreateBox(r.Context(), q) })
	handle(mux, s, "DELETE /v1/boxes/{id}", func(r *http.Request, _ none) (Stopped, error) {
		return v.StopBox(r.Context(), r.PathValue("id"))
	})
	handle(mux, s, "POST /v1/enter", func(r *http.Request, q EnterRequest) (Box, error) { return v.Enter(r.Context(), "", q) })
	handle(mux, s, "POST /v1/boxes/{id}/enter", func(r *http.Request, q EnterRequest) (Box, error) {
		return v.Enter(r.Context(), r.PathValue("id"), q)
	})
	handle(mux, s, "POST /v1/down", func(r *http.Request, _ none) (Stopped, error) { return v.StopBox(r.Context(), "") })
	handle(mux, s, "GET /v1/grants", func(r *http.Request, _ none) ([]Grant, error) { return v.Grants(r.Context()) })
	handle(mux, s, "POST /v1/grants", func(r *http.Request, q RuleRequest) (Changed, error) { return v.Allow(r.Context(), q) })
	handle(mux, s, "POST /v1/deny", func(r *http.Request, q RuleRequest) (Changed, error) { return v.Deny(r.Context(), q) })
	handle(mux, s, "POST /v1/revoke", func(r *http.Request, q RuleRequest) (Changed, error) { return v.Revoke(r.Context(), q) })
	handle(mux, s, "GET /v1/asks", func(r *http.Request, _ none) ([]Ask, error) { return v.Asks(r.Context()) })
	handle(mux, s, "POST /v1/asks/{id}", func(r *http.Request, q Answer) (Changed, error) {
		return v.Answer(r.Context(), r.PathValue("id"), q)
	})
	handle(mux, s, "POST /v1/enforce", func(r *http.Request, q EnforceRequest) (Changed, error) { return v.Enforce(r.Context(), q) })
	handle(mux, s, "GET /v1/learn", func(r *http.Request, _ none) (Learning, error) { return v.Learning(r.Context()) })
	handle(mux, s, "POST /v1/learn", func(r *http.Request, q LearnRequest) (Learning, error) { return v.Learn(r.Context(), q) })
	handle(mux, s, "POST /v1/learn/review", func(r *http.Request, q ReviewRequest) (Learning, error) { return v.Review(r.Context(), q) })
	handle(mux, s, "GET /v1/why", func(r *http.Request, _ none) (Why, error) {
		q := r.URL.Query()
		return v.Why(r.Context(), WhyRequest{Target: q.Get("target"), Method: q.Get("method"), Box: q.Get("box")})
	})
	handle(mux, s, "POST /v1/verify", func(r *http.Request, q VerifyRequest) (json.RawMessage, error) { return v.Verify(r.Context(), q) })
	handle(mux, s, "POST /v1/config/reload", func(r *http.Request, _ none) (Reloaded, error) { return v.Reload(r.Context()) })
	handle(mux, s, "POST /v1/machine", func(r *http.Request, q MachineRequest) (Machine, error) { return v.Machine(r.Context(), q) })
	handle(mux, s, "POST /v1/homes/reset", func(r *http.Request, _ none) (none, error) { return none{}, v.ResetHome(r.Context()) })
	handle(mux, s, "POST /v1/stop", func(r *http.Request, q stopRequest) (none, error) { return none{}, v.Stop(r.Context(), q.Keep) })
	return s.guard(mux)
}

type none struct{}

type stopRequest struct {
	Keep bool `json:"keep"`
}

// guard refuses what a browser sends, and keeps a panic inside its request.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, h := range []string{"Origin", "Referer", "Sec-Fetch-Site"} {
			if r.Header.Get(h) != "" {
				s.fail(w, &Error{Code: CodeBad, Status: http.StatusForbidden, Detail: "the control api is not for browsers: " + h + " refused"})
				return
			}
		}
		b := r.Header.Get(binaryHeader)
		if b != "" && s.Binary != "" && b != s.Binary && r.URL.Path != "/v1/status" && r.URL.Path != "/v1/stop" {
			s.fail(w, &Error{Code: CodeStale, Detail: "the supervisor was started from another fy", Hint: "fy supervisor restart"})
			return
		}
		defer func() {
			if p := recover(); p != nil {
				s.Log.Error("control handler panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
				s.fail(w, &Error{Code: CodeInternal, Detail: "internal error; see supervisor.log"})
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// handle mounts f: a strict JSON body in, JSON out.
func handle[In, Out any](mux *http.ServeMux, s *Server, pattern string, f func(*http.Request, In) (Out, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		var in In
		if r.Method == http.MethodPost {
			if err := decode(http.MaxBytesReader(w, r.Body, MaxBody), &in); err != nil {
				s.fail(w, &Error{Code: CodeBad, Detail: "read request: " + err.Error()})
				return
			}
		}
		// The request is read: its deadline must not end a long answer (net/http cancels the context when it passes).
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // best effort: a test's recorder has none
		out, err := f(r, in)
		if err != nil {
			s.fail(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // a caller that left gets no answer
	})
}

func decode(r io.Reader, v any) error {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		if errors.Is(err, io.EOF) {
			return nil // no body: the zero request
		}
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("trailing data")
	}
	return nil
}

func (s *Server) fail(w http.ResponseWriter, err error) {
	var e *Error
	if !errors.As(err, &e) {
		s.Log.Error("control request failed", slog.String("error", err.Error()))
		e = &Error{Code: CodeInternal, Detail: err.Error()}
	} else if e.Detail != err.Error() { // wrapped: keep the whole story
		e = &Error{Code: e.Code, Detail: err.Error(), Hint: e.Hint, Status: e.Status}
	}
	status := e.Status
	if status == 0 {
		status = map[string]int{CodeBad: 400, CodeNotFound: 404, CodeNoBox: 409, CodeConfirm: 409, CodeConflict: 409, CodeStale: 409, CodeHost: 501}[e.Code]
	}
	if status == 0 {
		status = http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(&Error{Code: e.Code, Detail: strings.TrimSpace(e.Detail), Hint: e.Hint}) // as above
}
