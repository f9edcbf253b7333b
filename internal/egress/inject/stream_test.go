package inject

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"html"
	"io"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
)

// naive masks every byte that belongs to a whole occurrence of a pattern.
func naive(m *matcher, b []byte) []byte {
	hide := make([]bool, len(b))
	for _, p := range m.patterns {
		for i := range b {
			if bytes.HasPrefix(b[i:], p.text) {
				for j := range p.text {
					hide[i+j] = true
				}
			}
		}
	}
	out := bytes.Clone(b)
	for i := range out {
		if hide[i] {
			out[i] = mask
		}
	}
	return out
}

// pieces reads b in pieces whose sizes a seed decides.
type pieces struct {
	b    []byte
	rand *rand.Rand
	most int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := min(1+p.rand.IntN(p.most), len(b), len(p.b))
	copy(b, p.b[:n])
	p.b = p.b[n:]
	if len(p.b) == 0 && p.rand.IntN(2) == 0 {
		return n, io.EOF
	}
	return n, nil
}

func masked(m *matcher) *reader { return newReader(nil, m, func(int) error { return nil }) }

func through(t testing.TB, m *matcher, b []byte, seed uint64, most, buf int) []byte {
	t.Helper()
	r := masked(m)
	r.src = &pieces{b, rand.New(rand.NewPCG(seed, 1)), most}
	var out []byte
	p := make([]byte, buf)
	for {
		n, err := r.Read(p)
		out = append(out, p[:n]...)
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzRedactorAgreesWithNaiveOracle(f *testing.F) {
	f.Add([]byte("s3cr3t-VALUE-0123456789"), []byte("a s3cr3t-VALUE-0123456789 b"), uint64(1), uint8(3), uint16(100))
	f.Add([]byte("abababababababababab"), []byte("xabababababababababababababababababababx"), uint64(2), uint8(1), uint16(4000))
	f.Add([]byte("aaaaaaaaaaaaaaaa"), bytes.Repeat([]byte("a"), 70), uint64(2), uint8(7), uint16(1))
	f.Add([]byte("with space/and+plus=&<>\"q"), []byte(`"with space\/and+plus=\u0026\u003c\u003e\"q"`), uint64(3), uint8(200), uint16(9000))
	f.Fuzz(func(t *testing.T, secret, text []byte, seed uint64, most uint8, buf uint16) {
		if len(secret) < minSecret || len(secret) > 300 || len(text) > 4000 {
			t.Skip()
		}
		m := newMatcher([][]byte{secret, append([]byte("second-"), secret[:9]...)}, minSecret)
		// Splice forms in, so that there is something to find.
		rnd := rand.New(rand.NewPCG(seed, 2))
		for range 3 {
			at := rnd.IntN(len(text) + 1)
			p := m.patterns[rnd.IntN(len(m.patterns))].text
			if rnd.IntN(4) == 0 {
				p = p[:rnd.IntN(len(p))]
			}
			text = append(text[:at:at], append(bytes.Clone(p), text[at:]...)...)
		}
		want := naive(m, text)
		if got := through(t, m, text, seed, 1+int(most), 1+int(buf)); !bytes.Equal(got, want) {
			t.Errorf("secret %q in %q:\n got %q\nwant %q", secret, text, got, want)
		}
		if got := m.redact(string(text), func(int) {}); got != string(want) {
			t.Errorf("at once: got %q, want %q", got, want)
		}
	})
}

// An origin that echoes a credential in another way of writing hands it over. What is written otherwise than here still gets out:
// docs/manual/credentials.md says which.
func TestEchoesInOtherFormsAreMasked(t *testing.T) {
	const secret = "s3cr3t-VALUE/0123<9>"
	m := newMatcher([][]byte{[]byte(secret)}, minSecret)
	each := func(format string) string {
		var b strings.Builder
		for i := range len(secret) {
			fmt.Fprintf(&b, format, secret[i])
		}
		return b.String()
	}
	for name, form := range map[string]string{
		"as it is": secret, "base64": base64.StdEncoding.EncodeToString([]byte(secret)), "percent": url.QueryEscape(secret), "JSON": `s3cr3t-VALUE\/0123\u003c9\u003e`,
		"hex": each("%02x"), "HEX": each("%02X"), "percent, whole": each("%%%02x"), "PERCENT, whole": each("%%%02X"),
		"\\u": each(`\u%04x`), "\\U": each(`\u%04X`), "\\x": each(`\x%02x`),
		"HTML": html.EscapeString(secret), "references": each("&#%d;"), "hex references": each("&#x%x;"), "HEX references": each("&#x%X;"),
	} {
		text := "before " + form + " after"
		r := masked(m)
		r.src = strings.NewReader(text)
		got, err := io.ReadAll(r)
		if err != nil || strings.Contains(string(got), form[:len(form)-8]) || len(got) != len(text) || !strings.HasPrefix(string(got), "before ") {
			t.Errorf("%s: %q came out as %q, %v", name, text, got, err)
		}
	}
	for _, other := range []string{"s3cr3t-VALUE/0123<8>", strings.Repeat("&#115;&#51;", 40), strings.Repeat("%73%33", 40), hex.EncodeToString([]byte("another value of no interest"))} {
		r := masked(m)
		r.src = strings.NewReader(other)
		if got, err := io.ReadAll(r); err != nil || string(got) != other {
			t.Errorf("control: %q came out as %q, %v", other, got, err)
		}
	}
}

func TestEveryFormAtEveryCut(t *testing.T) {
	secret := []byte("p/s+s word&<é>\"0123")
	m := newMatcher([][]byte{secret}, minSecret)
	for _, p := range m.patterns {
		text := append(append([]byte("before "), p.text...), " after"...)
		want := naive(m, text)
		if bytes.Contains(want, p.text) {
			t.Fatalf("form %q is not masked by the oracle itself", p.text)
		}
		for cut := 1; cut < len(text); cut++ {
			r := masked(m)
			r.src = io.MultiReader(bytes.NewReader(text[:cut]), bytes.NewReader(text[cut:]))
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("form %q cut at %d: %q, %v", p.text, cut, got, err)
			}
		}
		r := masked(m)
		r.src = iotest.OneByteReader(bytes.NewReader(text))
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("form %q byte by byte: %q, %v", p.text, got, err)
		}
	}
}

