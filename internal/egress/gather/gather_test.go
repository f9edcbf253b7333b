package gather

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slow is a connection whose writes wait to be let through.
type slow struct {
	net.Conn // nil
	gate     chan struct{}
	closed   chan struct{}
	once     sync.Once

	mu     sync.Mutex // guards the fields that follow
	got    bytes.Buffer
	writes int
}

func newSlow() *slow { return &slow{gate: make(chan struct{}), closed: make(chan struct{})} }

func (s *slow) Write(p []byte) (int, error) {
	select {
	case <-s.gate:
	case <-s.closed:
		return 0, net.ErrClosed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	return s.got.Write(p)
}

// SetWriteDeadline wakes a write as one of a socket does.
func (s *slow) SetWriteDeadline(t time.Time) error {
	time.AfterFunc(time.Until(t), func() { s.Close() })
	return nil
}

func (s *slow) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func TestWritesDuringAWriteGoOutTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, on := range map[string]bool{"gathered": true, "control": false} {
			s := newSlow()
			c := New(s)
			if on {
				c.Gather()
			}
			var wg sync.WaitGroup
			for _, text := range []string{"a", "b", "c", "d"} {
				wg.Go(func() { _, _ = io.WriteString(c, text) })
				synctest.Wait()
			}
			close(s.gate)
			wg.Wait()
			synctest.Wait()
			if on && (s.writes != 2 || s.got.String() != "abcd") || !on && (s.writes != 4 || s.got.Len() != 4) {
				t.Errorf("%s: %q in %d writes", name, s.got.String(), s.writes)
			}
		}
	})
}

func TestWhatWaitsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow()
		c := New(s)
		c.Gather()
		var want bytes.Buffer
		taken := 0
		go func() {
			for i := range 64 {
				p := bytes.Repeat([]byte{byte(i)}, 2<<10)
				want.Write(p)
				_, _ = c.Write(p)
				taken += len(p)
			}
		}()
		synctest.Wait()
		if taken < size || taken > 2*size {
			t.Errorf("%d bytes were taken while none went out", taken)
		}
		close(s.gate)
		synctest.Wait()
		if !bytes.Equal(s.got.Bytes(), want.Bytes()) || want.Len() != 128<<10 {
			t.Errorf("%d bytes went out of %d, or others", s.got.Len(), want.Len())
		}
	})
}

func TestLargeWritesKeepTheirPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow()
		c := New(s)
		c.Gather()
		big := bytes.Repeat([]byte("b"), 3*size)
		var wg sync.WaitGroup
		for _, p := range [][]byte{[]byte("first"), []byte("second"), big, []byte("last")} {
			wg.Go(func() { _, _ = c.Write(p) })
			synctest.Wait()
		}
		close(s.gate)
		wg.Wait()
		synctest.Wait()
		head := "firstsecond"
		if got := s.got.String(); got != head+string(big)+"last" && got != head+"last"+string(big) {
			t.Errorf("%d bytes, %.20q…", len(got), got)
		}
	})
}

func TestErrorIsThatOfALaterWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow()
		c := New(s)
		c.Gather()
		if _, err := io.WriteString(c, "taken"); err != nil {
			t.Error(err)
		}
		s.Close()
		synctest.Wait()
		if _, err := io.WriteString(c, "refused"); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestCloseWritesWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow()
		c := New(s)
		c.Gather()
		_, _ = io.WriteString(c, "last words")
		time.AfterFunc(lastWords/2, func() { close(s.gate) })
		_ = c.Close()
		if s.got.String() != "last words" {
			t.Errorf("%q", s.got.String())
		}
	})
}

func TestCloseWaitsForNobodyWhoTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, closes := range map[string]int{"once": 1, "twice": 2} {
			s := newSlow()
			c := New(s)
			c.Gather()
			_, _ = io.WriteString(c, "never taken")
			began := time.Now()
			var wg sync.WaitGroup
			for range closes {
				wg.Go(func() { _ = c.Close() })
				synctest.Wait()
			}
			wg.Wait()
			if took := time.Since(began); took > lastWords || closes == 2 && took > 0 {
				t.Errorf("%s: %v", name, took)
			}
		}
	})
}
