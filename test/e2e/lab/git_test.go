//go:build e2e

package lab

import (
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
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
