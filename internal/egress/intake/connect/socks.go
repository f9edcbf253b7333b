package connect

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"

	"foldyard/internal/egress/dest"
)

// SocksVersion is the first byte of a SOCKS5 client.
const SocksVersion = 5

// Reply is the answer to a SOCKS5 request (RFC 1928, 6).
type Reply byte

const (
	Succeeded          Reply = 0
	Failed             Reply = 1
	NotAllowed         Reply = 2
	HostUnreachable    Reply = 4
	ConnectionRefused  Reply = 5
	TTLExpired         Reply = 6
	CommandUnsupported Reply = 7
	AddressUnsupported Reply = 8
)

// SocksError is a SOCKS5 exchange that names no target. Reply is what to
// answer; when it is Succeeded the answer was already given.
type SocksError struct {
	Reply Reply
	Host  string // the name as the client wrote it, when there was one
	Port  uint16
	Err   error
}

func (e *SocksError) Error() string { return "socks5: " + e.Err.Error() }
func (e *SocksError) Unwrap() error { return e.Err }

// ReadSocks reads a greeting and a request and answers the greeting. Only
// CONNECT without authentication is served. Errors of the protocol are
// *SocksError, others are w's and br's.
func ReadSocks(br *bufio.Reader, w io.Writer) (dest.Target, error) {
	var head [4]byte
	if _, err := io.ReadFull(br, head[:2]); err != nil {
		return dest.Target{}, fmt.Errorf("read socks greeting: %w", err)
	}
	if head[0] != SocksVersion {
		return dest.Target{}, &SocksError{Reply: Failed, Err: fmt.Errorf("version %d", head[0])}
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(br, methods); err != nil {
		return dest.Target{}, fmt.Errorf("read socks methods: %w", err)
	}
	method := byte(0xff)
	for _, m := range methods {
		if m == 0 {
			method = 0
		}
	}
	if _, err := w.Write([]byte{SocksVersion, method}); err != nil {
		return dest.Target{}, fmt.Errorf("answer socks greeting: %w", err)
	}
	if method != 0 {
		return dest.Target{}, &SocksError{Err: fmt.Errorf("no method without authentication offered")}
	}
	if _, err := io.ReadFull(br, head[:4]); err != nil {
		return dest.Target{}, fmt.Errorf("read socks request: %w", err)
	}
	if head[0] != SocksVersion || head[2] != 0 {
		return dest.Target{}, &SocksError{Reply: Failed, Err: fmt.Errorf("malformed request")}
	}
	if head[1] != 1 {
		return dest.Target{}, &SocksError{Reply: CommandUnsupported, Err: fmt.Errorf("command %d", head[1])}
	}
	return readAddress(br, head[3])
}

func readAddress(br *bufio.Reader, kind byte) (dest.Target, error) {
	n := 0
	switch kind {
	case 1:
		n = 4
	case 4:
		n = 16
	case 3:
		b, err := br.ReadByte()
		if err != nil {
			return dest.Target{}, fmt.Errorf("read socks name: %w", err)
		}
		n = int(b)
	default:
		return dest.Target{}, &SocksError{Reply: AddressUnsupported, Err: fmt.Errorf("address type %d", kind)}
	}
	b := make([]byte, n+2)
	if _, err := io.ReadFull(br, b); err != nil {
		return dest.Target{}, fmt.Errorf("read socks address: %w", err)
	}
	t := dest.Target{Port: binary.BigEndian.Uint16(b[n:])}
	var host string
	var err error
	if kind == 3 {
		host = string(b[:n])
		t.Host, err = dest.ParseHost(host)
	} else {
		a, _ := netip.AddrFromSlice(b[:n])
		host = a.String()
		t.Host = dest.HostFromAddr(a)
	}
	if err == nil && t.Port == 0 {
		err = fmt.Errorf("port 0")
	}
	if err != nil {
		return dest.Target{}, &SocksError{Reply: NotAllowed, Host: host, Port: t.Port, Err: err}
	}
	return t, nil
}

// WriteReply answers a SOCKS5 request. The bound address is left at zero: it
// is nobody's business.
func WriteReply(w io.Writer, r Reply) error {
	if _, err := w.Write([]byte{SocksVersion, byte(r), 0, 1, 0, 0, 0, 0, 0, 0}); err != nil {
		return fmt.Errorf("answer socks request: %w", err)
	}
	return nil
}
