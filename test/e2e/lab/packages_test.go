//go:build e2e

package lab

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/md5" //nolint:gosec // a .deb has no other
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strings"
	"testing"
	"time"

	"foldyard/internal/testkit"
)

// allSites is the internet.
func allSites(dir string) (map[string]http.Handler, error) {
	npm, err := npmSite()
	if err != nil {
		return nil, err
	}
	mods, err := moduleSite()
	if err != nil {
		return nil, err
	}
	debs, err := debSite()
	if err != nil {
		return nil, err
	}
	wheels, err := pipSite()
	if err != nil {
		return nil, err
	}
	crates, err := cargoSite()
	if err != nil {
		return nil, err
	}
	return map[string]http.Handler{
		"web.test": web(), "grpc.test": grpc(), "git.test": gitSite(dir), "npm.test": npm, "go.test": mods, "apt.test": debs, "pip.test": wheels, "cargo.test": crates,
	}, nil
}

// files is a site of fixed files.
type files map[string][]byte

func (f files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	data, ok := f[path.Clean(r.URL.Path)]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if strings.HasPrefix(strings.TrimSpace(string(data[:min(len(data), 20)])), "{") {
		w.Header().Set("Content-Type", "application/json")
	}
	http.ServeContent(w, r, path.Base(r.URL.Path), time.Time{}, bytes.NewReader(data))
}

// entry is a file of an archive.
type entry struct{ name, text string }

func tarball(entries ...entry) ([]byte, error) {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	for _, e := range entries {
		if err := w.WriteHeader(&tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.text))}); err != nil {
			return nil, err
		}
		if _, err := w.Write([]byte(e.text)); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	err := z.Close()
	return buf.Bytes(), err
}

func zipped(entries ...entry) ([]byte, error) {
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, e := range entries {
		w, err := z.Create(e.name)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write([]byte(e.text)); err != nil {
			return nil, err
		}
	}
	err := z.Close()
	return buf.Bytes(), err
}

// packages is how many packages a project has.
const packages = 300

func npmName(i int) string { return fmt.Sprintf("piece-%d", i) }

