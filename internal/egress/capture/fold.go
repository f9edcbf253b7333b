package capture

import "time"

const (
	foldWindow = 2 * time.Second // how long further refusals of a target wait for their common line
	maxFolds   = 4096            // targets in a burst at once; beyond that refusals are not folded
	rateWindow = time.Second
	reserve    = 10 // one in so many of a box's records a second is not for allowed traffic, so that it cannot hide a refusal
)

// folder decides which records become lines: it folds the refusals of one target in a burst, and what a box has beyond its
// records a second and is like what it had. It is not for concurrent use.
type folder struct {
	rate  int
	boxes map[string]*boxRate
	folds map[foldKey]*fold
	over  uint64 // records beyond a box's rate that became no line
}

type boxRate struct {
	since time.Time
	lines int
	flood flood
}

type foldKey struct {
	box, host, reason string
	via               Via
	port              uint16
}

type fold struct {
	until time.Time
	times int
	last  Record
}

func newFolder(rate int) *folder {
	return &folder{rate: rate, boxes: map[string]*boxRate{}, folds: map[foldKey]*fold{}}
}

// admit tells whether r becomes a line now. What does not comes back from expire.
func (f *folder) admit(r *Record, now time.Time) bool {
	if r.Verdict == VerdictDeny {
		key := foldKey{r.Box, r.Host, r.Reason, r.Via, r.Port}
		if open := f.folds[key]; open != nil {
			open.times += times(r)
			open.last = *r
			return false
		}
		if len(f.folds) < maxFolds {
			f.folds[key] = &fold{until: now.Add(foldWindow)}
		}
	}
	return f.within(r, now)
}

func (f *folder) within(r *Record, now time.Time) bool {
	box := f.boxes[r.Box]
	if box == nil {
		box = &boxRate{since: now}
		f.boxes[r.Box] = box
	}
	most := f.rate
	if r.Verdict == VerdictAllow {
		most -= f.rate / reserve
	}
	if box.lines < most {
		box.lines++
		return true
	}
	if box.flood.admit(r) {
		return true
	}
	f.over++
	return false
}

func times(r *Record) int { return max(1, r.DeniedTimes) }

// expire gives emit the lines that are due: one for each burst, if the box's rate bears it, and those that stand for what boxes
// had beyond their rate. With all, those that are not due too.
func (f *folder) expire(now time.Time, all bool, emit func(*Record)) {
	if !all {
		f.expireBoxes(now, false, emit)
	}
	f.expireFolds(now, all, emit)
	if all { // last, for it counts what the bursts had too much
		f.expireBoxes(now, true, emit)
	}
}

func (f *folder) expireBoxes(now time.Time, all bool, emit func(*Record)) {
	for name, box := range f.boxes {
		if !all && now.Sub(box.since) < rateWindow {
			continue
		}
		box.flood.lines(func(r *Record) {
			r.TS, r.Box = now, name
			emit(r)
		})
		if box.lines == 0 {
			delete(f.boxes, name)
			continue
		}
		*box = boxRate{since: now}
	}
}

func (f *folder) expireFolds(now time.Time, all bool, emit func(*Record)) {
	for key, open := range f.folds {
		if !all && now.Before(open.until) {
			continue
		}
		if open.times == 0 {
			delete(f.folds, key)
			continue
		}
		if open.times > 1 { // one stands for itself
			open.last.DeniedTimes = open.times
		}
		if f.within(&open.last, now) {
			emit(&open.last)
		}
		*open = fold{until: now.Add(foldWindow)}
	}
}

// idle tells that expire has nothing to come back for.
func (f *folder) idle() bool { return len(f.boxes) == 0 && len(f.folds) == 0 }
