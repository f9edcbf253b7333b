package config

import (
	"encoding/json"
	"reflect"
	"strings"
)

// Schema returns the JSON Schema of foldyard.toml.
func Schema() []byte { return schemaOf(reflect.TypeFor[File](), false, FileName) }

// OperatorSchema returns the JSON Schema of config.toml.
func OperatorSchema() []byte { return schemaOf(reflect.TypeFor[Operator](), true, "config.toml") }

func schemaOf(t reflect.Type, operator bool, title string) []byte {
	s := schema(t, operator, "")
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = title
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // strings, numbers and maps of them always encode
	}
	return append(data, '\n')
}

func schema(t reflect.Type, operator bool, enum string) map[string]any {
	switch t {
	case reflect.TypeFor[Enforce]():
		return map[string]any{"enum": []any{true, false, "learn"}}
	case reflect.TypeFor[Size]():
		return map[string]any{"type": "string", "pattern": "^[1-9][0-9]*([KMGT]i)?B$"}
	case reflect.TypeFor[ShortDuration](), reflect.TypeFor[Port](), reflect.TypeFor[Mount]():
		return map[string]any{"type": "string"}
	case reflect.TypeFor[Recommended]():
		return map[string]any{"anyOf": []any{map[string]any{"type": "string"}, object(t, operator)}}
	}
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int:
		return map[string]any{"type": "integer"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schema(t.Elem(), operator, enum)}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schema(t.Elem(), operator, enum)}
	case reflect.Struct:
		return object(t, operator)
	default:
		s := map[string]any{"type": "string"}
		if enum != "" {
			s["enum"] = strings.Split(enum, ",")
		}
		return s
	}
}

func object(t reflect.Type, operator bool) map[string]any {
	properties := map[string]any{}
	for f := range t.Fields() {
		name := f.Tag.Get("toml")
		if name == "" || f.Tag.Get("operator") != "" && !operator {
			continue
		}
		p := schema(f.Type, operator, f.Tag.Get("enum"))
		p["description"] = f.Tag.Get("doc")
		properties[name] = p
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}
