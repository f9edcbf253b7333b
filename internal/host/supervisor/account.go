package supervisor

import (
	"slices"

	"foldyard/internal/host/control"
)

// account is what its operator should know of a box that has ended.
func (s *Supervisor) account(b *sandbox) control.Stopped {
	out := control.Stopped{ID: b.id, Refused: b.tally.rows()}
	if b.before != nil {
		out.Changed = changedSince(s.opt.Dir, b.before)
	}
	return out
}

// lastWords keeps the accounts of boxes that went before anybody asked for them: a one-shot box ends with its command, and on a busy
// computer before fy run can stop it.
type lastWords struct{ list []control.Stopped }

const maxLastWords = 32

func (l *lastWords) put(w control.Stopped) {
	if len(l.list) == maxLastWords {
		l.list = l.list[1:]
	}
	l.list = append(l.list, w)
}

// take returns the account of a box that is gone, once.
func (l *lastWords) take(id string) control.Stopped {
	i := slices.IndexFunc(l.list, func(w control.Stopped) bool { return w.ID == id })
	if i < 0 {
		return control.Stopped{ID: id, Gone: true}
	}
	w := l.list[i]
	l.list = slices.Delete(l.list, i, i+1)
	w.Gone = true
	return w
}
