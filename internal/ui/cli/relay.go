package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"foldyard/internal/host/control"
	"foldyard/internal/ui/term"
	"foldyard/internal/wall/namespace"
)

// lingering is how long output may still come after a command in a long-lived box has ended: something it left behind may
// hold its pipes for ever.
const lingering = 300 * time.Millisecond

// relay runs a command in a box, and is its terminal and pipes until it ends.
type relay struct {
	a      *app
	box    control.Box
	launch bool
	raw    bool // no filter between the box and a terminal
}

// run returns the command's exit code. An error means that foldyard failed.
func (r *relay) run(ctx context.Context, argv []string) (int, error) {
	c := control.Command{Argv: argv, Env: r.box.Env, Dir: r.a.dirIn(r.box), Launch: r.launch}
	if term.IsTerminal(r.a.Stdin) && term.IsTerminal(r.a.Stdout) {
		c.TTY = true
		c.Rows, c.Cols = term.Size(r.a.Stdout)
	}
	var code int
	var err error
	if c.TTY {
		code, err = r.terminal(ctx, c)
	} else {
		code, err = r.pipes(ctx, c)
	}
	var start *namespace.StartError
	if !errors.As(err, &start) {
		return code, err
	}
	fmt.Fprintf(r.a.Stderr, "fy: %s: %s\n", line(start.Command), start.Errno)
	switch start.Errno {
	case syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP, syscall.ENAMETOOLONG:
		return 127, nil
	}
	return 126, nil
}

// dirIn is where a command starts: where the caller stands, if that is in the repo.
func (a *app) dirIn(b control.Box) string {
	here, err := filepath.EvalSymlinks(a.dir())
	if err == nil && (here == b.Dir || strings.HasPrefix(here, b.Dir+"/")) {
		return here
	}
	return b.Dir
}

// pipes relays three streams through pipes of our own: a descriptor of the caller's never gets in.
func (r *relay) pipes(ctx context.Context, c control.Command) (int, error) {
	var inside, outside [3]*os.File
	closeFiles := func(fs []*os.File) {
		for _, f := range fs {
			if f != nil {
				f.Close()
			}
		}
	}
	defer func() { closeFiles(inside[:]); closeFiles(outside[:]) }()
	for i := range inside {
		rd, wr, err := os.Pipe()
		if err != nil {
			return 0, fmt.Errorf("make pipes: %w", err)
		}
		if inside[i], outside[i] = wr, rd; i == 0 {
			inside[i], outside[i] = rd, wr
		}
	}
	s, err := r.box.Run(ctx, c, inside[:]...)
	if err != nil {
		return 0, err
	}
	closeFiles(inside[:])
	inside = [3]*os.File{}
	defer r.signals(s, nil)()
	go func() {
		_, _ = io.Copy(outside[0], r.a.Stdin) // ends with either side
		outside[0].Close()
	}()
	pumps := []*pump{r.pump(outside[1], r.a.Stdout), r.pump(outside[2], r.a.Stderr)}
	code, err := s.Wait()
	for _, p := range pumps {
		p.finish()
	}
	return code, err
}

// terminal relays one terminal of the box's own.
func (r *relay) terminal(ctx context.Context, c control.Command) (int, error) {
	s, err := r.box.Run(ctx, c)
	if err != nil {
		return 0, err
	}
	defer s.Terminal.Close()
	restore, err := term.Raw(r.a.Stdin)
	if err != nil {
		return 0, err
	}
	defer restore()
	defer r.signals(s, s.Terminal)()
	go func() { _, _ = io.Copy(s.Terminal, r.a.Stdin) }() // ends with either side
	p := r.pump(s.Terminal, r.a.Stdout)
	code, err := s.Wait()
	p.finish()
	return code, err
}

// signals passes on to the command what this process gets, and the window's size; the result stops that.
func (r *relay) signals(s *namespace.Session, tty *os.File) (stop func()) {
	ch := make(chan os.Signal, 16)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sig := range ch {
			if sig != syscall.SIGWINCH {
				_ = s.Signal(sig.(syscall.Signal)) // it may have ended
			} else if tty != nil {
				rows, cols := term.Size(r.a.Stdout)
				_ = term.SetSize(tty, rows, cols)
			}
		}
	}()
	return func() {
		signal.Stop(ch)
		close(ch)
		<-done
	}
}

// pump copies one stream of the box's to one of ours.
type pump struct {
	from    *os.File
	filter  *term.Filter
	reading atomic.Int64 // since when it waits for the box, in nanoseconds; 0: it writes
	done    chan struct{}
	once    sync.Once
}

func (r *relay) pump(from, to *os.File) *pump {
	p := &pump{from: from, done: make(chan struct{})}
	var w io.Writer = to
	if term.IsTerminal(to) && !r.raw {
		p.filter = term.NewFilter(to)
		w = p.filter
	}
	go p.copy(w)
	return p
}

func (p *pump) copy(w io.Writer) {
	defer close(p.done)
	buf := make([]byte, 32<<10)
	for {
		p.reading.Store(time.Now().UnixNano())
		n, err := p.from.Read(buf)
		p.reading.Store(0)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				p.from.Close() // the box gets what a closed pipe gives
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// finish waits for the end of the stream, or until nothing more comes, and resets the terminal.
func (p *pump) finish() {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	end := time.Now()
	for waiting := true; waiting; {
		select {
		case <-p.done:
			waiting = false
		case now := <-t.C:
			since := p.reading.Load()
			waiting = since == 0 || now.Sub(time.Unix(0, since)) < lingering || now.Sub(end) < lingering
		}
	}
	p.once.Do(func() {
		if p.filter != nil {
			_ = p.filter.Close() // the terminal may be gone
		}
	})
}
