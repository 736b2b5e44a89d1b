package api

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Names of the parts of a multipart body of exec (RFC 7578).
const (
	multipartForm = "multipart/form-data"
	partCommand   = "command"
	partStdin     = "stdin"
)

// partHeads is the maximum of what a multipart body has before standard input, besides the command,
// in bytes.
const partHeads = 64 << 10

// execInput is the standard input of a foreground command: data of the JSON, or the part of a
// multipart body, which passes through to the process. The zero value is no input.
type execInput struct {
	data []byte
	form *stream.Form
	part *multipart.Part // nil: no such part
}

// given reports whether there is input, which may be empty.
func (in execInput) given() bool { return in.data != nil || in.part != nil }

// readExec reads the command of an exec, up to its standard input if that is a part of its own.
func (c *call) readExec(cmd *v1.Exec) (in execInput, err error) {
	kind, params, _ := mime.ParseMediaType(c.R.Header.Get("Content-Type"))
	if kind == multipartForm {
		in, err = c.readForm(cmd, params["boundary"])
	} else {
		err = codec.Read(c.Call, cmd, v1.MaxCommand, c.compare)
	}
	switch {
	case err != nil:
		return in, err
	case len(cmd.StdinData) > maxStdinData:
		return in, gate.Invalid("stdin_data is longer than 1 MiB", "send a multipart body with the parts command and stdin")
	case cmd.StdinData != nil && in.part != nil:
		return in, gate.Invalid("the command has stdin_data, and the body has a part stdin", "send only one of them")
	case cmd.Stdin && in.form == nil && (cmd.StdinData != nil || c.prefers(jsonType, v1.StreamType, stream.Events) == jsonType):
		return in, gate.Invalid("standard input can't be streamed in JSON", "use stdin_data, or a multipart body with the parts command and stdin, or the WebSocket; or ask for a stream without stdin_data, and write to the process")
	}
	in.data = cmd.StdinData
	return in, nil
}

// readForm reads a multipart body up to the content of its part stdin. What comes before that
// is bounded, and held in memory.
func (c *call) readForm(cmd *v1.Exec, boundary string) (in execInput, err error) {
	if boundary == "" {
		return in, gate.Invalid("the Content-Type of the multipart body has no boundary", "let your HTTP library make the body and the header")
	}
	held := &gate.Holder{Call: c.Call, Kind: gate.InMemory, R: c.Body(v1.MaxCommand+partHeads, codec.BodyTime), Free: gate.FreeBody, Each: gate.HeldByte}
	in.form = stream.NewForm(held, boundary)
	part, err := in.next(partCommand)
	if err != nil {
		return in, err
	}
	if part == nil {
		return in, gate.Invalid(`the multipart body has no part "command"`, "send the part command first, then stdin")
	}
	data, err := io.ReadAll(part)
	if err != nil {
		return in, stream.BadForm(err)
	}
	if err := codec.ParseHeld(c.Call, data, cmd); err != nil {
		return in, err
	}
	c.compare(data)
	if in.part, err = in.next(partStdin); err != nil {
		return in, err
	}
	if in.part == nil {
		_, err = io.Copy(io.Discard, held)
		return in, err
	}
	in.form.Continue(c.Body(-1, 0))
	return in, nil
}

// next returns the next part, which must have a name, or nil at the end of the body.
func (in execInput) next(name string) (*multipart.Part, error) {
	part, err := in.form.Next()
	if err == io.EOF { //nolint:errorlint // it is that value
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if got := part.FormName(); got != name {
		return nil, gate.Invalid("the multipart body has the part "+strconv.Quote(gate.Bounded(got))+" where "+strconv.Quote(name)+" is expected", "send the part command first, then stdin, and no others")
	}
	switch strings.ToLower(part.Header.Get("Content-Transfer-Encoding")) {
	case "", "binary", "8bit", "7bit":
		return part, nil
	}
	return nil, &gate.Refusal{Code: errcode.UnsupportedMedia, Message: "the part " + strconv.Quote(name) + " has a Content-Transfer-Encoding, which is not supported", Hint: "send its bytes as they are"}
}

// feed passes the input to a process, beside everything else: the process may not read it. rest
// must be called when the process has ended. It reads and drops what is left of the body, because
// many clients read no answer before they have sent everything.
func (c *call) feed(p sandpit.Process, in execInput) (rest func()) {
	if !in.given() || p.Stdin() == nil {
		return func() { c.drop(in) }
	}
	fed, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(fed)
		defer c.Protect("passing input on", c.Cancel)
		if err := c.pass(p, in, ended); err != nil {
			c.Cancel(err) // which gives it up
		}
	}()
	if in.part == nil {
		return func() {} // it ends with the process
	}
	return func() {
		close(ended)
		<-fed
		c.drop(in)
	}
}

// errUnread ends a command that does not read the input that its client sends.
var errUnread error = &gate.Refusal{Code: errcode.Timeout, Message: "the command was killed because it did not read its standard input", Hint: "put the input into a file of the sandbox"}

// pass passes the input to a process until its end, or until the process takes no more. What the
// process was given by an earlier request with the same key is dropped. The error is one of the
// client, or says that the process does not read.
func (c *call) pass(p sandpit.Process, in execInput, ended <-chan struct{}) error {
	f := c.fore
	if f == nil {
		f = newForeground(nil, p)
	}
	select {
	case f.feeding <- struct{}{}:
	case <-ended:
		return nil
	case <-c.Ctx.Done():
		return nil
	}
	defer func() { <-f.feeding }()
	if f.closed {
		return nil
	}
	var from io.Reader = bytes.NewReader(in.data)
	to := input{in: p.Stdin(), stall: c.api.gate.Limits().Tunnel}
	if in.part != nil {
		from = in.part
	}
	if _, err := io.CopyN(io.Discard, from, f.fed); err != nil {
		return stream.BadForm(err)
	}
	to.timer = time.AfterFunc(to.stall, func() {
		if in.part != nil { // otherwise net/http notices a client that leaves
			c.Cancel(errUnread)
		}
	})
	to.timer.Stop()
	n, err := io.Copy(&to, from)
	f.fed += n
	switch {
	case err != nil && to.err == nil:
		return stream.BadForm(err)
	case err != nil:
		return nil
	}
	if in.part != nil {
		// Before the process may end: it is given up if the body is not valid.
		if _, err := in.form.Next(); err != io.EOF { //nolint:errorlint // it is that value
			return gate.Invalid("the multipart body has another part after stdin, or no end", "send the part command first, then stdin, and no others")
		}
	}
	f.closed = true
	_ = p.Stdin().Close()
	c.drop(in) // net/http notices that a client leaves once it has read the whole body
	return nil
}

// drop reads the rest of a multipart body.
func (c *call) drop(in execInput) {
	if in.form != nil && c.Ctx.Err() == nil {
		_, _ = io.Copy(io.Discard, c.Body(-1, 0)) // a client that has left gets no answer anyway
	}
}
