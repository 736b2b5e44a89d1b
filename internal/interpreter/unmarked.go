package interpreter

import (
	"bytes"
	"slices"
)

// Unmarked removes the marks of runs from the output of an interpreter, for its log and for
// callers that attach to it. For interpreters that read lines it also removes what comes before the first mark, which is the greeting of
// an interactive shell. Its methods are not safe for
// concurrent use.
type Unmarked struct {
	begun   bool
	streams [2]unmarked
}

// NewUnmarked returns an Unmarked for a process by its command line, or nil if that is not an interpreter.
func NewUnmarked(argv []string) *Unmarked {
	is, ok := parseCommand(argv)
	if !ok && !slices.Equal(argv, zygoteCommand()) {
		return nil
	}
	u := new(Unmarked)
	for i := range u.streams {
		u.streams[i].hidden = is.language.lines != nil
	}
	return u
}

// Take takes output of standard output (0) or standard error (1), which begins at a position of the whole output. It
// passes on what is to be kept, and holds what may be the start of a mark.
func (u *Unmarked) Take(stream int, at int64, b []byte, pass func(at int64, b []byte)) {
	if !u.begun && at > 0 { // the first mark came earlier
		u.streams[0].hidden, u.streams[1].hidden = false, false
	}
	u.begun = true
	u.streams[stream].take(at, b, pass)
}

// End passes on what is held of a stream.
func (u *Unmarked) End(stream int, pass func(at int64, b []byte)) { u.streams[stream].release(pass) }

// unmarked is one of the streams.
type unmarked struct {
	hidden bool   // nothing is kept until the first mark
	held   []byte // what may be the start of a mark
	heldAt int64
	text   int // bytes that a text may still have, of one after a mark; 0: this is not one
}

// nonceSize is the length of a nonce of random.
const nonceSize = 32

func (u *unmarked) take(at int64, b []byte, pass func(at int64, b []byte)) {
	// What follows one another in all is passed on together.
	all, begin := b, at
	from, to := 0, 0
	flush := func() {
		if from < to {
			pass(begin+int64(from), all[from:to])
		}
	}
	together := func(at int64, b []byte) {
		i := int(at - begin)
		if i < 0 { // held since earlier
			pass(at, b)
			return
		}
		if i != to {
			flush()
			from = i
		}
		to = i + len(b)
	}
	defer flush()
	for len(b) > 0 {
		n := 1
		switch {
		case u.text > 0:
			var found bool
			if n = bytes.IndexByte(b, markByte) + 1; n > 0 && n <= u.text {
				found = true
			} else {
				n = min(len(b), u.text)
			}
			if u.text -= n; found {
				u.text = 0
			}
		case len(u.held) == 0:
			if n = bytes.IndexByte(b, markByte); n == 0 {
				u.held, u.heldAt, n = append(u.held, markByte), at, 1
				break
			}
			if n < 0 {
				n = len(b)
			}
			if !u.hidden {
				together(at, b[:n])
			}
		case len(u.held) <= nonceSize && (b[0] >= '0' && b[0] <= '9' || b[0] >= 'a' && b[0] <= 'f'):
			u.held = append(u.held, b[0])
		case len(u.held) == 1+nonceSize && (b[0] == markByte || b[0] == textByte):
			if u.held, u.hidden = u.held[:0], false; b[0] == textByte {
				u.text = maxMarkText
			}
		default:
			u.release(together)
			n = 0 // it may be the start of another
		}
		at, b = at+int64(n), b[n:]
	}
}

// release passes on what is held: it is not a mark.
func (u *unmarked) release(pass func(at int64, b []byte)) {
	if len(u.held) > 0 && !u.hidden {
		pass(u.heldAt, u.held)
	}
	u.held = u.held[:0]
}
