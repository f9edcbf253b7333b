package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// roles are the parts that this program plays as a process of its own: each takes one argument, JSON.
func roles() map[string]func(string) error {
	return map[string]func(string) error{"__origin": originMain, "__tunnel": tunnelMain, "__reverse": reverseMain, "__load": loadMain}
}

// part is a running role.
type part struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
}

// startPart runs role with its argument and reads the one line that it says when it is ready.
func startPart(role string, arg, ready any) (*part, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(arg)
	if err != nil {
		return nil, err
	}
	p := &part{cmd: exec.Command(self, role, string(b))} //nolint:noctx // it ends with its standard input
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	return p, p.read(ready)
}

// read reads one line of JSON that the part says.
func (p *part) read(v any) error {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("%s ended: %w", p.cmd.Args[1], err)
	}
	return json.Unmarshal(line, v)
}

func (p *part) pid() int { return p.cmd.Process.Pid }

// stop lets the part end.
func (p *part) stop() error {
	p.stdin.Close()
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(10 * time.Second):
		p.cmd.Process.Kill()
		return errors.Join(fmt.Errorf("%s did not end", p.cmd.Args[1]), <-done)
	}
}

// say prints v on a line, for whoever started this part.
func say(v any) error { return json.NewEncoder(os.Stdout).Encode(v) }

// untilTold waits until whoever started this part wants it to end.
func untilTold() error {
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}
