package wire

import (
	"bufio"
	"encoding/binary"
	"io"
)

// Content of some operations is records: each the length of a message as a
// varint, and the message. A record may lie in several frames.

// MaxRecord is the longest message of a record.
const MaxRecord = 64 << 10

// AppendRecord appends a record.
func AppendRecord(b []byte, m interface{ Append([]byte) []byte }) []byte {
	// The length is written behind the message first, and then put before it.
	start := len(b)
	b = m.Append(b)
	n := len(b) - start
	var head [binary.MaxVarintLen32]byte
	k := binary.PutUvarint(head[:], uint64(n))
	b = append(b, head[:k]...)
	copy(b[start+k:], b[start:start+n])
	copy(b[start:], head[:k])
	return b
}

// ReadRecord reads the message of a record. It is valid until the next call
// with the same buffer, which grows as needed. The error is io.EOF between two
// records, and ErrMessage for one that is too long.
func ReadRecord(r *bufio.Reader, buf *[]byte) ([]byte, error) {
	var n int
	for shift := 0; ; shift += 7 {
		c, err := r.ReadByte()
		if err != nil {
			if err == io.EOF && shift > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		n |= int(c&0x7f) << shift
		if n > MaxRecord || shift > 14 {
			return nil, ErrMessage
		}
		if c < 0x80 {
			break
		}
	}
	if cap(*buf) < n {
		*buf = make([]byte, max(n, 512))
	}
	b := (*buf)[:n]
	if _, err := io.ReadFull(r, b); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return b, nil
}

// The kinds of Output.
const (
	OutputLost   = 0 // a number of lost bytes
	OutputStdout = 1 // or the terminal's
	OutputStderr = 2
)

// Output is a piece of a detached process's output.
type Output struct {
	Kind     uint64
	Position uint64 // of its first byte: how many bytes were written before it, both streams together
	Time     int64  // when it was read, nanoseconds since 1970
	Lost     uint64 // bytes, of OutputLost
	Data     string
}

// Append appends the encoded message.
func (m *Output) Append(b []byte) []byte {
	b = appendUint(b, m.Kind)
	b = appendUint(b, m.Position)
	b = appendInt(b, m.Time)
	b = appendUint(b, m.Lost)
	return appendString(b, m.Data)
}

// Decode decodes a message.
func (m *Output) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Output{d.uint(), d.uint(), d.int(), d.uint(), d.string()}
	if m.Kind > OutputStderr {
		d.bad = true
	}
	return d.err()
}
