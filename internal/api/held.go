package api

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
	inMemory = iota
	onDisk
	heldKinds // how many there are
)

// What a call holds beside these is not counted, in bytes.
const (
	freeBody   = 64 << 10 // of a body while it comes, or of an answer
	freeObject = 4 << 10  // of a body that is taken apart
)

// Memory in bytes. The garbage that comes with it is in them.
const (
	heldByte   = 2   // of a byte in a buffer that grows
	heldValue  = 200 // of a value in JSON: {"mounts":[{},{},…]} has one in 3 bytes, and each is copied
	heldListed = 8   // of a byte in the table of contents of a zip archive
	heldEntry  = 512 // of an entry of a zip archive that is written, beside its name
)

// hold says how much the call holds now. An error says that it is too much, or too
// much together with what else is held: then it holds what it has held.
func (c *call) hold(kind int, n int64) error {
	l := &c.api.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.released {
		return errClientGone
	}
	u := l.of(c.caller)
	more := n - c.held[kind]
	bound := l.limits.held(kind)
	switch {
	case n > bound.one:
		return &refusal{status: http.StatusRequestEntityTooLarge, code: errcode.TooLarge, message: "this would have the server hold too much at once", hint: "send or ask for less at once"}
	case more > 0 && (u.held[kind]+more > bound.one || l.held[kind]+more > bound.all):
		return &refusal{status: http.StatusTooManyRequests, code: errcode.RateLimited, message: "the server holds too much of large requests", hint: "make fewer of them at once", after: time.Second}
	}
	c.held[kind] += more
	u.held[kind] += more
	l.held[kind] += more
	return nil
}

// bound is how much may be held, in bytes.
type bound struct{ one, all int64 } // of one caller, and of all

func (l Limits) held(kind int) bound {
	if kind == onDisk {
		return bound{l.Spool, l.TotalSpool}
	}
	return bound{l.Memory, l.TotalMemory}
}

// readAll reads what r gives into a buffer that is held.
func (c *call) readAll(buf *bytes.Buffer, r io.Reader) error {
	_, err := buf.ReadFrom(&holder{c: c, kind: inMemory, r: r, free: freeBody, of: heldByte})
	return err
}

// holder reads, or is written, what is held.
type holder struct {
	c    *call
	kind int
	r    io.Reader
	w    io.Writer
	n    int64 // so far
	free int64 // of it
	of   int64 // how much is held of a byte
}

func (h *holder) Read(b []byte) (int, error) {
	n, err := h.r.Read(b)
	if herr := h.add(n); herr != nil {
		return 0, herr
	}
	return n, err
}

func (h *holder) Write(b []byte) (int, error) {
	if err := h.add(len(b)); err != nil {
		return 0, err
	}
	return h.w.Write(b)
}

func (h *holder) add(n int) error {
	if h.n += int64(n); h.n <= h.free {
		return nil
	}
	return h.c.hold(h.kind, h.n*h.of)
}

// values is how many values JSON has, or somewhat more.
func values(data []byte) int64 {
	n := int64(1)
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case ',', '[', '{':
			n++
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		}
	}
	return n
}
