//go:build e2e

package lab

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"foldyard/internal/testkit"
)

// gitRoot is where git.test keeps its repositories.
var gitRoot string

// gitSite serves the repositories below root by git's own CGI program.
func gitSite(root string) http.Handler {
	gitRoot = root
	path, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return http.NotFoundHandler()
	}
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=box"},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/info/lfs/") {
			large(w, r)
			return
		}
		// CGI knows no chunked bodies.
		f, err := os.CreateTemp(root, "body-")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer os.Remove(f.Name())
		defer f.Close()
		n, err := io.Copy(f, r.Body)
		if err == nil {
			_, err = f.Seek(0, io.SeekStart)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		r.Body, r.ContentLength, r.TransferEncoding = f, n, nil
		backend.ServeHTTP(w, r)
	})
}

func TestGit(t *testing.T) {
	need(t, "git")
	if testing.Short() {
		skips.Skip(t, "a push of 60 MB is not short")
	}
	each(t, func(t *testing.T, o *testkit.Operator) {
		bare := filepath.Join(gitRoot, o.User.Name+".git")
		host(t, "git", "init", "-q", "--bare", "-b", "main", bare)
		host(t, "git", "-C", bare, "config", "http.receivepack", "true")
		out, granted := o.Run(t, shell(`
			rm -rf w
			git clone -q https://git.test/`+o.User.Name+`.git w
			cd w
			git config user.email box@box.test
			git config user.name box
			head -c 60000000 /dev/urandom >big
			git add big
			git commit -q -m big
			git push -q origin HEAD:main
			cd ..
			git clone -q https://git.test/`+o.User.Name+`.git again
			cmp w/big again/big && echo the same`)...)
		want(t, out, "the same")
		only(t, granted, "git.test")
		if size := strings.TrimSpace(host(t, "git", "-C", bare, "cat-file", "-s", "main:big")); size != "60000000" {
			t.Errorf("the server has %s bytes", size)
		}
	})
}

var lfsObject = regexp.MustCompile(`^/([^/]+)\.git/info/lfs/objects/([0-9a-f]{64})$`)

// large is an LFS server: its batch API, and the objects, each a file beside
// the repositories.
func large(w http.ResponseWriter, r *http.Request) {
	if m := lfsObject.FindStringSubmatch(r.URL.Path); m != nil {
		path := filepath.Join(gitRoot, m[1]+"-"+m[2])
		if r.Method != http.MethodPut {
			http.ServeFile(w, r, path)
			return
		}
		f, err := os.Create(path)
		if err == nil {
			_, err = io.Copy(f, r.Body)
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
		return
	}
	if !strings.HasSuffix(r.URL.Path, "/objects/batch") {
		http.NotFound(w, r) // no locks
		return
	}
	type link struct {
		Href string `json:"href"`
	}
	type object struct {
		OID     string          `json:"oid"`
		Size    int64           `json:"size"`
		Actions map[string]link `json:"actions"`
	}
	var q struct {
		Operation string   `json:"operation"`
		Objects   []object `json:"objects"`
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for i, o := range q.Objects {
		q.Objects[i].Actions = map[string]link{q.Operation: {"https://git.test" + strings.TrimSuffix(r.URL.Path, "batch") + o.OID}}
	}
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	_ = json.NewEncoder(w).Encode(map[string]any{"transfer": "basic", "objects": q.Objects}) // the client says what is missing
}

func TestLFS(t *testing.T) {
	need(t, "git", "git-lfs")
	each(t, func(t *testing.T, o *testkit.Operator) {
		name := o.User.Name + "large"
		bare := filepath.Join(gitRoot, name+".git")
		host(t, "git", "init", "-q", "--bare", "-b", "main", bare)
		host(t, "git", "-C", bare, "config", "http.receivepack", "true")
		out, granted := o.Run(t, shell(`
			rm -rf w again
			git lfs install >/dev/null
			git clone -q https://git.test/`+name+`.git w
			cd w
			git config user.email box@box.test
			git config user.name box
			git lfs track '*.bin' >/dev/null
			head -c 20000000 /dev/urandom >big.bin
			git add .gitattributes big.bin
			git commit -q -m big
			git push -q origin HEAD:main
			cd ..
			git clone -q https://git.test/`+name+`.git again
			cmp w/big.bin again/big.bin && echo the same`)...)
		want(t, out, "the same")
		only(t, granted, "git.test")
		if pointer := host(t, "git", "-C", bare, "cat-file", "-p", "main:big.bin"); !strings.Contains(pointer, "size 20000000") {
			t.Errorf("no pointer was pushed: %s", pointer)
		}
	})
}