func npmIntegrity(data []byte) string {
	sum := sha512.Sum512(data)
	return "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

func npmTarball(i int) ([]byte, error) {
	return tarball(
		entry{"package/package.json", fmt.Sprintf(`{"name":%q,"version":"1.0.0"}`, npmName(i))},
		entry{"package/index.js", fmt.Sprintf("module.exports = %d // %s\n", i, strings.Repeat("x", 20*i))},
	)
}

func npmSite() (files, error) {
	out := files{}
	for i := range packages {
		data, err := npmTarball(i)
		if err != nil {
			return nil, err
		}
		name := npmName(i)
		url := "/" + name + "/-/" + name + "-1.0.0.tgz"
		out[url] = data
		meta, err := json.Marshal(map[string]any{
			"name": name, "dist-tags": map[string]string{"latest": "1.0.0"},
			"versions": map[string]any{"1.0.0": map[string]any{
				"name": name, "version": "1.0.0", "dist": map[string]string{"tarball": "https://npm.test" + url, "integrity": npmIntegrity(data)},
			}},
		})
		if err != nil {
			return nil, err
		}
		out["/"+name] = meta
	}
	return out, nil
}

func TestNPM(t *testing.T) {
	need(t, "npm", "node")
	each(t, func(t *testing.T, o *testkit.Operator) {
		o.Write(t, "repo/package.json", 0o644, []byte(`{"name":"app","version":"1.0.0"}`))
		o.Write(t, "repo/.npmrc", 0o644, []byte("registry=https://npm.test/\naudit=false\nfund=false\nupdate-notifier=false\nfetch-retries=0\n"))
		out, granted := o.Run(t, shell(`npm install --no-progress piece-7 && node -p 'require("piece-7")'`)...)
		want(t, out, "added 1 package", "7")
		only(t, granted, "npm.test")

		// What is granted stays so: a project of many packages.
		deps, lock := map[string]string{}, map[string]any{}
		for i := range packages {
			data, err := npmTarball(i)
			if err != nil {
				t.Fatal(err)
			}
			name := npmName(i)
			deps[name] = "1.0.0"
			lock["node_modules/"+name] = map[string]string{
				"version": "1.0.0", "resolved": "https://npm.test/" + name + "/-/" + name + "-1.0.0.tgz", "integrity": npmIntegrity(data),
			}
		}
		project := map[string]any{"name": "app", "version": "1.0.0", "dependencies": deps}
		lock[""] = project
		for name, v := range map[string]any{
			"repo/package.json":      project,
			"repo/package-lock.json": map[string]any{"name": "app", "version": "1.0.0", "lockfileVersion": 3, "packages": lock},
		} {
			text, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			o.Write(t, name, 0o644, text)
		}
		out = o.Must(t, "run", "--", "bash", "-ec", `npm ci --no-progress && node -p 'require("piece-299")'`)
		want(t, out, fmt.Sprintf("added %d packages", packages), "299")
	})
}

// modules is how many modules a program needs.
const modules = 40

func moduleSite() (files, error) {
	out := files{}
	for i := range modules {
		mod := fmt.Sprintf("mod.test/m%d", i)
		goMod := "module " + mod + "\n\ngo 1.24\n"
		data, err := zipped(
			entry{mod + "@v1.0.0/go.mod", goMod},
			entry{mod + "@v1.0.0/m.go", fmt.Sprintf("package m%d\n\nconst N = %d\n", i, i)},
		)
		if err != nil {
			return nil, err
		}
		at := "/" + mod + "/@v/v1.0.0"
		out[at+".zip"], out[at+".mod"], out[at+".info"] = data, []byte(goMod), []byte(`{"Version":"v1.0.0"}`)
	}
	return out, nil
}

func TestGo(t *testing.T) {
	need(t, "go")
	each(t, func(t *testing.T, o *testkit.Operator) {
		var mod, main, sum strings.Builder
		mod.WriteString("module app\n\ngo 1.24\n\nrequire (\n")
		main.WriteString("package main\n\nimport (\n")
		for i := range modules {
			fmt.Fprintf(&mod, "\tmod.test/m%d v1.0.0\n", i)
			fmt.Fprintf(&main, "\t\"mod.test/m%d\"\n", i)
			fmt.Fprintf(&sum, " + m%d.N", i)
		}
		mod.WriteString(")\n")
		main.WriteString(")\n\nfunc main() { println(0" + sum.String() + ") }\n")
		o.Write(t, "repo/go.mod", 0o644, []byte(mod.String()))
		o.Write(t, "repo/main.go", 0o644, []byte(main.String()))
		o.Flags = []string{"--env", "GOPROXY=https://go.test", "--env", "GONOSUMDB=mod.test", "--env", "GOTOOLCHAIN=local", "--env", "GOFLAGS=-mod=mod"}
		out, granted := o.Run(t, shell("go mod download all && go build -o app . && ./app 2>&1")...)
		want(t, out, fmt.Sprint(modules*(modules-1)/2))
		only(t, granted, "go.test")
	})
}

// debSite is an apt repository with one package.
func debSite() (files, error) {
	control := "Package: hello-box\nVersion: 1.0\nArchitecture: all\nMaintainer: lab <lab@box.test>\nDescription: says hello\n"
	head, err := tarball(entry{"./control", control})
	if err != nil {
		return nil, err
	}
	body, err := tarball(entry{"./usr/share/doc/hello-box/hello", strings.Repeat("hello\n", 100000)})
	if err != nil {
		return nil, err
	}
	deb := []byte("!<arch>\n")
	for _, m := range []struct {
		name string
		data []byte
	}{{"debian-binary", []byte("2.0\n")}, {"control.tar.gz", head}, {"data.tar.gz", body}} {
		deb = fmt.Appendf(deb, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.name, 0, 0, 0, "100644", len(m.data))
		deb = append(deb, m.data...)
		if len(m.data)%2 == 1 {
			deb = append(deb, '\n')
		}
	}
	list := fmt.Sprintf("%sFilename: ./hello-box.deb\nSize: %d\nMD5sum: %x\nSHA256: %x\n\n", control, len(deb), md5.Sum(deb), sha256.Sum256(deb)) //nolint:gosec // as above
	release := fmt.Sprintf("Date: %s\nSHA256:\n %x %d Packages\n", time.Now().UTC().Format(time.RFC1123), sha256.Sum256([]byte(list)), len(list))
	return files{"/hello-box.deb": deb, "/Packages": []byte(list), "/Release": []byte(release)}, nil
}

func TestApt(t *testing.T) {
	need(t, "apt-get", "dpkg-deb")
	each(t, func(t *testing.T, o *testkit.Operator) {
		for _, scheme := range []string{"http", "https"} {
			o.Write(t, "repo/"+scheme+".list", 0o644, []byte("deb [trusted=yes] "+scheme+"://apt.test/ ./\n"))
		}
		out, granted := o.Run(t, shell(`
			for scheme in http https; do
			  rm -rf apt hello-box*.deb
			  mkdir -p apt/{lists,archives}/partial
			  opts="-o Dir::Etc::sourcelist=$PWD/$scheme.list -o Dir::Etc::sourceparts=- -o Dir::State=$PWD/apt -o Dir::State::lists=$PWD/apt/lists -o Dir::Cache=$PWD/apt
			    -o Dir::State::status=/dev/null -o APT::Sandbox::User= -o Acquire::Retries=0 -o APT::Update::Error-Mode=any"
			  apt-get $opts update
			  apt-get $opts download hello-box
			  echo $scheme gives $(dpkg-deb -f hello-box*.deb Package)
			done`)...)
		want(t, out, "http gives hello-box", "https gives hello-box")
		only(t, granted, "apt.test")
	})
}
