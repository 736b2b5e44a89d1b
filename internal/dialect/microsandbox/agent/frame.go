package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/fxamacker/cbor/v2"

	"github.com/sandpit-dev/sandpit/internal/gate"
)

// A frame is its length (of what follows), the ID of the operation that it belongs to, flags, and an envelope:
//
//	[length u32 BE][id u32 BE][flags u8][CBOR {v: generation, t: type, p: payload as bytes, itself CBOR}]
const (
	headSize = 4 + afterLength
	// afterLength is the size of the part of the head that the length counts.
	afterLength = 5
	maxFrame    = 4 << 20  // the largest length
	maxItems    = 64 << 10 // of a list in a frame
)

// Flags of frames.
const (
	flagTerminal = 1 // the last frame of an operation
	flagBulk     = 8 // the body is not CBOR but a record (bulk.go)
)

// generation is the version of the protocol that this package speaks. Clients speak the lower of theirs and this one.
// Generation 8 has brought bulk transfers, which clients offer with a request, and 9 what is between a virtual machine and its host.
const generation = 9

// message is a frame of a client.
type message struct {
	id      uint32
	kind    string
	payload []byte
	size    int64 // bytes of memory that it takes, roughly
}

// envelope is the body of a frame.
type envelope struct {
	V uint64 `cbor:"v"`
	T string `cbor:"t"`
	P []byte `cbor:"p"`
}

// decoder reads CBOR of clients. Unknown fields are ignored, since newer clients send some. Tags around bytes are,
// too: the TypeScript client sends them.
var decoder = sync.OnceValue(func() cbor.DecMode {
	mode, err := cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, IndefLength: cbor.IndefLengthForbidden, UTF8: cbor.UTF8RejectInvalid,
		MaxNestedLevels: 8, MaxArrayElements: maxItems, MaxMapPairs: 256,
	}.DecMode()
	if err != nil {
		panic(err) // the options are constant
	}
	return mode
})

// errFrame is the error of bytes that are not frames, after which nothing that follows can be understood.
var errFrame = gate.Invalid("the client does not speak the agent protocol", "")

// readHead reads the head of a frame, and returns how many bytes its body has.
func readHead(r io.Reader) (id uint32, flags byte, body int, err error) {
	var head [headSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, 0, 0, err
	}
	length := binary.BigEndian.Uint32(head[:])
	if length < afterLength || length > maxFrame {
		return 0, 0, 0, fmt.Errorf("%w: a frame of %d bytes", errFrame, length)
	}
	return binary.BigEndian.Uint32(head[4:]), head[8], int(length) - afterLength, nil
}

// parseBody reads the body of a frame.
func parseBody(body []byte) (envelope, error) {
	var e envelope
	if err := decoder().Unmarshal(body, &e); err != nil {
		return envelope{}, err
	}
	if e.T == "" {
		return envelope{}, errors.New("the message has no type")
	}
	return e, nil
}

// appendFrame appends a frame whose payload is all of parts.
func appendFrame(b []byte, id uint32, flags byte, kind string, parts ...[]byte) []byte {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, id)
	b = append(b, flags, majorMap<<5|3, majorText<<5|1, 'v', generation)
	b = append(b, majorText<<5|1, 't')
	b = append(appendHead(b, majorText, len(kind)), kind...)
	b = append(b, majorText<<5|1, 'p')
	b = appendHead(b, majorBytes, size)
	for _, part := range parts {
		b = append(b, part...)
	}
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}

// Major types of CBOR (RFC 8949, 3.1).
const (
	majorBytes = 2
	majorText  = 3
	majorArray = 4
	majorMap   = 5

	cborNull      = 0xf6
	cborUndefined = 0xf7
)

// appendHead appends the head of an item. Envelopes and data are encoded here, because a library would copy each
// byte of data twice.
func appendHead(b []byte, major byte, n int) []byte {
	switch {
	case n < 24:
		return append(b, major<<5|byte(n))
	case n < 1<<8:
		return append(b, major<<5|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, major<<5|25), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, major<<5|26), uint32(n))
}

// dataHead returns what comes before the bytes of a payload {data: bytes}.
func dataHead(b []byte, n int) []byte {
	b = append(b, majorMap<<5|1, majorText<<5|4, 'd', 'a', 't', 'a')
	return appendHead(b, majorBytes, n)
}
