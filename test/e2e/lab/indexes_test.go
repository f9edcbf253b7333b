//go:build e2e

package lab

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"foldyard/internal/testkit"
)

// pipSite is a Python index with one wheel.
func pipSite() (files, error) {
	const info = "hello_box-1.0.dist-info/"
	entries := []entry{
		{"hello_box.py", "print('hello from a wheel')\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: hello-box\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
	}
	var record strings.Builder
	for _, e := range entries {
		sum := sha256.Sum256([]byte(e.text))
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", e.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(e.text))
	}
	wheel, err := zipped(append(entries, entry{info + "RECORD", record.String() + info + "RECORD,,\n"})...)
	if err != nil {
		return nil, err
	}
	const name = "/files/hello_box-1.0-py3-none-any.whl"
	page := fmt.Sprintf("<!DOCTYPE html><html><body><a href=\"%s#sha256=%x\">%s</a></body></html>\n", name, sha256.Sum256(wheel), name[len("/files/"):])
	return files{name: wheel, "/simple/hello-box": []byte(page)}, nil
}

func TestPip(t *testing.T) {
	need(t, "python3", "pip3")
	each(t, func(t *testing.T, o *testkit.Operator) {
		out, granted := o.Run(t, shell(`
			/usr/bin/python3 -m pip install --disable-pip-version-check --retries 0 --index-url https://pip.test/simple/ --target site hello-box
			PYTHONPATH=site /usr/bin/python3 -c 'import hello_box'`)...)
		want(t, out, "Successfully installed hello-box-1.0", "hello from a wheel")
		only(t, granted, "pip.test")
	})
}

// cargoSite is a sparse index with one crate, and the crate.
func cargoSite() (files, error) {
	const in = "hello-box-1.0.0/"
	crate, err := tarball(
		entry{in + "Cargo.toml", "[package]\nname = \"hello-box\"\nversion = \"1.0.0\"\nedition = \"2021\"\n"},
		entry{in + "src/lib.rs", "pub fn hello() -> &'static str { \"hello from a crate\" }\n"},
	)
	if err != nil {
		return nil, err
	}
	return files{
		"/index/config.json":               []byte(`{"dl":"https://cargo.test/crates"}`),
		"/index/he/ll/hello-box":           fmt.Appendf(nil, `{"name":"hello-box","vers":"1.0.0","deps":[],"cksum":"%x","features":{},"yanked":false}`+"\n", sha256.Sum256(crate)),
		"/crates/hello-box/1.0.0/download": crate,
	}, nil
}

func TestCargo(t *testing.T) {
	need(t, "cargo", "rustc", "cc")
	each(t, func(t *testing.T, o *testkit.Operator) {
		o.Write(t, "repo/Cargo.toml", 0o644, []byte("[package]\nname = \"app\"\nversion = \"1.0.0\"\nedition = \"2021\"\n"+
			"[dependencies]\nhello-box = { version = \"1.0.0\", registry = \"lab\" }\n"))
		o.Write(t, "repo/src/main.rs", 0o644, []byte("fn main() { println!(\"{}\", hello_box::hello()); }\n"))
		// The protocol was unstable before cargo 1.68, and such a switch wants the other.
		o.Write(t, "repo/.cargo/config.toml", 0o644, []byte("[registries.lab]\nindex = \"sparse+https://cargo.test/index/\"\n[net]\nretry = 0\n[unstable]\nsparse-registry = true\n"))
		o.Flags = []string{"--env", "RUSTC_BOOTSTRAP=1"}
		out, granted := o.Run(t, "/usr/bin/cargo", "run", "--quiet")
		want(t, out, "hello from a crate")
		only(t, granted, "cargo.test")
	})
}
