package capture

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A box floods a granted host so that one request more, which brings something out, is in no line.
func TestFloodHidesNothingElse(t *testing.T) {
	post := allow("b", "a.test")
	post.Method, post.Path, post.Status, post.ReqBytes = "POST", "/out", 201, N(4096)
	path := allow("b", "a.test")
	path.Method, path.Path, path.Status = "GET", "/other/thing?q", 200
	failed := allow("b", "a.test")
	failed.Method, failed.Path, failed.Status = "GET", "/page/9999", 500
	injected := allow("b", "a.test")
	injected.Method, injected.Path, injected.Status, injected.Injected = "GET", "/page/1", 200, "token"
	alert := allow("b", "a.test")
	alert.Method, alert.Path, alert.Status, alert.Reason = "GET", "/page/1", 200, reasonRedacted
	would := allow("b", "w.test")
	would.Verdict = VerdictWouldDeny
	for name, row := range map[string]struct {
		hidden *Record
		found  func(*Record) bool
	}{
		"another method":      {post, func(r *Record) bool { return r.Method == "POST" && r.Path == "/out" }},
		"another path":        {path, func(r *Record) bool { return strings.HasPrefix(r.Path, "/other/") }},
		"another outcome":     {failed, func(r *Record) bool { return r.Status == 500 }},
		"another host":        {allow("b", "c.test"), func(r *Record) bool { return r.Host == "c.test" }},
		"a credential":        {injected, func(r *Record) bool { return r.Injected == "token" }},
		"an alert":            {alert, func(r *Record) bool { return r.Reason == reasonRedacted }},
		"a refusal":           {deny("b", "d.test"), func(r *Record) bool { return r.Verdict == VerdictDeny }},
		"a would-be refusal":  {would, func(r *Record) bool { return r.Host == "w.test" }},
		"control: none other": {nil, func(r *Record) bool { return r.Verdict == VerdictAllow && r.Path == "/page/1" }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				l := open(t, dir, Options{})
				defer closeLog(t, l)
				flood := func() {
					for i := range 1200 {
						r := allow("b", "a.test")
						r.Method, r.Path, r.Status, r.ReqBytes = "GET", fmt.Sprint("/page/", i), 200, N(10)
						l.Put(r)
					}
				}
				flood()
				if row.hidden != nil {
					one := *row.hidden
					l.Put(&one)
				}
				flood()
				time.Sleep(4 * time.Second)
				synctest.Wait()
				found, lines, folded := false, 0, int64(0)
				for _, r := range read(t, dir, Filter{}) {
					found = found || row.found(r)
					if lines++; r.Reason == reasonLimit {
						var n int64
						if _, err := fmt.Sscan(r.Error, &n); err != nil || r.Host != "a.test" {
							t.Errorf("the folded line: %+v", r)
						}
						if b, _ := r.ReqBytes.Get(); b != 10*n {
							t.Errorf("%d bytes in %d records", b, n)
						}
						folded += n
					}
				}
				if !found {
					t.Error("hidden")
				}
				if lines > 210 || folded+int64(lines) < 2400 {
					t.Errorf("%d lines, %d folded", lines, folded)
				}
			})
		})
	}
}

// What gives a box more lines is itself bounded, and what is beyond still has its bytes counted for its host.
func TestFloodOfDifferentThingsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, dir, Options{})
		defer closeLog(t, l)
		const n = 5000
		for i := range n {
			for _, r := range []*Record{allow("b", fmt.Sprintf("h%d.test", i)), allow("b", "a.test"), deny("b", fmt.Sprintf("d%d.test", i)), allow("b", "c.test")} {
				r.Method, r.Path, r.ReqBytes = fmt.Sprintf("M%d", i), fmt.Sprintf("/%d", i), N(1)
				if r.Host == "c.test" {
					r.Injected = "token"
				}
				l.Put(r)
			}
		}
		l.Put(&Record{Box: "b", Host: "n.test", Via: ViaDNS, Verdict: VerdictAllow})
		time.Sleep(4 * time.Second)
		synctest.Wait()
		lines, sums, bytes := 0, 0, int64(0)
		for _, r := range read(t, dir, Filter{}) {
			lines++
			b, _ := r.ReqBytes.Get()
			bytes += b
			if r.Reason == reasonLimit {
				sums++
			}
		}
		if most := 200 + floodKept + floodRefused + floodKinds + floodSegments + floodTargets + 1; lines > most || sums > floodTargets+1 {
			t.Errorf("%d lines, %d of them sums; want at most %d", lines, sums, most)
		}
		if bytes != 4*n {
			t.Errorf("%d bytes are told of %d", bytes, 4*n)
		}
	})
}
