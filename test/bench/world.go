package main

import (
	"bufio"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Names of the measurement. The origin is behind all of them.
const (
	webName    = "origin.test"   // decrypted
	tunnelName = "tunnel.test"   // passed through
	coldNames  = "n%d.cold.test" // never seen before
)

// way is one of those that are compared: how a client gets to the origin.
type way struct {
	name  string
	proxy string // "" is straight to the origin
	pid   int    // whose processor time and memory count; 0 for none
	roots [][]byte
}

// world is everything that runs during a measurement.
type world struct {
	dir    string
	certs  certificates
	addrs  originAddrs
	parts  []*part
	fy     *install
	proxy  *exec.Cmd // fy proxy
	way    map[string]*way
	number int64 // cold names that were used
}

func newWorld(fy string) (w *world, err error) {
	w = &world{way: map[string]*way{}}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.dir, err = os.MkdirTemp("", "fybench"); err != nil {
		return nil, err
	}
	if w.dir, err = filepath.EvalSymlinks(w.dir); err != nil {
		return nil, err
	}
	if w.certs, err = newCertificates(webName, tunnelName, "*.cold.test"); err != nil {
		return nil, err
	}
	if err := w.part("__origin", w.certs, &w.addrs); err != nil {
		return nil, err
	}
	w.way["direct"] = &way{name: "direct", roots: [][]byte{w.certs.CA}}
	for _, l := range []struct {
		name, role string
		arg        any
	}{{"L1", "__tunnel", nil}, {"L2", "__reverse", reverse{w.certs, false}}, {"L2-h2", "__reverse", reverse{w.certs, true}}} {
		var addr string
		if err := w.part(l.role, l.arg, &addr); err != nil {
			return nil, err
		}
		w.way[l.name] = &way{name: l.name, proxy: addr, pid: w.parts[len(w.parts)-1].pid(), roots: [][]byte{w.certs.CA}}
	}
	return w, w.startFy(fy)
}

func (w *world) part(role string, arg, ready any) error {
	p, err := startPart(role, arg, ready)
	if p != nil {
		w.parts = append(w.parts, p)
	}
	return err
}

// startFy runs fy's proxy, with a policy of a hundred grants and the log on, as anybody would.
func (w *world) startFy(fy string) error {
	ca := filepath.Join(w.dir, "origin-ca.pem")
	if err := os.WriteFile(ca, w.certs.pem(), 0o600); err != nil {
		return err
	}
	var err error
	if w.fy, err = newInstall(fy, w.dir, fmt.Sprintf("[upstream]\nca = [%q]\nresolver = %q\n", ca, w.addrs.DNS)); err != nil {
		return err
	}
	toml := fmt.Sprintf("[project]\nname = \"bench\"\n[proxy]\npassthrough = [%q]\n", tunnelName)
	if err := os.WriteFile(filepath.Join(w.fy.dir, "foldyard.toml"), []byte(toml), 0o600); err != nil {
		return err
	}
	if _, err := w.fy.run("config", "adopt"); err != nil {
		return err
	}
	w.proxy = w.fy.command("proxy", "--listen", "127.0.0.1:0")
	endWithUs(w.proxy)
	out, err := w.proxy.StdoutPipe()
	if err != nil {
		return err
	}
	if err := w.proxy.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("fy proxy: %w", err)
	}
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "http://")
	if !ok {
		return fmt.Errorf("fy proxy said %q", line)
	}
	if err := w.grant(); err != nil {
		return err
	}
	text, err := w.fy.run("ca", "pem")
	if err != nil {
		return err
	}
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return errors.New("fy ca pem printed no certificate")
	}
	w.way["fy"] = &way{name: "fy", proxy: addr, pid: w.proxy.Process.Pid, roots: [][]byte{block.Bytes}}
	return nil
}

