// Package control is the supervisor's API: the wire types, the HTTP server on a unix socket and its typed client.
// The server checks who is asking before it reads a byte. It decides nothing itself: a Service does. It may not
// import the supervisor, and it opens no file but the socket.
package control

import (
	"context"
	"encoding/json"
	"time"
)

// binaryHeader carries the identity of the caller's executable, so that a supervisor started from another one says so
// before it does anything.
const binaryHeader = "Foldyard-Binary"

// Bounds of the API. A request over one is refused.
const (
	MaxBody     = 1 << 20 // bytes of a request's body
	MaxHeader   = 16 << 10
	ReadTimeout = 10 * time.Second // to send a request whole
)

// Service is what answers the API. Its errors travel as text; wrap one in *Error to choose a code or add a hint.
type Service interface {
	Status(context.Context) (Status, error)
	CreateBox(context.Context, BoxRequest) (Box, error)
	Boxes(context.Context) ([]Box, error)
	// Enter returns what it takes to run a command in a box; id "" is the long-lived one.
	Enter(ctx context.Context, id string, q EnterRequest) (Box, error)
	// StopBox ends one box. With id "" it ends the long-lived one, if any.
	StopBox(ctx context.Context, id string) (Stopped, error)
	Grants(context.Context) ([]Grant, error)
	Allow(context.Context, RuleRequest) (Changed, error)
	Deny(context.Context, RuleRequest) (Changed, error)
	Revoke(context.Context, RuleRequest) (Changed, error)
	Asks(context.Context) ([]Ask, error)
	Answer(ctx context.Context, id string, a Answer) (Changed, error)
	Enforce(context.Context, EnforceRequest) (Changed, error)
	Learn(context.Context, LearnRequest) (Learning, error)
	Learning(context.Context) (Learning, error)
	Review(context.Context, ReviewRequest) (Learning, error)
	Why(context.Context, WhyRequest) (Why, error)
	Verify(context.Context, VerifyRequest) (json.RawMessage, error)
	// Reload reads the configuration again.
	Reload(context.Context) (Reloaded, error)
	ResetHome(context.Context) error
	// Machine shows, stops, removes or enters the project's virtual machine.
	Machine(context.Context, MachineRequest) (Machine, error)
	// Stop ends the supervisor. Unless keep is set its boxes end with it, and so do session grants.
	Stop(ctx context.Context, keep bool) error
}

// Error is what a Service answers when the reason matters to the caller, and what the client returns.
type Error struct {
	Code   string `json:"code"`           // one of the Code constants
	Detail string `json:"error"`          // what happened, one line
	Hint   string `json:"hint,omitempty"` // the next command to type
	Status int    `json:"-"`              // HTTP status; chosen by Code when 0
}

// Codes of an Error.
const (
	CodeBad      = "bad_request" // the request makes no sense; a rule that does not parse
	CodeNotFound = "not_found"   // no such box, ask or rule
	CodeNoBox    = "no_box"      // needs a running box
	CodeConfirm  = "confirm"     // wants --yes
	CodeConflict = "conflict"    // the state on disk or the config forbids it
	CodeHost     = "host"        // this computer cannot do it
	CodeStale    = "stale"       // the supervisor was started from another executable
	CodeInternal = "internal"
)

func (e *Error) Error() string { return e.Detail }

// Status is `fy status --json`, and a little more for the CLI.
type Status struct {
	Project    string     `json:"project"`
	Backend    string     `json:"backend"`
	Label      string     `json:"label"`
	Boundary   string     `json:"boundary"`
	Why        string     `json:"why"`
	Box        *Box       `json:"box"`
	Rings      []Ring     `json:"rings"`
	Enforce    bool       `json:"enforce"`
	LearnUntil *time.Time `json:"learn_until,omitempty"`
	Grants     int        `json:"grants"`
	Asks       int        `json:"asks"`
	Supervisor Supervisor `json:"supervisor"`
	Limits     []Limit    `json:"limits"`
	Boxes      int        `json:"boxes"`             // running ones, one-shot ones included
	Machine    string     `json:"machine,omitempty"` // what a machine that comes up is waited for
	Notes      []string   `json:"notes,omitempty"`

	Credentials []Credential `json:"credentials,omitempty"`
}

