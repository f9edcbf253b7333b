package capture

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	readBound   = 4 * maxLine // no line of ours is longer; a longer one is damaged
	followEvery = 200 * time.Millisecond
)

// Filter chooses records. The zero Filter chooses all of egress.jsonl and what was rotated from it.
type Filter struct {
	Since, Until time.Time // either may be zero; Since counts, Until does not
	Denied       bool      // refusals only
	Host         string    // this host, or with "*." in front every name below it
	Box          string
	Audit        bool // read audit.jsonl instead, which keeps refusals and injections longer

	// Damaged is told of lines that are no records, which are skipped. It may be nil.
	Damaged func(file string, line int)
}

// Match tells whether the filter chooses r.
func (f *Filter) Match(r *Record) bool {
	switch {
	case !f.Since.IsZero() && r.TS.Before(f.Since):
	case !f.Until.IsZero() && !r.TS.Before(f.Until):
	case f.Denied && r.Verdict != VerdictDeny:
	case f.Box != "" && r.Box != f.Box:
	case f.Host != "" && !matchHost(f.Host, r.Host):
	default:
		return true
	}
	return false
}

func matchHost(want, host string) bool {
	if suffix, ok := strings.CutPrefix(want, "*"); ok && strings.HasPrefix(suffix, ".") {
		return len(host) > len(suffix) && strings.EqualFold(host[len(host)-len(suffix):], suffix)
	}
	return strings.EqualFold(want, host)
}

func (f *Filter) name() string {
	if f.Audit {
		return "audit"
	}
	return "egress"
}

// Read calls fn with the records of the log in dir that f chooses, oldest first, until fn fails. A log that was never written
// has no records. Lines that are no records, events of the audit trail among them, are skipped.
func Read(ctx context.Context, dir string, f Filter, fn func(*Record) error) error {
	current, err := openCurrent(dir, f.name())
	if err != nil {
		return err
	}
	defer current.close()
	if err := readRotated(ctx, dir, &f, current, fn); err != nil {
		return err
	}
	if current.f == nil {
		return nil
	}
	return current.read(ctx, &f, fn)
}

// Follow is Read that goes on with what is written from then on, also after a rotation, until ctx ends; it returns ctx's error.
func Follow(ctx context.Context, dir string, f Filter, fn func(*Record) error) error {
	current, err := openCurrent(dir, f.name())
	if err != nil {
		return err
	}
	defer func() { current.close() }()
	if err := readRotated(ctx, dir, &f, current, fn); err != nil {
		return err
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		next, err := current.successor(dir, f.name()) // before reading: what it held at the end is then read for sure
		if err != nil {
			return err
		}
		if current.f != nil {
			if err := current.read(ctx, &f, fn); err != nil {
				return errors.Join(err, next.close())
			}
		}
		if next != nil {
			_ = current.close() // only read
			current = next
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// readRotated reads the rotated segments that are not the one already open.
func readRotated(ctx context.Context, dir string, f *Filter, current *tail, fn func(*Record) error) error {
	old, err := rotated(dir, f.name())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, s := range old {
		if !f.Since.IsZero() && s.end.Before(f.Since) {
			continue
		}
		t, err := openRotated(s.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		if !t.same(current) {
			err = t.read(ctx, f, fn)
		}
		_ = t.close() // only read
		if err != nil {
			return err
		}
	}
	return nil
}

// tail is a segment that is being read. Its f is nil when there is no such file yet.
type tail struct {
	f    *os.File
	br   *bufio.Reader
	part []byte // of a line whose end is not there yet
	skip bool   // the line is too long
	line int
}

func openCurrent(dir, name string) (*tail, error) {
	t, err := openSegment(filepath.Join(dir, name+plainSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return &tail{}, nil
	}
	return t, err
}

// openRotated opens a segment that may just have been compressed.
func openRotated(path string) (*tail, error) {
	t, err := openSegment(path)
	if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(path, plainSuffix) {
		return openSegment(path + ".gz")
	}
	return t, err
}

func openSegment(path string) (*tail, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	var r io.Reader = f
	if err == nil && strings.HasSuffix(path, gzipSuffix) {
		r, err = gzip.NewReader(f)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read log %s: %w", path, err), f.Close())
	}
	return &tail{f: f, br: bufio.NewReaderSize(r, maxLine)}, nil
}

func (t *tail) close() error {
	if t == nil || t.f == nil {
		return nil
	}
	return t.f.Close()
}

func (t *tail) same(o *tail) bool {
	if t.f == nil || o.f == nil {
		return false
	}
	a, err := t.f.Stat()
	if err != nil {
		return false
	}
	b, err := o.f.Stat()
	return err == nil && os.SameFile(a, b)
}

// successor returns the segment after t, once t is no longer the one that grows; nil while it is.
func (t *tail) successor(dir, name string) (*tail, error) {
	now, err := openCurrent(dir, name)
	if err != nil || now.f == nil {
		return nil, err
	}
	if t.same(now) {
		return nil, now.close()
	}
	if t.f == nil {
		return now, nil
	}
	old, err := rotated(dir, name)
	if err != nil {
		return nil, errors.Join(err, now.close())
	}
	for i, s := range old {
		info, err := os.Stat(s.path)
		have, herr := t.f.Stat()
		if err != nil || herr != nil || !os.SameFile(info, have) || i+1 == len(old) {
			continue
		}
		next, err := openRotated(old[i+1].path) // several rotations since the last look
		if err != nil {
			return nil, errors.Join(err, now.close())
		}
		return next, now.close()
	}
	return now, nil
}

// read calls fn with the records up to the end of what is there. A last line without its newline waits for the rest.
func (t *tail) read(ctx context.Context, f *Filter, fn func(*Record) error) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		part, err := t.br.ReadSlice('\n')
		if !t.skip && len(t.part)+len(part) > readBound {
			t.skip = true
			t.part = nil
		}
		if !t.skip {
			t.part = append(t.part, part...)
		}
		switch {
		case err == nil:
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			return nil
		default: // of a gzip, too: what could be read was
			t.damaged(f)
			return nil
		}
		t.line++
		line, skipped := t.part, t.skip
		t.part, t.skip = t.part[:0], false
		if skipped {
			t.damaged(f)
			continue
		}
		r, ok := decode(line)
		if !ok {
			t.damaged(f)
			continue
		}
		if r != nil && f.Match(r) {
			if err := fn(r); err != nil {
				return err
			}
		}
	}
}

func (t *tail) damaged(f *Filter) {
	if f.Damaged != nil {
		f.Damaged(t.f.Name(), t.line)
	}
}

// decode parses a line. An event of the audit trail is fine and no record.
func decode(line []byte) (*Record, bool) {
	var v struct {
		Record
		Event string `json:"event"`
	}
	if err := json.Unmarshal(line, &v); err != nil || v.TS.IsZero() {
		return nil, false
	}
	if v.Event != "" {
		return nil, true
	}
	return &v.Record, true
}

// wholeLine tells whether b, without its newline, is a line of ours.
func wholeLine(b []byte) bool {
	_, ok := decode(b)
	return ok
}
