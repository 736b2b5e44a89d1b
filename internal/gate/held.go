package gate

import (
	"bytes"
	"io"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// InMemory and OnDisk are what calls hold: memory for bodies, for the objects made of them,
// and for answers; and disk for archives that can't be read from the beginning. Both are
// counted and bounded, for each caller, for all callers of a namespace, and in total.
const (
	InMemory = iota
	OnDisk
	heldKinds // how many there are
)

// FreeBody is the part of a body, and of an answer, that is not counted, in bytes.
const FreeBody = 64 << 10

// HeldByte is the memory of each byte in a growing buffer, garbage included.
const HeldByte = 2

// Hold sets how many bytes of a kind, InMemory or OnDisk, the call holds. It returns an error,
// and changes nothing, if that is too much, alone or together with what others hold. The
// gate releases everything at the end of the call.
func (c *Call) Hold(kind int, n int64) error {
	l := &c.gate.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.hold(kind, n)
}

// HoldMore is Hold with more bytes than now, or fewer if more is negative.
func (c *Call) HoldMore(kind int, more int64) error {
	l := &c.gate.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.hold(kind, c.held[kind]+more)
}

// hold is Hold while the limiter is locked.
func (c *Call) hold(kind int, n int64) error {
	if c.released {
		return ErrClientGone
	}
	l := &c.gate.limiter
	u := l.of(c.Caller)
	more := n - c.held[kind]
	for in := u; in != nil; in = in.within {
		switch one := in.limits.held(kind).one; {
		case n > one:
			return &Refusal{Code: errcode.TooLarge, Message: "this request needs more of the server's memory than one caller may use", Hint: "send or request less at once"}
		case more > 0 && in.held[kind]+more > one:
			return &Refusal{Code: errcode.RateLimited, Message: "too many large requests of this caller are in progress", Hint: "try again in a moment, with fewer at the same time", After: time.Second}
		}
	}
	bounds := l.limits.held(kind)
	space := l.spaces[c.Caller.Namespace]
	if more > 0 && space[kind]+more > bounds.space() {
		return &Refusal{Code: errcode.RateLimited, Message: "too many large requests of this namespace are in progress", Hint: "try again in a moment, with fewer at the same time", After: time.Second}
	}
	if more > 0 && l.held[kind]+more > bounds.all {
		return &Refusal{Code: errcode.Overloaded, Message: "too many large requests are in progress", Hint: "try again in a moment", After: time.Second}
	}
	for in := u; in != nil; in = in.within {
		in.held[kind] += more
	}
	c.held[kind] += more
	l.addHeld(c.Caller.Namespace, kind, more)
	return nil
}

// addHeld counts what a call of a namespace holds. Precondition: l.mu is held.
func (l *limiter) addHeld(namespace string, kind int, n int64) {
	l.held[kind] += n
	space := l.spaces[namespace]
	space[kind] += n
	if l.spaces[namespace] = space; space == [heldKinds]int64{} {
		delete(l.spaces, namespace)
	}
}

// bound returns how many bytes one caller may hold, and all callers together.
type bound struct{ one, all int64 }

// space returns how many bytes all callers of a namespace may hold: half of all, so that no namespace locks the others out,
// and by default twice what one caller may, so that none locks the others of its namespace out.
func (b bound) space() int64 { return max(b.one, b.all/2) }

func (l Limits) held(kind int) bound {
	if kind == OnDisk {
		return bound{l.Spool, l.TotalSpool}
	}
	return bound{l.Memory, l.TotalMemory}
}

// ReadAll reads r to its end into a buffer, which the call holds.
func (c *Call) ReadAll(buf *bytes.Buffer, r io.Reader) error {
	_, err := buf.ReadFrom(&Holder{Call: c, Kind: InMemory, R: r, Free: FreeBody, Each: HeldByte})
	return err
}

// Holder reads from R, or writes to W, and makes its call hold what passes. Only one
// goroutine at a time may use it.
type Holder struct {
	Call *Call
	Kind int // InMemory or OnDisk
	R    io.Reader
	W    io.Writer
	Free int64 // bytes that are not counted
	Each int64 // how many bytes are held for each byte that passes

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

// Add counts n more bytes.
func (h *Holder) Add(n int) error {
	if h.n += int64(n); h.n <= h.Free {
		return nil
	}
	return h.Call.Hold(h.Kind, h.n*h.Each)
}
