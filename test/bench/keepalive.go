package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// drop closes the connection; the next request opens another.
func (k *keepAlive) drop() {
	if k.conn != nil {
		k.conn.Close()
		k.conn = nil
	}
}

func (k *keepAlive) open(target string) error {
	if k.conn != nil && k.target == target {
		return nil
	}
	k.drop()
	conn, err := k.c.dialTLS(target)
	if err != nil {
		return err
	}
	k.conn, k.target = conn, target
	if k.br == nil {
		k.br = bufio.NewReaderSize(conn, 16<<10)
	} else {
		k.br.Reset(conn)
	}
	return nil
}

func (k *keepAlive) get(target string, size int64) error {
	if err := k.open(target); err != nil {
		return err
	}
	k.request = append(k.request[:0], "GET /"...)
	k.request = strconv.AppendInt(k.request, size, 10)
	k.request = append(k.request, " HTTP/1.1\r\nHost: "...)
	k.request = append(k.request, target...)
	k.request = append(k.request, "\r\nUser-Agent: load\r\nAccept: */*\r\n\r\n"...)
	if _, err := k.conn.Write(k.request); err != nil {
		return err
	}
	n, err := k.response()
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes, want %d", n, size)
	}
	return err
}

func (k *keepAlive) post(target string, size int64) error {
	if err := k.open(target); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(k.conn, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", target, size); err != nil {
		return err
	}
	if err := send(k.conn, size); err != nil {
		return err
	}
	_, err := k.response()
	return err
}

// response reads one response and returns the length of its body.
func (k *keepAlive) response() (int64, error) {
	line, err := k.br.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if !strings.HasPrefix(string(line), "HTTP/1.1 200") {
		return 0, fmt.Errorf("status %.60q", line)
	}
	length, chunked := int64(-1), false
	for {
		if line, err = k.br.ReadSlice('\n'); err != nil {
			return 0, err
		}
		if len(line) <= 2 {
			break
		}
		name, value, _ := strings.Cut(string(line), ":")
		switch value = strings.TrimSpace(value); strings.ToLower(name) {
		case "content-length":
			if length, err = strconv.ParseInt(value, 10, 64); err != nil {
				return 0, err
			}
		case "transfer-encoding":
			chunked = strings.EqualFold(value, "chunked")
		}
	}
	switch {
	case chunked:
		return k.chunks()
	case length < 0:
		return 0, errors.New("a response without a length")
	}
	return length, k.discard(length)
}

func (k *keepAlive) chunks() (int64, error) {
	var sum int64
	for {
		line, err := k.br.ReadSlice('\n')
		if err != nil {
			return sum, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(line)), 16, 64)
		if err != nil {
			return sum, err
		}
		if err := k.discard(n + 2); err != nil || n == 0 {
			return sum, err
		}
		sum += n
	}
}

func (k *keepAlive) discard(n int64) error {
	for n > 0 {
		m, err := k.br.Read(k.scratch[:min(n, int64(len(k.scratch)))])
		if n -= int64(m); err != nil {
			if n == 0 && errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
	return nil
}