// Credential is an [[inject]] rule: where it goes and what it can do, never what it is.
type Credential struct {
	Name    string    `json:"name"`
	Kind    string    `json:"kind"`
	Place   string    `json:"place"`
	Hosts   []string  `json:"hosts"`
	Path    string    `json:"path,omitempty"`
	Off     string    `json:"off,omitempty"` // why requests do not get it
	Fix     string    `json:"fix,omitempty"`
	Scope   string    `json:"scope,omitempty"` // as last read
	Read    time.Time `json:"read,omitzero"`
	Expires time.Time `json:"expires,omitzero"`
}

// Supervisor describes the process that answers.
type Supervisor struct {
	PID     int       `json:"pid"`
	Since   time.Time `json:"since"`
	Version string    `json:"version,omitempty"`
	Binary  string    `json:"binary,omitempty"` // identity of the executable it was started from; another one makes it stale
	Socket  string    `json:"socket,omitempty"`
}

// Ring is one layer of the network story.
type Ring struct {
	Name     string        `json:"name"`
	Kind     string        `json:"kind"`
	State    string        `json:"state"`
	Boundary string        `json:"boundary"`
	Why      string        `json:"why"`
	Evidence *RingEvidence `json:"evidence"`
}

// RingEvidence sums up the stored evidence of a ring.
type RingEvidence struct {
	At     time.Time `json:"at"`
	Probes int       `json:"probes"`
	Passed int       `json:"passed"`
}

// Limit is one bound of the engine: its value and how often it was met.
type Limit struct {
	Name  string `json:"name"`
	Value int64  `json:"value"`
	At    int64  `json:"at"`
	Hits  int64  `json:"hits"`
}

// BoxRequest asks for a box. The zero request is the project's long-lived box as its adopted config says.
type BoxRequest struct {
	Oneshot bool     `json:"oneshot"`
	Allow   []string `json:"allow,omitempty"` // rules that live and die with the box
	Env     []string `json:"env,omitempty"`   // NAME=VALUE, from --env
	Term    []string `json:"term,omitempty"`  // NAME=VALUE of the caller's terminal and locale variables
	Home    bool     `json:"home,omitempty"`  // the kept home
	RO      bool     `json:"ro,omitempty"`    // the repo read-only
	Backend string   `json:"backend,omitempty"`
	Yes     bool     `json:"yes,omitempty"`
}

// EnterRequest asks for what a command in a running box needs.
type EnterRequest struct {
	Env  []string `json:"env,omitempty"`
	Term []string `json:"term,omitempty"`
}

// Box is a running box. Socket, Nonce and Env are set by CreateBox and Enter only.
type Box struct {
	ID      string    `json:"id"`
	State   string    `json:"state"`
	Oneshot bool      `json:"oneshot,omitempty"`
	Socket  string    `json:"socket,omitempty"` // the keeper's, for exec
	Nonce   string    `json:"nonce,omitempty"`  // whoever shows it to the keeper may run commands
	Env     []string  `json:"env,omitempty"`    // what a command in it gets, sorted
	Dir     string    `json:"dir,omitempty"`    // the repo's path inside
	Home    string    `json:"home,omitempty"`
	Shell   string    `json:"shell,omitempty"`
	Created time.Time `json:"created,omitzero"`
	Notes   []string  `json:"notes,omitempty"` // what the operator should know about how it was made
	Existed bool      `json:"existed,omitempty"`
}

// Stopped tells what a box did that the operator should know.
type Stopped struct {
	ID      string    `json:"id"`
	Refused []Refusal `json:"refused,omitempty"`
	Changed []string  `json:"changed,omitempty"` // files in the repo that host tools execute
	Gone    bool      `json:"gone,omitempty"`    // there was no such box any more
}

// Refusal is what one box was refused, folded by target and reason.
type Refusal struct {
	Host   string `json:"host"`
	Port   uint16 `json:"port"`
	Reason string `json:"reason"`
	Count  int64  `json:"count"`
	Fix    string `json:"fix,omitempty"` // the rule that permits it; "" when no rule does
}

