package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"foldyard/internal/host/state"
)

// MaxFile bounds foldyard.toml and config.toml, in bytes.
const MaxFile = 1 << 20

// Effective is what foldyard obeys in one project: the adopted foldyard.toml,
// under the operator's settings for the project, over the defaults.
type Effective struct {
	File
	Upstream Upstream
	Log      Log
	Metrics  Metrics
	Secrets  map[string]Source
	Tripwire Tripwire

	// Adopted is true when a foldyard.toml was adopted for this checkout.
	Adopted bool
	// Digest is the SHA-256, in hexadecimal, of the bytes of both files.
	Digest string
	// Tunnels are the rules of Proxy.Passthrough with each @name replaced by
	// what it expanded to at adoption.
	Tunnels []string
	// Warnings are what was deprecated or has no effect.
	Warnings Faults

	at      map[string]pos
	bundles map[string][]string
}

// sources are the bytes that an Effective is made of.
type sources struct {
	repo      []byte // foldyard.toml; nil: none
	repoFile  string // as faults name it
	operator  []byte
	opFile    string
	project   string // whose [projects.X] wins
	bundles   map[string][]string
	directory string // of the project, for mounts
}

// build parses, merges and checks. The faults of both files are told at once.
func (h Host) build(s sources) (*Effective, error) {
	r := &report{}
	repoTree := parseTree(r, s.repoFile, false, s.repo)
	opTree := parseTree(r, s.opFile, true, s.operator)
	decode(r, repoTree, &File{})
	var op Operator
	opAt := decode(r, opTree, &op)

	e := &Effective{File: h.defaults(), at: map[string]pos{}}
	merged := repoTree
	if over := opTree.get("projects"); over != nil && over.val.kind == kindTable {
		checkNames(r, over.val, "projects")
		if p := over.val.get(s.project); p != nil && p.val.kind == kindTable {
			merged = merge(repoTree, p.val)
		}
	}
	quiet := &report{}
	e.at = decode(quiet, merged, &e.File)
	if !r.unreadable() {
		c := &checker{report: &report{}, at: e.at, goos: h.GOOS, dir: s.directory, dirs: h.Layout.Dirs(), bundles: s.bundles}
		c.file(&e.File)
		c.at = opAt
		c.operator(&op, h.Layout.ConfigDir)
		r.addUnrelated(c.report, "projects."+s.project+".")
	}
	if err := r.faults.asError(); err != nil {
		return nil, err
	}
	e.Upstream, e.Log, e.Metrics, e.Secrets, e.Tripwire = op.Upstream, op.Log, op.Metrics, op.Secrets, op.Tripwire
	for k, p := range opAt {
		if !strings.HasPrefix(k, "projects.") && k != "projects" {
			e.at[k] = p
		}
	}
	e.Warnings = r.warnings
	e.expand(s.bundles)
	sum := sha256.New()
	for _, b := range [][]byte{s.repo, s.operator} {
		fmt.Fprintf(sum, "%d\n%s", len(b), b)
	}
	e.Digest = hex.EncodeToString(sum.Sum(nil))
	return e, nil
}

// expand sets what the @names of passthrough stand for.
func (e *Effective) expand(bundles map[string][]string) {
	e.bundles, e.Tunnels = bundles, expand(e.Proxy.Passthrough, bundles)
}

func (h Host) defaults() File {
	return File{
		Machine: Machine{CPUs: defaultCPUs, Memory: defaultMemory, Disk: defaultDisk},
		Proxy:   Proxy{Ask: "refuse", AskTimeout: defaultAskTimeout},
	}
}

// merge returns base with over's settings in place of its own: tables are
// merged key by key, everything else, arrays too, is replaced whole; but an
// [[inject]] of over replaces the one of the same name, or is added.
func merge(base, over *node) *node {
	out := &node{pos: base.pos, kind: kindTable, entries: slices.Clone(base.entries), byKey: maps.Clone(base.byKey)}
	for _, e := range over.entries {
		old := out.get(e.key)
		switch {
		case old != nil && old.val.kind == kindTable && e.val.kind == kindTable:
			out.set(&entry{pos: e.pos, key: e.key, val: merge(old.val, e.val)})
		case old != nil && e.key == "inject" && old.val.kind == kindArray && e.val.kind == kindArray:
			out.set(&entry{pos: e.pos, key: e.key, val: mergeInject(old.val, e.val)})
		default:
			out.set(e)
		}
	}
	return out
}

