package v1

import (
	"encoding/binary"
	"fmt"
	"io"
)

// The stream of a process is a sequence of frames: a type byte, the length of the
// payload in four bytes, most significant first, and the payload. It comes in a
// chunked response of media type StreamType, or over the connection of package fastrun, which
// adds frames of its own, of the types from 32 on. In a WebSocket each binary message is one
// frame without the length.
const (
	StreamType = "application/vnd.sandpit.stream"
	FrameHead  = 5       // bytes of type and length
	MaxFrame   = 1 << 20 // bytes of payload, except in a fastrun.FrameRequest

	// Window bounds each output of a process over a connection with windows, and InputWindow the
	// input over a WebSocket with windows, in bytes. The sender sends no more than that before it is
	// told by FramePassed or FrameTaken what the other end has passed on. So the other end never has
	// to leave later frames unread.
	Window      = 1 << 20
	InputWindow = 256 << 10
)

// Subprotocol is the protocol of all WebSockets of /v1 (Sec-WebSocket-Protocol).
const Subprotocol = "sandpit.v1"

// Frame types, which are also the channels of WebSocket messages. S: from the server, C:
// from the client, which only a connection that goes both ways has.
const (
	FrameStarted     byte = 1  // S: Process as JSON; always the first
	FrameStdout      byte = 2  // S: bytes
	FrameStderr      byte = 3  // S: bytes
	FrameLost        byte = 4  // S: 8 bytes, most significant first: the number of lost output bytes
	FrameResult      byte = 5  // S: Result as JSON: the process has ended
	FrameEnd         byte = 6  // S: End as JSON; always the last
	FramePing        byte = 7  // S: empty, at least every 20 s of silence
	FrameStdinClosed byte = 8  // S: empty: the process reads no more input; further input is dropped
	FrameTaken       byte = 9  // S: 4 bytes, most significant first: the number of standard input bytes that the process has taken; only with windows
	FrameOutput      byte = 10 // S: CodeOutput as JSON; only as a server-sent event
	FrameWaiting     byte = 11 // S: CodeWaiting as JSON; only as a server-sent event
	FrameStdin       byte = 16 // C: bytes
	FrameEOF         byte = 17 // C: standard input ends
	FrameResize      byte = 18 // C: Size as JSON
	FrameSignal      byte = 19 // C: {"signal": 15, "group": false} as JSON
	FramePassed      byte = 20 // C: 5 bytes: FrameStdout or FrameStderr; the number of its bytes passed on, most significant first; only with windows
)

// AppendFrameHead appends the head of a frame with a payload of length bytes.
func AppendFrameHead(b []byte, kind byte, length int) []byte {
	return binary.BigEndian.AppendUint32(append(b, kind), uint32(length))
}

// AppendFrame appends a frame.
func AppendFrame(b []byte, kind byte, payload []byte) []byte {
	return append(AppendFrameHead(b, kind, len(payload)), payload...)
}

// ParseFrameHead returns the type of a frame and the length of its payload. head has
// FrameHead bytes. The length is what the other end claims.
func ParseFrameHead(head []byte) (kind byte, length uint32) {
	return head[0], binary.BigEndian.Uint32(head[1:FrameHead])
}

// ReadFrame reads a frame, and refuses a payload of more than limit bytes before it
// allocates memory. The payload is in buf if it fits there. The error is io.EOF only before
// the first byte.
func ReadFrame(r io.Reader, buf []byte, limit int) (kind byte, payload []byte, err error) {
	var head [FrameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	kind, n := ParseFrameHead(head[:])
	if uint64(n) > uint64(limit) {
		return 0, nil, fmt.Errorf("reading a frame: %d bytes are more than the %d allowed", n, limit)
	}
	if int(n) > cap(buf) {
		buf = make([]byte, n)
	}
	payload = buf[:n]
	if _, err := io.ReadFull(r, payload); err != nil {
		if err == io.EOF { //nolint:errorlint // io.ReadFull returns it bare
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return kind, payload, nil
}
