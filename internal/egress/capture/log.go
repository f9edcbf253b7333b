package capture

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

// Options of a Log. A zero field means its default.
type Options struct {
	MaxSize   int64 // bytes of a segment of egress.jsonl before it is rotated; 64 MiB
	Keep      int   // rotated segments kept; 10
	AuditSize int64 // the same for audit.jsonl; 16 MiB
	AuditKeep int   // the same for audit.jsonl; 10
	Compress  bool  // gzip rotated segments
	Rate      int   // records a second and box, of the rest those that differ and are not more than flood.go says; 200
	Queue     int   // bytes waiting to be written, beyond which records are dropped; 8 MiB
	Now       func() time.Time
}

// DefaultRate is how many records a box may have a second.
const DefaultRate = 200

// DefaultQueue is how many bytes may wait to be written.
const DefaultQueue = 8 << 20

const (
	flushEvery  = 50 * time.Millisecond
	reopenEvery = time.Second
	keepBuffer  = 256 << 10
)

// Stats tells how a Log fares.
type Stats struct {
	Written uint64 // lines of egress.jsonl
	Folded  uint64 // records that became part of another's line
	Over    uint64 // those of them that were beyond a box's records a second
	Dropped uint64 // records lost, since the queue was full or the disk refused
	Queued  int    // bytes waiting
	Err     string // why writing fails at present; "" when it does not
}

// Log writes records to DIR/egress.jsonl, and those about refusals, injections and alerts to DIR/audit.jsonl too. Lines reach
// the file within 100 ms. A Log has one goroutine, which Close ends.
type Log struct {
	now   func() time.Time
	queue int
	wake  chan struct{}
	asked chan chan struct{} // by Flush
	stop  chan struct{}
	done  chan struct{}
	tasks sync.WaitGroup // compressing

	mu     sync.Mutex
	closed bool
	id     []byte // prefix of ids
	seq    uint64
	buf    []byte // lines for egress.jsonl
	audit  []byte // lines for audit.jsonl
	folder *folder
	stats  Stats
	lost   uint64 // dropped and not yet told in a line

	// Owned by the goroutine.
	egress, trail     segments
	spare, spareAudit []byte
	looked            time.Time
}

// Open opens or creates the log in dir, which only one process may write.
func Open(dir string, opt Options) (*Log, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	l := &Log{
		now:    opt.Now,
		queue:  orDefault(opt.Queue, DefaultQueue),
		wake:   make(chan struct{}, 1),
		asked:  make(chan chan struct{}),
		stop:   make(chan struct{}),
		done:   make(chan struct{}),
		id:     []byte(rand.Text()[:10] + "-"),
		folder: newFolder(orDefault(opt.Rate, DefaultRate)),
		egress: segments{dir: dir, name: "egress", max: orDefault(opt.MaxSize, 64<<20), keep: orDefault(opt.Keep, 10)},
		trail:  segments{dir: dir, name: "audit", max: orDefault(opt.AuditSize, 16<<20), keep: orDefault(opt.AuditKeep, 10)},
	}
	if l.now == nil {
		l.now = time.Now
	}
	if opt.Compress {
		l.egress.rotated, l.trail.rotated = l.compress, l.compress
	}
	if err := errors.Join(l.egress.open(), l.trail.open()); err != nil {
		return nil, errors.Join(err, l.egress.close(), l.trail.close())
	}
	go l.run()
	return l, nil
}

func orDefault[T int | int64](n, d T) T {
	if n <= 0 {
		return d
	}
	return n
}

// Put logs r. It gives r an ID and a TS if it has none, keeps nothing of it, and waits for no disk: records beyond what the
// queue holds are dropped and counted.
func (l *Log) Put(r *Record) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.TS.IsZero() {
		r.TS = now
	}
	if r.ID == "" {
		r.ID = l.nextID()
	}
	if l.closed {
		l.stats.Dropped++
		return
	}
	busy := len(l.buf) > 0 || !l.folder.idle()
	if l.folder.admit(r, now) {
		l.append(r)
	} else {
		l.stats.Folded++
	}
	if !busy {
		l.wakeUp()
	}
}

// Audit logs what the operator did, to audit.jsonl only.
func (l *Log) Audit(e *Event) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.TS.IsZero() {
		e.TS = now
	}
	if l.closed || len(l.audit) > l.queue {
		l.stats.Dropped++
		return
	}
	l.audit = appendEvent(l.audit, e)
	l.wakeUp()
}

