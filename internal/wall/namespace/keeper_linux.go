package namespace

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"foldyard/internal/box/wire"
)

// Descriptors that a keeper is started with, after the standard ones.
const (
	keeperStarter = 3 // who started it: sends the Spec, hears that the box is ready
	keeperProgram = 4 // fy itself, in sealed memory
)

// Verbs of fy's own binary that this package starts.
const (
	KeeperVerb = "__keeper"
	AgentVerb  = "__agent"
	ProbeVerb  = "__probe"
)

// keeper is the host's process of one box. It stays in the host's pid namespace, where nothing in the box can name it.
type keeper struct {
	spec    Spec
	program uintptr
	rules   *rules // nil without nf_tables
	names   []string
	links   []*os.File
	built   *built

	agent    *wire.Conn
	agentPid int
	userNS   *os.File
	mountNS  *os.File
	netInode uint64

	asking sync.Mutex // one who at a time

	mu       sync.Mutex // guards what follows
	sessions map[int]*wire.Conn
	next     int
	adopted  *wire.Conn
	waiting  *time.Timer // for the command of a one-shot box; nil if it need not come

	end     context.CancelFunc
	endOnce sync.Once
}

// Keep is the keeper's main. It returns the exit status of the process, when the box has ended.
func Keep() int {
	starter, err := wire.FromFile(os.NewFile(keeperStarter, "starter"))
	if err != nil {
		return 125
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		starter.Send(&wire.Message{Op: "failed", Error: err.Error()})
		return 125
	}
	k, l, err := construct(starter)
	if err != nil {
		starter.Send(&wire.Message{Op: "failed", Error: err.Error()})
		return 125
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.end = cancel
	if k.spec.LaunchWithin > 0 {
		k.waiting = time.AfterFunc(k.spec.LaunchWithin, k.finish)
	}
	go k.serve(l)
	go k.hearAgent()
	uncovered := make(chan struct{})
	go func() {
		k.built.uncover()
		close(uncovered)
	}()
	go func() {
		defer starter.Close()
		if !k.adopt(starter) {
			cancel() // nobody is left who knows of this box
		}
	}()
	<-ctx.Done()
	l.Close()
	unix.Kill(k.agentPid, unix.SIGKILL) // and with it everything in its pid namespace
	var ws unix.WaitStatus
	unix.Wait4(k.agentPid, &ws, 0, nil)
	<-uncovered
	k.built.release()
	k.lastRefusals()
	k.mu.Lock()
	if k.adopted != nil {
		k.adopted.Close() // before this process has given its memory back, which takes longer than all the rest of its end
	}
	k.mu.Unlock()
	return 0
}

// lastRefusals tells what was refused since the last tick, when nothing in the box can add to it any more.
func (k *keeper) lastRefusals() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.adopted == nil || k.rules == nil {
		return
	}
	if rs, err := k.rules.takeRefused(); err == nil && len(rs) > 0 {
		if b, err := json.Marshal(rs); err == nil {
			k.adopted.Unix().SetWriteDeadline(time.Now().Add(time.Second))
			k.adopted.Send(&wire.Message{Op: "refused", Data: b})
		}
	}
}

// construct builds the box in the namespaces of the calling process: network, root, and the first process in it. What is the same in
// every box is made before the keeper has heard which one this is: a keeper may be started in reserve.
func construct(starter *wire.Conn) (*keeper, net.Listener, error) {
	k := &keeper{sessions: map[int]*wire.Conn{}}
	networked := make(chan error, 1)
	go func() { networked <- k.network(len(os.Args) > 2 && os.Args[2] == portsFlag) }()
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
		return nil, nil, fmt.Errorf("name the network namespace: %w", err)
	}
	k.netInode = st.Ino
	var err error
	if k.program, err = highFD(os.NewFile(keeperProgram, "program")); err != nil {
		return nil, nil, err
	}
	if err := unix.Sethostname([]byte("box")); err != nil {
		return nil, nil, fmt.Errorf("set the host name: %w", err)
	}
	root, err := startRoot()
	if err := errors.Join(err, <-networked); err != nil {
		return nil, nil, err
	}
	m, files, err := starter.Recv()
	if err != nil {
		return nil, nil, fmt.Errorf("read what to build: %w", err)
	}
	handed := map[string]*os.File{}
	for i, f := range files {
		if i < len(m.Names) {
			handed[m.Names[i]] = f
		}
	}
	var done func()
	if k.spec, done, err = readOrder(m.Data, handed[contentsName]); err != nil {
		return nil, nil, fmt.Errorf("read what to build: %w", err)
	}
	if handed[listenName] == nil {
		return nil, nil, errors.New("read what to build: no socket for the box")
	}
	l, err := net.FileListener(handed[listenName])
	if err != nil {
		return nil, nil, fmt.Errorf("serve the box's socket: %w", err)
	}
	err = root.complete(&k.spec, handed)
	k.spec.Files = nil
	done()
	if err != nil {
		return nil, nil, err
	}
	k.built = root.built
	if err := root.enter(); err != nil {
		return nil, nil, err
	}
	closeAll(files)
	return k, l, k.firstProcess()
}

