package container

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// command is what Enter is told first: four bytes of length, big-endian, and this as JSON.
type command struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env"`
	Dir  string   `json:"dir"`
	TTY  bool     `json:"tty,omitempty"`
	Rows uint16   `json:"rows,omitempty"`
	Cols uint16   `json:"cols,omitempty"`
}

// Kinds of what follows on Enter's standard input: a byte of kind, four bytes of length, and that many bytes.
const (
	frameData   byte = iota // for the command's standard input
	frameEnd                // no more of that
	frameSignal             // one byte
	frameSize               // rows and columns, two bytes each
)

const (
	maxCommand = 4 << 20
	maxFrame   = 64 << 10
)

// frames writes to Enter. Its methods may be called by several goroutines.
type frames struct {
	mu sync.Mutex
	w  io.Writer
}

func (f *frames) open(c command) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if len(b) > maxCommand {
		return fmt.Errorf("a command of %d bytes, want at most %d", len(b), maxCommand)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err = f.w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

func (f *frames) send(kind byte, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.w.Write(append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(data))), data...))
	return err
}

// readCommand reads the first message.
func readCommand(r io.Reader) (command, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return command{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxCommand {
		return command{}, fmt.Errorf("a command of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return command{}, err
	}
	var c command
	if err := json.Unmarshal(b, &c); err != nil {
		return command{}, err
	}
	if len(c.Argv) == 0 {
		return command{}, fmt.Errorf("no command")
	}
	return c, nil
}

// readFrame reads one of what follows into buf, which holds maxFrame bytes.
func readFrame(r io.Reader, buf []byte) (kind byte, data []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes", n)
	}
	_, err = io.ReadFull(r, buf[:n])
	return head[0], buf[:n], err
}
