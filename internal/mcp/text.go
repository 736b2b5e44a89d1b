package mcp

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

// clean makes a text valid UTF-8, as JSON needs it, without NUL, which JSON writes in six bytes.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, string(utf8.RuneError)), "\x00", "␀")
}

// width is the greatest number of bytes that clean makes of a character of some bytes.
func width(r rune, size int) int {
	if r == 0 || r == utf8.RuneError {
		return utf8.RuneLen(utf8.RuneError) // which is that of ␀, too
	}
	return size
}

// first returns how many bytes at the start of data are at most so many when they are clean. It breaks no character.
func first(data []byte, most int) (n int) {
	for n < len(data) {
		r, size := utf8.DecodeRune(data[n:])
		if most -= width(r, size); most < 0 {
			break
		}
		n += size
	}
	return n
}

// last does so for the end of data.
func last(data []byte, most int) (n int) {
	for n < len(data) {
		r, size := utf8.DecodeLastRune(data[:len(data)-n])
		if most -= width(r, size); most < 0 {
			break
		}
		n += size
	}
	return n
}

// incomplete returns how many bytes at the end of data are the start of a character.
func incomplete(data []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
		if end := data[len(data)-n:]; utf8.RuneStart(end[0]) {
			if utf8.FullRune(end) {
				return 0
			}
			return n
		}
	}
	return 0
}

// position is where a page of the output of a process ends.
type position struct {
	seq  uint64            // of the last entry of the page
	skip int               // bytes of that entry that the page has; 0: all
	held map[string][]byte // the start of a character, by the stream whose next entry has the rest of it
}

const (
	stdout = "stdout"
	stderr = "stderr"
)

// String returns the position as results name it.
func (p position) String() string {
	if p.skip == 0 && len(p.held[stdout])+len(p.held[stderr]) == 0 {
		return fmt.Sprint(p.seq)
	}
	return fmt.Sprintf("%d.%d.%x.%x", p.seq, p.skip, p.held[stdout], p.held[stderr])
}

// parsePosition reads a position that a result has named. The empty one is the start.
func parsePosition(s string) (p position, err error) {
	p.held = map[string][]byte{}
	if s == "" {
		return p, nil
	}
	parts := strings.Split(s, ".")
	if len(parts) == 4 {
		_, err = fmt.Sscan(parts[1], &p.skip)
		for i, stream := range [...]string{stdout, stderr} {
			held, wrong := hex.DecodeString(parts[2+i])
			if wrong != nil || incomplete(held) != len(held) {
				err = sandpit.ErrInvalid
			}
			p.held[stream] = held
		}
		parts = parts[:1]
	}
	if _, wrong := fmt.Sscan(parts[0], &p.seq); wrong != nil || err != nil || len(parts) != 1 || p.skip < 0 || p.skip > 0 && p.seq == 0 || p.String() != s {
		return p, badArgument("after", "no result has named this position")
	}
	return p, nil
}

// query returns the position as that of a query.
func (p position) query() uint64 {
	if p.skip > 0 {
		return p.seq - 1
	}
	return p.seq
}

// take returns what an entry has of whole characters after the position, at most so many bytes when it is clean, and moves on. It
// reports whether that is all of the entry. Of an entry that is longer it takes a part only if it may.
func (p *position) take(e sandpit.LogEntry, most int, part bool) (text string, all bool) {
	data, skip := e.Data, 0
	if e.Seq == p.seq {
		skip = min(p.skip, len(data))
	}
	before := p.held[e.Stream]
	data = append(append([]byte(nil), before...), data[skip:]...)
	whole := len(data) - incomplete(data)
	n := first(data[:whole], most)
	if n < whole {
		if part && n > len(before) {
			p.seq, p.skip, p.held[e.Stream] = e.Seq, skip+n-len(before), nil
			return clean(string(data[:n])), false
		}
		return "", false
	}
	p.seq, p.skip, p.held[e.Stream] = e.Seq, 0, data[whole:]
	return clean(string(data[:whole])), true
}

// rest returns what no more output completes.
func (p *position) rest() string {
	text := clean(string(p.held[stdout])) + clean(string(p.held[stderr]))
	clear(p.held)
	return text
}
