package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/ui/term"
)

// minSecret is the length from which a value is looked for in answers.
const minSecret = 16

func (a *app) secret() *cobra.Command {
	c := &cobra.Command{
		Use: "secret", Short: "The operator's secrets: set, list, bind, rm", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return usagef("want fy secret set, list, bind or rm") },
	}
	c.AddCommand(a.secretSet(), a.secretList(), a.secretBind(), a.secretRm())
	return c
}

// vault is the project's secrets, and the rules that want them.
type vault struct {
	p     *project
	cfg   *config.Effective
	store *state.Secrets
}

func (a *app) vault() (*vault, error) {
	p, err := a.project()
	if err != nil {
		return nil, err
	}
	if err := p.host.Prepare(p.checkout, a.Now()); err != nil {
		return nil, err
	}
	cfg, err := p.host.Load(p.checkout)
	if err != nil {
		return nil, err
	}
	return &vault{p, cfg, state.OpenSecrets(p.checkout.Project)}, nil
}

// rule returns the adopted rule called name.
func (v *vault) rule(name string) (*config.Inject, error) {
	if err := state.CheckName(name); err != nil {
		return nil, usagef("secret name: want letters, digits, ., _ and -")
	}
	for i := range v.cfg.Inject {
		if v.cfg.Inject[i].Name == name {
			return &v.cfg.Inject[i], nil
		}
	}
	err := fmt.Errorf("no adopted [[inject]] rule is called %s, so the secret would go nowhere", name)
	return nil, hint(err, "write the rule into foldyard.toml, then: fy config adopt")
}

// elsewhere says where the rule's secret comes from, "" if from the store.
func (v *vault) elsewhere(r *config.Inject) string {
	switch src := v.cfg.Secrets[r.Name]; {
	case src.From == "env":
		return "the variable " + src.Env
	case src.From == "file":
		return "the file " + src.File
	case src.From == "command", r.Kind == "command":
		return "a command"
	case r.Kind == "gh-cli":
		return "gh"
	}
	return ""
}

func (a *app) secretSet() *cobra.Command {
	return &cobra.Command{
		Use: "set NAME", Short: "Store the secret of a rule; the value is read from stdin or a hidden prompt",
		Long: `Store the secret of the rule NAME, and bind it to the hosts, the place and the kind that the adopted rule has now.
The value is read from stdin, or asked for without echo. It is never an argument: other users of this computer see those.`,
		Example: "  fy secret set github < token.txt\n  pass show app-key | fy secret set app", Args: cobra.ExactArgs(1),
		RunE: hostOnly(func(cmd *cobra.Command, args []string) error {
			v, err := a.vault()
			if err != nil {
				return err
			}
			r, err := v.rule(args[0])
			if err != nil {
				return err
			}
			if from := v.elsewhere(r); from != "" {
				return hint(fmt.Errorf("the secret of %s comes from %s", r.Name, from), "fy secret bind "+r.Name+" confirms where it goes")
			}
			value, err := a.readSecret(r.Name)
			if err != nil {
				return err
			}
			defer clear(value)
			if len(value) < minSecret {
				a.say("warning: the value has fewer than %d bytes: it is not looked for in answers", minSecret)
			}
			b := r.Bound()
			b.Since = a.Now().UTC()
			if err := v.store.Set(cmd.Context(), config.SecretVariable(r.Name), value, &b); err != nil {
				return err
			}
			a.bound(r)
			return a.secretsChanged(cmd.Context(), v.p)
		}),
	}
}

// bound says where a secret goes.
func (a *app) bound(r *config.Inject) {
	for _, h := range r.Bound().Hosts {
		fmt.Fprintf(a.Stdout, "%s → %s\n", line(r.Name), h)
	}
	if r.TokenURL != "" {
		fmt.Fprintf(a.Stdout, "%s → %s\n", line(r.Name), line(r.TokenURL))
	}
}

// readSecret reads a value from stdin: a line that is not echoed, or everything that is piped in but a final line end.
func (a *app) readSecret(name string) ([]byte, error) {
	if term.IsTerminal(a.Stdin) {
		fmt.Fprintf(a.Stderr, "secret for %s (not shown): ", name)
		value, err := term.ReadHidden(a.Stdin)
		fmt.Fprintln(a.Stderr)
		if err != nil {
			return nil, fmt.Errorf("read the secret: %w", err)
		}
		return nonEmpty(value)
	}
	value, err := io.ReadAll(io.LimitReader(a.Stdin, state.MaxSecret+2))
	if err != nil {
		return nil, fmt.Errorf("read the secret from stdin: %w", err)
	}
	value = bytes.TrimSuffix(bytes.TrimSuffix(value, []byte("\n")), []byte("\r"))
	if len(value) > state.MaxSecret {
		return nil, fmt.Errorf("the secret is over %d KiB", state.MaxSecret>>10)
	}
	return nonEmpty(value)
}