// grant allows the origin's names, and a hundred hosts more that nobody asks for.
func (w *world) grant() error {
	internal := []string{"allow", "--permanent", "--internal"}
	for _, name := range []string{webName, tunnelName, "*.cold.test"} {
		for _, addr := range []string{w.addrs.TLS, w.addrs.Raw} {
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				return err
			}
			if port == "443" {
				internal = append(internal, name)
			} else {
				internal = append(internal, net.JoinHostPort(name, port))
			}
		}
	}
	if _, err := w.fy.run(internal...); err != nil {
		return err
	}
	others := []string{"allow", "--permanent"}
	for i := range 100 {
		others = append(others, fmt.Sprintf("host%d.example.com", i))
	}
	_, err := w.fy.run(others...)
	return err
}

// stopFy ends the proxy, which is the project's supervisor, so that another can start.
func (w *world) stopFy() {
	if w.proxy != nil && w.proxy.Process != nil {
		w.proxy.Process.Signal(os.Interrupt)
		w.proxy.Wait()
		w.proxy = nil
	}
}

func (w *world) close() {
	w.stopFy()
	if w.fy != nil {
		w.fy.stop()
	}
	for _, p := range w.parts {
		p.stop()
	}
	os.RemoveAll(w.dir)
}

// target is name at the origin's port.
func target(name, addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return net.JoinHostPort(name, port)
}

// sample is what one way did in one round: the mean of there and back.
type sample struct {
	result
	CPU float64 // seconds of the way's process
}

// perRequest is processor time, in microseconds.
func (s sample) perRequest() float64 { return s.CPU / float64(s.N) * 1e6 }

// load runs a load by a way and counts the processor time of the way.
func (w *world) load(o load, by *way) (sample, error) {
	o.Proxy, o.Roots = by.proxy, by.roots
	if by.proxy == "" {
		o.Direct = w.addrs.TLS
		if o.Kind == "raw" {
			o.Direct = w.addrs.Raw
		}
	}
	if strings.Contains(o.Target, "%d") {
		w.number += 100_000
		o.FirstNum = w.number
	}
	var before time.Duration
	var err error
	if by.pid != 0 {
		if before, err = cpuOf(by.pid); err != nil {
			return sample{}, err
		}
	}
	var s sample
	p, err := startPart("__load", o, &s.result)
	if err != nil {
		return sample{}, fmt.Errorf("load by %s: %w", by.name, err)
	}
	if err := p.stop(); err != nil {
		return sample{}, fmt.Errorf("load by %s: %w", by.name, err)
	}
	if s.N == 0 || s.Errors > s.N/1000 {
		return sample{}, fmt.Errorf("load by %s: %d requests and %d errors: %s", by.name, s.N, s.Errors, s.Error)
	}
	if by.pid != 0 {
		after, err := cpuOf(by.pid)
		if err != nil {
			return sample{}, err
		}
		s.CPU = (after - before).Seconds()
	}
	return s, nil
}

// rounds measures every way in every round, there and back.
func (w *world) rounds(n int, o load, names ...string) (map[string][]sample, error) {
	out := map[string][]sample{}
	for range n {
		sums := make([]sample, len(names))
		for _, i := range mirrored(len(names)) {
			s, err := w.load(o, w.way[names[i]])
			if err != nil {
				return nil, err
			}
			a := &sums[i]
			a.N, a.Seconds, a.CPU, a.Resumed = a.N+s.N, a.Seconds+s.Seconds, a.CPU+s.CPU, a.Resumed+s.Resumed
			a.P50, a.P99 = a.P50+s.P50/2, a.P99+s.P99/2
		}
		for i, name := range names {
			out[name] = append(out[name], sums[i])
		}
	}
	return out, nil
}

func figures(s []sample, f func(sample) float64) series {
	var out series
	for _, v := range s {
		out = append(out, f(v))
	}
	return out
}

// ratios are inside a round.
func ratios(a, b []sample, f func(sample) float64) series {
	var out series
	for i := range a {
		out = append(out, f(a[i])/f(b[i]))
	}
	return out
}
