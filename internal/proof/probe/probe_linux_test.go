package probe

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestEveryRowHasItsProbe(t *testing.T) {
	p := &prober{}
	var have []string
	for _, a := range slices.Concat(p.controls(), p.probes()) {
		have = append(have, a.id)
	}
	var want []string
	for _, s := range Specs() {
		if !s.Host {
			want = append(want, s.ID)
		}
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("probes %q\nrows   %q", have, want)
	}
}

// TestRefusesOutsideABox guards the computer that this test runs on: its
// probes would go out.
func TestRefusesOutsideABox(t *testing.T) {
	plan := Plan{Version: Version, Nonce: strings.Repeat("a", 32)}
	if err := mayRun(plan, []string{"eth0"}); err == nil {
		t.Error("probes run beside eth0 without a plan for a box")
	}
	if err := mayRun(plan, nil); err != nil {
		t.Errorf("probes do not run where only loopback is: %v", err)
	}
	plan.InBox = true
	if err := mayRun(plan, []string{"hole0"}); err != nil {
		t.Errorf("a box with a hole must be probed: %v", err)
	}
}

func TestMainReportsWhatIsWrongWithItsPlan(t *testing.T) {
	plans := map[string]string{
		"empty":            ``,
		"no JSON":          `PASS`,
		"other version":    `{"version":99,"nonce":"aaaaaaaaaaaaaaaa"}`,
		"no nonce":         `{"version":1}`,
		"nonce with space": `{"version":1,"nonce":"aaaaaaaa aaaaaaaa"}`,
		"too long":         strings.Repeat(" ", maxPlan+1),
	}
	for name, text := range plans {
		var out bytes.Buffer
		if code := Main(t.Context(), strings.NewReader(text), &out); code != 1 {
			t.Errorf("%s: code %d, want 1", name, code)
		}
		var r Report
		if err := json.Unmarshal(out.Bytes(), &r); err != nil || len(r.Findings) != 1 || r.Findings[0].Outcome != Errored || r.Nonce != "" {
			t.Errorf("%s: %v %+v", name, err, r)
		}
	}
}

func TestForkedCallsTellWhatTheyMet(t *testing.T) {
	tests := []struct {
		name string
		door door
		want Outcome
	}{
		{"works", door{trap: unix.SYS_UMASK, args: [6]uintptr{0o22}}, Reached},
		{"no such call", door{trap: 1 << 20}, Refused},
		{"refused by the kernel", door{trap: unix.SYS_CLOSE, args: [6]uintptr{none}}, Reached}, // EBADF: it ran
		{"not permitted", door{trap: unix.SYS_KILL, args: [6]uintptr{1, 999}}, Reached},        // EINVAL: it ran
	}
	for _, tt := range tests {
		if got, how := call(tt.door); got != tt.want {
			t.Errorf("%s: %s (%s), want %s", tt.name, got, how, tt.want)
		}
	}
	if why := forkWorks(); why != "" {
		t.Error(why)
	}
	for range 200 { // the parent must survive its children
		if o, how := call(door{trap: unix.SYS_UMASK, args: [6]uintptr{0o22}}); o != Reached {
			t.Fatalf("%s %s", o, how)
		}
	}
}

func TestTallyTellsTheWorst(t *testing.T) {
	order := []Outcome{Absent, Refused, Silent, Errored, Reached}
	for i, better := range order {
		for _, worse := range order[i:] {
			for _, pair := range [][2]Outcome{{better, worse}, {worse, better}} {
				var tl tally
				tl.add(pair[0], "a", "x")
				tl.add(pair[1], "b", "y")
				if f := tl.finding(""); f.Outcome != worse {
					t.Errorf("%v gives %s, want %s", pair, f.Outcome, worse)
				}
			}
		}
	}
	var unknown tally
	unknown.add(Refused, "a", "")
	unknown.add("fine", "b", "")
	if f := unknown.finding(""); severity(f.Outcome) < severity(Errored) {
		t.Errorf("an unknown outcome counts as %s", f.Outcome)
	}
	var nothing tally
	if f := nothing.finding("why"); f.Outcome != Skipped || f.Detail != "why" {
		t.Errorf("%+v", f)
	}
}

func TestErrorsAreRefusalsOnlyWhenTheySaySo(t *testing.T) {
	for err, want := range map[unix.Errno]Outcome{
		unix.ECONNREFUSED: Refused, unix.ENETUNREACH: Refused, unix.EPERM: Refused, unix.EROFS: Refused, unix.ENOENT: Absent,
		unix.ETIMEDOUT: Silent, unix.EMFILE: Errored, unix.ENOBUFS: Errored, unix.ENOMEM: Errored, unix.EINTR: Errored,
	} {
		if got, _ := fromError(err); got != want {
			t.Errorf("%v is %s, want %s", err, got, want)
		}
	}
	if got, _ := fromError(nil); got != Reached {
		t.Errorf("no error is %s", got)
	}
}

