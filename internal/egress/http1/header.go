package http1

// Field is one field line, its name as it was written and its value without surrounding whitespace.
type Field struct{ Name, Value string }

// Header is a list of field lines in the order they came. Names compare without regard to case.
type Header []Field

// Get returns the value of the first field called name, or "".
func (h Header) Get(name string) string {
	for i := range h {
		if fold(h[i].Name, name) {
			return h[i].Value
		}
	}
	return ""
}

// Has tells whether there is a field called name.
func (h Header) Has(name string) bool {
	for i := range h {
		if fold(h[i].Name, name) {
			return true
		}
	}
	return false
}

// Values returns the values of all fields called name, in order.
func (h Header) Values(name string) []string {
	var vs []string
	for i := range h {
		if fold(h[i].Name, name) {
			vs = append(vs, h[i].Value)
		}
	}
	return vs
}

// Clone returns a copy that shares nothing with h.
func (h Header) Clone() Header { return append(Header(nil), h...) }

// Add appends a field.
func (h *Header) Add(name, value string) { *h = append(*h, Field{name, value}) }

// Set gives the field called name this one value, in its place if it exists.
func (h *Header) Set(name, value string) {
	for i := range *h {
		if fold((*h)[i].Name, name) {
			(*h)[i].Value = value
			rest := (*h)[i+1:]
			*h = append((*h)[:i+1], rest.without(name)...)
			return
		}
	}
	h.Add(name, value)
}

// Del removes all fields called name.
func (h *Header) Del(name string) { *h = h.without(name) }

// without filters in place.
func (h Header) without(name string) Header {
	out := h[:0]
	for _, f := range h {
		if !fold(f.Name, name) {
			out = append(out, f)
		}
	}
	return out
}

// StripHop removes, in place, what belongs to one hop only: the fields Connection names, Connection itself and the other
// hop-by-hop fields, proxy credentials and challenges, and HTTP2-Settings. Of TE only "trailers" is kept. Upgrade is kept when
// keepUpgrade is true. Host and Content-Length stay even if Connection names them: they frame and address the message.
func StripHop(h Header, keepUpgrade bool) Header {
	var listed [8]string // options other than the well-known ones are rare
	names := listed[:0]
	for _, f := range h {
		if !fold(f.Name, "Connection") {
			continue
		}
		for list := f.Value; list != ""; {
			var opt string
			opt, list = nextElement(list)
			switch {
			case opt == "" || fold(opt, "close") || fold(opt, "keep-alive") || fold(opt, "upgrade") || fold(opt, "te") ||
				fold(opt, "host") || fold(opt, "content-length"):
			default:
				names = append(names, opt)
			}
		}
	}
	out := h[:0]
	te := false
	for _, f := range h {
		switch hop(f.Name) {
		case hopDrop:
			continue
		case hopUpgrade:
			if !keepUpgrade {
				continue
			}
		case hopTE:
			if te || !hasElement(f.Value, "trailers") {
				continue
			}
			te, f.Value = true, "trailers"
		case endToEnd:
			if listedIn(names, f.Name) {
				continue
			}
		}
		out = append(out, f)
	}
	return out
}

func listedIn(names []string, name string) bool {
	for _, n := range names {
		if fold(n, name) {
			return true
		}
	}
	return false
}

type hopKind uint8

const (
	endToEnd hopKind = iota
	hopDrop
	hopUpgrade
	hopTE
)

func hop(name string) hopKind {
	switch len(name) {
	case 2:
		if fold(name, "TE") {
			return hopTE
		}
	case 7:
		if fold(name, "Upgrade") {
			return hopUpgrade
		}
	case 10:
		if fold(name, "Connection") || fold(name, "Keep-Alive") {
			return hopDrop
		}
	case 14:
		if fold(name, "HTTP2-Settings") {
			return hopDrop
		}
	case 16:
		if fold(name, "Proxy-Connection") {
			return hopDrop
		}
	case 17:
		if fold(name, "Transfer-Encoding") {
			return hopDrop
		}
	case 18:
		if fold(name, "Proxy-Authenticate") {
			return hopDrop
		}
	case 19:
		if fold(name, "Proxy-Authorization") {
			return hopDrop
		}
	}
	return endToEnd
}

// fold compares two ASCII strings without regard to case.
func fold(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := 0; i < len(a); i++ {
		if x, y := a[i], b[i]; x != y && lower(x) != lower(y) {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// nextElement cuts the first element, without surrounding whitespace, from a comma-separated list.
func nextElement(list string) (elem, rest string) {
	for i := 0; i < len(list); i++ {
		if list[i] == ',' {
			return trim(list[:i]), list[i+1:]
		}
	}
	return trim(list), ""
}

// hasElement tells whether a comma-separated list has an element, parameters aside.
func hasElement(list, want string) bool {
	for list != "" {
		var e string
		e, list = nextElement(list)
		for i := 0; i < len(e); i++ {
			if e[i] == ';' {
				e = trim(e[:i])
				break
			}
		}
		if fold(e, want) {
			return true
		}
	}
	return false
}

// trim removes surrounding SP and HTAB, which is all that RFC 9110 calls optional whitespace.
func trim(s string) string {
	for s != "" && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	for s != "" && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t') {
		s = s[:len(s)-1]
	}
	return s
}
