package term

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	xterm "golang.org/x/term"
)

// IsTerminal reports whether f is a terminal.
func IsTerminal(f *os.File) bool { return f != nil && xterm.IsTerminal(int(f.Fd())) }

// Size returns the window's rows and columns, 24 by 80 if it has none.
func Size(f *os.File) (rows, cols uint16) {
	w, h, err := xterm.GetSize(int(f.Fd()))
	if err != nil || w <= 0 || h <= 0 || w > 10_000 || h > 10_000 {
		return 24, 80
	}
	return uint16(h), uint16(w)
}

// Raw puts the terminal into raw mode until restore is called; restore may be called twice.
func Raw(f *os.File) (restore func(), err error) {
	old, err := xterm.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("raw terminal: %w", err)
	}
	return func() {
		_ = xterm.Restore(int(f.Fd()), old) // the terminal may be gone
	}, nil
}

// SetSize sets the window's size of a terminal.
func SetSize(f *os.File, rows, cols uint16) error {
	return unix.IoctlSetWinsize(int(f.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
}

// ReadHidden reads a line from the terminal without echo.
func ReadHidden(f *os.File) ([]byte, error) { return xterm.ReadPassword(int(f.Fd())) }
