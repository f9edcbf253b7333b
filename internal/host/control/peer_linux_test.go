package control

import (
	"errors"
	"testing"
)

func TestPeerOfBoxOrOtherUserRefused(t *testing.T) {
	const own = 1000
	ns := func(pid int) (string, error) {
		switch pid {
		case 0, 10:
			return "user:[1] net:[1]", nil
		case 11:
			return "user:[2] net:[1]", nil
		case 12:
			return "user:[1] net:[2]", nil
		}
		return "", errors.New("no such process")
	}
	for _, c := range []struct {
		name     string
		uid, pid int
		ok       bool
	}{
		{"same user, same namespaces", own, 10, true},
		{"root, same namespaces", 0, 10, true},
		{"another user", 1001, 10, false},
		{"nobody (unmapped)", 65534, 10, false},
		{"box's user namespace", own, 11, false},
		{"box's network namespace", own, 12, false},
		{"root in a box's network namespace", 0, 12, false},
		{"gone, or not to be read", own, 13, false},
		{"pid namespace we cannot see", own, 0, false},
		{"negative pid", own, -1, false},
	} {
		if err := judgePeer(c.uid, c.pid, own, ns); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	blind := func(int) (string, error) { return "", errors.New("no /proc") }
	if judgePeer(own, 10, own, blind) == nil {
		t.Error("accepted without knowing the namespaces")
	}
}