// portsFlag, after the verb, makes a keeper listen on a fixed list of ports, as where the kernel has no nf_tables.
const portsFlag = "ports"

// network makes the box's network: loopback, rules and listeners.
func (k *keeper) network(ports bool) (err error) {
	if err := network(); err != nil {
		return err
	}
	if ports {
		k.names, k.links, err = links(false)
		return err
	}
	if k.rules, err = loadRules(); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EPROTONOSUPPORT) && !errors.Is(err, unix.EINVAL) {
		return err
	} else if err != nil {
		k.rules = nil
	}
	k.names, k.links, err = links(k.rules != nil)
	return err
}

// firstProcess starts the agent as pid 1 of the box.
func (k *keeper) firstProcess() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make the agent's socket: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "agent"), os.NewFile(uintptr(pair[1]), "keeper")
	defer theirs.Close()
	said, tell, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer said.Close()
	defer tell.Close()
	listen, goOn, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer listen.Close()
	defer goOn.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	defer null.Close()
	fds, err := highFDs(null, theirs, tell)
	if err != nil {
		return err
	}
	defer fds.closeAll()
	report := fds[2]

	l := &list{}
	l.add("end with the keeper", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL))
	empty := l.text("")
	l.add("mount /proc", unix.SYS_MOUNT, l.text("proc"), l.text("/proc"), l.text("proc"), unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, empty)
	l.wait("that /proc is there", report, listen.Fd())
	l.add("let the maps be written", unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1)
	l.add("make the box's user and mount namespaces", unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWNS)
	uid, gid := strconv.Itoa(k.spec.User.UID), strconv.Itoa(k.spec.User.GID)
	insideUID, insideGID := uid, gid
	p := nothing
	if k.spec.Root {
		insideUID, insideGID, p = "0", "0", rootly
	}
	l.write("/proc/self/setgroups", "deny")
	l.write("/proc/self/gid_map", insideGID+" "+gid+" 1\n")
	l.write("/proc/self/uid_map", insideUID+" "+uid+" 1\n")
	l.add("hide from what it will start", unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0)
	l.add("leave the host's session", unix.SYS_SETSID)
	l.add("usual umask", unix.SYS_UMASK, 0o022)
	l.ownDescriptors([]uintptr{fds[0], fds[0], fds[0], fds[1]}, k.program, report)
	l.confine(p, filter(k.spec.Nested))
	// Little runs in the agent, and threads that wait for work cost more than the work.
	l.exec(k.program, []string{"fy", AgentVerb}, []string{"GOMAXPROCS=1"})

	if k.agentPid, err = startFromThread(l, unix.CLONE_NEWPID, report); err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	tell.Close()
	fds.close(2)
	one := make([]byte, 8)
	if n, err := said.Read(one); err != nil || n != 1 {
		if n == len(one) {
			return fmt.Errorf("start the agent: %w", l.failure(one))
		}
		return fmt.Errorf("start the agent: its first step failed: %w", errors.Join(err, procHint()))
	}
	if err := finishRoot(); err != nil {
		return err
	}
	if _, err := goOn.Write(one[:1]); err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	if err := l.report(said); err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	if k.agent, err = wire.FromFile(ours); err != nil {
		return err
	}
	if k.userNS, err = os.Open("/proc/1/ns/user"); err == nil {
		k.mountNS, err = os.Open("/proc/1/ns/mnt")
	}
	if err != nil {
		return fmt.Errorf("hold the box's namespaces: %w", err)
	}
	return nil
}

// startFromThread starts l from a thread that does nothing else and never ends: the box's first process ends with the thread that
// made it. No other goroutine is tied to a thread: every wait of one that is costs two switches.
func startFromThread(l *list, flags, report uintptr) (pid int, err error) {
	started := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		pid, err = l.start(flags, report)
		close(started)
		select {}
	}()
	<-started
	return pid, err
}

func procHint() error {
	return errors.New("a masked /proc outside (a container) forbids a new one inside: see fy doctor")
}