func nonEmpty(value []byte) ([]byte, error) {
	if len(bytes.TrimSpace(value)) == 0 {
		return nil, hint(errors.New("the secret is empty"), "pipe it in: fy secret set NAME < FILE")
	}
	return value, nil
}

// secretsChanged makes a supervisor that runs use what is stored, from the next request on.
func (a *app) secretsChanged(ctx context.Context, p *project) error {
	c := control.NewClient(p.checkout.Project.ControlSocket())
	defer c.Close()
	_, err := c.Reload(ctx)
	if control.NotRunning(err) {
		return nil
	}
	if err != nil {
		return hint(fmt.Errorf("stored, but the supervisor does not use it yet: %w", err), "fy supervisor restart")
	}
	return nil
}

func (a *app) secretBind() *cobra.Command {
	return &cobra.Command{
		Use: "bind NAME", Short: "Confirm that a rule may send its secret where it says now; switches it on again", Args: cobra.ExactArgs(1),
		RunE: hostOnly(func(cmd *cobra.Command, args []string) error {
			v, err := a.vault()
			if err != nil {
				return err
			}
			r, err := v.rule(args[0])
			if err != nil {
				return err
			}
			if v.elsewhere(r) == "" {
				names, err := v.store.Variables()
				if err != nil {
					return err
				}
				if !slices.Contains(names, config.SecretVariable(r.Name)) {
					return hint(fmt.Errorf("no secret is set for %s", r.Name), "fy secret set "+r.Name)
				}
			}
			b := r.Bound()
			b.Since = a.Now().UTC()
			if err := v.store.Bind(cmd.Context(), b); err != nil {
				return err
			}
			a.bound(r)
			return a.secretsChanged(cmd.Context(), v.p)
		}),
	}
}

// confirmSecrets asks, on a terminal only, about each secret that an adopted rule would now send where nobody confirmed it.
// Without a terminal, and after a no, the rule goes without its secret.
func (a *app) confirmSecrets(ctx context.Context, p *project, e *config.Effective) error {
	v := &vault{p, e, state.OpenSecrets(p.checkout.Project)}
	bounds, err := v.store.Bounds()
	if err != nil {
		return err
	}
	names, err := v.store.Variables()
	if err != nil {
		return err
	}
	for i := range e.Inject {
		r := &e.Inject[i]
		has := slices.Contains(names, config.SecretVariable(r.Name)) || v.elsewhere(r) != "" && r.Kind != "command"
		missing := bounds[r.Name].Covers(r.Bound())
		if !has || len(missing) == 0 {
			continue
		}
		list := strings.ReplaceAll(strings.Join(missing, ", "), " -> ", " → ")
		if !term.IsTerminal(a.Stdin) || !term.IsTerminal(a.Stderr) {
			a.say("not confirmed, so it gets no secret: %s: fy secret bind %s", list, r.Name)
			continue
		}
		yes, err := a.confirm("send the secret there? " + line(list))
		if err != nil {
			return err
		}
		if !yes {
			continue
		}
		b := r.Bound()
		b.Since = a.Now().UTC()
		if err := v.store.Bind(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// secretRow is one row of fy secret list: never a value.
type secretRow struct {
	Name   string     `json:"name"`
	Kind   string     `json:"kind"`
	From   string     `json:"from"`
	Set    bool       `json:"set"`
	Hosts  []string   `json:"hosts"`
	Since  *time.Time `json:"since"`
	State  string     `json:"state"` // "ok", or what is missing
	Unused bool       `json:"unused,omitempty"`
}

func (a *app) secretList() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "list", Short: "What is set, and where each may go", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v, err := a.vault()
			if err != nil {
				return err
			}
			rows, err := v.rows()
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(rows)
			}
			cells := [][]string{{"NAME", "KIND", "FROM", "GOES TO", "STATE"}}
			for _, r := range rows {
				cells = append(cells, []string{r.Name, r.Kind, escape(r.From), escape(strings.Join(r.Hosts, ", ")), escape(r.State)})
			}
			if len(rows) == 0 {
				fmt.Fprintln(a.Stdout, a.style.dim("no [[inject]] rule is adopted, and no secret is set"))
				return nil
			}
			table(a.Stdout, "", cells, func(row, _ int, cell string) string {
				if row == 0 {
					return a.style.dim(cell)
				}
				return cell
			})
			return nil
		},
	})
}

