package gate

import (
	"bytes"
	"io"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// What calls hold is counted, so that no caller can have the server hold more than
// it can: memory for bodies, for what has become of them, and for answers; disk for
// archives that can't be read from their begin.
const (
	InMemory = iota
	OnDisk
	heldKinds // how many there are
)

// FreeBody is how much of a body while it comes, or of an answer, is not counted, in bytes.
const FreeBody = 64 << 10

// HeldByte is how many bytes of memory a byte in a buffer that grows takes, with the garbage
// that comes with it.
const HeldByte = 2

// Hold says how much the call holds now of InMemory or OnDisk. An error says that it is too much, or too
// much together with what else is held: then it holds what it has held.
func (c *Call) Hold(kind int, n int64) error {
	l := &c.gate.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.released {
		return ErrClientGone
	}
	u := l.of(c.Caller)
	more := n - c.held[kind]
	bound := l.limits.held(kind)
	switch {
	case n > bound.one:
		return &Refusal{Status: http.StatusRequestEntityTooLarge, Code: errcode.TooLarge, Message: "this request needs more of the server's memory than one caller may use", Hint: "send or request less at once"}
	case more > 0 && (u.held[kind]+more > bound.one || l.held[kind]+more > bound.all):
		return &Refusal{Status: http.StatusTooManyRequests, Code: errcode.RateLimited, Message: "too many large requests are in progress", Hint: "try again in a moment, with fewer at the same time", After: time.Second}
	}
	c.held[kind] += more
	u.held[kind] += more
	l.held[kind] += more
	return nil
}

// bound is how much may be held, in bytes.
type bound struct{ one, all int64 } // of one caller, and of all

func (l Limits) held(kind int) bound {
	if kind == OnDisk {
		return bound{l.Spool, l.TotalSpool}
	}
	return bound{l.Memory, l.TotalMemory}
}

// ReadAll reads what r gives into a buffer that is held.
func (c *Call) ReadAll(buf *bytes.Buffer, r io.Reader) error {
	_, err := buf.ReadFrom(&Holder{Call: c, Kind: InMemory, R: r, Free: FreeBody, Each: HeldByte})
	return err
}

// Holder reads from R, or writes to W, and has its call hold that. One goroutine
// at a time may use it.
type Holder struct {
	Call *Call
	Kind int // InMemory or OnDisk
	R    io.Reader
	W    io.Writer
	Free int64 // bytes that are not counted
	Each int64 // how much is held of each byte

	n int64 // so far
}

// Read reads from R.
func (h *Holder) Read(b []byte) (int, error) {
	n, err := h.R.Read(b)
	if herr := h.Add(n); herr != nil {
		return 0, herr
	}
	return n, err
}

// Write writes to W.
func (h *Holder) Write(b []byte) (int, error) {
	if err := h.Add(len(b)); err != nil {
		return 0, err
	}
	return h.W.Write(b)
}

// Add counts n bytes more.
func (h *Holder) Add(n int) error {
	if h.n += int64(n); h.n <= h.Free {
		return nil
	}
	return h.Call.Hold(h.Kind, h.n*h.Each)
}
