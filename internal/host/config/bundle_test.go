package config

import (
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"foldyard/internal/egress/policy"
)

// What is written into the program says who says so, and when that was read.
func TestBundledHostsHaveASource(t *testing.T) {
	all, err := allBundled()
	if err != nil || len(all) == 0 {
		t.Fatalf("%d entries, %v", len(all), err)
	}
	for _, b := range all {
		u, err := url.Parse(b.Source)
		switch r, rerr := policy.ParseRule(b.Host); {
		case rerr != nil || r.String() != b.Host || r.Wide():
			t.Errorf("%s is no host: %v", b.Host, rerr)
		case !slices.Contains(bundleNames, b.Bundle):
			t.Errorf("%s is of no bundle that is known: %s", b.Host, b.Bundle)
		case err != nil || u.Scheme != "https" || u.Host == "" || b.What == "":
			t.Errorf("%s does not say what it is for and who says so: %+v", b.Host, b)
		case b.Read.Year < 2026:
			t.Errorf("%s has no date: %v", b.Host, b.Read)
		case !slices.Contains(bundledHosts(b.Bundle), b.Host):
			t.Errorf("%s is not in %s", b.Host, b.Bundle)
		}
	}
}

func TestBundlesComeFromTheHost(t *testing.T) {
	w := newWorld(t)
	w.env["GOPROXY"] = "https://go.mirror.test|direct"
	w.write(filepath.Join(w.env["HOME"], ".npmrc"), "registry=https://npm.mirror.test/x/\n@corp:registry = \"https://corp.test:8443/\"\n//npm.mirror.test/:_authToken=s3cret\n")
	w.write(filepath.Join(w.dir, ".npmrc"), "registry=https://evil.test/\n")
	w.repo(`proxy.passthrough = ["@npm", "@go", "a.test"]`)
	c := w.adopt()
	w.env["GOPROXY"] = "https://later.test" // expanded at adoption, once
	e, err := w.Load(c)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(e.Tunnels, " "), "a.test corp.test:8443 go.mirror.test npm.mirror.test"; got != want {
		t.Errorf("tunnels %q, want %q", got, want)
	}

	w.mkdir(filepath.Join(w.env["HOME"], ".m2"))
	w.mkdir(filepath.Join(w.env["HOME"], ".config", "containers"))
	w.write(filepath.Join(w.env["HOME"], ".m2", "settings.xml"), "<mirror><url>https://maven.mirror.test/x</url></mirror>")
	w.write(filepath.Join(w.env["HOME"], ".config", "containers", "registries.conf"),
		"unqualified-search-registries = [\"search.test\"]\n[[registry]]\nlocation = \"images.test/team\"\n[[registry.mirror]]\nlocation = \"mirror.test:5000\"\n")
	w.write(filepath.Join(w.env["HOME"], ".npmrc"), "")
	w.repo(`proxy.passthrough = ["@npm", "@containers", "@jvm"]`)
	if e, err = w.Check(c); err != nil || !strings.Contains(e.Warnings.Error(), "@npm expands to nothing") || strings.Contains(e.Warnings.Error(), "@jvm") {
		t.Errorf("warnings %v, %v", e.Warnings, err)
	}
	for _, want := range slices.Concat([]string{"maven.mirror.test", "search.test", "images.test", "mirror.test:5000"}, bundledHosts("@jvm"), bundledHosts("@containers")) {
		if !slices.Contains(e.Tunnels, want) {
			t.Errorf("no %s in %v", want, e.Tunnels)
		}
	}
}