func (v *vault) rows() ([]secretRow, error) {
	bounds, err := v.store.Bounds()
	if err != nil {
		return nil, err
	}
	names, err := v.store.Variables()
	if err != nil {
		return nil, err
	}
	rows := []secretRow{}
	used := map[string]bool{}
	for i := range v.cfg.Inject {
		r := &v.cfg.Inject[i]
		variable := config.SecretVariable(r.Name)
		used[variable] = true
		b, bound := bounds[r.Name]
		row := secretRow{Name: r.Name, Kind: r.Kind, From: v.elsewhere(r), Hosts: r.Bound().Hosts, State: "ok"}
		row.Set = row.From != "" || slices.Contains(names, variable)
		if row.From == "" {
			row.From = "store"
		}
		if bound && !b.Since.IsZero() {
			row.Since = &b.Since
		}
		missing := b.Covers(r.Bound())
		switch {
		case r.Kind == "command":
		case !row.Set:
			row.State = "not set: fy secret set " + r.Name
		case b.Off != "":
			row.State = "off: " + b.Off + ": fy secret bind " + r.Name
		case len(missing) > 0:
			row.State = "not confirmed: " + strings.Join(missing, ", ") + ": fy secret bind " + r.Name
		}
		rows = append(rows, row)
	}
	for _, name := range names {
		if used[name] {
			continue
		}
		row := secretRow{Name: strings.ToLower(strings.TrimPrefix(name, "FY_INJECT_")), From: "store", Set: true, Unused: true, Hosts: []string{}}
		for _, b := range bounds {
			if config.SecretVariable(b.Name) == name {
				row.Name = b.Name
			}
		}
		row.State = "no rule wants it: fy secret rm " + row.Name
		rows = append(rows, row)
	}
	return rows, nil
}

func (a *app) secretRm() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME", Aliases: []string{"remove"}, Short: "Remove a secret", Args: cobra.ExactArgs(1),
		RunE: hostOnly(func(cmd *cobra.Command, args []string) error {
			v, err := a.vault()
			if err != nil {
				return err
			}
			if err := state.CheckName(args[0]); err != nil {
				return usagef("secret name: want letters, digits, ., _ and -")
			}
			ok, err := v.store.Remove(cmd.Context(), config.SecretVariable(args[0]), args[0])
			if err != nil {
				return err
			}
			if !ok {
				return hint(fmt.Errorf("no secret is called %s", args[0]), "fy secret list")
			}
			fmt.Fprintf(a.Stdout, "removed %s\n", args[0])
			return a.secretsChanged(cmd.Context(), v.p)
		}),
	}
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// printCredentials says which credential goes where, and what it can do.
func (a *app) printCredentials(list []control.Credential) {
	if len(list) == 0 {
		return
	}
	rows := [][]string{{"CREDENTIAL", "KIND", "GOES TO", "PLACE", "CAN"}}
	for _, c := range list {
		hosts := strings.Join(c.Hosts, ", ")
		if c.Path != "" {
			hosts += " " + c.Path
		}
		can := c.Scope
		switch {
		case c.Off != "":
			can = "off: " + c.Off
		case c.Read.IsZero():
			can = "not asked for yet"
		default:
			if can == "" {
				can = "not known"
			}
			can += ", read " + ago(a.Now(), c.Read) + " ago"
			if !c.Expires.IsZero() {
				can += ", ends in " + short(c.Expires.Sub(a.Now()))
			}
		}
		rows = append(rows, []string{c.Name, c.Kind, escape(hosts), c.Place, escape(can)})
	}
	fmt.Fprintln(a.Stdout)
	table(a.Stdout, "", rows, func(row, _ int, cell string) string {
		if row == 0 {
			return a.style.dim(cell)
		}
		return cell
	})
}

// offerGrants asks, on a terminal only, about hosts that a credential goes to and that are not granted: a rule grants nothing.
func (a *app) offerGrants(ctx context.Context, c *control.Client) error {
	if !term.IsTerminal(a.Stdin) || !term.IsTerminal(a.Stderr) {
		return nil
	}
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	for _, cr := range st.Credentials {
		for _, h := range cr.Hosts {
			if strings.HasPrefix(h, "*") || strings.Contains(h, "/") {
				continue
			}
			why, err := c.Why(ctx, control.WhyRequest{Target: h})
			if err != nil || why.Verdict == "allow" || why.Reason == "denied_rule" {
				continue
			}
			yes, err := a.confirm("grant " + line(h) + ", where the credential " + line(cr.Name) + " goes, until fy down?")
			if err != nil {
				return err
			}
			if yes {
				if _, err := c.Allow(ctx, control.RuleRequest{Rules: []string{h}, Level: "session", Reason: "credential " + cr.Name}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