// No oracle: what is not whole passes as it is.
func TestFragmentsAreLeftAlone(t *testing.T) {
	secret := "s3cr3t-VALUE-0123456789"
	m := newMatcher([][]byte{[]byte(secret)}, minSecret)
	for n := 1; n < len(secret); n++ {
		for _, text := range []string{secret[:n], "x" + secret[n:], secret[:n] + secret[:n] + "!"} {
			if strings.Contains(text, secret) {
				continue
			}
			if got := through(t, m, []byte(text), 7, 4, 4096); string(got) != text {
				t.Errorf("%q came out as %q", text, got)
			}
		}
	}
}

// An event must not wait for the next one.
func TestWhatCannotBeTheBeginningPassesAtOnce(t *testing.T) {
	m := newMatcher([][]byte{[]byte("s3cr3t-VALUE-0123456789")}, minSecret)
	pr, pw := io.Pipe()
	defer pw.Close()
	r := masked(m)
	r.src = pr
	for _, event := range []string{"data: 1\n\n", "data: s3cr3t\n\n"} {
		go func() { _, _ = io.WriteString(pw, event) }()
		b := make([]byte, 4096)
		if n, err := r.Read(b); err != nil || string(b[:n]) != event {
			t.Errorf("got %q, %v, want %q", b[:n], err, event)
		}
	}
}

