package proxy

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"foldyard/internal/egress/capture"
)

// Without the token of the very box a listener serves, nothing is reached: a
// loopback port of the host is anybody's.
func TestTokenOfTheBoxOrNothing(t *testing.T) {
	w := newWorld(t)
	w.allow("a.test")
	var headers atomic.Value
	w.web("a.test:80", webPlain, func(_ http.ResponseWriter, r *http.Request) { headers.Store(fmt.Sprint(r.Header)) })
	w.web("a.test:443", webH1, greet)
	l := listen(t)
	way := w.box()
	way.Token = func() string { return "0123abcd" }
	go func() { _ = w.e.ServeProxy(t.Context(), way, l) }()

	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	field := func(v string) string { return "Proxy-Authorization: " + v + "\r\n" }
	for _, tt := range []struct {
		name, fields string
		want         int
	}{
		{"the token", field(basic("box:0123abcd")), 200},
		{"the token, basic in lower case", field("basic" + strings.TrimPrefix(basic("box:0123abcd"), "Basic")), 200},
		{"no token", "", 407},
		{"another box's token", field(basic("box:0123abce")), 407},
		{"a part of it", field(basic("box:0123abc")), 407},
		{"more than it", field(basic("box:0123abcd0")), 407},
		{"another user", field(basic("root:0123abcd")), 407},
		{"the bare token", field("0123abcd"), 407},
		{"a bearer token", field("Bearer 0123abcd"), 407},
		{"no base64", field("Basic %%%"), 407},
		{"two fields, one of them right", field(basic("box:0123abcd")) + field(basic("box:x")), 407},
		{"two right fields", field(basic("box:0123abcd")) + field(basic("box:0123abcd")), 407},
		{"the token in Authorization", strings.TrimPrefix(field(basic("box:0123abcd")), "Proxy-"), 407},
	} {
		for _, request := range []string{
			"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n",
			"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n",
		} {
			c, err := net.Dial("tcp", l.Addr().String())
			ok(t, err)
			before := w.dialled("a.test:80") + w.dialled("a.test:443")
			fmt.Fprint(c, request+tt.fields+"\r\n")
			head, err := readUntil(c, "\r\n\r\n")
			ok(t, err)
			if !strings.HasPrefix(head, fmt.Sprintf("HTTP/1.1 %d ", tt.want)) {
				t.Errorf("%s: %.20q answers %.40q, want %d", tt.name, request, head, tt.want)
			}
			if tt.want == 407 && !strings.Contains(head, "Proxy-Authenticate: Basic") {
				t.Errorf("%s: no challenge in %q", tt.name, head)
			}
			if after := w.dialled("a.test:80") + w.dialled("a.test:443"); tt.want == 407 && after != before {
				t.Errorf("%s: upstream was dialled", tt.name)
			}
			_ = c.Close()
		}
	}
	if h, _ := headers.Load().(string); strings.Contains(h, "Proxy") || strings.Contains(h, "0123") {
		t.Errorf("the token went upstream: %s", h)
	}
	for _, r := range w.records {
		if strings.Contains(fmt.Sprintf("%+v", r), "0123abcd") {
			t.Errorf("the token is in a record: %+v", r)
		}
	}
	w.saw("a refusal without a target", func(r *capture.Record) bool { return r.Status == 407 && r.Host == "" })

	c, err := net.Dial("tcp", l.Addr().String())
	ok(t, err)
	defer c.Close()
	_, err = c.Write([]byte{5, 1, 0})
	ok(t, err)
	var b [2]byte
	if n, _ := c.Read(b[:]); n != 2 || b != [2]byte{5, 0xff} {
		t.Errorf("SOCKS5 is answered %v", b[:n])
	}
}