// finish ends the box.
func (k *keeper) finish() { k.endOnce.Do(k.end) }

func (k *keeper) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go k.one(wire.New(c.(*net.UnixConn)))
	}
}

// one serves one connection of the host's side. Its first message says what for, and shows the nonce.
func (k *keeper) one(c *wire.Conn) {
	defer c.Close()
	c.Unix().SetReadDeadline(time.Now().Add(10 * time.Second))
	m, files, err := c.Recv()
	if err != nil {
		return
	}
	c.Unix().SetReadDeadline(time.Time{})
	if subtle.ConstantTimeCompare([]byte(m.Nonce), []byte(k.spec.Nonce)) != 1 {
		closeAll(files)
		c.Send(&wire.Message{Op: "failed", Error: "not this box's nonce"})
		return
	}
	switch m.Op {
	case "adopt":
		closeAll(files)
		k.adopt(c)
	case "exec":
		k.exec(c, m.Exec, files)
	case "probe":
		k.answerData(c, func() (any, error) { return k.probe(files, m.Data, m.Names) })
		closeAll(files)
	case "facts":
		closeAll(files)
		k.answerData(c, func() (any, error) { return k.facts() })
	case "who":
		closeAll(files)
		k.answerData(c, func() (any, error) {
			var a netip.AddrPort
			if err := json.Unmarshal(m.Data, &a); err != nil {
				return nil, fmt.Errorf("read an address: %w", err)
			}
			k.asking.Lock() // each question lists the box's sockets: one list at a time
			defer k.asking.Unlock()
			return who(a)
		})
	case "dial":
		closeAll(files)
		k.dial(c, m.Port)
	case "stop":
		closeAll(files)
		c.Send(&wire.Message{Op: "ok"})
		k.finish()
	default:
		closeAll(files)
		c.Send(&wire.Message{Op: "failed", Error: "unknown request " + strconv.Quote(m.Op)})
	}
}

func (k *keeper) answerData(c *wire.Conn, f func() (any, error)) {
	v, err := f()
	if err == nil {
		var b []byte
		if b, err = json.Marshal(v); err == nil {
			c.Send(&wire.Message{Op: "ok", Data: b})
			return
		}
	}
	c.Send(&wire.Message{Op: "failed", Error: err.Error()})
}

// adopt hands the listeners over, and from then on tells what the rules refused. The latest adopter wins; whoever made the box is the
// first. It tells whether they were handed over.
func (k *keeper) adopt(c *wire.Conn) bool {
	k.mu.Lock()
	if k.adopted != nil {
		k.adopted.Close()
	}
	k.adopted = c
	k.mu.Unlock()
	if err := c.Send(&wire.Message{Op: "links", Names: k.names, Pid: os.Getpid()}, k.links...); err != nil {
		return false
	}
	done := make(chan struct{})
	defer close(done)
	if k.rules != nil {
		go k.tellRefusals(c, done)
	}
	for {
		m, files, err := c.Recv()
		closeAll(files)
		if err != nil {
			return true
		}
		if m.Op == "granted" {
			var ps []netip.Prefix
			reply := &wire.Message{Op: "ok"}
			err := json.Unmarshal(m.Data, &ps)
			if err == nil && k.rules != nil { // without rules every address ends in the listeners
				err = k.rules.setGranted(ps)
			}
			if err != nil {
				reply = &wire.Message{Op: "failed", Error: err.Error()}
			}
			c.Send(reply)
		}
	}
}

func (k *keeper) tellRefusals(c *wire.Conn, done <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		rs, err := k.rules.takeRefused()
		if err != nil || len(rs) == 0 {
			continue
		}
		b, err := json.Marshal(rs)
		if err != nil || c.Send(&wire.Message{Op: "refused", Data: b}) != nil {
			return
		}
	}
}

// dial opens a connection to a port that something in the box listens on, for a published port.
func (k *keeper) dial(c *wire.Conn, port int) {
	d := net.Dialer{Timeout: 5 * time.Second}
	var conn net.Conn
	var err error
	for _, host := range []string{"127.0.0.1", "::1"} {
		if conn, err = d.DialContext(context.Background(), "tcp", net.JoinHostPort(host, strconv.Itoa(port))); err == nil {
			break
		}
	}
	if err != nil {
		c.Send(&wire.Message{Op: "failed", Error: err.Error()})
		return
	}
	defer conn.Close()
	f, err := conn.(*net.TCPConn).File()
	if err != nil {
		c.Send(&wire.Message{Op: "failed", Error: err.Error()})
		return
	}
	defer f.Close()
	c.Send(&wire.Message{Op: "ok"}, f)
}
