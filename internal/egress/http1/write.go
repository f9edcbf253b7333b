package http1

import (
	"bufio"
	"strconv"
	"strings"
)

// WriteHead writes the head to w, as HTTP/1.1, and does not flush. Host, Content-Length and Transfer-Encoding are written from
// Host and Length, in their place among the fields if they are there; Connection is written by us alone: it names Upgrade and TE
// if those fields are there, and close if Close is set. It fails without writing if a field or the request line would not be one.
func (r *Request) WriteHead(w *bufio.Writer) error {
	if !isToken(r.Method) || !isTarget(r.Target) {
		return bad("the request line to write is malformed")
	}
	if r.Length < Chunked {
		return bad("a request to write whose body has no end")
	}
	if !isValue(r.Host) {
		return bad("the Host to write is malformed")
	}
	wroteHost := true
	for i := range r.Header {
		if err := r.Header[i].check(); err != nil {
			return err
		}
		wroteHost = wroteHost && !fold(r.Header[i].Name, "Host")
	}
	_, _ = w.WriteString(r.Method) // errors are sticky
	_ = w.WriteByte(' ')
	_, _ = w.WriteString(r.Target)
	_, _ = w.WriteString(" HTTP/1.1\r\n")
	if wroteHost { // now, for there is no place for it
		writeField(w, "Host", r.Host)
	}
	o := options{close: r.Close}
	wroteLength := r.Length < 0
	for i := range r.Header {
		f := &r.Header[i]
		switch role(f.Name) {
		case roleHost:
			if !wroteHost {
				writeField(w, f.Name, r.Host)
				wroteHost = true
			}
			continue
		case roleLength:
			if !wroteLength {
				writeLength(w, f.Name, r.Length)
				wroteLength = true
			}
			continue
		case roleConnection, roleCoding:
			continue
		case roleUpgrade:
			o.upgrade = true
		case roleTE:
			o.te = true
		case roleOther:
		}
		writeField(w, f.Name, f.Value)
	}
	switch {
	case r.Length == Chunked:
		_, _ = w.WriteString("Transfer-Encoding: chunked\r\n")
	case !wroteLength && (r.Length > 0 || r.Method == "POST" || r.Method == "PUT" || r.Method == "PATCH"):
		writeLength(w, "Content-Length", r.Length)
	}
	o.write(w)
	_, err := w.WriteString("\r\n")
	return writeError(err)
}

// WriteHead writes the head to w, as HTTP/1.1, and does not flush. Fields are treated as in a request's. With Length UntilClose
// the connection must be closed after the body, and the head says so.
func (r *Response) WriteHead(w *bufio.Writer) error {
	if r.Status < 100 || r.Status > 999 || !isValue(r.Text) {
		return bad("the status line to write is malformed")
	}
	for i := range r.Header {
		if err := r.Header[i].check(); err != nil {
			return err
		}
	}
	_, _ = w.WriteString("HTTP/1.1 ") // errors are sticky
	_, _ = w.Write(strconv.AppendInt(w.AvailableBuffer(), int64(r.Status), 10))
	_ = w.WriteByte(' ')
	_, _ = w.WriteString(r.Text)
	_, _ = w.WriteString("\r\n")
	interim := r.Status < 200
	bare := interim || r.Status == 204 // neither framing field has a meaning, even as information
	o := options{close: (r.Close || r.Length == UntilClose) && !interim}
	wroteLength := r.Length < 0 || bare
	for i := range r.Header {
		f := &r.Header[i]
		switch role(f.Name) {
		case roleLength:
			switch {
			case wroteLength:
			case r.NoBody:
				writeField(w, f.Name, f.Value)
			default:
				writeLength(w, f.Name, r.Length)
			}
			wroteLength = true
			continue
		case roleConnection, roleCoding:
			continue
		case roleUpgrade:
			o.upgrade = true
		case roleTE, roleHost, roleOther:
		}
		writeField(w, f.Name, f.Value)
	}
	switch {
	case r.Length == Chunked && !r.NoBody && !bare:
		_, _ = w.WriteString("Transfer-Encoding: chunked\r\n")
	case !wroteLength && !r.NoBody:
		writeLength(w, "Content-Length", r.Length)
	}
	o.write(w)
	_, err := w.WriteString("\r\n")
	return writeError(err)
}

// check refuses what could not be read back as this one field.
func (f *Field) check() error {
	if !isToken(f.Name) || !isValue(f.Value) {
		return bad("a field to write is malformed")
	}
	return nil
}

func writeField(w *bufio.Writer, name, value string) {
	_, _ = w.WriteString(name) // errors are sticky
	_, _ = w.WriteString(": ")
	_, _ = w.WriteString(value)
	_, _ = w.WriteString("\r\n")
}

func writeLength(w *bufio.Writer, name string, n int64) {
	_, _ = w.WriteString(name) // errors are sticky
	_, _ = w.WriteString(": ")
	_, _ = w.Write(strconv.AppendInt(w.AvailableBuffer(), n, 10))
	_, _ = w.WriteString("\r\n")
}

// options are what our own Connection field names.
type options struct{ upgrade, te, close bool }

func (o options) write(w *bufio.Writer) {
	if o == (options{}) {
		return
	}
	list := make([]string, 0, 3)
	if o.upgrade {
		list = append(list, "Upgrade")
	}
	if o.te {
		list = append(list, "TE")
	}
	if o.close {
		list = append(list, "close")
	}
	writeField(w, "Connection", strings.Join(list, ", "))
}

type fieldRole uint8

const (
	roleOther fieldRole = iota
	roleHost
	roleLength
	roleCoding
	roleConnection
	roleUpgrade
	roleTE
)

func role(name string) fieldRole {
	switch len(name) {
	case 2:
		if fold(name, "TE") {
			return roleTE
		}
	case 4:
		if fold(name, "Host") {
			return roleHost
		}
	case 7:
		if fold(name, "Upgrade") {
			return roleUpgrade
		}
	case 10:
		if fold(name, "Connection") {
			return roleConnection
		}
	case 14:
		if fold(name, "Content-Length") {
			return roleLength
		}
	case 17:
		if fold(name, "Transfer-Encoding") {
			return roleCoding
		}
	}
	return roleOther
}
