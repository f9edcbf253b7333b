package config

import (
	"errors"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// kind is what a TOML value is.
type kind uint8

const (
	kindOther kind = iota // dates, times, floats: no setting takes one
	kindString
	kindBool
	kindInt
	kindArray
	kindTable
)

func (k kind) String() string {
	return [...]string{"a date or a fraction", "a string", "true or false", "a whole number", "an array", "a table"}[k]
}

// node is a TOML value with its place. go-toml itself matches keys without
// regard to case and lets the later one win, so this tree keeps what was
// written, and decode compares it letter by letter.
type node struct {
	pos
	kind    kind
	text    string // string, bool, int and other: the value as text
	items   []*node
	entries []*entry // of a table, in the order of the file
	byKey   map[string]*entry
	tables  bool // an array made by [[…]]
	header  bool // a table that had its own [header], or was inline
}

type entry struct {
	pos // of the key
	key string
	val *node
}

func (n *node) get(key string) *entry { return n.byKey[key] }

// add adds an entry whose key n does not have.
func (n *node) add(e *entry) {
	if n.byKey == nil {
		n.byKey = map[string]*entry{}
	}
	n.entries = append(n.entries, e)
	n.byKey[e.key] = e
}

// set adds or replaces the entry of key.
func (n *node) set(e *entry) {
	if old := n.byKey[e.key]; old != nil {
		n.entries[slices.Index(n.entries, old)] = e
		n.byKey[e.key] = e
		return
	}
	n.add(e)
}

// rename gives e, an entry of n, a key that n does not have.
func (n *node) rename(e *entry, key string) {
	delete(n.byKey, e.key)
	e.key = key
	n.byKey[key] = e
}

// Bounds of what is read: no setting comes near them, and reading stays linear
// in the size of the file.
const (
	maxKeyParts = 12
	maxDepth    = 12
	maxKeys     = 5000 // toml.Unmarshal is quadratic in the keys of a table
)

// parser builds the tree of one file.
type parser struct {
	*report
	data     []byte
	file     string
	operator bool
	newlines []int
	seen     int // keys
}

// parseTree parses data. Faults go to r; after a syntax error the tree holds
// what came before it.
func parseTree(r *report, file string, operator bool, data []byte) *node {
	p := &parser{report: r, data: data, file: file, operator: operator}
	for i, c := range data {
		if c == '\n' {
			p.newlines = append(p.newlines, i)
		}
	}
	root := &node{pos: p.at(0), kind: kindTable}
	if i := invalidUTF8(data); i >= 0 {
		p.fault(p.at(i), "", "not UTF-8")
		return root
	}
	before := len(r.faults)
	whole := p.parse(root)
	if p.seen > maxKeys {
		p.fault(p.at(0), "", "more than %d keys", maxKeys)
		return root
	}
	if !whole || len(r.faults) == before {
		// Where the syntax is wrong, and what TOML forbids that this tree
		// does not look for.
		var v map[string]any
		if err := toml.Unmarshal(data, &v); err != nil {
			p.syntax(err)
		} else if !whole {
			p.fault(p.at(0), "", "not TOML")
		}
	}
	return root
}

func invalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// parse fills root and reports whether it could read all of the file.
func (p *parser) parse(root *node) bool {
	var up unstable.Parser
	up.Reset(p.data)
	current, path := root, ""
	for p.seen <= maxKeys && up.NextExpression() {
		e := up.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			current, path = p.header(root, e)
		case unstable.KeyValue:
			p.keyValue(current, path, e, 0)
		default: // comments
		}
	}
	return up.Error() == nil
}

func (p *parser) syntax(err error) {
	at, text := p.at(0), err.Error()
	if de, ok := errors.AsType[*toml.DecodeError](err); ok {
		at.line, at.col = de.Position()
	}
	p.fault(at, "", "not TOML: %s", strings.TrimPrefix(text, "toml: "))
}

func (p *parser) at(offset int) pos {
	line := sort.SearchInts(p.newlines, offset)
	start := 0
	if line > 0 {
		start = p.newlines[line-1] + 1
	}
	return pos{file: p.file, line: line + 1, col: offset - start + 1, operator: p.operator}
}

