package supervisor

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"foldyard/internal/egress/policy"
	"foldyard/internal/host/state"
)

func grantFile(host string) policy.File {
	return policy.File{Generation: 3, Enforce: true, Allow: []policy.Entry{{Rule: host, Level: policy.Permanent}}}
}

func opened(t *testing.T) (*effective, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "allow-effective.json")
	e, moved, err := openEffective(path, time.Now())
	if err != nil || moved != "" {
		t.Fatalf("open: %q, %v", moved, err)
	}
	if e.Snapshot().Readable() {
		t.Fatal("a missing policy is readable")
	}
	if err := e.write(grantFile("a.test"), true); err != nil {
		t.Fatal(err)
	}
	if !e.Snapshot().Readable() || e.Snapshot().Generation() != 3 {
		t.Fatal("control: what was written does not hold")
	}
	return e, path
}

func TestDamagedPolicyRefusesAndStays(t *testing.T) {
	e, path := opened(t)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "{", `{"version":1}`, `{"version":99,"enforce":false}`, "[]", `{"version":1,"generation":"x","enforce":null,"allow":{}}`, string(good[:len(good)/2]), string(good) + "{}"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if !e.poll() || e.Snapshot().Readable() || e.Fault() == nil {
			t.Errorf("%q is obeyed", bad)
		}
		if e.poll() {
			t.Errorf("%q: a second look is a change", bad)
		}
		err := e.write(grantFile("b.test"), false)
		if _, ok := errors.AsType[*state.DamagedError](err); !ok {
			t.Errorf("%q: write said %v", bad, err)
		}
		if now, _ := os.ReadFile(path); string(now) != bad {
			t.Errorf("%q was painted over", bad)
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
		if !e.poll() || !e.Snapshot().Readable() || e.Fault() != nil {
			t.Errorf("after %q: a whole file is not obeyed again", bad)
		}
	}
}

func TestDamageIsSeenBeforeTheNextWrite(t *testing.T) {
	e, path := opened(t)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil { // and no poll yet
		t.Fatal(err)
	}
	if err := e.write(grantFile("b.test"), false); err == nil {
		t.Error("damage was painted over")
	}
	if now, _ := os.ReadFile(path); string(now) != "{" {
		t.Errorf("the file holds %q", now)
	}
}

func TestMissingPolicyRefusesUntilTheNextStart(t *testing.T) {
	e, path := opened(t)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if !e.poll() || e.Snapshot().Readable() {
		t.Error("a policy that is gone is obeyed")
	}
	if e.poll() {
		t.Error("a second look is a change")
	}
	if err := e.write(grantFile("b.test"), false); err == nil {
		t.Error("a file that somebody removed was made again")
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is there: %v", err)
	}
	next, moved, err := openEffective(path, time.Now())
	if err != nil || moved != "" || next.write(grantFile("b.test"), true) != nil || !next.Snapshot().Readable() {
		t.Errorf("control: the next start: %q, %v", moved, err)
	}
}

func TestDamagedPolicyIsMovedAsideAtTheStart(t *testing.T) {
	_, path := opened(t)
	if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	e, moved, err := openEffective(path, time.Now())
	if err != nil || moved == "" || e.Snapshot().Readable() {
		t.Fatalf("moved to %q, %v", moved, err)
	}
	if b, err := os.ReadFile(moved); err != nil || !bytes.Equal(b, []byte("half")) {
		t.Errorf("what was damaged is gone: %q, %v", b, err)
	}
	if err := e.write(grantFile("a.test"), true); err != nil || !e.Snapshot().Readable() {
		t.Errorf("control: render anew: %v", err)
	}
}

func TestPolicyOpenToOthersIsRefused(t *testing.T) {
	e, path := opened(t)
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	e.stamp = stamp{} // as if it had been replaced
	if e.poll(); e.Snapshot().Readable() {
		t.Error("a policy that anybody may write is obeyed")
	}
}
