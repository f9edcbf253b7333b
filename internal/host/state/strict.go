package state

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// DecodeStrict decodes data, one JSON value and nothing after it, into the
// struct that v points to. Unlike encoding/json it wants every key spelled
// exactly as the field's tag, known, and at most once: json takes
// {"enforce":true,"Enforce":false} as false.
func DecodeStrict(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := walk(dec, reflect.TypeOf(v), "", 0); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the end of the JSON value")
	}
	dec = json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}

const maxDepth = 32

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// walk reads one value and checks its keys against the fields of t; a nil t
// checks only that no key comes twice.
func walk(dec *json.Decoder, t reflect.Type, at string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%s: nested more than %d deep", at, maxDepth)
	}
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t != nil && (reflect.PointerTo(t).Implements(unmarshaler) || reflect.PointerTo(t).Implements(textUnmarshaler)) {
		t = nil
	}
	tok, err := dec.Token()
	if err != nil {
		return unexpectedEOF(err)
	}
	switch tok {
	case json.Delim('{'):
		if err := walkObject(dec, t, at, depth); err != nil {
			return err
		}
	case json.Delim('['):
		var elem reflect.Type
		if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
			elem = t.Elem()
		}
		for i := 0; dec.More(); i++ {
			if err := walk(dec, elem, fmt.Sprintf("%s[%d]", at, i), depth+1); err != nil {
				return err
			}
		}
	default:
		return nil
	}
	_, err = dec.Token() // the closing bracket
	return unexpectedEOF(err)
}

func walkObject(dec *json.Decoder, t reflect.Type, at string, depth int) error {
	var fields map[string]reflect.Type
	if t != nil && t.Kind() == reflect.Struct {
		fields = jsonFields(t)
	}
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return unexpectedEOF(err)
		}
		key, ok := tok.(string)
		if !ok {
			return fmt.Errorf("%s: want a key", at)
		}
		name := strings.TrimPrefix(at+"."+key, ".")
		if seen[key] {
			return fmt.Errorf("key %q comes twice", name)
		}
		seen[key] = true
		var sub reflect.Type
		if fields != nil {
			if sub, ok = fields[key]; !ok {
				return fmt.Errorf("unknown key %q", name)
			}
		} else if t != nil && t.Kind() == reflect.Map {
			sub = t.Elem()
		}
		if err := walk(dec, sub, name, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name == "":
			fields[f.Name] = f.Type
		default:
			fields[name] = f.Type
		}
	}
	return fields
}

func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
