package namespace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	var all []byte
	for p, b := range spec.Files {
		o.Contents = append(o.Contents, content{p, len(b)})
	}
	slices.SortFunc(o.Contents, func(a, b content) int { return strings.Compare(a.Path, b.Path) })
	for _, c := range o.Contents {
		all = append(all, spec.Files[c.Path]...)
	}
	if len(all) > maxContents {
		return nil, nil, fmt.Errorf("%d bytes of files, want at most %d", len(all), maxContents)
	}
	fd, err := unix.MemfdCreate(contentsName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("hold the files: memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), contentsName)
	if _, err := f.WriteAt(all, 0); err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("hold the files: %w", err)
	}
	return o, f, nil
}

func readOrder(data []byte, contents *os.File) (Spec, error) {
	var o order
	if err := json.Unmarshal(data, &o); err != nil {
		return Spec{}, err
	}
	if contents == nil {
		return Spec{}, errors.New("no contents of files")
	}
	size := 0
	for _, c := range o.Contents {
		if c.Size < 0 || c.Size > maxContents-size {
			return Spec{}, fmt.Errorf("%s of %d bytes: want at most %d together", c.Path, c.Size, maxContents)
		}
		size += c.Size
	}
	all := make([]byte, size)
	if _, err := io.ReadFull(io.NewSectionReader(contents, 0, int64(size)), all); err != nil {
		return Spec{}, fmt.Errorf("read the files: %w", err)
	}
	o.Files = make(map[string][]byte, len(o.Contents))
	for _, c := range o.Contents {
		o.Files[c.Path], all = all[:c.Size:c.Size], all[c.Size:]
	}
	return o.Spec, nil
}
