package intercept

import (
	"bytes"
	"io"
)

// A substitution replaces a text, or refuses it.
type substitution struct {
	find, put []byte
	refuse    func() error // if set, reading ends with its error
}

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

	input  []byte // that was read and is not in output yet
	output []byte // that can be returned, before the rest
	spare  []byte // memory of output
	err    error  // after output
}

const substituteSize = 16 << 10 // bytes that are read at once

func newSubstituted(from io.ReadCloser, subs []substitution) *substituted {
	return &substituted{from: from, subs: subs, next: make([]int, len(subs))}
}

func (b *substituted) Read(to []byte) (int, error) {
	for len(b.output) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		n := len(b.input)
		b.input = append(b.input, make([]byte, substituteSize)...)
		read, err := b.from.Read(b.input[n:])
		b.input = b.input[:n+read]
		b.err = err
		if b.refresh != nil {
			if subs, changed := b.refresh(); changed {
				b.subs, b.next = subs, make([]int, len(subs))
			}
		}
		b.substitute()
		if err != nil && b.ended != nil {
			b.ended()
			b.ended = nil
		}
	}
	n := copy(to, b.output)
	b.output = b.output[n:]
	return n, nil
}

func (b *substituted) Close() error { return b.from.Close() }

// substitute moves input to output.
func (b *substituted) substitute() {
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
		out = append(out, b.input[at:b.next[first]]...)
		at = b.next[first] + len(s.find)
		if s.refuse != nil {
			b.err = s.refuse()
			b.input, b.output = nil, out
			return
		}
		out = append(out, s.put...)
	}
	keep := 0
	if b.err == nil {
		keep = b.begun(b.input[at:])
	}
	end := len(b.input) - keep
	out = append(out, b.input[at:end]...)
	b.input = append(b.input[:0], b.input[end:]...)
	b.output, b.spare = out, out
}

// begun returns how many bytes at the end of text may begin something to find.
func (b *substituted) begun(text []byte) (n int) {
	for _, s := range b.subs {
		for k := min(len(s.find)-1, len(text)); k > n; k-- {
			tail := text[len(text)-k:]
			if tail[0] == s.find[0] && bytes.HasPrefix(s.find, tail) {
				n = k
				break
			}
		}
	}
	return n
}
