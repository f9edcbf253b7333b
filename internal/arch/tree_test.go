package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// file is one Go file of the module.
type file struct {
	path  string // from the root of the repository
	pkg   string // cmd/fy, or what follows internal/
	test  bool   // or of the kit for tests
	lines int
	set   *token.FileSet
	ast   *ast.File
}

func (f *file) imports() []string {
	var out []string
	for _, s := range f.ast.Imports {
		if path, err := strconv.Unquote(s.Path.Value); err == nil {
			out = append(out, path)
		}
	}
	return out
}

func (f *file) at(n ast.Node) string {
	p := f.set.Position(n.Pos())
	return f.path + ":" + strconv.Itoa(p.Line)
}

type tree struct{ files []*file }

func (t *tree) packages() []string {
	var out []string
	for _, f := range t.files {
		out = append(out, f.pkg)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// load parses the Go files of every platform, tests too.
func load(t *testing.T) *tree {
	t.Helper()
	out := &tree{}
	each(t, func(path string, data []byte) {
		if !strings.HasSuffix(path, ".go") {
			return
		}
		dir := filepath.Dir(path)
		if !strings.HasPrefix(dir, "internal/") && !strings.HasPrefix(dir, "cmd/") && dir != "docs" {
			return // the programs under test/ are not the product's
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, path, data, parser.ParseComments)
		if err != nil {
			t.Errorf("parse %s: %v", path, err)
			return
		}
		out.files = append(out.files, &file{
			path: path, pkg: strings.TrimPrefix(dir, "internal/"),
			test:  strings.HasSuffix(path, "_test.go") || dir == "internal/testkit",
			lines: strings.Count(string(data), "\n"), set: set, ast: parsed,
		})
	})
	return out
}

// each calls f for every file of the repository: no .git, nothing that was
// built, no binary.
func each(t *testing.T, f func(path string, data []byte)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", ".cache"}, rel) || d.Name() == "testdata" || d.Name() == "node_modules" {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if err != nil || info.Size() > 4<<20 {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !slices.Contains(data[:min(len(data), 8000)], 0) {
			f(filepath.ToSlash(rel), data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