// TestOwnServiceOnLoopbackIsNoHole: a box may listen on any port of its own
// loopback. The tag goes out all the same, so that the host would hear it.
func TestOwnServiceOnLoopbackIsNoHole(t *testing.T) {
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	heard := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		buf := make([]byte, 1024)
		n, _ := c.Read(buf)
		id, _ := ParseTag(buf[:n], strings.Repeat("n", 32))
		heard <- id
	}()
	p := &prober{plan: Plan{Nonce: strings.Repeat("n", 32)}}
	var tl tally
	p.tcp(&tl, "tcp4-host-loopback", unix.SOCK_STREAM, 0, l.Addr().(*net.TCPAddr).AddrPort())
	if f := tl.finding(""); f.Outcome != Refused {
		t.Errorf("%+v", f)
	}
	if id := <-heard; id != "tcp4-host-loopback" {
		t.Errorf("the listener heard %q", id)
	}
}

func TestScanRepoFindsSecretsAndTellsNone(t *testing.T) {
	repo := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(repo, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	secret := map[string]string{
		".git/config":             "[http \"https://example.com/\"]\n\textraheader = AUTHORIZATION: basic CANARY\n",
		".git/modules/sub/config": "[remote \"origin\"]\n\turl = https://user:CANARY@example.com/r.git\n",
		".npmrc":                  "//packages.example.com/:_authToken=npm_CANARYCANARY\n",
		".netrc":                  "machine example.com login me password CANARY\n",
		".pypirc":                 "[pypi]\npassword = CANARY1\n",
		".git-credentials":        "https://me:CANARY@example.com\n",
		".env":                    "DEBUG=1\nexport API_KEY='CANARY-real-value'\n",
		"app/.env.local":          "DB_PASSWORD=CANARYCANARY\n",
		"deploy/id_ed25519":       "-----BEGIN OPENSSH PRIVATE KEY-----\nCANARY\n",
		"deploy/server.pem":       "-----BEGIN CERTIFICATE-----\nx\n-----BEGIN RSA PRIVATE KEY-----\nCANARY\n",
	}
	clean := map[string]string{
		"sub/.npmrc":            "//packages.example.com/:_authToken=${NPM_TOKEN}\n",
		"sub/.env":              "API_KEY=your-key-here\nSECRET=$FROM_ELSEWHERE\nTOKEN=dummy-github\nNAME=not-a-secret-name\n",
		".env.example":          "API_KEY=looks-very-real-12345\n",
		"public.pem":            "-----BEGIN CERTIFICATE-----\nx\n",
		"node_modules/x/.npmrc": "//packages.example.com/:_authToken=npm_CANARYCANARY\n",
		"worktree/.git/config":  "[remote \"origin\"]\n\turl = https://example.com/r.git\n[url \"git@example.com:\"]\n\tinsteadOf = x\n",
		"README.md":             "password = CANARY\n",
	}
	for name, text := range secret {
		write(name, text)
	}
	for name, text := range clean {
		write(name, text)
	}
	if err := unix.Mkfifo(filepath.Join(repo, "id_fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(repo, "id_link")); err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, s := range scanRepo(t.Context(), repo) {
		rel, err := filepath.Rel(repo, s.path)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, rel)
		if strings.Contains(s.what, "CANARY") {
			t.Errorf("%s: tells the value", rel)
		}
	}
	for name := range secret {
		if !slices.Contains(found, name) {
			t.Errorf("%s was not found", name)
		}
	}
	for name := range clean {
		if slices.Contains(found, name) {
			t.Errorf("%s was found", name)
		}
	}
	p := &prober{plan: Plan{Repo: repo}}
	f := p.repoSecrets(t.Context(), "repo-secrets")
	if f.Outcome != Noted || strings.Contains(f.Detail, "CANARY") {
		t.Errorf("%+v", f)
	}
}

func TestWalkFindsSocketsAndOtherNamesOfSecrets(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "key")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(secret, filepath.Join(dir, "d", "other-name")); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(fd)
	sock := filepath.Join(dir, "d", "sock")
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: sock}); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(secret, &st); err != nil {
		t.Fatal(err)
	}
	plan := Plan{Secrets: []HostFile{{ID: "secrets", Path: secret, Dev: uint64(st.Dev), Ino: st.Ino}, {ID: "secrets", Path: "/x", Dev: uint64(st.Dev) + 1, Ino: st.Ino}}}
	w := &walker{ctx: t.Context(), end: time.Now().Add(time.Minute), plan: plan, byInode: map[uint64][]int{st.Ino: {0, 1}}}
	w.secrets = map[int][]string{}
	w.dir(dir, 0, nil)
	if !slices.Contains(w.sockets, sock) {
		t.Errorf("sockets %q", w.sockets)
	}
	if !slices.Contains(w.secrets[0], filepath.Join(dir, "d", "other-name")) {
		t.Errorf("secrets %v", w.secrets)
	}
	if len(w.secrets[1]) != 0 {
		t.Errorf("a file of another device counted: %q", w.secrets[1])
	}
}

