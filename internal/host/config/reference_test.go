package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const reference = "../../../docs/configuration.md"

// TestReference keeps the manual's table of keys as the code has it:
// UPDATE=1 go test ./internal/host/config writes it again.
func TestReference(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# The configuration files, key by key\n\n" +
		"Generated from the code (`UPDATE=1 go test ./internal/host/config`). `fy config schema` prints the same as a JSON Schema, `fy init` writes a commented file, `fy config check` says what is wrong with yours.\n\n" +
		"## foldyard.toml\n\nIn the project; obeyed only once adopted (`fy config adopt`).\n")
	writeKeys(&b, reflect.TypeFor[File](), "", false)
	b.WriteString("\n## config.toml\n\nThe operator's own. `[projects.NAME]` takes every key of foldyard.toml, and wins. Relative paths are taken from its directory.\n")
	writeKeys(&b, reflect.TypeFor[Operator](), "", true)
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(reference, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(reference)
	if err != nil || !bytes.Equal(got, b.Bytes()) {
		t.Errorf("%s is not what the code says: UPDATE=1 go test writes it (%v)", reference, err)
	}
}

func writeKeys(b *bytes.Buffer, t reflect.Type, path string, operator bool) {
	var tables []reflect.StructField
	rows := 0
	for f := range t.Fields() {
		name := f.Tag.Get("toml")
		if e := elem(f.Type); fieldCount(e) > 0 && e != reflect.TypeFor[Recommended]() {
			tables = append(tables, f)
			continue
		}
		if name == "" {
			continue
		}
		if rows++; rows == 1 {
			fmt.Fprintf(b, "\n| key of `%s` | value | |\n| --- | --- | --- |\n", path)
		}
		doc := f.Tag.Get("doc")
		if old := f.Tag.Get("old"); old != "" {
			doc += " Old name: `" + old + "`."
		}
		if kind := f.Tag.Get("kind"); kind != "" {
			doc += " Of kind " + strings.ReplaceAll(kind, ",", ", ") + "."
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, valueText(f), strings.ReplaceAll(doc, "|", `\|`))
	}
	for _, f := range tables {
		name := f.Tag.Get("toml")
		open, end := "[", "]"
		switch f.Type.Kind() {
		case reflect.Slice:
			open, end = "[[", "]]"
		case reflect.Map:
			name += ".NAME"
		default:
		}
		if elem(f.Type) == reflect.TypeFor[File]() {
			continue // said in words
		}
		writeKeys(b, elem(f.Type), open+strings.TrimLeft(strings.Trim(path, "[]")+"."+name, ".")+end, operator)
	}
}

func elem(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[Port]() || t == reflect.TypeFor[Mount]() {
		return reflect.TypeFor[struct{}]()
	}
	return t
}

func valueText(f reflect.StructField) string {
	if enum := f.Tag.Get("enum"); enum != "" {
		return "`" + strings.ReplaceAll(enum, ",", "` `") + "`"
	}
	switch f.Type {
	case reflect.TypeFor[Enforce]():
		return "`true` `false` `\"learn\"`"
	case reflect.TypeFor[Size]():
		return "size"
	case reflect.TypeFor[ShortDuration]():
		return "duration"
	}
	switch f.Type.Kind() {
	case reflect.Slice:
		return "list"
	case reflect.Map:
		return "table of strings"
	case reflect.Bool:
		return "`true` `false`"
	case reflect.Int:
		return "number"
	default:
		return "string"
	}
}

// Every key has a word of explanation, and the schema knows every key.
func TestSchema(t *testing.T) {
	for name, data := range map[string][]byte{"foldyard.toml": Schema(), "config.toml": OperatorSchema()} {
		var s map[string]any
		if err := json.Unmarshal(data, &s); err != nil {
			t.Fatal(err)
		}
		n := 0
		var visit func(path string, v map[string]any)
		visit = func(path string, v map[string]any) {
			properties, _ := v["properties"].(map[string]any)
			for key, p := range properties {
				p, ok := p.(map[string]any)
				if doc, _ := p["description"].(string); !ok || doc == "" || !strings.HasSuffix(doc, ".") {
					t.Errorf("%s: %s.%s: description %q", name, path, key, doc)
				}
				n++
				visit(path+"."+key, p)
			}
			for _, key := range []string{"items", "additionalProperties"} {
				if p, ok := v[key].(map[string]any); ok {
					visit(path+"[]", p)
				}
			}
		}
		visit("", s)
		if n < 40 {
			t.Errorf("%s: only %d keys", name, n)
		}
		if got := strings.Contains(string(data), `"writable"`); got != (name == "config.toml") {
			t.Errorf("%s: writable is there: %v", name, got)
		}
	}
}

func TestTextRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		port := Port{
			Addr: rapid.SampledFrom([]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1"), netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("2001:db8::1")}).Draw(t, "addr"),
			Host: rapid.Uint16Min(1).Draw(t, "host"), Box: rapid.Uint16Min(1).Draw(t, "box"),
		}
		var again Port
		if err := again.UnmarshalText([]byte(port.String())); err != nil || again != port {
			t.Fatalf("%s: %+v, %v", port, again, err)
		}
		size := Size(rapid.Int64Range(1, 1<<50).Draw(t, "size"))
		var sizeAgain Size
		if err := sizeAgain.UnmarshalText([]byte(size.String())); err != nil || sizeAgain != size {
			t.Fatalf("%s: %d, %v", size, sizeAgain, err)
		}
	})
}

func FuzzPort(f *testing.F) {
	for _, s := range []string{"3000", "8080:80", "127.0.0.1:8080:80", "[::1]:8080:80", "::1:1:2", "0:1", "[::ffff:127.0.0.1]:1:2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var p, again Port
		if p.UnmarshalText([]byte(s)) != nil {
			return
		}
		if p.Host == 0 || p.Box == 0 || !p.Addr.IsValid() || p.Addr.Is4In6() {
			t.Errorf("%q gave %+v", s, p)
		}
		if err := again.UnmarshalText([]byte(p.String())); err != nil || again != p {
			t.Errorf("%q: %s: %v", s, p, err)
		}
	})
}
