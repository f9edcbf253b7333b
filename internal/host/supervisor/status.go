package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/intake/dns"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/proof"
	"foldyard/internal/wall/namespace"
)

// factsTimeout bounds the look at a running box.
const factsTimeout = 5 * time.Second

// Status describes the project as it is now.
func (s *Supervisor) Status(ctx context.Context) (control.Status, error) {
	cfg := s.cfg.Load()
	f := s.grants.File()
	out := control.Status{
		Project: s.opt.Project.Name,
		Backend: firstNonEmpty(cfg.Machine.Backend, config.Namespace),
		Enforce: s.snapshotEnforces(),
		Asks:    s.asks.len(),
		Boxes:   len(s.running()),
		Supervisor: control.Supervisor{
			PID: os.Getpid(), Since: s.since.UTC(), Version: s.opt.Version, Binary: s.opt.Binary, Socket: s.opt.Project.ControlSocket(),
		},
	}
	for _, g := range f.Grants {
		if !g.Deny && !g.Expired(s.now()) {
			out.Grants++
		}
	}
	if !out.Enforce {
		out.LearnUntil = f.LearnUntil
	}
	out.Limits = s.limits()
	if err := s.effective.Fault(); err != nil {
		out.Notes = append(out.Notes, "policy unreadable, everything is refused: "+err.Error())
	}
	if st := s.capture.Stats(); st.Err != "" {
		out.Notes = append(out.Notes, "the log cannot be written: "+st.Err)
	} else if st.Dropped > 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("%d log records were dropped", st.Dropped))
	}
	out.Notes = append(out.Notes, s.exportNotes()...)
	if s.upstream != nil {
		out.Notes = append(out.Notes, proxyNote)
	}
	out.Credentials, out.Notes = s.credentialList(), append(out.Notes, s.credentialNotes()...)
	b := s.longLived()
	if b == nil {
		if all := s.running(); len(all) > 0 {
			b = all[len(all)-1]
		}
	}
	subject := proof.Subject{Backend: out.Backend, BootID: bootID(), NoFirewall: isVM(cfg) && !cfg.Machine.Firewall}
	if step := s.vm.step.Load(); step != nil {
		out.Machine = *step
	}
	if b != nil {
		shown := b.shown()
		out.Box = &shown
		subject.Box = b.id
		f := s.facts(ctx, b)
		subject.Digest = f.Digest
		out.Notes = append(out.Notes, factNotes(f)...)
	}
	s.fillRings(&out, subject)
	return out, nil
}

// limits is the state of what is bounded: by the engine, by the log, and by the names of the box that has most.
func (s *Supervisor) limits() []control.Limit {
	out := []control.Limit{}
	for _, l := range s.engine.Limits() {
		out = append(out, control.Limit{Name: l.Name, Value: l.Value, At: l.Current, Hits: l.Hits})
	}
	names := 0
	for _, b := range s.running() {
		names = max(names, b.table.Len())
	}
	st := s.capture.Stats()
	return append(out,
		control.Limit{Name: "records", Value: capture.DefaultRate, Hits: int64(min(st.Over, math.MaxInt64))},
		control.Limit{Name: "names", Value: dns.MaxNames, At: int64(names), Hits: s.nameless.Load()},
		control.Limit{Name: "log_queue", Value: capture.DefaultQueue, At: int64(st.Queued), Hits: int64(min(st.Dropped, math.MaxInt64))},
	)
}

// factNotes are what the operator should know of how a box was built.
func factNotes(f namespace.Facts) []string {
	var out []string
	if f.Rules == "ports" {
		out = append(out, "this kernel has no nf_tables: only connections to common ports are taken, the rest is refused without a record")
	}
	if f.Nested {
		out = append(out, "[box] nested = true: the box may make namespaces and mount in them, so more of the kernel is in its reach")
	}
	for _, name := range f.Linked {
		out = append(out, name+" is a link, so the box may write what it leads to: programs on this computer execute that")
	}
	return out
}

// digest is of the box's construction as the host sees it now, "" when it cannot.
func (s *Supervisor) digest(ctx context.Context, b *sandbox) string { return s.facts(ctx, b).Digest }

// facts are what the host sees of a box now, none when it cannot.
func (s *Supervisor) facts(ctx context.Context, b *sandbox) namespace.Facts {
	ctx, cancel := context.WithTimeout(ctx, factsTimeout)
	defer cancel()
	f, err := b.client.Facts(ctx)
	if err != nil {
		s.log.Warn("box cannot be looked at", slog.String("box", b.id), slog.String("error", err.Error()))
		return namespace.Facts{}
	}
	return *f
}

func (s *Supervisor) fillRings(out *control.Status, subject proof.Subject) {
	reports, err := s.evidence().All()
	if err != nil {
		s.log.Warn("evidence damaged", slog.String("error", err.Error()))
	}
	p := s.proofPolicy()
	rings := proof.Rings(subject, p, reports)
	out.Label, out.Boundary, out.Why = proof.Label(rings, p)
	for _, r := range rings {
		shown := control.Ring{Name: string(r.Name), Kind: string(r.Kind), State: string(r.State), Boundary: r.Boundary, Why: r.Why}
		if r.Evidence != nil {
			shown.Evidence = &control.RingEvidence{At: r.Evidence.At.UTC(), Probes: r.Evidence.Probes, Passed: r.Evidence.Passed}
		}
		out.Rings = append(out.Rings, shown)
	}
}

func (s *Supervisor) proofPolicy() proof.Policy {
	p := proof.Policy{Enforces: s.snapshotEnforces()}
	if f := s.grants.File(); !p.Enforces && f.LearnUntil != nil {
		p.Why = "learning until " + f.LearnUntil.UTC().Format(time.RFC3339)
	}
	return p
}

func (s *Supervisor) evidence() proof.Store { return proof.Store{Dir: s.opt.Project.EvidenceDir()} }
