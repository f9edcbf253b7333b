package config

import (
	"encoding"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// decoder fills a struct from a tree. It wants each key to be one of the
// struct's toml tags, letter by letter.
type decoder struct {
	*report
	at map[string]pos // of every key that is set, by its dotted path
}

// decode fills the struct that v points to.
func decode(r *report, n *node, v any) map[string]pos {
	d := &decoder{r, map[string]pos{}}
	d.table(n, reflect.ValueOf(v).Elem(), "")
	return d.at
}

// table fills a struct; a key that comes with an old name is taken under its
// new one, with a warning.
func (d *decoder) table(n *node, v reflect.Value, path string) {
	known, old := fieldsOf(v.Type())
	for _, e := range n.entries {
		name := e.key
		at := join(path, name)
		if newer, ok := old[name]; ok {
			if n.get(newer) != nil {
				d.warn(e.pos, at, "is the old name of %s, which is set too: this one is ignored", newer)
				continue
			}
			d.warn(e.pos, at, "is now called %s", newer)
			n.rename(e, newer) // for whoever reads the tree next
			name, at = newer, join(path, newer)
		}
		f, ok := known[name]
		if !ok {
			d.unknown(e, at, known)
			continue
		}
		if f.Tag.Get("operator") != "" && !e.operator {
			d.fault(e.pos, at, "may only be set in the operator's config.toml")
			continue
		}
		d.at[at] = e.pos
		d.value(e.val, v.FieldByIndex(f.Index), at, f)
	}
}

// fieldsOf returns t's fields by their names, and the new name of each old one.
func fieldsOf(t reflect.Type) (known map[string]reflect.StructField, old map[string]string) {
	known, old = map[string]reflect.StructField{}, map[string]string{}
	for f := range t.Fields() {
		name := f.Tag.Get("toml")
		if name == "" {
			continue
		}
		known[name] = f
		if o := f.Tag.Get("old"); o != "" {
			old[o] = name
		}
	}
	return known, old
}

func (d *decoder) unknown(e *entry, at string, known map[string]reflect.StructField) {
	names := slices.Sorted(maps.Keys(known))
	if near := nearest(e.key, names); near != "" {
		d.fault(e.pos, at, "unknown key; the nearest is %s", near)
		return
	}
	if tables := tablesWith(e.key); len(tables) > 0 {
		d.fault(e.pos, at, "unknown key here; it is a key of %s", strings.Join(tables, " and "))
		return
	}
	d.fault(e.pos, at, "unknown key; known are %s", strings.Join(names, ", "))
}

// tablesWith returns the tables of foldyard.toml that have the key.
func tablesWith(key string) []string {
	var tables []string
	for f := range reflect.TypeFor[File]().Fields() {
		t, open, end := f.Type, "[", "]"
		if t.Kind() == reflect.Slice {
			t, open, end = t.Elem(), "[[", "]]"
		}
		if known, _ := fieldsOf(t); known[key].Name != "" {
			tables = append(tables, open+f.Tag.Get("toml")+end)
		}
	}
	return tables
}

func (d *decoder) value(n *node, v reflect.Value, path string, f reflect.StructField) {
	if u, ok := reflect.TypeAssert[encoding.TextUnmarshaler](v.Addr()); ok {
		if n.kind == kindString || n.kind == kindBool && v.Type() == reflect.TypeFor[Enforce]() {
			if err := u.UnmarshalText([]byte(n.text)); err != nil {
				d.fault(n.pos, path, "%s", err)
			}
			return
		}
		if v.Kind() != reflect.Struct || n.kind != kindTable || fieldCount(v.Type()) == 0 {
			d.wrong(n, path, kindString)
			return
		}
	}
	switch v.Kind() {
	case reflect.String:
		if d.want(n, path, kindString) {
			v.SetString(n.text)
			d.enum(n, path, f)
		}
	case reflect.Bool:
		if d.want(n, path, kindBool) {
			v.SetBool(n.text == "true")
		}
	case reflect.Int:
		if d.want(n, path, kindInt) {
			i, err := strconv.ParseInt(strings.ReplaceAll(n.text, "_", ""), 0, 32)
			if err != nil {
				d.fault(n.pos, path, "want a whole number below 2^31, got %s", quote(n.text))
				return
			}
			v.SetInt(i)
		}
	case reflect.Struct:
		if d.want(n, path, kindTable) {
			d.table(n, v, path)
		}
	case reflect.Slice:
		if d.want(n, path, kindArray) {
			d.slice(n, v, path, f)
		}
	case reflect.Map:
		if d.want(n, path, kindTable) {
			d.mapping(n, v, path, f)
		}
	default:
		panic("config: no decoding for " + v.Type().String())
	}
}

func fieldCount(t reflect.Type) int {
	known, _ := fieldsOf(t)
	return len(known)
}

func (d *decoder) slice(n *node, v reflect.Value, path string, f reflect.StructField) {
	v.Set(reflect.MakeSlice(v.Type(), len(n.items), len(n.items)))
	for i, item := range n.items {
		at := path + "[" + strconv.Itoa(i) + "]"
		d.at[at] = item.pos
		d.value(item, v.Index(i), at, f)
	}
}

func (d *decoder) mapping(n *node, v reflect.Value, path string, f reflect.StructField) {
	v.Set(reflect.MakeMap(v.Type()))
	for _, e := range n.entries {
		at := join(path, e.key)
		d.at[at] = e.pos
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(e.val, item, at, f)
		v.SetMapIndex(reflect.ValueOf(e.key), item)
	}
}

func (d *decoder) want(n *node, path string, k kind) bool {
	if n.kind != k {
		d.wrong(n, path, k)
	}
	return n.kind == k
}

func (d *decoder) wrong(n *node, path string, k kind) {
	got := n.kind.String()
	switch n.kind {
	case kindString:
		got = "the string " + quote(n.text)
	case kindBool, kindInt, kindOther:
		got = n.text
	case kindArray, kindTable:
	}
	d.fault(n.pos, path, "want %s, got %s", k, got)
}

func (d *decoder) enum(n *node, path string, f reflect.StructField) {
	list := f.Tag.Get("enum")
	if list == "" {
		return
	}
	names := strings.Split(list, ",")
	if slices.Contains(names, n.text) {
		return
	}
	d.fault(n.pos, path, "unknown value %s; known are %s", quote(n.text), strings.Join(names, ", "))
}
