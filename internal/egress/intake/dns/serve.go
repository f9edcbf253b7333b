package dns

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	maxQuery  = 4 << 10          // a longer message is no question that a client asks
	maxConns  = 64               // TCP connections at once; one more is closed
	idleAfter = 10 * time.Second // a TCP connection without a question is closed
	retryIn   = 50 * time.Millisecond
)

// ServeUDP answers datagrams until ctx ends, and then closes c and returns nil.
func (s *Server) ServeUDP(ctx context.Context, c net.PacketConn) error {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	buf := make([]byte, maxQuery)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("read DNS datagram: %w", err)
			}
			pause(ctx)
			continue
		}
		if a := s.Answer(buf[:n], false); a != nil {
			_, _ = c.WriteTo(a, from) // the client asks again
		}
	}
}

// ServeTCP answers the questions on l's connections, in order on each, until ctx ends; it then closes l and them and returns nil.
func (s *Server) ServeTCP(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	slots := make(chan struct{}, maxConns)
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("accept DNS connection: %w", err)
			}
			pause(ctx)
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			s.refuse("", "limit", "too many DNS connections")
			_ = c.Close()
			continue
		}
		conns.Go(func() {
			defer func() { <-slots }()
			s.serveConn(ctx, c)
		})
	}
}

func (s *Server) serveConn(ctx context.Context, c net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	defer c.Close() //nolint:errcheck // nothing is lost: each answer was written
	br := bufio.NewReaderSize(c, 512)
	buf := make([]byte, maxQuery)
	for {
		if err := c.SetDeadline(time.Now().Add(idleAfter)); err != nil {
			return
		}
		if _, err := io.ReadFull(br, buf[:2]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(buf))
		if n > maxQuery {
			return
		}
		if _, err := io.ReadFull(br, buf[:n]); err != nil {
			return
		}
		a := s.Answer(buf[:n], true)
		if a == nil {
			return
		}
		out := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(a)), uint16(len(a))) //nolint:gosec // at most 512
		if _, err := c.Write(append(out, a...)); err != nil {
			return
		}
	}
}

// pause waits after an error that may pass, such as too many open files.
func pause(ctx context.Context) {
	t := time.NewTimer(retryIn)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
