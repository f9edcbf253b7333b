package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"syscall"
	"time"
)

// Client calls one supervisor's API.
type Client struct {
	// Binary is the identity of this executable; "" accepts any supervisor.
	Binary string

	socket string
	http   *http.Client
	renew  func(context.Context) error // replaces a stale supervisor; nil: tell the caller
	spare  atomic.Pointer[net.Conn]    // a connection that nothing was sent on yet
}

// NewClient returns a client of the supervisor at socket. It connects at the first call.
func NewClient(socket string) *Client {
	c := &Client{socket: socket}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		DisableCompression: true,
		MaxIdleConns:       2,
	}}
	return c
}

func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	if conn := c.spare.Swap(nil); conn != nil {
		return *conn, nil
	}
	d := net.Dialer{Timeout: 2 * time.Second}
	return d.DialContext(ctx, "unix", c.socket)
}

// Socket is the path of the supervisor's socket.
func (c *Client) Socket() string { return c.socket }

// Close drops idle connections.
func (c *Client) Close() {
	if conn := c.spare.Swap(nil); conn != nil {
		_ = (*conn).Close() // nothing was sent on it
	}
	c.http.CloseIdleConnections()
}

// probe tells whether somebody listens, and keeps the connection for the first call.
func (c *Client) probe(ctx context.Context) error {
	conn, err := c.dial(ctx)
	if err == nil {
		c.spare.Store(&conn)
	}
	return err
}

// NotRunning tells whether err means that nobody answers at the socket: none listens, or the one that did ended with what was asked
// unread, as one that is killed does.
func NotRunning(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && (op.Op == "dial" || errors.Is(op, syscall.ECONNRESET) || errors.Is(op, syscall.EPIPE))
}

func (c *Client) Status(ctx context.Context) (Status, error) {
	return call[Status](ctx, c, "GET", "status", nil)
}

func (c *Client) CreateBox(ctx context.Context, q BoxRequest) (Box, error) {
	return call[Box](ctx, c, "POST", "boxes", q)
}

func (c *Client) Boxes(ctx context.Context) ([]Box, error) {
	return call[[]Box](ctx, c, "GET", "boxes", nil)
}

func (c *Client) Enter(ctx context.Context, id string, q EnterRequest) (Box, error) {
	if id == "" {
		return call[Box](ctx, c, "POST", "enter", q)
	}
	return call[Box](ctx, c, "POST", "boxes/"+url.PathEscape(id)+"/enter", q)
}

func (c *Client) StopBox(ctx context.Context, id string) (Stopped, error) {
	if id == "" {
		return call[Stopped](ctx, c, "POST", "down", none{})
	}
	return call[Stopped](ctx, c, "DELETE", "boxes/"+url.PathEscape(id), nil)
}

func (c *Client) Grants(ctx context.Context) ([]Grant, error) {
	return call[[]Grant](ctx, c, "GET", "grants", nil)
}

func (c *Client) Allow(ctx context.Context, q RuleRequest) (Changed, error) {
	return call[Changed](ctx, c, "POST", "grants", q)
}

func (c *Client) Deny(ctx context.Context, q RuleRequest) (Changed, error) {
	return call[Changed](ctx, c, "POST", "deny", q)
}

func (c *Client) Revoke(ctx context.Context, q RuleRequest) (Changed, error) {
	return call[Changed](ctx, c, "POST", "revoke", q)
}

func (c *Client) Asks(ctx context.Context) ([]Ask, error) {
	return call[[]Ask](ctx, c, "GET", "asks", nil)
}

func (c *Client) Answer(ctx context.Context, id string, a Answer) (Changed, error) {
	return call[Changed](ctx, c, "POST", "asks/"+url.PathEscape(id), a)
}

func (c *Client) Enforce(ctx context.Context, q EnforceRequest) (Changed, error) {
	return call[Changed](ctx, c, "POST", "enforce", q)
}

func (c *Client) Learn(ctx context.Context, q LearnRequest) (Learning, error) {
	return call[Learning](ctx, c, "POST", "learn", q)
}

func (c *Client) Learning(ctx context.Context) (Learning, error) {
	return call[Learning](ctx, c, "GET", "learn", nil)
}

func (c *Client) Review(ctx context.Context, q ReviewRequest) (Learning, error) {
	return call[Learning](ctx, c, "POST", "learn/review", q)
}

func (c *Client) Why(ctx context.Context, q WhyRequest) (Why, error) {
	v := url.Values{"target": {q.Target}, "method": {q.Method}, "box": {q.Box}}
	return call[Why](ctx, c, "GET", "why?"+v.Encode(), nil)
}

func (c *Client) Verify(ctx context.Context, q VerifyRequest) (json.RawMessage, error) {
	return call[json.RawMessage](ctx, c, "POST", "verify", q)
}

func (c *Client) Reload(ctx context.Context) (Reloaded, error) {
	return call[Reloaded](ctx, c, "POST", "config/reload", none{})
}

func (c *Client) ResetHome(ctx context.Context) error {
	_, err := call[none](ctx, c, "POST", "homes/reset", none{})
	return err
}

func (c *Client) Stop(ctx context.Context, keep bool) error {
	_, err := call[none](ctx, c, "POST", "stop", stopRequest{Keep: keep})
	return err
}

// HasCode tells whether err is an *Error with the code.
func HasCode(err error, code string) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}

// call does one request. What the supervisor refused comes back as *Error. A stale supervisor is replaced, once.
func call[Out any](ctx context.Context, c *Client, method, path string, in any) (Out, error) {
	out, err := callOnce[Out](ctx, c, method, path, in)
	if c.renew == nil || !HasCode(err, CodeStale) {
		return out, err
	}
	c.Close()
	if err := c.renew(ctx); err != nil {
		return out, fmt.Errorf("replace the supervisor of an older fy: %w", err)
	}
	return callOnce[Out](ctx, c, method, path, in)
}

func callOnce[Out any](ctx context.Context, c *Client, method, path string, in any) (out Out, err error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return out, fmt.Errorf("encode %s request: %w", path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://foldyard/v1/"+path, body)
	if err != nil {
		return out, err
	}
	if c.Binary != "" {
		req.Header.Set(binaryHeader, c.Binary)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the invented URL explains nothing
		}
		return out, fmt.Errorf("ask supervisor: %w", err)
	}
	defer resp.Body.Close()
	d := json.NewDecoder(io.LimitReader(resp.Body, 64<<20))
	if resp.StatusCode != http.StatusOK {
		e := &Error{Status: resp.StatusCode}
		if d.Decode(e) != nil || e.Detail == "" {
			e.Code, e.Detail = CodeInternal, "supervisor answered "+resp.Status
		}
		return out, e
	}
	if err := d.Decode(&out); err != nil {
		return out, fmt.Errorf("read supervisor's answer: %w", err)
	}
	return out, nil
}
