package files

import (
	"bytes"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// matcher tells which lines match. A regular expression comes as a program that
// the host has compiled; running it takes time in proportion to the line, and
// memory in proportion to the program, whatever both are.
type matcher struct {
	literal []byte // every match begins with it
	prog    []wire.Inst
	start   uint32

	// Sets of places in the program: seen says in which generation one was
	// entered last.
	now, next []uint32
	seen      []uint32
	gen       uint32
	stack     []uint32

	gone  func() bool // nil: never; asked now and then, as a long line may take minutes
	steps int         // characters since it was asked
	over  bool        // it was gone: from then on nothing matches
}

// goneSteps is how many characters are looked at before gone is asked again.
const goneSteps = 1 << 12

func newMatcher(m *wire.Grep) *matcher {
	n := len(m.Prog)
	return &matcher{
		literal: []byte(m.Literal), prog: m.Prog, start: uint32(m.Start),
		now: make([]uint32, 0, n), next: make([]uint32, 0, n), seen: make([]uint32, n),
	}
}

// match reports whether a line, without its newline, matches.
func (m *matcher) match(line []byte) bool {
	if m.over {
		return false
	}
	from := 0
	if len(m.literal) > 0 {
		if from = bytes.Index(line, m.literal); from < 0 {
			return false
		}
	}
	if len(m.prog) == 0 {
		return true
	}
	now, next := m.now[:0], m.next[:0]
	last := rune(-1)
	if from > 0 {
		last, _ = utf8.DecodeLastRune(line[:from])
	}
	m.bump()
	for i := from; ; {
		if m.steps++; m.steps == goneSteps {
			m.steps = 0
			if m.over = m.gone != nil && m.gone(); m.over {
				return false
			}
		}
		r, size := rune(-1), 0
		if i < len(line) {
			r, size = rune(line[i]), 1
			if r >= utf8.RuneSelf {
				r, size = utf8.DecodeRune(line[i:])
			}
		}
		// A match may begin anywhere.
		var done bool
		if now, done = m.add(now, m.start, last, r); done {
			return true
		}
		if size == 0 {
			return false
		}
		m.bump()
		next = next[:0]
		after := rune(-1)
		if i+size < len(line) {
			if after = rune(line[i+size]); after >= utf8.RuneSelf {
				after, _ = utf8.DecodeRune(line[i+size:])
			}
		}
		for _, pc := range now {
			in := &m.prog[pc]
			if in.Op == wire.InstAny || in.Op == wire.InstRune && inRanges(in.Ranges, r) {
				if next, done = m.add(next, uint32(in.Out), r, after); done {
					return true
				}
			}
		}
		now, next = next, now
		last = r
		i += size
	}
}

// bump begins a new set.
func (m *matcher) bump() {
	if m.gen++; m.gen == 0 {
		clear(m.seen)
		m.gen = 1
	}
}

// add adds to a set what is reached from pc without a character, between the
// characters before and after; -1 is none. It reports whether that is a match.
func (m *matcher) add(set []uint32, pc uint32, before, after rune) ([]uint32, bool) {
	m.stack = append(m.stack[:0], pc)
	for len(m.stack) > 0 {
		pc := m.stack[len(m.stack)-1]
		m.stack = m.stack[:len(m.stack)-1]
		if m.seen[pc] == m.gen {
			continue
		}
		m.seen[pc] = m.gen
		switch in := &m.prog[pc]; in.Op {
		case wire.InstMatch:
			return set, true
		case wire.InstGo:
			m.stack = append(m.stack, uint32(in.Out))
		case wire.InstAlt:
			m.stack = append(m.stack, uint32(in.Arg), uint32(in.Out))
		case wire.InstEmpty:
			if holds(in.Arg, before, after) {
				m.stack = append(m.stack, uint32(in.Out))
			}
		case wire.InstRune, wire.InstAny:
			set = append(set, pc)
		}
	}
	return set, false
}

// holds reports whether assertions hold between two characters.
func holds(assertions uint64, before, after rune) bool {
	word := isWord(before) != isWord(after)
	return (assertions&wire.EmptyBegin == 0 || before < 0) &&
		(assertions&wire.EmptyEnd == 0 || after < 0) &&
		(assertions&wire.EmptyWord == 0 || word) &&
		(assertions&wire.EmptyNoWord == 0 || !word)
}

func isWord(r rune) bool {
	return r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
}

// inRanges reports whether r is in one of the ranges, which are in order.
func inRanges(ranges []int32, r rune) bool {
	for len(ranges) > 8 {
		half := len(ranges) / 4 * 2
		if r < ranges[half] {
			ranges = ranges[:half]
		} else {
			ranges = ranges[half:]
		}
	}
	for i := 0; i < len(ranges); i += 2 {
		if ranges[i] <= r && r <= ranges[i+1] {
			return true
		}
	}
	return false
}
