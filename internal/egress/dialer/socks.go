package dialer

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"

	"foldyard/internal/egress/dest"
)

// socksReply is the refusal of a SOCKS5 proxy, RFC 1928 section 6.
type socksReply byte

func (r socksReply) Error() string {
	texts := []string{"", "general failure", "not allowed by its rules", "network unreachable", "host unreachable",
		"connection refused", "TTL expired", "command not supported", "address type not supported"}
	if int(r) < len(texts) && r != 0 {
		return texts[r]
	}
	return "unknown failure " + strconv.Itoa(int(r))
}

func (r socksReply) kind() Kind {
	switch r {
	case 3, 4:
		return KindNoRoute
	case 5:
		return KindRefused
	case 6:
		return KindTimeout
	}
	return KindProxy
}

// socks5 asks a SOCKS5 proxy for a connection: RFC 1928, and RFC 1929 when the
// URL has credentials.
func socks5(c net.Conn, u *url.URL, t dest.Target) error {
	const none, password = 0, 2
	hello := []byte{5, 1, none}
	if u.User != nil {
		hello = []byte{5, 2, none, password}
	}
	if _, err := c.Write(hello); err != nil {
		return err
	}
	var b [4]byte
	if _, err := io.ReadFull(c, b[:2]); err != nil {
		return fmt.Errorf("read its answer: %w", err)
	}
	switch {
	case b[0] != 5:
		return errors.New("its answer is not SOCKS5")
	case b[1] == password && u.User != nil:
		if err := socksLogin(c, u.User); err != nil {
			return err
		}
	case b[1] != none:
		return errors.New("it wants credentials")
	}
	req := []byte{5, 1, 0}
	switch h := t.Host; {
	case h.Addr().Is4():
		req = append(append(req, 1), h.Addr().AsSlice()...)
	case h.IsIP():
		req = append(append(req, 4), h.Addr().AsSlice()...)
	default:
		req = append(append(req, 3, byte(len(h.Name()))), h.Name()...)
	}
	if _, err := c.Write(append(req, byte(t.Port>>8), byte(t.Port))); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return fmt.Errorf("read its answer: %w", err)
	}
	if b[0] != 5 {
		return errors.New("its answer is not SOCKS5")
	}
	if b[1] != 0 {
		return socksReply(b[1])
	}
	var bound int64 // the address it uses, and the port
	switch b[3] {
	case 1:
		bound = 4 + 2
	case 4:
		bound = 16 + 2
	case 3:
		if _, err := io.ReadFull(c, b[:1]); err != nil {
			return fmt.Errorf("read its answer: %w", err)
		}
		bound = int64(b[0]) + 2
	default:
		return errors.New("its answer is not SOCKS5")
	}
	if _, err := io.CopyN(io.Discard, c, bound); err != nil {
		return fmt.Errorf("read its answer: %w", err)
	}
	return nil
}

func socksLogin(c net.Conn, user *url.Userinfo) error {
	name := user.Username()
	password, _ := user.Password()
	if len(name) > 255 || len(password) > 255 || name == "" {
		return errors.New("the name or the password does not fit SOCKS5")
	}
	msg := append([]byte{1, byte(len(name))}, name...)
	msg = append(append(msg, byte(len(password))), password...)
	if _, err := c.Write(msg); err != nil {
		return err
	}
	var b [2]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return fmt.Errorf("read its answer: %w", err)
	}
	if b[1] != 0 {
		return errors.New("it wants other credentials")
	}
	return nil
}
