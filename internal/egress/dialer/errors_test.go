package dialer

import (
	"testing"

	"foldyard/internal/egress/dest"
)

// What the log says of a refusal and what the error says agree on whether a grant helps.
func TestNeverTextAgrees(t *testing.T) {
	never := 0
	for c := dest.ClassUnknown; c <= dest.ClassOwn; c++ {
		e := &Error{Kind: KindClass, Target: target(t, "a.test:443"), Class: c}
		if NeverText(e.Error()) != e.Never() {
			t.Errorf("%s: text %v, error %v", c, NeverText(e.Error()), e.Never())
		}
		if e.Never() {
			never++
		}
	}
	if never != 5 {
		t.Errorf("%d classes are never opened", never)
	}
	if e := (&Error{Kind: KindRefused}); e.Never() || NeverText(e.Error()) {
		t.Error("control: a closed port")
	}
}
