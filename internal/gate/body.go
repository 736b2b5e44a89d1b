package gate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// Body returns the body of the request. Reading fails after limit bytes (-1: no limit), if the
// client sends nothing for Limits.Stall, or if the body is not complete within the given
// time (0: no limit). If the call is broken off, it fails with the reason.
func (c *Call) Body(limit int64, within time.Duration) io.ReadCloser {
	b := &body{c: c, left: limit, limit: limit, bounded: limit >= 0, stall: c.gate.opts.Limits.Stall}
	if within > 0 {
		b.until = time.Now().Add(within)
	}
	return b
}

// maxPeek bounds what Peek reads, in bytes.
const maxPeek = 4 << 10

// Peek returns the body, which can be read again. It is nil if its length is unknown or above 4 KiB, or it does not come.
func (c *Call) Peek() []byte {
	if c.R.ContentLength < 0 || c.R.ContentLength > maxPeek {
		return nil
	}
	b, err := io.ReadAll(c.Body(maxPeek, HeaderTime))
	if err != nil {
		return nil
	}
	c.R.Body = io.NopCloser(bytes.NewReader(b))
	return b
}

// BetweenMessages returns the body of a request that is a stream of messages, for the part of it that is between
// two messages. It has no bound, and the client may send nothing for Limits.Tunnel.
func (c *Call) BetweenMessages() io.Reader {
	return &body{c: c, stall: c.gate.opts.Limits.Tunnel}
}

// StopReading makes reads of the body fail, also one in progress.
func (c *Call) StopReading() {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if !c.over {
		c.unread = true
		_ = c.control.SetReadDeadline(time.Unix(1, 0))
	}
}

type body struct {
	c       *Call
	stall   time.Duration
	left    int64
	limit   int64 // for errors
	bounded bool
	until   time.Time
	closed  atomic.Bool
}

// Read reads a part of the body.
func (b *body) Read(p []byte) (int, error) {
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	if b.bounded && int64(len(p)) > b.left+1 {
		p = p[:b.left+1] // one more byte shows that the body is too large
	}
	deadline := time.Now().Add(b.stall)
	if !b.until.IsZero() && b.until.Before(deadline) {
		deadline = b.until
	}
	b.c.readUntil(deadline)
	n, err := b.c.R.Body.Read(p)
	b.c.hasRead()
	b.left -= int64(n)
	switch {
	case b.bounded && b.left < 0:
		return 0, &Refusal{Code: errcode.TooLarge, Message: fmt.Sprintf("the body has more than %d bytes", b.limit), Hint: "send less at once"}
	case err == io.EOF:
		b.c.ended.Store(true)
		b.c.readUntil(time.Time{})
	case err != nil && b.c.BrokenOff() != nil:
		err = b.c.BrokenOff() // which has set the deadline
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = &Refusal{Code: errcode.BodyTimeout, Message: "the body did not arrive in time", Hint: "send the body without long pauses"}
	case err != nil:
		err = b.broken(err)
	}
	return n, err
}

// broken returns the error of a body that ends too early, or is malformed.
func (b *body) broken(err error) error {
	var network net.Error
	if b.c.R.ProtoMajor > 1 || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network) {
		return Gone(err)
	}
	return &Refusal{Code: errcode.Invalid, Message: "the body is not valid: " + err.Error(), Hint: "send a valid chunked body, or a Content-Length"}
}

// Close makes later reads fail. It does not interrupt a Read in progress.
func (b *body) Close() error {
	b.closed.Store(true)
	return nil
}

// bodyRead reports whether the body has been read to its end.
func (c *Call) bodyRead() bool {
	return c.ended.Load() || c.R.Body == nil || c.R.Body == http.NoBody
}
