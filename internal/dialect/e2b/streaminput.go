package e2b

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// streamedInput is a message of a stream of input: the first one is start.
type streamedInput struct {
	Start *onProcess `json:"start"`
	Data  *struct {
		Input processInput `json:"input"`
	} `json:"data"`
	Keepalive *struct{} `json:"keepalive"`
}

// inputGrace is the time that a client has to end a stream of input after the process has ended: it may
// have sent nothing more, and then nothing is lost.
const inputGrace = 5 * time.Second

// errProcessEnded is the cause of the end of a stream of input whose process has ended.
var errProcessEnded = &gate.Refusal{Code: errcode.NotFound, Message: "the process has ended", Hint: "send no more input"}

// streamInput writes a stream of input to a process. It reads one message at a time, and the next one when the process
// has taken it. The end of the stream leaves the input of the process open.
func streamInput(c *call) error {
	if err := c.OpenStream(); err != nil {
		return err
	}
	var buf bytes.Buffer
	soon := c.api.Gate.Limits().First
	in, err := c.nextInput(&buf, c.Body(-1, soon), soon, maxMessage)
	if err == io.EOF || err == nil && in.Start == nil {
		err = gate.Invalid("the first message names no process", `begin with {"start":{"process":{"pid":1}}}`)
	}
	about := ""
	if err == nil {
		about = in.Start.about()
	}
	if refused := c.Intend(about); refused != nil {
		return refused
	}
	if err != nil {
		return c.Untouched(err)
	}
	p, leave, err := c.attach(in.Start.Process, true)
	if err != nil {
		return err
	}
	defer leave()
	if p.Stdin() == nil {
		return c.Untouched(gate.Invalid("the process has no standard input", "start the process with stdin"))
	}
	if err := c.relay(&buf, p, leave); err != nil {
		if gone := c.ending(); gone != nil && !errors.Is(err, gate.ErrClientGone) {
			return gone
		}
		return err
	}
	writeStream(c.W, slices.Concat(envelope(0, []byte("{}")), endEnvelope(nil)))
	return nil
}

// relay writes the messages that follow the first one to a process.
func (c *call) relay(buf *bytes.Buffer, p sandpit.Process, leave func()) error {
	ctx, cancel := c.UntilDrained()
	defer cancel(nil)
	if t := c.timeout(); t > 0 {
		defer time.AfterFunc(t, func() { cancel(context.DeadlineExceeded) }).Stop()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer c.Protect("waiting for the end of a process", func(err error) { cancel(err) })
		if _, _ = p.Wait(ctx); ctx.Err() != nil {
			return
		}
		grace := inputGrace
		if c.ending() != nil {
			grace = 0
		}
		select {
		case <-time.After(grace):
			cancel(errProcessEnded)
		case <-ctx.Done():
		}
	}()
	defer func() { cancel(nil); <-ended }()
	defer context.AfterFunc(ctx, c.StopReading)()
	between := c.BetweenMessages()
	for {
		if buf.Cap() > maxMessage {
			*buf = bytes.Buffer{}
		}
		_ = c.Hold(gate.InMemory, 0) // the next message may be long in coming
		in, err := c.nextInput(buf, between, codec.BodyTime, maxInput)
		switch {
		case err == io.EOF:
			return nil
		// A read that fails may cancel the context, too: without a cause.
		case err != nil && ctx.Err() != nil && context.Cause(ctx) != context.Canceled:
			return context.Cause(ctx)
		case err != nil:
			return err
		case in.Start != nil:
			return gate.Invalid("the stream has named its process already", "")
		case in.Data == nil:
			continue
		}
		if err := c.write(ctx, p, leave, in.Data.Input); err != nil {
			return err
		}
	}
}

// nextInput reads a message of at most limit bytes, all of which must come within a time after its first byte. Or it returns
// io.EOF.
func (c *call) nextInput(buf *bytes.Buffer, between io.Reader, within time.Duration, limit int64) (*streamedInput, error) {
	rest := func() io.Reader { return c.Body(-1, within) }
	if err := nextEnvelope(buf, between, rest, limit, c.ReadAll); err != nil {
		return nil, err
	}
	in := new(streamedInput)
	if err := dialect.Parse(c.Call, buf.Bytes(), in); err != nil {
		return nil, err
	}
	if in.Start == nil && in.Data == nil && in.Keepalive == nil {
		return nil, gate.Invalid("the message is not a start, data or keepalive", "")
	}
	return in, nil
}
