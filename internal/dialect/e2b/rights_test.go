package e2b

import (
	"errors"
	"io"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// zeros is content without an end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// TestReplayIsHeld: what is kept of an upload is counted, and only kept until the sandbox has opened its file.
func TestReplayIsHeld(t *testing.T) {
	if guestWindow != wire.GuestWindow {
		t.Errorf("the window is %d and not %d", guestWindow, wire.GuestWindow)
	}
	var held, most int64
	p := &replay{r: zeros{}, hold: func(more int64) error {
		held += more
		most = max(most, held)
		return nil
	}}
	buf := make([]byte, 64<<10)
	read := func() {
		t.Helper()
		if _, err := io.ReadFull(p, buf); err != nil {
			t.Fatal(err)
		}
	}
	for range guestWindow/len(buf) + 1 {
		read()
		if n := len(p.read); n > gate.FreeBody && held < int64(n) {
			t.Errorf("%d bytes are kept, %d are held", n, held)
		}
	}
	if len(p.read) != guestWindow+len(buf) || p.lost {
		t.Errorf("%d bytes are kept, %v", len(p.read), p.lost)
	}
	read() // more than the window was sent: the file is open
	if p.read != nil || !p.lost || held != 0 {
		t.Errorf("the file is open, but %d bytes are kept, and %d held", len(p.read), held)
	}
	for range 100 {
		read()
	}
	if p.read != nil || held != 0 || most > gate.HeldByte*(guestWindow+int64(len(buf))) {
		t.Errorf("%d bytes are kept, %d are held, at most %d were", len(p.read), held, most)
	}

	refused := errors.New("too much")
	p = &replay{r: zeros{}, hold: func(more int64) error {
		if held += more; more > 0 {
			held -= more
			return refused
		}
		return nil
	}}
	if _, err := io.CopyN(io.Discard, p, guestWindow); !errors.Is(err, refused) || !errors.Is(p.err, refused) {
		t.Errorf("got %v and %v, want %v", err, p.err, refused)
	}
	if p.free(); p.read != nil || held != 0 {
		t.Errorf("after an error %d bytes are kept, and %d held", len(p.read), held)
	}
}
