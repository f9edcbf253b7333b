package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	fileVersion = 1
	maxFile     = 16 << 20 // bytes of allow-effective.json
)

// Entry is one grant or denial as the file holds it. Grants of level once must
// expire.
type Entry struct {
	Rule     string     `json:"rule"`
	Level    Level      `json:"level"`
	Expires  *time.Time `json:"expires"`
	Internal bool       `json:"internal"`
	Box      string     `json:"box,omitempty"` // id of the only box it holds for
}

// File is allow-effective.json, what the proxy obeys. Version is set by
// Encode.
type File struct {
	Version     int        `json:"version"`
	Generation  uint64     `json:"generation"`
	Enforce     bool       `json:"enforce"`
	LearnUntil  *time.Time `json:"learn_until,omitempty"` // with Enforce false: when enforcement comes back
	Allow       []Entry    `json:"allow"`
	Deny        []Entry    `json:"deny"`
	Passthrough []string   `json:"passthrough"`
	Intercept   []string   `json:"intercept,omitempty"` // hosts that are always decrypted, on every port
}

// Encode renders f. It refuses what Decode would refuse.
func Encode(f File) ([]byte, error) {
	f.Version = fileVersion
	if f.Allow == nil {
		f.Allow = []Entry{}
	}
	if f.Deny == nil {
		f.Deny = []Entry{}
	}
	if f.Passthrough == nil {
		f.Passthrough = []string{}
	}
	if _, err := compile(f); err != nil {
		return nil, fmt.Errorf("encode policy: %w", err)
	}
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode policy: %w", err)
	}
	if len(b) >= maxFile {
		return nil, errors.New("encode policy: too large")
	}
	return append(b, '\n'), nil
}

// Decode reads and compiles a policy. Every key must be spelled exactly, once;
// required keys must be there, and nothing may follow. On an error the caller
// uses Unreadable.
func Decode(b []byte) (*Snapshot, error) {
	f, err := decode(b)
	if err != nil {
		return nil, fmt.Errorf("decode policy: %w", err)
	}
	s, err := compile(f)
	if err != nil {
		return nil, fmt.Errorf("decode policy: %w", err)
	}
	return s, nil
}

func compile(f File) (*Snapshot, error) {
	if f.Version != fileVersion {
		return nil, fmt.Errorf("version %d, want %d", f.Version, fileVersion)
	}
	s := &Snapshot{readable: true, generation: f.Generation, enforce: f.Enforce}
	if f.LearnUntil != nil {
		if f.LearnUntil.IsZero() {
			return nil, errors.New("learn_until is the zero time")
		}
		s.learnUntil = *f.LearnUntil
	}
	for i, e := range f.Allow {
		c, err := compileEntry(e)
		if err != nil {
			return nil, fmt.Errorf("allow[%d]: %w", i, err)
		}
		s.allow.add(c)
	}
	for i, e := range f.Deny {
		c, err := compileEntry(e)
		if err != nil {
			return nil, fmt.Errorf("deny[%d]: %w", i, err)
		}
		if c.internal {
			return nil, fmt.Errorf("deny[%d]: a denial is not internal", i)
		}
		c.wide = liberal(c.rule.path)
		s.deny.add(c)
	}
	if err := compileHosts(&s.passthrough, f.Passthrough); err != nil {
		return nil, fmt.Errorf("passthrough%w", err)
	}
	if err := compileHosts(&s.intercept, f.Intercept); err != nil {
		return nil, fmt.Errorf("intercept%w", err)
	}
	return s, nil
}

func compileEntry(e Entry) (entry, error) {
	r, err := ParseRule(e.Rule)
	if err != nil {
		return entry{}, err
	}
	if e.Level < Once || e.Level > Permanent {
		return entry{}, errors.New("no level")
	}
	c := entry{rule: r, text: r.String(), level: e.Level, internal: e.Internal, box: e.Box}
	switch {
	case e.Expires != nil && e.Expires.IsZero():
		return entry{}, errors.New("expires at the zero time")
	case e.Expires != nil:
		c.expires = *e.Expires
	case e.Level == Once:
		return entry{}, errors.New("level once without expires")
	}
	return c, nil
}

