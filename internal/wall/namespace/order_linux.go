package namespace

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// order is how a Spec travels to the keeper: the contents of its files, most of which is a trust store, one after the other in a memfd,
// because half a megabyte of JSON would take longer than all the rest of making a box.
type order struct {
	Spec
	Contents []content `json:"contents"`
}

type content struct {
	Path string `json:"path"`
	Size int    `json:"size"`
}

// Names among the descriptors of an order; the others are absolute paths.
const (
	contentsName = "contents" // the memfd
	listenName   = "listen"   // the box's unix socket, bound by the host
)

// maxContents bounds the files of a Spec together, in bytes.
const maxContents = 64 << 20

func newOrder(spec *Spec) (*order, *os.File, error) {
	o := &order{Spec: *spec}
	size := 0
	for p, b := range spec.Files {
		o.Contents = append(o.Contents, content{p, len(b)})
		size += len(b)
	}
	if size > maxContents {
		return nil, nil, fmt.Errorf("%d bytes of files, want at most %d", size, maxContents)
	}
	slices.SortFunc(o.Contents, func(a, b content) int { return strings.Compare(a.Path, b.Path) })
	fd, err := unix.MemfdCreate(contentsName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("hold the files: memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), contentsName)
	at := int64(0)
	for _, c := range o.Contents {
		if _, err := f.WriteAt(spec.Files[c.Path], at); err != nil {
			f.Close()
			return nil, nil, fmt.Errorf("hold the files: %w", err)
		}
		at += int64(c.Size)
	}
	return o, f, nil
}

// readOrder reads an order. Its Files are only valid until done is called.
func readOrder(data []byte, contents *os.File) (_ Spec, done func(), err error) {
	var o order
	if err := json.Unmarshal(data, &o); err != nil {
		return Spec{}, nil, err
	}
	if contents == nil {
		return Spec{}, nil, errors.New("no contents of files")
	}
	info, err := contents.Stat()
	if err != nil {
		return Spec{}, nil, err
	}
	size := 0
	for _, c := range o.Contents {
		if c.Size < 0 || int64(c.Size) > min(maxContents, info.Size())-int64(size) {
			return Spec{}, nil, fmt.Errorf("%s of %d bytes: want at most %d together", c.Path, c.Size, min(maxContents, info.Size()))
		}
		size += c.Size
	}
	done = func() {}
	var all []byte
	if size > 0 {
		all, err = unix.Mmap(int(contents.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
		if err != nil {
			return Spec{}, nil, fmt.Errorf("read the files: %w", err)
		}
		whole := all
		done = func() { unix.Munmap(whole) }
	}
	o.Files = make(map[string][]byte, len(o.Contents))
	for _, c := range o.Contents {
		o.Files[c.Path], all = all[:c.Size:c.Size], all[c.Size:]
	}
	return o.Spec, done, nil
}