// RuleRequest grants, denies or revokes rules.
type RuleRequest struct {
	Rules    []string `json:"rules"`
	Level    string   `json:"level,omitempty"` // once, session, permanent; default session
	TTL      Duration `json:"ttl,omitempty"`
	Internal bool     `json:"internal,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Box      string   `json:"box,omitempty"`
	Yes      bool     `json:"yes,omitempty"`
}

// Changed says what a change of policy came to: one line a rule, in canonical form.
type Changed struct {
	Rules      []Grant  `json:"rules,omitempty"`
	Generation uint64   `json:"generation"`
	Notes      []string `json:"notes,omitempty"`
}

// Grant is one row of `fy grants --json`.
type Grant struct {
	Rule     string     `json:"rule"`
	Level    string     `json:"level"`
	Expires  *time.Time `json:"expires"`
	Internal bool       `json:"internal"`
	Reason   string     `json:"reason"`
	Origin   string     `json:"origin"`
	Added    time.Time  `json:"added"`
	Hits     int64      `json:"hits"`
	Box      string     `json:"box"`
	Deny     bool       `json:"deny,omitempty"`
}

// Ask is one row of `fy asks --json`: what was refused, or is held, and has no answer yet.
type Ask struct {
	ID      string          `json:"id"`
	Host    string          `json:"host"`
	Port    uint16          `json:"port"`
	Rule    string          `json:"rule"` // what `fy ask allow` would grant
	Process json.RawMessage `json:"process"`
	Since   time.Time       `json:"since"`
	Count   int64           `json:"count"`
	Held    bool            `json:"held"`
}

// Answer answers an ask.
type Answer struct {
	Allow bool `json:"allow"`
	RuleRequest
}

// EnforceRequest switches the allowlist.
type EnforceRequest struct {
	On bool `json:"on"`
}

// LearnRequest opens a learning window.
type LearnRequest struct {
	For Duration `json:"for"`
}

// ReviewRequest asks for, or with Yes takes over, what was learnt.
type ReviewRequest struct {
	Yes   bool     `json:"yes"`
	Level string   `json:"level,omitempty"`
	TTL   Duration `json:"ttl,omitempty"`
}

// Learning is the state of the learning window.
type Learning struct {
	Until   *time.Time `json:"until"`
	Learnt  []Learnt   `json:"learnt"`
	Granted []string   `json:"granted,omitempty"`
}

// Learnt is a target that was let through though nothing grants it.
type Learnt struct {
	Rule  string `json:"rule"`
	Count int64  `json:"count"`
}

// WhyRequest asks what would happen to a request.
type WhyRequest struct {
	Target string `json:"target"` // URL or HOST[:PORT]
	Method string `json:"method,omitempty"`
	Box    string `json:"box,omitempty"`
}

// Why is `fy why --json`.
type Why struct {
	Verdict    string  `json:"verdict"`
	Rule       string  `json:"rule"`
	Reason     string  `json:"reason"`
	Origin     string  `json:"origin"`
	Fix        string  `json:"fix"`
	Credential *string `json:"credential"`
	Target     string  `json:"target"`
	Mode       string  `json:"mode,omitempty"`
	Note       string  `json:"note,omitempty"`
}

// VerifyRequest starts the battery. The answer is `fy verify --json`, as the proof package writes it.
type VerifyRequest struct {
	AsRoot bool   `json:"as_root,omitempty"`
	Box    string `json:"box,omitempty"`
	Addrs  string `json:"addrs,omitempty"` // FY_PROBE_ADDRS; "": the supervisor's own
}

// Reloaded says what a changed configuration came to.
type Reloaded struct {
	Changed bool     `json:"changed"`
	Restart []string `json:"restart,omitempty"` // settings that hold only once the supervisor was restarted
	Boxes   []string `json:"boxes,omitempty"`   // settings that hold only for boxes made from now on
	Machine bool     `json:"machine,omitempty"` // the VM is to be another one, which fy up makes of it
}

// Duration travels as text ("2m0s").
type Duration time.Duration

// MarshalText writes d as time.Duration does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration does; empty is 0.
func (d *Duration) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*d = 0
		return nil
	}
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}
