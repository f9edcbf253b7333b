package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"foldyard/internal/egress/inject"
	"foldyard/internal/host/config"
	"foldyard/internal/host/state"
)

// source reads a rule's secret from where config.toml says.
func (s *Supervisor) source(cfg *config.Effective, c *config.Inject) inject.Source {
	from, fix := cfg.Secrets[c.Name], s.setCommand(cfg, c)
	missing := func(why string, err error) error {
		return &inject.MintError{Why: why, Fix: fix, Missing: true, Err: err}
	}
	lives := func(d time.Duration) time.Time {
		if t := c.TTL.Duration(); t > 0 {
			d = t
		}
		if d == 0 {
			return time.Time{}
		}
		return s.now().Add(d)
	}
	switch {
	case c.Kind == "command":
		return s.command(c.Command, lives, commandLife)
	case c.Kind == "gh-cli" && from.From != "command" && from.From != "env" && from.From != "file":
		return s.command([]string{"gh", "auth", "token", "--hostname", ghHost(c)}, lives, ghLife)
	case from.From == "command":
		return s.command(from.Command, lives, commandLife)
	case from.From == "env":
		return func(context.Context) (inject.Value, error) {
			v := s.opt.Getenv(from.Env)
			if v == "" {
				return inject.Value{}, missing("the variable of its secret is not set where the supervisor was started", nil)
			}
			return inject.Value{Secret: inject.NewSecret([]byte(v)), Expires: lives(0)}, nil
		}
	case from.From == "file":
		return func(context.Context) (inject.Value, error) {
			b, err := state.ReadSecret(from.File, state.MaxSecret)
			if err != nil {
				return inject.Value{}, missing("the file of its secret cannot be read", err)
			}
			return inject.Value{Secret: inject.NewSecret(bytes.TrimRight(b, "\r\n")), Expires: lives(fileLife)}, nil
		}
	}
	return func(context.Context) (inject.Value, error) {
		b, ok, err := s.creds.store.Get(config.SecretVariable(c.Name))
		if err != nil {
			return inject.Value{}, missing("the store of secrets cannot be read", err)
		}
		if !ok {
			return inject.Value{}, missing("no secret is set for it", nil)
		}
		return inject.Value{Secret: inject.NewSecret(b), Expires: lives(0)}, nil
	}
}

func ghHost(c *config.Inject) string {
	for _, h := range c.Hosts {
		if h != "api.github.com" && h != "github.com" && !strings.Contains(h, "*") {
			host, _, _ := strings.Cut(h, ":")
			return host
		}
	}
	return "github.com"
}

// keeper stores a refresh token that its service has replaced. nil: its source is not ours to write.
func (s *Supervisor) keeper(cfg *config.Effective, c *config.Inject) func(context.Context, inject.Secret) error {
	if from := cfg.Secrets[c.Name].From; from != "" && from != "store" {
		return nil
	}
	name := config.SecretVariable(c.Name)
	return func(ctx context.Context, v inject.Secret) error {
		b := []byte(v.Reveal())
		defer clear(b)
		return s.creds.store.Set(ctx, name, b, nil)
	}
}

// passedOn are the variables that a secret's command gets: what password managers need to find their files, and no more.
func passedOn() []string {
	return []string{
		"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR",
		"XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "DBUS_SESSION_BUS_ADDRESS",
		"GNUPGHOME", "PASSWORD_STORE_DIR", "GH_CONFIG_DIR", "OP_ACCOUNT", "DISPLAY", "WAYLAND_DISPLAY",
	}
}

// command runs a program that prints the value, or {"value", "ttl"}. Nothing that it prints reaches an error or a log.
func (s *Supervisor) command(argv []string, lives func(time.Duration) time.Time, life time.Duration) inject.Source {
	return func(ctx context.Context) (inject.Value, error) {
		failed := func(why string, err error) (inject.Value, error) {
			return inject.Value{}, &inject.MintError{Why: "the command of its secret " + why, Fix: "run it by hand: it is in config.toml", Err: err}
		}
		ctx, cancel := context.WithTimeout(ctx, commandTime)
		defer cancel()
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir, cmd.WaitDelay = "/", time.Second
		cmd.Env = []string{}
		for _, name := range passedOn() {
			if v := s.opt.Getenv(name); v != "" {
				cmd.Env = append(cmd.Env, name+"="+v)
			}
		}
		out := &limited{most: state.MaxSecret}
		cmd.Stdout = out
		err := cmd.Run()
		defer func() { clear(out.b) }()
		switch {
		case ctx.Err() != nil:
			return failed("took too long", nil)
		case out.over:
			return failed("printed too much", nil)
		case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
			return failed("was not found", nil)
		case err != nil:
			return failed("ended with an error", exitOnly(err))
		}
		return commandValue(out.b, lives, life, failed)
	}
}

func commandValue(b []byte, lives func(time.Duration) time.Time, life time.Duration, failed func(string, error) (inject.Value, error)) (inject.Value, error) {
	text := bytes.TrimSpace(b)
	var object struct {
		Value *string         `json:"value"`
		TTL   json.RawMessage `json:"ttl"`
	}
	if bytes.HasPrefix(text, []byte("{")) && json.Unmarshal(text, &object) == nil && object.Value != nil {
		text = []byte(*object.Value)
		if len(object.TTL) > 0 {
			d, err := parseTTL(object.TTL)
			if err != nil {
				return failed("printed a ttl that is no duration", nil)
			}
			life = d
		}
	}
	if len(text) == 0 {
		return failed("printed nothing", nil)
	}
	return inject.Value{Secret: inject.NewSecret(bytes.Clone(text)), Expires: lives(life)}, nil
}

// parseTTL reads seconds, or a duration in quotes.
func parseTTL(raw json.RawMessage) (time.Duration, error) {
	text := strings.Trim(string(raw), `"`)
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		text = fmt.Sprintf("%fs", n)
	}
	d, err := time.ParseDuration(text)
	if err == nil && (d <= 0 || d > 365*24*time.Hour) {
		err = errors.New("out of range")
	}
	return d, err
}

// exitOnly keeps of a failure only how the program ended.
func exitOnly(err error) error {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return errors.New(e.String())
	}
	return errors.New("it could not be started")
}

// limited keeps what is written, up to a bound.
type limited struct {
	b    []byte
	most int
	over bool
}

func (l *limited) Write(p []byte) (int, error) {
	if len(l.b)+len(p) > l.most {
		l.over = true
		return 0, io.ErrShortWrite
	}
	l.b = append(l.b, p...)
	return len(p), nil
}
