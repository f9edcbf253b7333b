package arch

import (
	"go/ast"
	"path/filepath"
	"strings"
	"testing"
)

// homes says where a call, or a value, of the standard library may be used
// outside tests. "nowhere" is nowhere.
var homes = []struct {
	what string // import path, and a name or the start of one with *
	in   string
	why  string
}{
	{"net.Dial*", "egress/dialer host/control proof wall/namespace box/container", "every way out goes through the dialer; the others dial unix sockets, probe, or reach a port inside a container"},
	{"net.Lookup*", "nowhere", "the dialer resolves, once"},
	{"net.Resolver", "nowhere", "the dialer resolves, once"},
	{"net.DefaultResolver", "egress/dialer", "the dialer resolves, once"},
	{"crypto/tls.Dial*", "nowhere", "the dialer does it"},
	{"net/http.DefaultClient", "nowhere", "it reads HTTP_PROXY and has no time limit"},
	{"net/http.DefaultTransport", "nowhere", "it reads HTTP_PROXY"},
	{"net/http.Get", "nowhere", "uses the default client"},
	{"net/http.Post*", "nowhere", "uses the default client"},
	{"net/http.Head", "nowhere", "uses the default client"},
	{"net/http.ProxyFromEnvironment", "nowhere", "the operator's upstream proxy comes from the configuration"},
	{"net/http.ListenAndServe*", "nowhere", "has no time limits"},
	{"os.Exit", "cmd", "deferred calls would not run"},
	{"log.Print*", "nowhere", "log/slog, with a logger that was passed in"},
	{"log.Fatal*", "nowhere", "log/slog, with a logger that was passed in"},
	{"log.Default", "nowhere", "log/slog, with a logger that was passed in"},
	{"log/slog.Default", "nowhere", "a logger that was passed in"},
	{"log/slog.SetDefault", "nowhere", "it is a global"},
	{"os.Getenv", "cmd host/supervisor box wall/namespace testkit", "the environment comes in through cli.Env; the supervisor is a program of its own, box and wall ask what they run in"},
	{"os.LookupEnv", "cmd", "the environment comes in through cli.Env"},
	{"os.Environ", "cmd host/supervisor proof/probe testkit", "the environment comes in through cli.Env; a probe looks at its own"},
	{"os.Setenv", "nowhere", "it is a global"},
	{"time.Sleep", "nowhere", "wait for what you wait for"},
	{"fmt.Print", "nowhere", "output goes to the writers of cli.Env"},
	{"fmt.Printf", "nowhere", "output goes to the writers of cli.Env"},
	{"fmt.Println", "nowhere", "output goes to the writers of cli.Env"},
	{"os.Stdout", "cmd testkit", "output goes to the writers of cli.Env"},
	{"os/exec.*", "host wall machine ui box proof", "nothing on a request's way starts a program"},
	{"text/template.*", "nowhere", "rules and scripts are built from typed values"},
	{"html/template.*", "nowhere", "rules and scripts are built from typed values"},
	{"unsafe.*", "wall proof/probe box/agent box/container ui/term egress/proxy egress/intake/redirect", "system calls only"},
}

func TestCallsHaveOneHome(t *testing.T) {
	for _, f := range load(t).files {
		if f.test {
			continue
		}
		names := localNames(f)
		ast.Inspect(f.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			id, ok := sel.X.(*ast.Ident)
			if !ok || names[id.Name] == "" || id.Obj != nil {
				return true
			}
			for _, h := range homes {
				if matches(h.what, names[id.Name], sel.Sel.Name) && !allowed(strings.Fields(h.in), f) {
					t.Errorf("%s: %s.%s belongs in %s: %s", f.at(n), id.Name, sel.Sel.Name, h.in, h.why)
				}
			}
			return true
		})
	}
}

func matches(what, path, name string) bool {
	i := strings.LastIndexByte(what, '.')
	if what[:i] != path {
		return false
	}
	if start, ok := strings.CutSuffix(what[i+1:], "*"); ok {
		return strings.HasPrefix(name, start)
	}
	return what[i+1:] == name
}

