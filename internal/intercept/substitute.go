package intercept

import (
	"bytes"
	"context"
	"io"
	"time"
)

// A substitution replaces a text, or refuses it.
type substitution struct {
	find, put []byte
	refuse    func() error // if set, reading ends with its error

	// early is how many bytes of a text that may be found go on before the rest is there. A stream whose
	// writer waits for an answer to them would stand still otherwise. The text is still found.
	early int

	// late, if set, makes all of them go on after holdTime. Reading ends with its error if the text is found then.
	late func() error
}

// holdTime is how long the beginning of a text with substitution.late is held back. Pieces of one text come faster.
const holdTime = time.Second

// substituted is a body with substitutions. It holds back only what may be the beginning of a
// text to find, so that streams are not delayed.
type substituted struct {
	from  io.ReadCloser
	subs  []substitution
	next  []int  // where each of subs is in the input next, -1: nowhere, if sought
	ended func() // if set, called once at the end

	// refresh, if set, is called before what was read is looked at. It returns what subs are from
	// then on, if that has changed.
	refresh func() ([]substitution, bool)

	// waiting, if set, ends the goroutine that reads ahead, so that substitution.late is heeded.
	waiting context.Context //nolint:containedctx // of the request
	pieces  chan piece

	input  []byte // that was read and may begin something to find
	passed int    // bytes of input that have gone to output
	output []byte // that can be returned, before the rest
	spare  []byte // memory of output
	err    error  // after output
}

const substituteSize = 16 << 10 // bytes that are read at once

func newSubstituted(from io.ReadCloser, subs []substitution) *substituted {
	return &substituted{from: from, subs: subs, next: make([]int, len(subs))}
}

// A piece is what one Read has returned.
type piece struct {
	text []byte
	err  error
}

func (b *substituted) Read(to []byte) (int, error) {
	for len(b.output) == 0 {
		if b.err != nil {
			b.input, b.output, b.spare = nil, nil, nil // even if Close is still to come
			return 0, b.err
		}
		late := false
		if b.waiting != nil {
			late = b.readAhead()
		} else {
			n := len(b.input)
			b.input = append(b.input, make([]byte, substituteSize)...)
			read, err := b.from.Read(b.input[n:])
			b.input, b.err = b.input[:n+read], err
		}
		if b.refresh != nil {
			if subs, changed := b.refresh(); changed {
				b.subs, b.next = subs, make([]int, len(subs))
			}
		}
		err := b.err
		b.substitute(late)
		if err != nil && b.ended != nil {
			b.ended()
			b.ended = nil
		}
	}
	n := copy(to, b.output)
	b.output = b.output[n:]
	return n, nil
}

// readAhead reads the next piece into input. It reports true instead if there is none within holdTime while
// something is held back.
func (b *substituted) readAhead() (late bool) {
	if b.pieces == nil {
		b.pieces = make(chan piece)
		go func() { // ends with the request, as from does
			for err := error(nil); err == nil; {
				p := piece{text: make([]byte, substituteSize)}
				n := 0
				n, err = b.from.Read(p.text)
				p.text, p.err = p.text[:n], err
				select {
				case b.pieces <- p:
				case <-b.waiting.Done():
					return
				}
			}
		}()
	}
	var over <-chan time.Time
	if len(b.input) > b.passed {
		timer := time.NewTimer(holdTime)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case p := <-b.pieces:
		b.input, b.err = append(b.input, p.text...), p.err
	case <-b.waiting.Done():
		b.err = context.Cause(b.waiting)
	case <-over:
		return true
	}
	return false
}

func (b *substituted) Close() error { return b.from.Close() }

// substitute moves input to output, except for what may begin something to find.
func (b *substituted) substitute(late bool) {
	out := b.spare[:0]
	seek := func(i, from int) {
		b.next[i] = bytes.Index(b.input[from:], b.subs[i].find)
		if b.next[i] >= 0 {
			b.next[i] += from
		}
	}
	for i := range b.subs {
		seek(i, 0)
	}
	at := 0
	for {
		first := -1
		for i := range b.subs {
			if b.next[i] >= 0 && b.next[i] < at {
				seek(i, at)
			}
			if b.next[i] >= 0 && (first < 0 || b.next[i] < b.next[first]) {
				first = i
			}
		}
		if first < 0 {
			break
		}
		s := &b.subs[first]
		out = append(out, b.unpassed(at, b.next[first])...)
		gone := max(b.passed-b.next[first], 0) // of the text
		at = b.next[first] + len(s.find)
		refuse := s.refuse
		if refuse == nil && gone > 0 {
			refuse = s.late
		}
		if refuse != nil {
			b.err = refuse()
			b.input, b.passed, b.output = nil, 0, out
			return
		}
		out = append(out, s.put[min(gone, len(s.put)):]...)
	}
	keep, hold := 0, 0
	if b.err == nil {
		keep, hold = b.begun(b.input[at:], late)
	}
	end := len(b.input) - keep
	out = append(out, b.unpassed(at, len(b.input)-hold)...)
	b.passed = max(keep-hold, b.passed-end)
	b.input = append(b.input[:0], b.input[end:]...)
	b.output, b.spare = out, out
}

// unpassed returns a part of input without what has gone to output already.
func (b *substituted) unpassed(from, to int) []byte {
	return b.input[max(from, b.passed):max(from, to, b.passed)]
}

// begun returns how many bytes at the end of text may begin something to find, and how many of them are held
// back.
func (b *substituted) begun(text []byte, late bool) (keep, hold int) {
	for _, s := range b.subs {
		for k := min(len(s.find)-1, len(text)); k > 0; k-- {
			tail := text[len(text)-k:]
			if tail[0] == s.find[0] && bytes.HasPrefix(s.find, tail) {
				keep = max(keep, k)
				if !late || s.late == nil {
					hold = max(hold, k-s.early)
				}
				break
			}
		}
	}
	return keep, hold
}
