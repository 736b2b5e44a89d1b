package intercept

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
)

// messages is a connection of a WebSocket (RFC 6455) to an origin, whose messages have
// substitutions: what the sandbox writes, and what it reads. Extensions were not agreed on, so
// that messages can be read.
type messages struct {
	io.ReadWriteCloser
	out, in  *frames
	received []byte // that was read and not returned
	failed   func(error)
}

func newMessages(c io.ReadWriteCloser, out, in []substitution, failed func(error)) *messages {
	return &messages{ReadWriteCloser: c, out: newFrames(out, true), in: newFrames(in, false), failed: failed}
}

// Write sends what the sandbox has sent.
func (m *messages) Write(b []byte) (int, error) {
	next, err := m.out.pass(b)
	if _, werr := m.ReadWriteCloser.Write(next); werr != nil {
		return 0, werr
	}
	if err != nil {
		m.failed(err)
		return 0, err
	}
	return len(b), nil
}

// Read returns what the origin has sent.
func (m *messages) Read(b []byte) (int, error) {
	for len(m.received) == 0 {
		n, err := m.ReadWriteCloser.Read(b)
		if n > 0 {
			var bad error
			if m.received, bad = m.in.pass(b[:n]); bad != nil {
				return 0, bad
			}
		}
		if err != nil && len(m.received) == 0 {
			return 0, err
		}
	}
	n := copy(b, m.received)
	m.received = m.received[n:]
	return n, nil
}

// CloseWrite ends the sending direction.
func (m *messages) CloseWrite() error {
	if c, ok := m.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// Parts of a frame: RFC 6455, section 5.2.
const (
	frameFinal    = 0x80
	frameReserved = 0x70
	frameOpcode   = 0x0f
	frameControl  = 0x08 // of the opcode
	frameMasked   = 0x80
	frameLength   = 0x7f
	maxControl    = 125 // bytes
)

var errFrames = errors.New("what a WebSocket sends is not valid, or has an extension that was not agreed on")

// frames passes on one direction of a WebSocket. A frame that fits into substituteSize stays one;
// a longer one becomes several of the same message. It holds no more than that, and back only what
// may be the beginning of a text to find.
type frames struct {
	text   *substituted // of the message
	masked bool         // by the client

	head    []byte // of the frame, as far as it was read
	mask    [4]byte
	at      int    // in the mask
	left    uint64 // bytes of the frame's payload that are to come; head is whole
	payload []byte
	opcode  byte // of the next frame to write of the message; 0 in its middle
	open    bool // a message has begun and not ended
}

func newFrames(subs []substitution, masked bool) *frames {
	return &frames{text: newSubstituted(nil, subs), masked: masked}
}

// pass returns what goes on after b was read.
func (f *frames) pass(b []byte) (out []byte, err error) {
	for len(b) > 0 {
		if !f.whole() {
			f.head = append(f.head, b[0])
			b = b[1:]
			if f.whole() {
				if err := f.begin(); err != nil {
					return out, err
				}
				if f.left == 0 {
					out, err = f.piece(out)
				}
			}
		} else {
			n := int(min(uint64(len(b)), f.left, uint64(substituteSize-len(f.payload))))
			for _, c := range b[:n] {
				f.payload = append(f.payload, c^f.mask[f.at&3])
				f.at++
			}
			b, f.left = b[n:], f.left-uint64(n)
			if f.left == 0 || len(f.payload) == substituteSize {
				out, err = f.piece(out)
			}
		}
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// whole reports whether the head of the frame was read.
func (f *frames) whole() bool {
	if len(f.head) < 2 {
		return false
	}
	size := 2
	switch f.head[1] & frameLength {
	case 126:
		size += 2
	case 127:
		size += 8
	}
	if f.head[1]&frameMasked != 0 {
		size += 4
	}
	return len(f.head) == size
}

// begin reads the head of a frame.
func (f *frames) begin() error {
	f.left = uint64(f.head[1] & frameLength)
	switch f.left {
	case 126:
		f.left = uint64(binary.BigEndian.Uint16(f.head[2:]))
	case 127:
		f.left = binary.BigEndian.Uint64(f.head[2:])
	}
	f.mask, f.at = [4]byte{}, 0
	masked := f.head[1]&frameMasked != 0
	if masked {
		f.mask = [4]byte(f.head[len(f.head)-4:])
	}
	opcode := f.head[0] & frameOpcode
	control := opcode&frameControl != 0
	switch {
	case masked != f.masked, f.head[0]&frameReserved != 0, f.left > 1<<63-1:
		return errFrames
	case control && (f.left > maxControl || f.head[0]&frameFinal == 0), !control && (opcode == 0) != f.open:
		return errFrames
	case !control && opcode != 0:
		f.opcode, f.open = opcode, true
	}
	return nil
}

// piece writes what was read of the payload of a frame.
func (f *frames) piece(out []byte) ([]byte, error) {
	end := f.left == 0
	first, text := f.head[0], f.payload
	if first&frameControl == 0 {
		final := end && first&frameFinal != 0
		f.text.input = append(f.text.input, text...)
		if f.text.err = nil; final {
			f.text.err = io.EOF // nothing is held back
		}
		f.text.substitute(false)
		if f.text.err != nil && !errors.Is(f.text.err, io.EOF) {
			return out, f.text.err
		}
		text, first = f.text.output, f.opcode
		if final {
			first |= frameFinal
			f.open = false
		}
		f.opcode = 0
	}
	out = f.frame(out, first, text)
	f.payload = f.payload[:0]
	if end {
		f.head = f.head[:0]
	}
	return out, nil
}

// frame appends a frame.
func (f *frames) frame(out []byte, first byte, text []byte) []byte {
	out = append(out, first)
	mask := byte(0)
	if f.masked {
		mask = frameMasked
	}
	switch n := len(text); {
	case n < 126:
		out = append(out, mask|byte(n))
	case n < 1<<16:
		out = binary.BigEndian.AppendUint16(append(out, mask|126), uint16(n))
	default:
		out = binary.BigEndian.AppendUint64(append(out, mask|127), uint64(n))
	}
	if !f.masked {
		return append(out, text...)
	}
	var key [4]byte
	_, _ = rand.Read(key[:]) // never fails
	out = append(out, key[:]...)
	for i, c := range text {
		out = append(out, c^key[i&3])
	}
	return out
}
