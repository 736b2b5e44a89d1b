package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// capture holds the output of a process until that has ended.
type capture struct {
	c     *call
	stdin int64 // bytes that are held beside it

	mu             sync.Mutex
	stdout, stderr bytes.Buffer
	lost           int64 // bytes of a repeated exec
}

// captured is one of its streams.
type captured struct {
	*capture
	to *bytes.Buffer
}

// Write keeps a part. Where that is too much for the server, the process is killed.
func (w captured) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := int64(w.stdout.Len() + w.stderr.Len() + len(b)); n > gate.FreeBody {
		if err := w.c.Hold(gate.InMemory, w.stdin+gate.HeldByte*n); err != nil {
			w.c.Cancel(errOutput)
			return 0, err
		}
	}
	return w.to.Write(b)
}

// Joined is that of lanes.Joined: it never waits.
func (captured) Joined() {}

// errOutput ends a command whose output can't be held.
var errOutput error = &gate.Refusal{Code: errcode.OutputTooLarge, Message: "the command was killed because its output needs more of the server's memory than is left", Hint: "stream the output with the header Accept: text/event-stream"}

// executed answers with the result of a command. Long output is sent piece by piece: as JSON it may
// be six times as long, which must not be held in memory.
func (c *call) executed(out v1.Executed, stdout, stderr []byte) error {
	out.Process.Result = nil // it is beside the process
	if len(stdout)+len(stderr) <= gate.FreeBody {
		out.SetOutput(stdout, stderr)
		body, err := json.Marshal(out)
		if err == nil {
			codec.Write(c.W, http.StatusOK, append(body, '\n'))
		}
		return err
	}
	head, err := json.Marshal(struct {
		Process v1.Process `json:"process"`
		Result  v1.Result  `json:"result"`
		Lost    int64      `json:"lost_bytes,omitempty"`
	}{out.Process, out.Result, out.Lost})
	if err != nil {
		return err
	}
	h := c.W.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	c.W.WriteHeader(http.StatusOK)
	w := &pieces{to: c.W}
	w.write(head[:len(head)-1])
	send, end := w.text, ""
	if !utf8.Valid(stdout) || !utf8.Valid(stderr) {
		send, end = w.base64, `,"encoding":"base64"`
	}
	w.field(`,"stdout":"`, stdout, send)
	w.field(`,"stderr":"`, stderr, send)
	w.write([]byte(end + "}\n"))
	return w.err
}

// pieces writes long strings of JSON piece by piece. After an error it does nothing.
type pieces struct {
	to  io.Writer
	err error
}

func (w *pieces) write(b []byte) {
	if w.err == nil {
		_, w.err = w.to.Write(b)
	}
}

// field writes a field.
func (w *pieces) field(name string, b []byte, send func([]byte)) {
	w.write([]byte(name))
	send(b)
	w.write([]byte{'"'})
}

// piece is the amount of output that is encoded at once, in bytes: a multiple of 3, as base64 wants.
const piece = 30 << 10

// text writes UTF-8 output.
func (w *pieces) text(b []byte) {
	for len(b) > 0 && w.err == nil {
		n := min(len(b), piece)
		for n < len(b) && !utf8.RuneStart(b[n]) {
			n--
		}
		quoted, _ := json.Marshal(string(b[:n])) // of a string, which never fails
		w.write(quoted[1 : len(quoted)-1])
		b = b[n:]
	}
}

func (w *pieces) base64(b []byte) {
	for len(b) > 0 && w.err == nil {
		n := min(len(b), piece)
		w.write(base64.StdEncoding.AppendEncode(nil, b[:n]))
		b = b[n:]
	}
}