func compileHosts(x *index, rules []string) error {
	for i, text := range rules {
		r, err := ParseRule(text)
		if err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
		if r.NeedsIntercept() || r.scheme == SchemeHTTP {
			return fmt.Errorf("[%d]: %q: no method, path or http:// here", i, text)
		}
		x.add(entry{rule: r, text: r.String()})
	}
	return nil
}

// decode reads the file token by token, since encoding/json takes keys in any
// case and the last of several.
func decode(b []byte) (File, error) {
	var f File
	switch {
	case len(b) > maxFile:
		return f, errors.New("too large")
	case !utf8.Valid(b):
		return f, errors.New("not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	err := object(d, []field{
		{"version", true, value(&f.Version)},
		{"generation", true, value(&f.Generation)},
		{"enforce", true, value(&f.Enforce)},
		{"learn_until", false, value(&f.LearnUntil)},
		{"allow", true, entries(&f.Allow)},
		{"deny", true, entries(&f.Deny)},
		{"passthrough", true, values(&f.Passthrough)},
		{"intercept", false, values(&f.Intercept)},
	})
	if err != nil {
		return f, err
	}
	if _, err := d.Token(); err != io.EOF {
		return f, errors.New("data after the end")
	}
	return f, nil
}

// field is a key of an object and what reads its value.
type field struct {
	name     string
	required bool
	read     func(*json.Decoder) error
}

func object(d *json.Decoder, fields []field) error {
	if err := delim(d, '{'); err != nil {
		return err
	}
	seen := make([]bool, len(fields))
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		key, _ := t.(string)
		i := 0
		for i < len(fields) && fields[i].name != key {
			i++
		}
		switch {
		case i == len(fields):
			return fmt.Errorf("unknown key %q", key)
		case seen[i]:
			return fmt.Errorf("key %q twice", key)
		}
		seen[i] = true
		if err := fields[i].read(d); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	for i, f := range fields {
		if f.required && !seen[i] {
			return fmt.Errorf("key %q is missing", f.name)
		}
	}
	return delim(d, '}')
}

func delim(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if t != want {
		return fmt.Errorf("got %v, want %v", t, want)
	}
	return nil
}

func array(d *json.Decoder, read func() error) error {
	if err := delim(d, '['); err != nil {
		return err
	}
	for d.More() {
		if err := read(); err != nil {
			return err
		}
	}
	return delim(d, ']')
}

// value reads one scalar; null is an error unless v is a pointer to a pointer.
func value[T any](v *T) func(*json.Decoder) error {
	return func(d *json.Decoder) error {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		if _, pointer := any(v).(**time.Time); !pointer && string(raw) == "null" {
			return errors.New("null")
		}
		return json.Unmarshal(raw, v)
	}
}

func values(list *[]string) func(*json.Decoder) error {
	return func(d *json.Decoder) error {
		*list = []string{}
		return array(d, func() error {
			var s string
			if err := value(&s)(d); err != nil {
				return err
			}
			*list = append(*list, s)
			return nil
		})
	}
}

func entries(list *[]Entry) func(*json.Decoder) error {
	return func(d *json.Decoder) error {
		*list = []Entry{}
		return array(d, func() error {
			var e Entry
			err := object(d, []field{
				{"rule", true, value(&e.Rule)},
				{"level", true, value(&e.Level)},
				{"expires", true, value(&e.Expires)},
				{"internal", true, value(&e.Internal)},
				{"box", false, value(&e.Box)},
			})
			if err != nil {
				return err
			}
			if strings.TrimSpace(e.Box) != e.Box {
				return errors.New("box: not an id")
			}
			*list = append(*list, e)
			return nil
		})
	}
}