func mergeInject(base, over *node) *node {
	out := &node{pos: base.pos, kind: kindArray, tables: true, items: slices.Clone(base.items)}
	for _, rule := range over.items {
		i := slices.IndexFunc(out.items, func(n *node) bool { return injectName(n) == injectName(rule) })
		if i >= 0 {
			out.items[i] = rule
		} else {
			out.items = append(out.items, rule)
		}
	}
	return out
}

func injectName(n *node) string {
	if e := n.get("name"); e != nil {
		return e.val.text
	}
	return ""
}

// checkNames refuses names that no project can have, and two that a file
// system without letter case takes for one.
func checkNames(r *report, n *node, path string) {
	seen := map[string]*entry{}
	for _, e := range n.entries {
		if err := state.CheckName(e.key); err != nil {
			r.fault(e.pos, join(path, e.key), "%s", err)
		}
		folded := strings.ToLower(e.key)
		if old := seen[folded]; old != nil {
			r.fault(e.pos, join(path, e.key), "differs only in letter case from %s on line %d", old.key, old.line)
		}
		seen[folded] = e
	}
}

// Origin says where the setting with the dotted key comes from: "default" or
// file:line:col.
func (e *Effective) Origin(key string) string {
	if p, ok := e.at[key]; ok && p.line > 0 {
		return p.String()
	}
	return "default"
}

// Value is one effective setting.
type Value struct {
	Key    string `json:"key"`
	Value  any    `json:"value"`
	Origin string `json:"origin"`
}

// Values returns every setting that is set or has a default of its own, in the
// order of the contract.
func (e *Effective) Values() []Value {
	var out []Value
	op := struct {
		Upstream Upstream          `toml:"upstream"`
		Log      Log               `toml:"log"`
		Metrics  Metrics           `toml:"metrics"`
		Secrets  map[string]Source `toml:"secrets"`
		Tripwire Tripwire          `toml:"tripwire"`
	}{e.Upstream, e.Log, e.Metrics, e.Secrets, e.Tripwire}
	e.flatten(&out, reflect.ValueOf(e.File), "")
	e.flatten(&out, reflect.ValueOf(op), "")
	return out
}

func (e *Effective) flatten(out *[]Value, v reflect.Value, path string) {
	leaf := func(value any) {
		if _, set := e.at[path]; !set && v.IsZero() && path != "proxy.enforce" {
			return
		}
		*out = append(*out, Value{path, value, e.Origin(path)})
	}
	if v.Type() == reflect.TypeFor[Enforce]() {
		if v.Interface() == EnforceLearn {
			leaf("learn")
		} else {
			leaf(v.Interface() == EnforceOn)
		}
		return
	}
	if s, ok := reflect.TypeAssert[fmt.Stringer](v); ok {
		leaf(s.String())
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for f, fv := range v.Fields() {
			if name := f.Tag.Get("toml"); name != "" {
				e.flatten(out, fv, join(path, name))
			}
		}
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, k := range keys {
			e.flatten(out, v.MapIndex(k), join(path, k.String()))
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Struct && v.Type().Elem() == reflect.TypeFor[Inject]() || v.Type().Elem() == reflect.TypeFor[ClientCert]() {
			for i := range v.Len() {
				e.flatten(out, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
			}
			return
		}
		list := []string{}
		for i := range v.Len() {
			list = append(list, fmt.Sprint(v.Index(i).Interface()))
		}
		leaf(list)
	default:
		leaf(v.Interface())
	}
}

// Dummies returns the variables that the [[inject]] rules put into a box, with
// their placeholder values.
func (e *Effective) Dummies() map[string]string {
	env := map[string]string{}
	for _, rule := range e.Inject {
		maps.Copy(env, rule.Env)
	}
	return env
}

// InjectHosts returns the hosts that have an [[inject]] rule, each once: they
// are always intercepted.
func (e *Effective) InjectHosts() []string {
	var hosts []string
	for _, rule := range e.Inject {
		hosts = append(hosts, rule.Hosts...)
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// readOperator returns the bytes of config.toml; none is an empty file.
func (h Host) readOperator() ([]byte, error) {
	data, err := state.ReadFile(h.Layout.OperatorConfig(), MaxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// absolute resolves a path of config.toml.
func absolute(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}
