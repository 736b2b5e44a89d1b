package wire

import (
	"encoding/binary"
	"errors"
)

// ErrMessage says that a message can't be decoded.
var ErrMessage = errors.New("malformed message")

// Messages are fields in a fixed order: numbers as varints (signed ones
// zigzag), strings as their length and their bytes, lists as their count and
// their elements. Later versions append fields. A message that ends early
// leaves the remaining fields zero, and bytes behind the last known field are
// ignored; so both ends may be of different versions.

// maxStrings bounds the elements of a list of strings.
const maxStrings = 1 << 17

func appendUint(b []byte, n uint64) []byte { return binary.AppendUvarint(b, n) }
func appendInt(b []byte, n int64) []byte   { return binary.AppendVarint(b, n) }

func appendString(b []byte, s string) []byte {
	return append(appendUint(b, uint64(len(s))), s...)
}

func appendStrings(b []byte, ss []string) []byte {
	b = appendUint(b, uint64(len(ss)))
	for _, s := range ss {
		b = appendString(b, s)
	}
	return b
}

// A decoder takes fields from a message. Its strings are parts of one copy.
type decoder struct {
	s   string
	bad bool
}

func newDecoder(b []byte) *decoder { return &decoder{s: string(b)} }

func (d *decoder) uint() uint64 {
	var n uint64
	for i := 0; i < len(d.s); i++ {
		c := d.s[i]
		if i == binary.MaxVarintLen64-1 && c > 1 {
			break
		}
		n |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			d.s = d.s[i+1:]
			return n
		}
	}
	// Nothing at all is a field that the sender does not know.
	d.bad = d.bad || len(d.s) > 0
	d.s = ""
	return 0
}

func (d *decoder) int() int64 {
	n := d.uint()
	return int64(n>>1) ^ -int64(n&1)
}

func (d *decoder) string() string {
	n := d.uint()
	if n > uint64(len(d.s)) {
		d.bad, d.s = true, ""
		return ""
	}
	s := d.s[:n]
	d.s = d.s[n:]
	return s
}

// count reads the number of elements of a list, each of which takes at least
// size bytes.
func (d *decoder) count(limit, size int) int {
	n := d.uint()
	if n > uint64(limit) || n > uint64(len(d.s)/size) {
		d.bad, d.s = true, ""
		return 0
	}
	return int(n)
}

func (d *decoder) strings() []string {
	n := d.count(maxStrings, 1)
	if n == 0 {
		return nil
	}
	ss := make([]string, n)
	for i := range ss {
		ss[i] = d.string()
	}
	return ss
}

func (d *decoder) err() error {
	if d.bad {
		return ErrMessage
	}
	return nil
}
