// Package fastrun carries a whole sandpit run over one connection to this
// user's server: a sandbox is made of the server's warm pool, a command runs in
// it, and the sandbox is gone when the command has ended or the connection is.
//
// The client writes the head of an HTTP/1.1 request with an Upgrade, by hand,
// and the first frame right behind it; the server's answer comes with the first
// of its own frames. So it is one round trip, and the program that asks needs
// neither net/http nor an engine. Frames are those of package v1 and those below.
//
// A server may decline before it has done anything: then the caller makes the
// sandbox itself.
package fastrun

import (
	"encoding/binary"
	"fmt"
	"io"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// The request. Protocol names this form of it: a server that knows another one
// declines.
const (
	Path          = "/v1/run"
	Protocol      = "sandpit.run/2"
	HeaderVersion = "Sandpit-Version" // the client's own, which must be the server's
	HeaderPlace   = "Sandpit-Place"   // where the client stands: see Place
)

// Frames beside those of package v1, whose payloads are as there. FrameStarted
// has no payload here, and FrameResult has an Outcome.
const (
	FrameRequest byte = 32 // C: Request as JSON; always the first
	FrameKill    byte = 33 // C: kill the command and all that it started
	FrameTaken   byte = 34 // S: 4 bytes, most significant first: so much of standard input was taken; 0: no more is
	FramePassed  byte = 35 // C: 4 bytes, most significant first: so much output was passed on
)

// Bounds, in bytes.
const (
	// MaxRequest bounds the first frame; a command line of 8 MiB is more than
	// execve(2) takes.
	MaxRequest = 10 << 20

	// Window is how much standard input may be on its way to a command that
	// does not read, and how much output, of both streams together, to someone
	// who does not: what comes behind it is never held up.
	Window = 256 << 10

	// frameHead is a type and a length.
	frameHead = 5
)

// Request is what is to be run.
type Request struct {
	Spec    v1.Spec    `json:"spec"`
	Command v1.Command `json:"command"`
	WorkDir bool       `json:"workdir,omitempty"` // refuse when the working directory is none
	Report  bool       `json:"report,omitempty"`  // tell Info and Metrics
}

// Outcome is how it ended.
type Outcome struct {
	Result  v1.Result   `json:"result"`
	Info    *v1.Sandbox `json:"info,omitempty"`    // if asked for, or a limit was reached
	Metrics *v1.Metrics `json:"metrics,omitempty"` // if asked for, and known
}

// Codes of errors beside those of package v1.
const (
	codeNoWorkDir  = "workdir_missing"
	codeNotWorkDir = "workdir_not_directory"
)

// AppendFrame appends a frame.
func AppendFrame(b []byte, kind byte, payload []byte) []byte {
	b = append(b, kind)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// ReadFrame reads a frame whose payload is at most so long, into buf when it
// fits there. io.EOF only before its first byte.
func ReadFrame(r io.Reader, buf []byte, most int) (kind byte, payload []byte, err error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if uint64(n) > uint64(most) {
		return 0, nil, fmt.Errorf("reading a frame: %d bytes are more than the %d allowed", n, most)
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
	return head[0], payload, nil
}
