package vmprobe

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Verb { // nested starts us again
		os.Exit(Main(context.Background(), os.Args[2:], os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

// listening answers every connection of a port of loopback, and tells what came.
func listening(t *testing.T) (target string, came chan string) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	came = make(chan string, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				b, _ := io.ReadAll(c)
				came <- string(b)
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String(), came
}

// closedPort is one where nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func outcomes(t *testing.T, b []byte) map[string]Outcome {
	t.Helper()
	var list []Outcome
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatalf("%v in %q", err, b)
	}
	by := map[string]Outcome{}
	for _, o := range list {
		by[o.ID] = o
	}
	return by
}

// A try says what happened, whichever way its plan comes: over standard input, by files, or in namespaces of its own.
func TestOutcomes(t *testing.T) {
	target, came := listening(t)
	plan, err := json.Marshal([]Try{
		{ID: "open", Kind: TCP, Target: target, Nonce: "hello"},
		{ID: "closed", Kind: TCP, Target: closedPort(t)},
		{ID: "true", Kind: Run, Argv: []string{"/bin/true"}},
		{ID: "false", Kind: Run, Argv: []string{"/bin/false"}},
		{ID: "unknown", Kind: "teleport"},
		{ID: "write", Kind: Write, Target: "/no/such/file"},
		{ID: "link", Kind: LinkLocal, Target: "not an address"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"open": Reached, "closed": Refused, "true": Reached, "false": Refused, "unknown": Failed, "write": Refused, "link": Failed}
	dir := t.TempDir()
	in, out := filepath.Join(dir, "plan"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, plan, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {in, out}, {Nested}} {
		var b bytes.Buffer
		if code := Main(t.Context(), args, bytes.NewReader(plan), &b); code != 0 {
			if len(args) == 1 && code == 3 {
				t.Log("no namespaces of one's own here")
				continue
			}
			t.Fatalf("%q: exit %d", args, code)
		}
		got := b.Bytes()
		if len(args) == 2 {
			if got, err = os.ReadFile(out); err != nil {
				t.Fatal(err)
			}
		}
		by := outcomes(t, got)
		for id, outcome := range want {
			if by[id].Outcome != outcome {
				t.Errorf("%q: %s is %+v, want %s", args, id, by[id], outcome)
			}
		}
		if text := <-came; text != "hello" {
			t.Errorf("%q: %q came", args, text)
		}
	}
}

func TestEcho(t *testing.T) {
	for target, want := range map[string]string{"127.0.0.1": Reached, "::1": Reached, "nobody": Failed} {
		outcome, detail := Try{Kind: ICMP, Target: target}.run(t.Context())
		if outcome == Refused { // the system says who may, and whether there is IPv6
			t.Logf("%s: %s", target, detail)
			continue
		}
		if outcome != want {
			t.Errorf("%s: %s, %s; want %s", target, outcome, detail, want)
		}
	}
}

func TestNestedHasNamespacesOfItsOwn(t *testing.T) {
	plan, err := json.Marshal([]Try{{ID: "user", Kind: Run, Argv: []string{"readlink", "/proc/self/ns/user", "/proc/self/ns/net"}}})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if code := Main(t.Context(), []string{Nested}, bytes.NewReader(plan), &b); code != 0 {
		t.Skip("no namespaces of one's own here")
	}
	user, _ := os.Readlink("/proc/self/ns/user")
	network, _ := os.Readlink("/proc/self/ns/net")
	got := outcomes(t, b.Bytes())["user"].Detail
	if strings.Contains(got, user) || !strings.Contains(got, network) {
		t.Errorf("%q, want another user namespace than %s and the network's %s", got, user, network)
	}
}

func TestBadPlanIsAnError(t *testing.T) {
	for _, args := range [][]string{nil, {"teleport"}, {"/no/such", "/tmp/x"}, {"a", "b", "c"}} {
		if code := Main(t.Context(), args, strings.NewReader("{"), io.Discard); code == 0 {
			t.Errorf("%q: taken", args)
		}
	}
}

// What came of a try on one link is not lost by the next.
func TestEveryLinkCounts(t *testing.T) {
	const none = "dial tcp [fe80::2%b]:1: connect: network is unreachable"
	for name, tt := range map[string]struct {
		links           [][2]string
		outcome, detail string
	}{
		"no links":                       {nil, Refused, NoIPv6},
		"none has IPv6":                  {[][2]string{{Refused, none}, {Refused, none}}, Refused, NoIPv6},
		"the last has none":              {[][2]string{{Refused, "permission denied"}, {Refused, none}}, Refused, "0: permission denied"},
		"the first is silent":            {[][2]string{{Silent, "i/o timeout"}, {Refused, "permission denied"}}, Silent, "0: i/o timeout"},
		"the last is silent":             {[][2]string{{Refused, "permission denied"}, {Silent, "i/o timeout"}}, Silent, "1: i/o timeout"},
		"one is reached":                 {[][2]string{{Silent, "i/o timeout"}, {Reached, "connected"}, {Refused, none}}, Reached, "1: connected"},
		"the only one that has it tells": {[][2]string{{Refused, none}, {Refused, "connection refused"}}, Refused, "1: connection refused"},
	} {
		var names []string
		for i := range tt.links {
			names = append(names, strconv.Itoa(i))
		}
		outcome, detail := onLinks(names, func(name string) (string, string) {
			i, _ := strconv.Atoi(name)
			return tt.links[i][0], tt.links[i][1]
		})
		if outcome != tt.outcome || detail != tt.detail {
			t.Errorf("%s: %s, %q; want %s, %q", name, outcome, detail, tt.outcome, tt.detail)
		}
	}
}
