package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"foldyard/internal/egress/policy"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A box opens 250 streams on each of 1,024 connections, to an origin that does not answer: memory without a bound in sum.
func TestRequestsInFlightAreBoundedInSum(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Limits.Requests = 4 })
	w.allow("a.test")
	gate, arrived := make(chan struct{}), make(chan struct{}, 8)
	w.web("a.test:443", webH1, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/held" {
			arrived <- struct{}{}
			<-gate
		}
		greet(rw, r)
	})
	var held sync.WaitGroup
	for range 2 { // connections
		c := w.client(byConnect, true)
		for range 2 { // streams
			held.Go(func() {
				if r, err := c.Get("https://a.test/held"); err == nil {
					_ = r.Body.Close()
				}
			})
		}
	}
	for range 4 {
		<-arrived
	}
	for _, h2 := range []bool{false, true} {
		r, body := get(t, w.client(byConnect, h2), "https://a.test/")
		if r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Foldyard-Reason") != string(policy.ReasonLimit) {
			t.Errorf("h2=%v: one more is answered %d %q", h2, r.StatusCode, body)
		}
	}
	w.sawReason("a.test", policy.ReasonLimit)
	for _, l := range w.e.Limits() {
		if l.Name == "requests_per_box" && (l.Value != 4 || l.Current != 4 || l.Hits != 2) {
			t.Errorf("limit %+v", l)
		}
	}
	close(gate)
	held.Wait()
	for w.e.live.gauge(testBox).requests.current.Load() > 0 {
		runtime.Gosched()
	}
	for _, h2 := range []bool{false, true} {
		if r, body := get(t, w.client(byConnect, h2), "https://a.test/"); r.StatusCode != 200 {
			t.Errorf("control, h2=%v: %d %q", h2, r.StatusCode, body)
		}
	}
}

// frames begins HTTP/2 on c by hand, with a window of so many bytes for each stream.
func frames(t *testing.T, c net.Conn, window uint32) (f *http2.Framer, open func(stream uint32)) {
	_, err := io.WriteString(c, http2.ClientPreface)
	ok(t, err)
	f = http2.NewFramer(c, c)
	ok(t, f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}))
	return f, func(id uint32) {
		var b bytes.Buffer
		e := hpack.NewEncoder(&b)
		for _, h := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "a.test"}, {":path", "/"}} {
			ok(t, e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
		}
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b.Bytes(), EndHeaders: true, EndStream: true}) // it may be cut
	}
}

// A small answer that the client's window does not take stays in memory after net/http's handler has returned: it counts all the same.
func TestAnswersThatAreNotTakenCount(t *testing.T) {
	for name, window := range map[string]uint32{"window of nothing": 0, "control": 65535} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Limits.Requests = 2 })
			w.allow("a.test")
			w.web("a.test:443", webH1, greet)
			c := w.tls(byConnect, "a.test:443", "a.test", "h2")
			f, open := frames(t, c, window)
			f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
			answer := func() string {
				for {
					frame, err := f.ReadFrame()
					ok(t, err)
					if h, head := frame.(*http2.MetaHeadersFrame); head {
						return h.PseudoValue("status")
					}
				}
			}
			for id := range uint32(2) {
				open(1 + 2*id)
				if s := answer(); s != "200" {
					t.Fatal(s)
				}
			}
			for window > 0 && w.e.live.gauge(testBox).requests.current.Load() > 0 {
				runtime.Gosched()
			}
			open(5)
			if s := answer(); (s == "503") != (window == 0) {
				t.Errorf("a third: %s", s)
			}
			_ = c.Close()
			w.settled()
		})
	}
}

// A box that takes no refusals, by a window of no bytes, has their streams held instead: the bound would bound nothing.
func TestRefusedStreamsAreNotHeldByFlowControl(t *testing.T) {
	for name, window := range map[string]uint32{"window of nothing": 0, "control": 65535} {
		t.Run(name, func(t *testing.T) {
			refusing := 2
			if window > 0 {
				refusing = 8 // all may be on their way at once
			}
			w := newWorld(t, func(c *Config) { c.Limits.Requests, c.Limits.Refusing = 1, refusing })
			w.allow("a.test")
			arrived := make(chan struct{}, 1)
			w.web("a.test:443", webH1, func(_ http.ResponseWriter, r *http.Request) {
				arrived <- struct{}{}
				<-r.Context().Done()
			})
			c := w.tls(byConnect, "a.test:443", "a.test", "h2")
			f, open := frames(t, c, window)
			open(1)
			<-arrived
			const more = 8
			for i := range uint32(more) {
				open(3 + 2*i)
			}
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			ended := 0
			for ended < more {
				frame, err := f.ReadFrame()
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error("the connection stays, with what it does not take")
				}
				if err != nil {
					break
				}
				if d, data := frame.(*http2.DataFrame); data && d.StreamEnded() {
					ended++
				}
			}
			if all := ended == more; all != (window > 0) {
				t.Errorf("%d of %d streams were refused in full", ended, more)
			}
			if window == 0 {
				w.sawReason("a.test", policy.ReasonLimit)
			}
			_ = c.Close()
			w.settled()
		})
	}
}

// One connection opens no more streams than it was told.
func TestStreamsOfAConnectionAreBounded(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	w.web("a.test:443", webH1, greet)
	f, _ := frames(t, w.tls(byConnect, "a.test:443", "a.test", "h2"), 65535)
	for {
		frame, err := f.ReadFrame()
		ok(t, err)
		s, settings := frame.(*http2.SettingsFrame)
		if !settings || s.IsAck() {
			continue
		}
		if n, told := s.Value(http2.SettingMaxConcurrentStreams); n != 250 {
			t.Errorf("%d streams, told %v", n, told)
		}
		return
	}
}