// localNames returns the import path of each name that f's imports have in it.
func localNames(f *file) map[string]string {
	out := map[string]string{}
	for i, path := range f.imports() {
		name := filepath.Base(path)
		if s := f.ast.Imports[i]; s.Name != nil {
			name = s.Name.Name
		}
		out[name] = path
	}
	return out
}

// insecure lists the only places that may switch verification off.
var insecure = map[string]string{
	"proof/probe": "VerifyConnection does it, for a name that is not the SNI",
}

func TestCode(t *testing.T) {
	for _, f := range load(t).files {
		if f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr:
				if id, ok := n.Key.(*ast.Ident); ok && id.Name == "InsecureSkipVerify" && insecure[f.pkg] == "" {
					t.Errorf("%s: InsecureSkipVerify outside tests", f.at(n))
				}
			case *ast.FuncDecl:
				if n.Name.Name == "init" && n.Recv == nil {
					t.Errorf("%s: init function: construct it where it is used", f.at(n))
				}
			case *ast.ImportSpec:
				if n.Name != nil && n.Name.Name == "." {
					t.Errorf("%s: dot import", f.at(n))
				}
			}
			return true
		})
	}
}

func TestPackageDocs(t *testing.T) {
	docs := map[string][]string{}
	tree := load(t)
	for _, f := range tree.files {
		if strings.HasSuffix(f.path, "_test.go") || f.ast.Doc == nil {
			continue
		}
		text := f.ast.Doc.Text()
		docs[f.pkg] = append(docs[f.pkg], f.path)
		want := "Package " + f.ast.Name.Name + " "
		if f.ast.Name.Name == "main" {
			want = "Command "
		}
		if !strings.HasPrefix(text, want) && !strings.HasPrefix(text, strings.TrimSuffix(want, " ")+":") {
			t.Errorf("%s: the package comment begins %.40q, want %q", f.path, text, want)
		}
	}
	for _, p := range tree.packages() {
		if n := len(docs[p]); n != 1 {
			t.Errorf("package %s has %d package comments, want 1: %v", p, n, docs[p])
		}
	}
}

// maxLines is where a file must be split, unless it is listed with a reason.
const maxLines = 800

var longFiles = map[string]string{
	"internal/egress/proxy/protocol_test.go": "the matrix of protocols, to be read as one",
}

func TestFileLength(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range load(t).files {
		seen[f.path] = true
		if f.lines > maxLines && longFiles[f.path] == "" {
			t.Errorf("%s has %d lines, at most %d: split it, or list it here with the reason", f.path, f.lines, maxLines)
		}
		if f.lines <= maxLines && longFiles[f.path] != "" {
			t.Errorf("%s is short enough: take it off the list", f.path)
		}
	}
	for path := range longFiles {
		if !seen[path] {
			t.Errorf("%s is on the list and does not exist", path)
		}
	}
}

// Platform files have a portable counterpart: a package that builds on Linux
// only cannot be imported by one that builds everywhere.
func TestPlatformFiles(t *testing.T) {
	linux, other := map[string]bool{}, map[string]bool{}
	for _, f := range load(t).files {
		if f.test {
			continue
		}
		if strings.HasSuffix(f.path, "_linux.go") {
			linux[f.pkg] = true
		} else {
			other[f.pkg] = true
		}
	}
	for p := range linux {
		if !other[p] {
			t.Errorf("package %s does not exist off Linux", p)
		}
	}
}

// A pattern of a package is compiled at every start of fy, in each of its processes, unless it is made when it is first used.
func TestPatternsAreCompiledOnUse(t *testing.T) {
	for _, f := range load(t).files {
		if f.test {
			continue
		}
		names := localNames(f)
		for _, d := range f.ast.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range g.Specs {
				v, ok := s.(*ast.ValueSpec)
				if !ok {
					continue
				}
				for _, value := range v.Values {
					call, ok := value.(*ast.CallExpr)
					if !ok {
						continue
					}
					if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
						if id, ok := sel.X.(*ast.Ident); ok && names[id.Name] == "regexp" {
							t.Errorf("%s: a pattern that every start compiles; use sync.OnceValue", f.at(call))
						}
					}
				}
			}
		}
	}
}
