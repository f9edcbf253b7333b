package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
)

// maxPublished bounds the connections of one published port.
const maxPublished = 256

// published is a box's port on the host's loopback.
type published struct {
	box  *sandbox
	port config.Port
	l    net.Listener
	slot chan struct{}
}

// publish listens for the ports that the box's record names; all or none.
func (s *Supervisor) publish(b *sandbox) (out []*published, err error) {
	if b.rec.Oneshot {
		return nil, nil
	}
	defer func() {
		if err != nil {
			for _, p := range out {
				p.l.Close()
			}
			out = nil
		}
	}()
	for _, text := range b.rec.Ports {
		p := &published{box: b, slot: make(chan struct{}, maxPublished)}
		if err := p.port.UnmarshalText([]byte(text)); err != nil {
			return out, err
		}
		var lc net.ListenConfig
		if p.l, err = lc.Listen(context.Background(), "tcp", p.port.Bind().String()); err != nil {
			return out, &control.Error{Code: control.CodeHost, Detail: fmt.Sprintf("publish port %d of the box: %v", p.port.Box, err), Hint: "choose another host port in [box] ports"}
		}
		out = append(out, p)
	}
	return out, nil
}

// serve carries connections until ctx ends.
func (p *published) serve(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { p.l.Close() })()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := p.l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case p.slot <- struct{}{}:
		default:
			c.Close()
			continue
		}
		wg.Go(func() {
			defer func() { <-p.slot }()
			p.carry(ctx, c.(*net.TCPConn))
		})
	}
}

// halfCloser is a connection whose ways end one by one.
type halfCloser interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// dialPort connects to a port in the box.
func (b *sandbox) dialPort(ctx context.Context, port int) (halfCloser, error) {
	if b.dial != nil {
		return b.dial(ctx, port)
	}
	return b.client.DialPort(ctx, port)
}

// carry relays one connection both ways. A box that listens on nothing there resets it.
func (p *published) carry(ctx context.Context, c *net.TCPConn) {
	defer c.Close()
	in, err := p.box.dialPort(ctx, int(p.port.Box))
	if err != nil {
		_ = c.SetLinger(0)
		return
	}
	defer in.Close()
	defer context.AfterFunc(ctx, func() { c.Close(); in.Close() })()
	var wg sync.WaitGroup
	for _, way := range [][2]halfCloser{{c, in}, {in, c}} {
		wg.Go(func() {
			_, err := io.Copy(way[0], way[1])
			if err != nil && !errors.Is(err, net.ErrClosed) {
				c.Close()
				in.Close()
				return
			}
			_ = way[0].CloseWrite() // the other way may go on
		})
	}
	wg.Wait()
}