func TestParseStart(t *testing.T) {
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	if start, err := ParseStart(string(own)); err != nil || start == 0 {
		t.Errorf("own start %d, %v", start, err)
	}
	// A process can choose its name.
	hostile := "7 (a) S 1) b) " + strings.Repeat("1 ", 19) + "4242 0"
	if start, err := ParseStart(hostile); err != nil || start != 4242 {
		t.Errorf("hostile name: %d, %v", start, err)
	}
	for _, bad := range []string{"", "7 (x", "7 (x) S 1 2", "7 (x) " + strings.Repeat("y ", 30)} {
		if _, err := ParseStart(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func FuzzParseTag(f *testing.F) {
	f.Add([]byte(Tag("aaaaaaaaaaaaaaaa", "tcp4-direct")))
	f.Add([]byte("GET / HTTP/1.1\r\nX-Probe: foldyard-probe aaaaaaaaaaaaaaaa udp443\r\n"))
	f.Add([]byte("foldyard-probe aaaaaaaaaaaaaaaa "))
	f.Fuzz(func(t *testing.T, data []byte) {
		id, ok := ParseTag(data, "aaaaaaaaaaaaaaaa")
		if ok && (strings.ContainsAny(id, "\r\n") || !bytes.Contains(data, []byte("foldyard-probe aaaaaaaaaaaaaaaa "+id))) {
			t.Errorf("%q gives %q", data, id)
		}
	})
}

func TestParseTagKnowsItsOwnNonceOnly(t *testing.T) {
	if id, ok := ParseTag([]byte("x"+Tag("aaaaaaaaaaaaaaaa", "udp443")+"y"), "aaaaaaaaaaaaaaaa"); !ok || id != "udp443" {
		t.Errorf("%q %v", id, ok)
	}
	if _, ok := ParseTag([]byte(Tag("bbbbbbbbbbbbbbbb", "udp443")), "aaaaaaaaaaaaaaaa"); ok {
		t.Error("another run's nonce counted")
	}
}

func FuzzAnswers(f *testing.F) {
	q, err := question("control.foldyard.internal", 1)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(q)
	f.Fuzz(func(t *testing.T, reply []byte) {
		addrs, other := answers(reply)
		p := &prober{}
		if o, _ := p.judgeDNS(reply); o == Refused {
			t.Errorf("no prefix is synthetic, yet %v %v counts as ours", addrs, other)
		}
	})
}

// Of another's descriptors an owner may see the numbers, nobody what they are.
func TestDescriptorsThatCanBeGotAtAreFound(t *testing.T) {
	for _, owner := range []bool{true, false} {
		var open, none tally
		tryDescriptors(&open, "/proc/self/fd", owner)
		if f := open.finding(""); f.Outcome != Reached {
			t.Errorf("our own, owner %v: %+v", owner, f)
		}
		tryDescriptors(&none, "/proc/self/no-such-directory", owner)
		if f := none.finding(""); f.Outcome == Reached {
			t.Errorf("none, owner %v: %+v", owner, f)
		}
	}
}

// What is not tried since the box may do it is not shown, and what nobody named does not apply.
func TestPermittedAddressesShowNothing(t *testing.T) {
	for _, permitted := range []bool{true, false} {
		p := &prober{plan: Plan{Permitted: permitted}}
		got := p.each(t.Context(), []attempt{{"tcp4-direct", p.tcp4Direct}})[0].Outcome
		if want := map[bool]Outcome{true: Errored, false: Skipped}[permitted]; got != want {
			t.Errorf("permitted %v: %s, want %s", permitted, got, want)
		}
	}
}

// foldyard's own refusal is one where the wall hands the connection to it, and nowhere else.
func TestRefusalOfFoldyardCountsWhereItIsHanded(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\nProxy-Status: foldyard; error=x\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
	outside := netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		handed []netip.Prefix
		want   Outcome
	}{
		{[]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Refused},
		{[]netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, Reached},
		{nil, Reached},
	} {
		conn, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		p := &prober{plan: Plan{Nonce: "n", Redirected: c.handed}}
		if got := p.whoAnswersConn(conn, "x", outside); got != c.want {
			t.Errorf("handed over %v: %s, want %s", c.handed, got, c.want)
		}
		_ = conn.Close()
	}
}
