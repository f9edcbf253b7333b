package box

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Options say which environment a command in a box gets.
type Options struct {
	ID    string // FY_BOX
	User  string
	Home  string // absolute, inside the box
	Shell string // "" is /bin/sh

	// Operator looks up a variable of the operator's. Only TERM, COLORTERM,
	// LANG, LC_* and TZ are asked for. Nil is an empty environment.
	Operator func(name string) string

	Config map[string]string // [box] env
	Named  map[string]string // what --env names, values resolved; wins over Config

	// Proxy is the value of FY_PROXY; "" is ProxyURL.
	Proxy string
	// ProxyVariables also sets HTTP_PROXY and its family to it.
	ProxyVariables bool

	// ExtraCA says that the operator has authorities of their own, which
	// clients with roots built in are told of too.
	ExtraCA bool

	// Dummies are the stand-ins for secrets. They win over everything but
	// foldyard's own names.
	Dummies map[string]string
}

// passed are the operator's variables that describe the terminal and the
// language, the only ones a box inherits unasked.
func passed() []string {
	return []string{
		"TERM", "COLORTERM", "LANG", "LANGUAGE", "TZ",
		"LC_ALL", "LC_ADDRESS", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION", "LC_MEASUREMENT", "LC_MESSAGES",
		"LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER", "LC_TELEPHONE", "LC_TIME",
	}
}

func bundleNames() []string {
	return []string{
		"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "AWS_CA_BUNDLE",
		"CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "CARGO_HTTP_CAINFO", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
		"NIX_SSL_CERT_FILE", "DENO_CERT",
	}
}

func proxyNames() []string {
	return []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}
}

// Owned reports whether foldyard sets the variable itself, so that a config
// that sets it is an error: the proxy and CA families, FY_* and IN_DEVBOX.
// The dummies' names are owned too, but only the config knows them.
func Owned(name string) bool {
	upper := strings.ToUpper(name)
	switch upper {
	case "NO_PROXY", "FTP_PROXY", "NODE_USE_ENV_PROXY", "NODE_EXTRA_CA_CERTS", "JAVA_TOOL_OPTIONS", "IN_DEVBOX":
		return true
	}
	return strings.HasPrefix(upper, "FY_") ||
		slices.Contains(proxyNames(), upper) || slices.Contains(bundleNames(), upper)
}

// CheckVariable says what is wrong with a variable that a config or --env
// wants to set.
func CheckVariable(name, value string) error {
	switch {
	case !validName(name):
		return fmt.Errorf("variable %q: want letters, digits and _, not starting with a digit", name)
	case strings.ContainsRune(value, 0):
		return fmt.Errorf("variable %s: the value holds a NUL byte", name)
	case Owned(name):
		return fmt.Errorf("variable %s is set by foldyard", name)
	}
	return nil
}

func validName(name string) bool {
	for i, c := range []byte(name) {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != "" && len(name) <= 256
}

// Environment returns the whole environment of a command in a box, sorted, as
// NAME=value. Names that CheckVariable refuses are left out.
func Environment(o Options) []string {
	env := map[string]string{}
	if o.Operator != nil {
		for _, name := range passed() {
			if v := o.Operator(name); v != "" && plain(v) {
				env[name] = v
			}
		}
	}
	env["PATH"] = o.Home + "/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin"
	env["HOME"] = o.Home
	env["USER"] = o.User
	env["SHELL"] = o.Shell
	if o.Shell == "" {
		env["SHELL"] = "/bin/sh"
	}
	for _, given := range []map[string]string{o.Config, o.Named, o.Dummies} {
		for name, value := range given {
			if CheckVariable(name, value) == nil {
				env[name] = value
			}
		}
	}
	own(env, o)
	out := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}

// own sets the names that Owned reports.
func own(env map[string]string, o Options) {
	proxy := o.Proxy
	if proxy == "" {
		proxy = ProxyURL
	}
	env["FY_PROXY"] = proxy
	env["FY_BOX"] = o.ID
	env["IN_DEVBOX"] = "1"
	env["NODE_EXTRA_CA_CERTS"] = CAPath
	if o.ExtraCA {
		env["NODE_EXTRA_CA_CERTS"] = ExtraPath
	}
	for _, name := range bundleNames() {
		env[name] = BundlePath
	}
	env["JAVA_TOOL_OPTIONS"] = "-Djavax.net.ssl.trustStore=" + JavaPath +
		" -Djavax.net.ssl.trustStoreType=JKS -Djavax.net.ssl.trustStorePassword=" + javaPassword
	if !o.ProxyVariables {
		return
	}
	for _, name := range proxyNames() {
		env[name] = proxy
		env[strings.ToLower(name)] = proxy
	}
	env["NO_PROXY"] = "localhost,127.0.0.1,::1"
	env["no_proxy"] = env["NO_PROXY"]
	env["NODE_USE_ENV_PROXY"] = "1"
}

// plain reports whether an inherited value is short printable ASCII, as the
// names of terminals, locales and time zones are.
func plain(v string) bool {
	for _, c := range []byte(v) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return len(v) <= 128
}
