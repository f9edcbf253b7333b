package inject

import (
	"encoding/json"
	"fmt"
	"log/slog"
)

// Secret is a value that must not be seen: however it is printed, logged or
// encoded, a placeholder comes out. Only Reveal gives its text. The zero
// Secret is none.
type Secret struct{ p *plain }

// plain is behind a pointer so that a print of what holds a Secret shows an
// address.
type plain struct{ b []byte }

const shown = "[secret]"

// NewSecret takes b over: the caller must not use it again.
func NewSecret(b []byte) Secret { return Secret{&plain{b}} }

// IsZero reports whether there is no value, or an empty one.
func (s Secret) IsZero() bool { return s.p == nil || len(s.p.b) == 0 }

// Len returns the length in bytes.
func (s Secret) Len() int {
	if s.p == nil {
		return 0
	}
	return len(s.p.b)
}

// Reveal returns the text. Whoever calls it sees to it that the text goes
// nowhere but to the upstream it is for.
func (s Secret) Reveal() string { return string(s.bytes()) }

func (s Secret) bytes() []byte {
	if s.p == nil {
		return nil
	}
	return s.p.b
}

// Equal reports whether both hold the same value.
func (s Secret) Equal(o Secret) bool { return string(s.bytes()) == string(o.bytes()) }

// Wipe overwrites the value. Copies that Reveal made are out of reach.
func (s Secret) Wipe() { clear(s.bytes()) }

func (s Secret) String() string   { return shown }
func (s Secret) GoString() string { return shown }

// Format implements fmt.Formatter for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(shown)) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(shown) }

// MarshalJSON implements json.Marshaler.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(shown) }

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) { return []byte(shown), nil }