// Stats returns the counts so far.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Queued, s.Over = len(l.buf)+len(l.audit), l.folder.over
	return s
}

// Close writes what is queued and folded, and closes the files.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	close(l.stop)
	<-l.done
	l.tasks.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stats.Err != "" {
		return fmt.Errorf("close log: %s", l.stats.Err)
	}
	return nil
}

func (l *Log) nextID() string {
	l.seq++
	var b [32]byte
	return string(strconv.AppendUint(append(b[:0], l.id...), l.seq, 36))
}

func (l *Log) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// append queues r as a line if there is room. l.mu is held.
func (l *Log) append(r *Record) {
	if len(l.buf) >= l.queue || len(l.audit) >= l.queue {
		l.stats.Dropped++
		l.lost++
		return
	}
	l.line(r)
}

func (l *Log) line(r *Record) {
	if r.Path != "" {
		safe := *r
		safe.Path = RedactPath(r.Path)
		r = &safe
	}
	start := len(l.buf)
	l.buf = appendRecord(l.buf, r)
	if r.audited() {
		l.audit = append(l.audit, l.buf[start:]...)
	}
	l.stats.Written++
}

// run writes, at most every flushEvery, while there is something to write or to fold.
func (l *Log) run() {
	defer close(l.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		var asked chan struct{}
		select {
		case <-l.wake:
		case asked = <-l.asked:
		case <-l.stop:
			l.finish()
			return
		}
		for more := true; more; {
			if asked == nil {
				timer.Reset(flushEvery)
				select {
				case <-timer.C:
				case asked = <-l.asked:
				case <-l.stop:
					l.finish()
					return
				}
			}
			more = l.flush(false)
			if asked != nil {
				close(asked)
				asked = nil
			}
		}
	}
}

// Flush returns when what was put before is in the files, or lost.
func (l *Log) Flush() {
	done := make(chan struct{})
	select {
	case l.asked <- done:
		<-done
	case <-l.done:
	}
}

func (l *Log) finish() {
	l.flush(true)
	if err := errors.Join(l.egress.close(), l.trail.close()); err != nil {
		l.outcome(err)
	}
}

// flush writes what is due, everything with all, and tells whether it must be called again.
func (l *Log) flush(all bool) bool {
	now := l.now()
	l.mu.Lock()
	l.folder.expire(now, all, func(r *Record) {
		if r.ID == "" {
			r.ID = l.nextID()
		}
		l.append(r)
	})
	if l.lost > 0 {
		r := &Record{TS: now, ID: l.nextID(), Mode: ModeNone, Reason: reasonLimit, Error: strconv.FormatUint(l.lost, 10) + " records were lost: the log could not be written, or not fast enough"}
		l.lost = 0
		l.line(r)
	}
	lines, audit := l.buf, l.audit
	l.buf, l.audit = l.spare[:0], l.spareAudit[:0]
	l.spare, l.spareAudit = nil, nil
	more := !l.folder.idle()
	l.mu.Unlock()

	var errs []error
	if now.Sub(l.looked) >= reopenEvery {
		l.looked = now
		errs = append(errs, l.egress.reopen(), l.trail.reopen())
	}
	errs = append(errs, l.write(&l.egress, lines, now), l.write(&l.trail, audit, now))
	if len(lines)+len(audit) > 0 {
		l.outcome(errors.Join(errs...))
	}
	if cap(lines) <= keepBuffer {
		l.spare = lines
	}
	if cap(audit) <= keepBuffer {
		l.spareAudit = audit
	}
	return more
}

func (l *Log) write(s *segments, lines []byte, now time.Time) error {
	if len(lines) == 0 {
		return nil
	}
	err := s.write(lines, now)
	if err != nil {
		lost := uint64(bytes.Count(lines, []byte{'\n'}))
		l.mu.Lock()
		l.stats.Dropped += lost
		l.lost += lost
		if s == &l.egress {
			l.stats.Written -= lost
		}
		l.mu.Unlock()
	}
	return err
}

// outcome keeps what the last writing met.
func (l *Log) outcome(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Err = ""
	if err != nil {
		l.stats.Err = err.Error()
	}
}

func (l *Log) compress(path string) {
	l.tasks.Go(func() {
		_ = compress(path, l.stop) // a segment that stays as it is can be read as well
	})
}

func foldedText(n int64) string {
	return strconv.FormatInt(n, 10) + " records beyond the limit of a second were folded into this one"
}