// Somebody who can pause a body finds out what is held back. Beginnings that
// long are told, so that this cannot go on.
func TestGuessingAtABeginningIsTold(t *testing.T) {
	secret := "s3cr3t-VALUE-0123456789"
	m := newMatcher([][]byte{[]byte(secret)}, minSecret)
	for n := 1; n <= len(secret); n++ {
		told := 0
		r := masked(m)
		r.partial = func() { told++ }
		r.src = io.MultiReader(strings.NewReader("x"+secret[:n]), strings.NewReader("!"))
		if _, err := io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		if want := n >= suspicious && n < len(secret); (told > 0) != want {
			t.Errorf("a beginning of %d bytes: told %d times", n, told)
		}
	}
}

func TestTrippedBodyStopsBeforeTheDummy(t *testing.T) {
	m := newMatcher([][]byte{[]byte("dummy-github")}, minDummy)
	stop := errors.New("stop")
	for cut := range 20 {
		r := newReader(nil, m, func(int) error { return stop })
		text := `{"a":"dummy-github"}`
		r.src = io.MultiReader(strings.NewReader(text[:cut]), strings.NewReader(text[cut:]))
		got, err := io.ReadAll(r)
		if !errors.Is(err, stop) || strings.Contains(string(got), "d") {
			t.Errorf("cut at %d: %q, %v", cut, got, err)
		}
	}
}

func TestMatcherWithManyOwners(t *testing.T) {
	var values [][]byte
	for i := range 40 {
		values = append(values, []byte(strings.Repeat(string(rune('A'+i)), 16)+"tail"))
	}
	m := newMatcher(values, minSecret)
	for i, v := range values {
		if owner, ok := m.in("xx" + string(v) + "yy"); !ok || owner != i {
			t.Errorf("%q: owner %d, %v", v, owner, ok)
		}
	}
	if _, ok := m.in("nothing of the kind is in here, whatever it is"); ok {
		t.Error("found what is not there")
	}
	if newMatcher([][]byte{[]byte("short")}, minSecret) != nil {
		t.Error("a short value is searched for")
	}
}

func benchmarkText() []byte {
	var b bytes.Buffer
	rnd := rand.New(rand.NewPCG(1, 1))
	words := strings.Fields(`"id": "name": "description": true, false, null, {"items": [ "https://api.test/repos/x/y", "2026-11-30T12:00:00Z" ] } the quick brown fox jumps over 12345 67890 ghp_ Bearer`)
	for b.Len() < 1<<20 {
		b.WriteString(words[rnd.IntN(len(words))])
		b.WriteByte(' ')
	}
	return b.Bytes()
}

func BenchmarkRedactText(b *testing.B) {
	text := benchmarkText()
	m := newMatcher([][]byte{[]byte("ghp_16C7e42F292c6912E7710c838347Ae178B4a"), []byte("Bearer ghp_16C7e42F292c6912E7710c838347Ae178B4a")}, minSecret)
	b.SetBytes(int64(len(text)))
	buf := make([]byte, 32<<10)
	for b.Loop() {
		r := masked(m)
		r.src = bytes.NewReader(text)
		for {
			if _, err := r.Read(buf); err != nil {
				break
			}
		}
	}
}

// Of a long body the beginning is looked through, and the rest passes.
func TestLookingForDummiesIsBounded(t *testing.T) {
	b := newBench(t, demo())
	for before, found := range map[int]bool{maxScanned - 100: true, maxScanned: false} {
		q := ask("POST https://other.test/\nContent-Type: application/json")
		q.Body = true
		g, refusal := b.Head(t.Context(), q)
		if refusal != nil {
			t.Fatalf("%+v", refusal)
		}
		n, err := io.Copy(io.Discard, g.Request(io.MultiReader(strings.NewReader(strings.Repeat("x", before)), strings.NewReader(theDummy))))
		if (err != nil) != found {
			t.Errorf("after %d bytes: %d passed, %v", before, n, err)
		}
	}
}
