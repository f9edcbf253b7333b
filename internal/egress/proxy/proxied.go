package proxy

import (
	"errors"
	"net/http"
	"time"

	"foldyard/internal/egress/capture"
	"foldyard/internal/egress/dest"
	"foldyard/internal/egress/intake/connect"
	"foldyard/internal/egress/policy"
)

// proxied takes a connection to the box's proxy port: SOCKS5, CONNECT, or
// requests that name their target.
func (e *Engine) proxied(c *client) {
	c.via = capture.ViaForward
	var first [1]byte
	_ = c.SetReadDeadline(time.Now().Add(e.lim.HeaderTime)) // a dead socket shows in the peek
	if n, _ := c.peek(first[:], 0); n == 0 {
		return // said nothing, asked nothing
	}
	_ = c.SetReadDeadline(time.Time{})
	if first[0] == connect.SocksVersion {
		if c.box.Token != nil {
			e.tokenlessSocks(c)
			return
		}
		e.socks(c)
		return
	}
	_ = e.session(c, c, connect.SchemeNone).serve() // it has recorded what there was to
	if c.via == capture.ViaConnect && !c.target.IsZero() {
		n := e.begin(c)
		defer e.finish(n)
		n.Method = http.MethodConnect
		e.carry(c, n)
	}
}

func (e *Engine) socks(c *client) {
	c.via = capture.ViaSOCKS
	n := e.begin(c)
	defer e.finish(n)
	if t, err := c.readSocks(); err != nil {
		e.badSocks(c, n, err)
	} else {
		c.setTarget(t)
		e.carry(c, n)
	}
}

func (c *client) readSocks() (dest.Target, error) {
	c.enter(phaseHead)
	defer c.enter(phaseBusy)
	br := readers.get(c)
	defer readers.put(br)
	t, err := connect.ReadSocks(br, c)
	if err != nil {
		return t, err
	}
	c.unread(br)
	if t, err = c.box.named(t); err != nil {
		return t, &connect.SocksError{Reply: connect.NotAllowed, Host: t.Host.String(), Port: t.Port, Err: err}
	}
	return t, nil
}

func (e *Engine) badSocks(c *client, n *note, err error) {
	bad, ok := errors.AsType[*connect.SocksError](err)
	if !ok {
		n.refused(policy.ReasonBadRequest, err.Error())
		c.reset()
		return
	}
	n.host, n.port = bad.Host, bad.Port
	why := policy.ReasonBadRequest
	if bad.Host != "" || bad.Reply == connect.NotAllowed {
		why = policy.ReasonBadTarget
	}
	n.refused(why, bad.Error())
	if bad.Reply != connect.Succeeded {
		_ = connect.WriteReply(c, bad.Reply) // it may be gone
	}
	e.finish(n)
	c.linger()
}
