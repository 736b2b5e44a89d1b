package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"strconv"
)

// Sizes in bytes. They are part of the protocol.
const (
	HeaderSize = 8        // of every frame
	MaxData    = 64 << 10 // payload of a data frame
	MaxOpen    = 8 << 20  // payload of an OPEN frame: the kernel allows 6 MiB of arguments and environment (execve(2))
	MaxReply   = 1 << 20  // payload of a REPLY or EVENT frame
	MaxSmall   = 4 << 10  // payload of any other frame
)

// A Type is the type of a frame.
type Type uint8

// The types of frames. H→G means that only the host sends it, G→H only the guest.
const (
	Hello  Type = 1  // stream 0, first frame of each direction
	Open   Type = 2  // H→G: a new stream: operation, message
	Reply  Type = 3  // G→H: the answer; ends a call
	Error  Type = 4  // G→H: the operation failed; ends the stream. Stream 0, either way: why the connection ends
	Data   Type = 5  // content: standard input or output, or a file's
	Data2  Type = 6  // G→H: standard error
	EOF    Type = 7  // the sender's content has ended
	Credit Type = 8  // the peer may send so many more bytes
	Event  Type = 9  // G→H: the process has exited; ends the stream
	Close  Type = 10 // the host gives the stream up; G→H: the guest wants no more content
	Ping   Type = 11 // H→G, stream 0: asks for a Pong with the same payload
	Pong   Type = 12 // G→H, stream 0
	Passed Type = 13 // H→G: so many bytes of one output of a process, Data or Data2, were passed on
)

// String returns the name that the protocol's description uses.
func (t Type) String() string {
	names := [...]string{"", "HELLO", "OPEN", "REPLY", "ERROR", "DATA", "DATA2", "EOF", "CREDIT", "EVENT", "CLOSE", "PING", "PONG", "PASSED"}
	if t == 0 || int(t) >= len(names) {
		return "type " + strconv.Itoa(int(t))
	}
	return names[t]
}

// MaxPayload returns the maximum payload of a frame of type t, or -1 for an unknown type.
func (t Type) MaxPayload() int {
	switch t {
	case Data, Data2:
		return MaxData
	case Open:
		return MaxOpen
	case Reply, Event:
		return MaxReply
	case Hello, Error, EOF, Credit, Close, Ping, Pong, Passed:
		return MaxSmall
	}
	return -1
}

// A Header is the start of a frame: three bytes of length, one of type, four
// of stream, all little-endian.
type Header struct {
	Len    int
	Type   Type
	Stream uint32
}

// PutHeader writes a header to the first HeaderSize bytes of b.
func PutHeader(b []byte, h Header) {
	_ = b[HeaderSize-1]
	binary.LittleEndian.PutUint32(b, uint32(h.Len)|uint32(h.Type)<<24)
	binary.LittleEndian.PutUint32(b[4:], h.Stream)
}

// AppendFrame appends a whole frame to b.
func AppendFrame(b []byte, t Type, stream uint32, payload []byte) []byte {
	b, start := BeginFrame(b)
	return EndFrame(append(b, payload...), start, t, stream)
}

// BeginFrame appends room for a header; the payload is appended after it, and
// EndFrame fills the header in.
func BeginFrame(b []byte) (frame []byte, start int) {
	return append(b, 0, 0, 0, 0, 0, 0, 0, 0), len(b)
}

// EndFrame completes the frame that began at start.
func EndFrame(b []byte, start int, t Type, stream uint32) []byte {
	PutHeader(b[start:], Header{Len: len(b) - start - HeaderSize, Type: t, Stream: stream})
	return b
}

// ErrFrame matches every violation of the framing.
var ErrFrame = errors.New("malformed frame")

type frameError string

func (e frameError) Error() string        { return string(e) }
func (e frameError) Is(target error) bool { return target == ErrFrame }

// readBuffer is the size of a Reader's own buffer. It is all that an idle
// connection needs: large payloads are read to where they belong.
const readBuffer = 4 << 10

// A Reader reads frames from a byte stream. After Next, read the payload with exactly one
// of Message, Into and Skip.
type Reader struct {
	r    io.Reader
	buf  [readBuffer]byte
	i, n int // buf[i:n] has been read and not been taken
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Next reads a header. The error is io.EOF if the stream ends between two frames, and
// matches ErrFrame if the type is unknown or its payload too long.
func (r *Reader) Next() (Header, error) {
	for r.n-r.i < HeaderSize {
		if r.i > 0 {
			r.n = copy(r.buf[:], r.buf[r.i:r.n])
			r.i = 0
		}
		n, err := r.r.Read(r.buf[r.n:])
		r.n += n
		if n == 0 && err != nil {
			if err == io.EOF && r.n > 0 {
				err = io.ErrUnexpectedEOF
			}
			return Header{}, err
		}
	}
	word := binary.LittleEndian.Uint32(r.buf[r.i:])
	h := Header{Len: int(word & 0xffffff), Type: Type(word >> 24), Stream: binary.LittleEndian.Uint32(r.buf[r.i+4:])}
	r.i += HeaderSize
	switch limit := h.Type.MaxPayload(); {
	case limit < 0:
		return h, frameError("frame of unknown " + h.Type.String())
	case h.Len > limit:
		return h, frameError(h.Type.String() + " frame of " + strconv.Itoa(h.Len) + " bytes, over " + strconv.Itoa(limit))
	}
	return h, nil
}

// Message returns the next n bytes. They are valid until the next call of Next.
func (r *Reader) Message(n int) ([]byte, error) {
	if n <= r.n-r.i {
		b := r.buf[r.i : r.i+n]
		r.i += n
		return b, nil
	}
	// What is claimed is allocated only as it arrives.
	var b []byte
	for len(b) < n {
		step := min(n-len(b), max(MaxData, len(b)))
		b = append(b, make([]byte, step)...)
		if err := r.Into(b[len(b)-step:]); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// Into fills b. If b has capacity for a header after its end, the next header may be read
// in the same system call, which overwrites that capacity.
func (r *Reader) Into(b []byte) error {
	got := copy(b, r.buf[r.i:r.n])
	r.i += got
	wide := b
	if cap(b)-len(b) >= HeaderSize {
		wide = b[:len(b)+HeaderSize]
	}
	for got < len(b) {
		n, err := r.r.Read(wide[got:])
		got += n
		if n == 0 && err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	if got > len(b) {
		r.i, r.n = 0, copy(r.buf[:], wide[len(b):got])
	}
	return nil
}

// Skip drops the next n bytes.
func (r *Reader) Skip(n int) error {
	var b [512]byte
	for n > 0 {
		step := min(n, len(b))
		if err := r.Into(b[:step:step]); err != nil {
			return err
		}
		n -= step
	}
	return nil
}
