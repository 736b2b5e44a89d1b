package rpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Names of streams.
const (
	stdout = "stdout"
	stderr = "stderr"
)

// lines collects output as a list of its lines, in JSON, which the call holds. Its methods are safe for
// concurrent use.
type lines struct {
	c *gate.Call

	mu   sync.Mutex
	list bytes.Buffer
	rest map[string][]byte // of each stream, what is not yet a line
	cut  bool              // something is missing
	err  error             // there is no room for more
}

// Bounds of an output.
const (
	maxList  = 48 << 20 // bytes of JSON
	heldLine = 4        // the memory of each byte of a list, which becomes a part of two other texts
	heldText = 8        // that of each byte of a line while JSON is made of it
)

// errOutput ends a call whose output can't be held.
var errOutput error = &gate.Refusal{Code: errcode.OutputTooLarge, Message: "it was stopped because its output needs more of the server's memory than is left", Hint: "write the output to a file of the sandbox"}

// line is one line of output.
type line struct {
	Stream string `json:"stream"`
	Text   string `json:"text"` // without the end of line
}

// stream returns a writer for output of a stream. It never fails: a program must not stop because there is too
// much output.
func (l *lines) stream(name string) io.Writer { return writer{l, name} }

type writer struct {
	lines *lines
	name  string
}

// Write takes output.
func (w writer) Write(b []byte) (int, error) {
	l := w.lines
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(b)
	for !l.cut {
		text, after, found := bytes.Cut(b, []byte{'\n'})
		if !found {
			break
		}
		rest := l.rest[w.name]
		delete(l.rest, w.name)
		l.put(w.name, append(rest, text...))
		b = after
	}
	if !l.cut && len(b) > 0 && l.room(len(b)) {
		if l.rest == nil {
			l.rest = map[string][]byte{}
		}
		l.rest[w.name] = append(l.rest[w.name], b...)
	}
	return n, nil
}

// add adds whole lines, after what is not yet a line of their stream.
func (l *lines) add(stream, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush(stream)
	for one := range strings.SplitSeq(text, "\n") {
		l.put(stream, []byte(one))
	}
}

// put adds a line. Precondition: l.mu is held.
func (l *lines) put(stream string, text []byte) {
	if len(text) > gate.FreeBody && !l.hold(heldLine*int64(l.list.Len())+heldText*int64(len(text))) {
		return
	}
	item, err := json.Marshal(line{stream, string(text)}) // which replaces what is not UTF-8
	if err != nil || l.cut || !l.room(len(item)+1) {
		return
	}
	if l.list.Len() > 0 {
		l.list.WriteByte(',')
	}
	l.list.Write(item)
}

// room reports whether there is room for n more bytes. If not, something is missing from now on. Precondition:
// l.mu is held.
func (l *lines) room(n int) bool {
	size := int64(l.list.Len() + len(l.rest[stdout]) + len(l.rest[stderr]) + n)
	l.cut = l.cut || size > maxList
	if !l.cut && size > gate.FreeBody {
		l.hold(heldLine * size)
	}
	return !l.cut
}

// hold makes the call hold a number of bytes, or ends it. Precondition: l.mu is held.
func (l *lines) hold(n int64) bool {
	if l.c.Hold(gate.InMemory, n) != nil {
		l.cut, l.err = true, errOutput
		l.c.Cancel(errOutput)
	}
	return !l.cut
}

// why returns the error of a call: err, or the one for which it was ended.
func (l *lines) why(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	return err
}

// flush makes a line of the rest of a stream. Precondition: l.mu is held.
func (l *lines) flush(stream string) {
	rest, ok := l.rest[stream]
	if delete(l.rest, stream); ok {
		l.put(stream, rest)
	}
}

// end returns the list. truncated says that the output was cut before it came here.
func (l *lines) end(truncated bool) (json.RawMessage, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	l.flush(stdout)
	l.flush(stderr)
	if truncated || l.cut {
		l.cut = false
		item, err := json.Marshal(line{stderr, fmt.Sprintf("Error: the output is incomplete: more than %d MiB of it were written", sandpit.DefaultCapture>>20)})
		if err != nil {
			return nil, err
		}
		if l.list.Len() > 0 {
			l.list.WriteByte(',')
		}
		l.list.Write(item)
	}
	return fmt.Appendf(nil, "[%s]", l.list.Bytes()), nil
}
