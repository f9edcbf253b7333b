// Package config reads the two configuration files, foldyard.toml in the
// project (obeyed only once adopted) and the operator's config.toml, checks
// them, and keeps the adopted copies.
//
// It may not obey anything that a box can write: the file in the project is
// only shown, compared and, when the operator says yes, copied. It opens that
// file beneath the project directory, as a bounded regular file. It starts
// nothing, dials nowhere and writes no policy.
//
// Where to look first:
//
//	Host{Layout, Getenv, GOOS}         what this package must know of the computer
//	Host.Discover(cwd)                 the project directory, or why it is refused (*RefusedError)
//	Host.Resolve(dir)                  Checkout: which project state the directory uses, and the notice to print
//	Host.Load(checkout)                *Effective: adopted bytes + config.toml, what foldyard obeys
//	Host.Check(checkout)               the file in the project as it is now: *Effective, or Faults as the error
//	Host.Propose(checkout)             *Proposal: the bytes read once, what they newly permit, the text to show
//	Proposal.Adopt(now, move)          stores exactly those bytes and binds the name
//	Host.Drift(checkout), Host.Revert  compare with, or go back to, the adopted copy
//	Effective.Values()                 key, value and origin of each setting (config show)
//	Schema(), Init(dir, force)         JSON Schema; a commented foldyard.toml
package config

import "time"

// FileName is the name of the project's configuration file.
const FileName = "foldyard.toml"

// Backends.
const (
	Namespace = "namespace"
	Lima      = "lima"
	Podman    = "podman"
)

// File is foldyard.toml. In an Effective every field has its value or its
// default. A field with the tag operator may only be set in config.toml.
type File struct {
	Project Project  `toml:"project" doc:"The project."`
	Machine Machine  `toml:"machine" doc:"Where the box runs."`
	Box     Box      `toml:"box" doc:"What the box is."`
	Proxy   Proxy    `toml:"proxy" doc:"What may go out."`
	Inject  []Inject `toml:"inject" doc:"Credentials that are put on requests outside the box."`
}

// Project is [project].
type Project struct {
	Name string `toml:"name" doc:"Name of the project; default: the directory's name."`
}

// Machine is [machine].
type Machine struct {
	Backend      string `toml:"backend" enum:"namespace,lima,podman" doc:"How a box is made; default: namespace on Linux, lima on macOS."`
	Firewall     bool   `toml:"firewall" old:"wall" doc:"nftables in the VM. lima only, default true there."`
	Gateway      bool   `toml:"gateway" doc:"foldyard is the VM's network: not built yet. lima only, default true there."`
	HostFirewall bool   `toml:"host_firewall" old:"host_wall" doc:"nftables on a Linux host, around the VM: rendered only. lima only; wants those in the VM too."`
	CPUs         int    `toml:"cpus" doc:"CPUs of the VM. lima and podman."`
	Memory       Size   `toml:"memory" doc:"Memory of the VM. lima and podman."`
	Disk         Size   `toml:"disk" doc:"Disk of the VM. lima and podman."`
	Image        string `toml:"image" doc:"Disk image of the VM: debian, fedora, or an https URL or a path, which wants digest. lima: debian if none is named."`
	Digest       string `toml:"digest" doc:"Digest of image: sha256:… or sha512:… ."`
	Kernel       string `toml:"kernel" doc:"Kernel to boot image with."`
	Initrd       string `toml:"initrd" doc:"Initial RAM disk to boot image with."`
}

// Box is [box].
type Box struct {
	Ports    []Port            `toml:"ports" doc:"Published ports: BOX, HOST:BOX or ADDR:HOST:BOX. ADDR is loopback unless config.toml says otherwise."`
	Env      map[string]string `toml:"env" doc:"Variables of the box. Names that foldyard sets are an error."`
	Mounts   []Mount           `toml:"mounts" doc:"PATH[:ro|:rw] inside the repo; config.toml may name any host path, as PATH[:PATH][:ro|:rw]."`
	Root     bool              `toml:"root" doc:"uid 0 of the box's own user namespace, never of the host."`
	Nested   bool              `toml:"nested" doc:"May create user namespaces (browsers, nested sandboxes)."`
	ProxyEnv bool              `toml:"proxy_env" doc:"Also set the proxy variables (namespace)."`
	Image    string            `toml:"image" doc:"Container image. lima and podman."`
	Rootfs   string            `toml:"rootfs" doc:"Archive of the container's file system. lima and podman."`
	Engine   bool              `toml:"engine" doc:"Give the box the VM's rootless engine socket. lima only."`
	Writable []string          `toml:"writable" operator:"true" doc:"Protected paths of the repo, such as .git/hooks, that the box may write. config.toml only."`
	UID      int               `toml:"uid" operator:"true" doc:"Unprivileged host uid that the box maps to when foldyard runs as root. config.toml only."`
}

// Proxy is [proxy].
type Proxy struct {
	Enforce     Enforce       `toml:"enforce" old:"default_deny" doc:"true, false or \"learn\": the first value of a new project, then the store decides."`
	Recommend   []Recommended `toml:"recommend" doc:"Hosts the project needs. Asks; grants nothing."`
	Passthrough []string      `toml:"passthrough" doc:"Hosts that are tunnelled without decryption, or @apt, @containers, @go, @jvm, @npm."`
	Ask         string        `toml:"ask" enum:"refuse,hold" doc:"refuse at once, or hold a refused request until the operator answers."`
	AskTimeout  ShortDuration `toml:"ask_timeout" doc:"How long a request is held."`
}

// Recommended is a host that the project asks for. It grants nothing.
type Recommended struct {
	Host string `toml:"host" doc:"A rule, as fy allow takes it."`
	Why  string `toml:"why" doc:"What needs it."`
}