// header opens the table that a [header] or [[header]] names. After a fault it
// returns a table that belongs to nothing, so that its keys are still read.
func (p *parser) header(root *node, e *unstable.Node) (*node, string) {
	keys := p.keys(e.Key())
	lost := &node{pos: keys[0].pos, kind: kindTable}
	if len(keys) > maxKeyParts {
		p.fault(keys[0].pos, keys[0].key, "a key of more than %d parts", maxKeyParts)
		return lost, ""
	}
	n, path := root, ""
	for _, k := range keys[:len(keys)-1] {
		path = join(path, k.key)
		if n = p.descend(n, k, path); n == nil {
			return lost, path
		}
	}
	last := keys[len(keys)-1]
	path = join(path, last.key)
	old := n.get(last.key)
	table := &node{pos: last.pos, kind: kindTable, header: true}
	if e.Kind == unstable.ArrayTable {
		switch {
		case old == nil:
			last.val = &node{pos: last.pos, kind: kindArray, tables: true, items: []*node{table}}
			n.add(last)
		case !old.val.tables:
			p.fault(last.pos, path, "is already there, on line %d, and not as [[%s]]", old.line, path)
			return lost, path
		default:
			old.val.items = append(old.val.items, table)
		}
		return table, path
	}
	switch {
	case old == nil:
		last.val = table
		n.add(last)
		return table, path
	case old.val.kind == kindTable && !old.val.header:
		old.val.header = true
		return old.val, path
	default:
		p.fault(last.pos, path, "comes twice, first on line %d", old.line)
		return lost, path
	}
}

// descend goes through one part of a dotted key, making the table if need be.
func (p *parser) descend(n *node, k *entry, path string) *node {
	old := n.get(k.key)
	switch {
	case old == nil:
		k.val = &node{pos: k.pos, kind: kindTable}
		n.add(k)
		return k.val
	case old.val.tables:
		return old.val.items[len(old.val.items)-1]
	case old.val.kind == kindTable:
		return old.val
	default:
		p.fault(k.pos, path, "is %s, on line %d, not a table", old.val.kind, old.line)
		return nil
	}
}

func (p *parser) keyValue(n *node, path string, e *unstable.Node, depth int) {
	keys := p.keys(e.Key())
	if len(keys) > maxKeyParts {
		p.fault(keys[0].pos, join(path, keys[0].key), "a key of more than %d parts", maxKeyParts)
		return
	}
	for _, k := range keys[:len(keys)-1] {
		path = join(path, k.key)
		if n = p.descend(n, k, path); n == nil {
			return
		}
	}
	last := keys[len(keys)-1]
	path = join(path, last.key)
	last.val = p.value(e.Value(), last.pos, path, depth)
	if old := n.get(last.key); old != nil {
		p.fault(last.pos, path, "comes twice, first on line %d", old.line)
		return
	}
	n.add(last)
}

func (p *parser) keys(it unstable.Iterator) []*entry {
	var keys []*entry
	for it.Next() {
		k := it.Node()
		p.seen++
		keys = append(keys, &entry{pos: p.at(int(k.Raw.Offset)), key: string(k.Data)})
	}
	return keys
}

func (p *parser) value(v *unstable.Node, at pos, path string, depth int) *node {
	if v.Raw.Length > 0 {
		at = p.at(int(v.Raw.Offset))
	}
	n := &node{pos: at, text: string(v.Data)}
	if depth > maxDepth {
		p.fault(at, path, "nested more than %d deep", maxDepth)
		return n
	}
	switch v.Kind {
	case unstable.String:
		n.kind = kindString
	case unstable.Bool:
		n.kind = kindBool
	case unstable.Integer:
		n.kind = kindInt
	case unstable.Array:
		n.kind = kindArray
		for it := v.Children(); it.Next(); {
			n.items = append(n.items, p.value(it.Node(), at, path+"["+strconv.Itoa(len(n.items))+"]", depth+1))
		}
	case unstable.InlineTable:
		n.kind = kindTable
		n.header = true
		for it := v.Children(); p.seen <= maxKeys && it.Next(); {
			p.keyValue(n, path, it.Node(), depth+1)
		}
	default: // kindOther
	}
	return n
}

// join appends key to a dotted path, quoting what is no bare key.
func join(path, key string) string {
	bare := key != ""
	for _, c := range []byte(key) {
		if !(c == '-' || c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z') {
			bare = false
		}
	}
	if !bare {
		key = quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}
