package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds one try at an address that answers nothing.
const patience = 2 * time.Second

// sockaddr returns the family and address for a socket call. A v4-mapped
// address stays IPv6.
func sockaddr(a netip.AddrPort) (int, unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	sa := &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if a.Addr().Zone() != "" {
		sa.ZoneId = 1 // loopback, the only device of a box
	}
	return unix.AF_INET6, sa
}

// connect opens a socket and connects it, waiting at most patience. The caller
// closes the descriptor when the error is nil.
func connect(family, kind, protocol int, sa unix.Sockaddr) (int, error) {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return -1, err
	}
	err = unix.Connect(fd, sa)
	if errors.Is(err, unix.EINPROGRESS) {
		if err = await(fd, unix.POLLOUT, patience); err == nil {
			var soerr int
			if soerr, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && soerr != 0 {
				err = unix.Errno(soerr)
			}
		}
	}
	if err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}

// await waits until a descriptor is ready.
func await(fd int, events int16, d time.Duration) error {
	end := time.Now().Add(d)
	for {
		left := time.Until(end)
		if left <= 0 {
			return unix.ETIMEDOUT
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, int(left/time.Millisecond)+1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n > 0 {
			return nil
		}
	}
}

// closeFD closes a descriptor of ours whose last error changes nothing.
func closeFD(fd int) { _ = unix.Close(fd) }

// tcp tries to connect, and when it gets there says who it is, so that the
// host knows.
func (p *prober) tcp(t *tally, id string, kind, protocol int, to ...netip.AddrPort) {
	var wg sync.WaitGroup
	for _, a := range to {
		wg.Go(func() {
			family, sa := sockaddr(a)
			fd, err := connect(family, kind, protocol, sa)
			if err != nil {
				o, how := fromError(err)
				t.add(o, a.String(), how)
				return
			}
			o, how := p.whoAnswers(fd, id, a.Addr())
			closeFD(fd)
			t.add(o, a.String(), how)
		})
	}
	wg.Wait()
}

// whoAnswers sends the tag inside an HTTP request over a connection that ought
// not to be. What answers on loopback is the box's own, unless the host's
// listener hears the tag. Where the wall accepts a connection so that foldyard
// may answer it, foldyard's own answer is a refusal, and so is an end without
// one.
func (p *prober) whoAnswers(fd int, id string, to netip.Addr) (Outcome, string) {
	request := "GET /" + p.plan.Nonce + " HTTP/1.1\r\nHost: " + otherName + "\r\nX-Probe: " + strings.TrimSpace(Tag(p.plan.Nonce, id)) + "\r\n\r\n"
	_, err := unix.Write(fd, []byte(request))
	buf := make([]byte, 4096)
	n := 0
	if err == nil {
		if err = await(fd, unix.POLLIN, time.Second); err == nil {
			n, err = unix.Read(fd, buf)
		}
	}
	answer := string(buf[:max(n, 0)])
	switch {
	case to.Unmap().IsLoopback():
		return Refused, "a service of the box's own answers there"
	case p.answered(to) && (strings.Contains(answer, "\r\nProxy-Status: foldyard") || n == 0 && err == nil || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)):
		return Refused, "closed or refused by foldyard"
	}
	return Reached, fmt.Sprintf("connected, %d bytes came back", max(n, 0))
}

// answered reports whether the wall hands connections to an address to
// foldyard, which refuses them in its own words.
func (p *prober) answered(a netip.Addr) bool {
	return p.plan.AnswersAll || slices.ContainsFunc(p.plan.Redirected, func(r netip.Prefix) bool { return r.Contains(a.Unmap()) })
}

// udp sends a payload from a connected socket and waits for what comes back.
// judge says what an answer means; nil: any answer got out.
func (p *prober) udp(t *tally, payload []byte, judge func([]byte) (Outcome, string), to ...netip.AddrPort) {
	var wg sync.WaitGroup
	for _, a := range to {
		wg.Go(func() {
			o, how := udpOnce(a, payload, judge)
			t.add(o, a.String(), how)
		})
	}
	wg.Wait()
}

func udpOnce(a netip.AddrPort, payload []byte, judge func([]byte) (Outcome, string)) (Outcome, string) {
	family, sa := sockaddr(a)
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return Errored, err.Error()
	}
	defer closeFD(fd)
	// Broadcast needs leave; where it is not given the connect says so.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
	if err := unix.Connect(fd, sa); err != nil {
		return fromError(err)
	}
	buf := make([]byte, 4096)
	for range 3 { // a refusal may be lost to a rate limit
		if _, err := unix.Write(fd, payload); err != nil {
			return fromError(err)
		}
		if err := await(fd, unix.POLLIN, patience/4); err != nil {
			continue
		}
		n, err := unix.Read(fd, buf)
		if err != nil {
			return fromError(err)
		}
		if judge != nil {
			return judge(buf[:n])
		}
		if a.Addr().IsLoopback() { // and the host did not hear the tag
			return Refused, "a service of the box's own answers there"
		}
		return Reached, fmt.Sprintf("answered with %d bytes", n)
	}
	return Silent, "neither refused nor answered"
}

// answer is the head and body of an HTTP answer.
type answer struct {
	status int
	head   string
	body   string
}

// exchange writes a request and reads the answer until the other side closes; of
// an answer to CONNECT the head is enough.
func exchange(conn net.Conn, request string, patience time.Duration) (answer, error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return answer{}, err
	}
	if _, err := io.WriteString(conn, request); err != nil {
		return answer{}, err
	}
	var got []byte
	buf := make([]byte, 4096)
	for len(got) < 16<<10 {
		n, err := conn.Read(buf)
		got = append(got, buf[:n]...)
		if strings.HasPrefix(request, "CONNECT ") && strings.Contains(string(got), "\r\n\r\n") {
			break // the connection may stay open
		}
		if err != nil {
			if len(got) == 0 {
				return answer{}, err
			}
			break
		}
	}
	return parseAnswer(string(got))
}

func parseAnswer(text string) (answer, error) {
	head, body, _ := strings.Cut(text, "\r\n\r\n")
	line, _, _ := strings.Cut(head, "\r\n")
	parts := strings.SplitN(line, " ", 3)
	if len(parts) < 2 || !strings.HasPrefix(parts[0], "HTTP/1.") {
		return answer{}, fmt.Errorf("no HTTP answer: %.60q", text)
	}
	status, err := strconv.Atoi(parts[1])
	if err != nil {
		return answer{}, fmt.Errorf("no HTTP status: %.60q", line)
	}
	return answer{status: status, head: head, body: body}, nil
}

// dial opens a stream to talk over.
func dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Timeout: patience}
	return d.DialContext(ctx, "tcp", to.String())
}

// dialTLS speaks TLS with what must hold a certificate for name signed by our
// CA, while asking for sni.
func (p *prober) dialTLS(ctx context.Context, to netip.AddrPort, sni, name string) (*tls.Conn, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(p.plan.CA) {
		return nil, errors.New("the plan has no CA certificate")
	}
	conn, err := dial(ctx, to)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{
		ServerName: sni, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection does it, for a name that is not the SNI
		VerifyConnection: func(s tls.ConnectionState) error {
			inter := x509.NewCertPool()
			for _, c := range s.PeerCertificates[1:] {
				inter.AddCert(c)
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{DNSName: name, Roots: pool, Intermediates: inter})
			return err
		},
	}
	tlsConn := tls.Client(conn, config)
	hctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	if err := tlsConn.HandshakeContext(hctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return tlsConn, nil
}
