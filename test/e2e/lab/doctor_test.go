//go:build e2e

package lab

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"foldyard/internal/testkit"
)

// The doctor shakes hands from inside a box, decrypted and tunnelled, and names
// the clients that would not.
func TestDoctorsHandshakes(t *testing.T) {
	clients := []string{"openssl", "python3", "curl", "node"}
	need(t, clients...)
	each(t, func(t *testing.T, o *testkit.Operator) {
		tunnel(t, o, "web.test")
		rows := doctor(t, o)
		for _, name := range []string{"clients in a box", "tunnelled handshake"} {
			if got := rows[name]; len(got) != 1 || got[0] != "ok verified by "+strings.Join(clients, ", ") {
				t.Errorf("%s: %q", name, got)
			}
		}
		log, n := "", 0
		for end := time.Now().Add(10 * time.Second); n < len(clients) && time.Now().Before(end); { // the last one is being written
			log = o.Must(t, "log", "--json", "--host", "web.test")
			n = strings.Count(log, `"mode":"tunnel"`)
		}
		if n < len(clients) || strings.Contains(log, `"mode":"decrypted"`) {
			t.Errorf("%d tunnels were recorded:\n%s", n, log)
		}

		// Nobody told this operator's fy of the authority that the host shows: in a tunnel that is for the clients to judge.
		o.Write(t, "state/config.toml", 0o600, fmt.Appendf(nil, "[upstream]\nresolver = %q\n", testkit.Resolver))
		o.Must(t, "supervisor", "stop")
		o.Must(t, "allow", "web.test")
		rows = doctor(t, o)
		if got := rows["clients in a box"]; len(got) != 1 || !strings.HasPrefix(got[0], "ok ") {
			t.Errorf("control: the decrypted handshake: %q", got)
		}
		got := rows["tunnelled handshake"]
		if len(got) != len(clients) {
			t.Errorf("tunnelled: %q", got)
		}
		for i, row := range got {
			if i < len(clients) && !strings.HasPrefix(row, "fail "+clients[i]+": ") {
				t.Errorf("%q does not name %s", row, clients[i])
			}
		}
	})
}

// tunnel makes host a granted one that is not decrypted.
func tunnel(t *testing.T, o *testkit.Operator, host string) {
	t.Helper()
	o.Write(t, "repo/foldyard.toml", 0o644, fmt.Appendf(nil, "[project]\nname = \"tunnel\"\n[proxy]\npassthrough = [%q]\n", host))
	o.Must(t, "config", "adopt")
	o.Must(t, "allow", host)
}

// doctor returns what the rows of each name say.
func doctor(t *testing.T, o *testkit.Operator) map[string][]string {
	t.Helper()
	r := o.FY(t.Context(), "doctor", "--json")
	var rows []struct{ Name, State, Detail string }
	if err := json.Unmarshal([]byte(r.Stdout), &rows); err != nil {
		t.Fatalf("%v: %v", err, r)
	}
	out := map[string][]string{}
	for _, row := range rows {
		out[row.Name] = append(out[row.Name], row.State+" "+row.Detail)
	}
	return out
}
