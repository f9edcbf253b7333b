package capture

import "strings"

// Beyond its records a second a box has this many more, so that a flood of one kind does not hide another. Each is for a second.
const (
	floodKept     = 64 // that carry a credential or an alert
	floodRefused  = 64 // refusals and would-be refusals, whose targets the box invents
	floodKinds    = 64 // the first allowed one of each kind
	floodSegments = 64 // the first allowed one below each first segment of a path
	floodTargets  = 32 // `limit` records, each for one host and port; what is left shares one more
)

// kind is what tells one allowed record from another. Its values are few for one target: a box cannot use them up without targets.
type kind struct {
	host, scheme, method, reason, injected string
	port                                   uint16
	status                                 int // the hundreds
}

type below struct {
	kind
	first string
}

type target struct {
	host string
	port uint16
}

// flood is what one box has beyond its records in one second. Its zero value is ready.
type flood struct {
	kept, refused int
	kinds         map[kind]struct{}
	segments      map[below]struct{}
	targets       map[target]*sum
	rest          sum
}

// sum stands for records that are no lines.
type sum struct{ records, denied, sent, got int64 }

func (s *sum) add(r *Record) {
	s.records++
	if r.Verdict == VerdictDeny {
		s.denied += int64(times(r))
	}
	if n, ok := r.ReqBytes.Get(); ok {
		s.sent += n
	}
	if n, ok := r.RespBytes.Get(); ok {
		s.got += n
	}
}

// admit tells whether r becomes a line all the same. What does not is summed.
func (f *flood) admit(r *Record) bool {
	switch {
	case r.Via == ViaDNS: // its names are the box's to invent, and it reaches nobody
	case r.keep() && f.kept < floodKept:
		f.kept++
		return true
	case r.Verdict == VerdictAllow:
		if f.first(r) {
			return true
		}
	case r.Verdict != "" && f.refused < floodRefused:
		f.refused++
		return true
	}
	f.sum(r)
	return false
}

// keep tells the records that a flood of requests is not to hide, however many of their kind there were.
func (r *Record) keep() bool { return r.Injected != "" || r.Replayed || r.alert() }

func (f *flood) first(r *Record) bool {
	k := kind{r.Host, r.Scheme, common(r.Method), r.Reason, r.Injected, r.Port, r.Status / 100}
	return note(&f.kinds, k, floodKinds) || note(&f.segments, below{k, firstSegment(r.Path)}, floodSegments)
}

// note tells whether k is new and there was room for it.
func note[K comparable](seen *map[K]struct{}, k K, most int) bool {
	if _, ok := (*seen)[k]; ok || len(*seen) >= most {
		return false
	}
	if *seen == nil {
		*seen = make(map[K]struct{})
	}
	(*seen)[k] = struct{}{}
	return true
}

// common returns a method that many use, or "" for those that a box may invent.
func common(method string) string {
	switch method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		return method
	}
	return ""
}

func firstSegment(path string) string {
	path = strings.TrimPrefix(path, "/")
	if i := strings.IndexAny(path, "/?"); i >= 0 {
		path = path[:i]
	}
	return path
}

func (f *flood) sum(r *Record) {
	if r.Verdict != VerdictAllow || r.Via == ViaDNS {
		f.rest.add(r)
		return
	}
	at := target{r.Host, r.Port}
	s := f.targets[at]
	if s == nil && len(f.targets) < floodTargets {
		if f.targets == nil {
			f.targets = make(map[target]*sum)
		}
		s = new(sum)
		f.targets[at] = s
	}
	if s == nil {
		s = &f.rest
	}
	s.add(r)
}

// lines gives emit the `limit` records.
func (f *flood) lines(emit func(*Record)) {
	for at, s := range f.targets {
		r := s.record()
		r.Host, r.Port = at.host, at.port
		emit(r)
	}
	if f.rest.records > 0 {
		emit(f.rest.record())
	}
}

func (s *sum) record() *Record {
	return &Record{
		Mode: ModeNone, Reason: reasonLimit, DeniedTimes: int(s.denied), Error: foldedText(s.records),
		ReqBytes: N(s.sent), RespBytes: N(s.got),
	}
}