// Inject is one [[inject]] rule.
type Inject struct {
	Name    string            `toml:"name" doc:"Name of the rule and of its secret."`
	Kind    string            `toml:"kind" enum:"static,github-app,gh-cli,oauth-refresh,aws-sigv4,gcp-metadata,command" doc:"What produces the credential; default static."`
	Preset  string            `toml:"preset" enum:"anthropic,openai,npm,pypi,docker-registry,git-https" doc:"Fills in hosts, header and prefix of a known service."`
	Hosts   []string          `toml:"hosts" doc:"Hosts that get the credential: HOST or HOST:PORT."`
	Header  string            `toml:"header" doc:"Header that carries it; default Authorization."`
	Query   string            `toml:"query" doc:"Query parameter that carries it, instead of header."`
	Prefix  string            `toml:"prefix" doc:"Text before the value, such as \"Bearer \"."`
	Path    string            `toml:"path" doc:"Only requests whose path starts with this."`
	Methods []string          `toml:"methods" doc:"Only requests with these methods."`
	Env     map[string]string `toml:"env" doc:"Dummies: variables of the box and the placeholder values that they hold."`
	Issuing bool              `toml:"issuing" operator:"true" doc:"Open the service's endpoints that answer with a credential. config.toml only."`

	AppID          string            `toml:"app_id" kind:"github-app" doc:"The App's id."`
	InstallationID string            `toml:"installation_id" kind:"github-app" doc:"The installation's id."`
	Repositories   []string          `toml:"repositories" kind:"github-app" doc:"Narrows the token to these repositories."`
	Permissions    map[string]string `toml:"permissions" kind:"github-app" doc:"Narrows the token's permissions."`
	TokenURL       string            `toml:"token_url" kind:"oauth-refresh" doc:"Where a refresh token is exchanged."`
	ClientID       string            `toml:"client_id" kind:"oauth-refresh" doc:"OAuth client."`
	Scopes         []string          `toml:"scopes" kind:"oauth-refresh,gcp-metadata" doc:"Scopes to ask for."`
	Region         string            `toml:"region" kind:"aws-sigv4" doc:"Region; default: what the box signed for."`
	Service        string            `toml:"service" kind:"aws-sigv4" doc:"Service; default: what the box signed for."`
	GCPProject     string            `toml:"gcp_project" kind:"gcp-metadata" doc:"Project that the metadata server names."`
	Command        []string          `toml:"command" kind:"command" operator:"true" doc:"Program and arguments that print the value. config.toml only."`
	TTL            ShortDuration     `toml:"ttl" kind:"static,command" doc:"How long a value is kept before it is read again."`
}

// Operator is config.toml.
type Operator struct {
	Upstream Upstream          `toml:"upstream" doc:"How foldyard itself gets out."`
	Log      Log               `toml:"log" doc:"The capture log."`
	Metrics  Metrics           `toml:"metrics" doc:"Prometheus metrics."`
	Secrets  map[string]Source `toml:"secrets" doc:"Where a rule's secret comes from."`
	Tripwire Tripwire          `toml:"tripwire" doc:"What happens when a placeholder turns up where it does not belong."`
	Projects map[string]File   `toml:"projects" doc:"Settings that win over a project's foldyard.toml."`
}

// Upstream is [upstream]. Paths are absolute once read: relative ones are
// taken from the directory of config.toml.
type Upstream struct {
	Proxy       string       `toml:"proxy" doc:"http, https, socks5 or socks5h URL; default: HTTPS_PROXY of the host."`
	CA          []string     `toml:"ca" doc:"PEM files that are added to the system roots."`
	Resolver    string       `toml:"resolver" doc:"ADDR[:PORT] of the resolver; default: the system's."`
	ClientCerts []ClientCert `toml:"client_cert" doc:"Client certificates."`
}

// ClientCert is one [[upstream.client_cert]].
type ClientCert struct {
	Hosts []string `toml:"hosts" doc:"Hosts that get it."`
	Cert  string   `toml:"cert" doc:"PEM file."`
	Key   string   `toml:"key" doc:"PEM file."`
}

// Log is [log].
type Log struct {
	MaxSize Size   `toml:"max_size" doc:"Size at which a segment is rotated."`
	Keep    int    `toml:"keep" doc:"Rotated segments that are kept."`
	OTLP    string `toml:"otlp" doc:"OTLP/HTTP endpoint that gets the records."`
}

// Metrics is [metrics].
type Metrics struct {
	Listen string `toml:"listen" doc:"Loopback ADDR:PORT."`
}

// Tripwire is [tripwire].
type Tripwire struct {
	Revoke bool `toml:"revoke" doc:"Also revoke the session grants of the box."`
}

// Source is [secrets.NAME].
type Source struct {
	From    string   `toml:"from" enum:"store,env,file,command" doc:"Where the value is read; default store."`
	Env     string   `toml:"env" doc:"Variable of the host (from = \"env\")."`
	File    string   `toml:"file" doc:"File that holds the value (from = \"file\")."`
	Command []string `toml:"command" doc:"Program and arguments, no shell (from = \"command\")."`
}

// Defaults of settings that are not the zero value.
const (
	defaultCPUs       = 4
	defaultMemory     = Size(8 << 30)
	defaultDisk       = Size(60 << 30)
	defaultAskTimeout = ShortDuration(30 * time.Second)
	defaultMaxSize    = Size(64 << 20)
	defaultKeep       = 10
)

// DefaultBackend returns the backend of a project that names none.
func DefaultBackend(goos string) string {
	if goos == "linux" {
		return Namespace
	}
	return Lima
}
