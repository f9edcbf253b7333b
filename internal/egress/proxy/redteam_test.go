package proxy

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// A request that names its host only in its target was passed on with an empty Host, which an origin of several hosts answers as its
// default one: another than was granted.
func TestOriginIsAlwaysToldItsHost(t *testing.T) {
	w := newWorld(t)
	heads := make(chan string, 1)
	for _, at := range []string{"a.test:80", "b.test:8080"} {
		w.raw(at, func(c net.Conn) {
			for {
				head, err := readUntil(c, "\r\n\r\n")
				if err != nil {
					return
				}
				heads <- head
				fmt.Fprint(c, "HTTP/1.1 204 No Content\r\n\r\n")
			}
		})
	}
	w.allow("a.test", "b.test:8080")
	for _, row := range []struct{ at, request, want string }{
		{"a.test:80", "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "Host: a.test\r\n"},
		{"a.test:80", "GET http://a.test/ HTTP/1.0\r\n\r\n", "Host: a.test\r\n"},
		{"b.test:8080", "GET http://b.test:8080/ HTTP/1.0\r\n\r\n", "Host: b.test:8080\r\n"},
	} {
		for _, to := range []string{w.proxy, w.redirect(row.at)} {
			c, err := net.Dial("tcp", to)
			ok(t, err)
			_, err = io.WriteString(c, row.request)
			ok(t, err)
			answer, _ := readUntil(c, "\r\n\r\n") // an answer or its lack is judged below
			c.Close()
			if !strings.HasPrefix(answer, "HTTP/1.1 204 ") {
				t.Fatalf("%q to %s: %q", row.request, to, answer)
			}
			if head := <-heads; !strings.Contains(head, "\r\n"+row.want) {
				t.Errorf("%q reached the origin as %q, want %q in it", row.request, head, row.want)
			}
		}
	}
}
