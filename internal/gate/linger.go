package gate

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

// Bounds of what is read, and thrown away, of a body after the answer.
const (
	// restTime is how long net/http may read on in a body that nobody wanted,
	// so that the connection can be used again.
	restTime = 5 * time.Second

	// lingerTime is how long a client may go on sending after the whole answer,
	// lingerSilence how long it may pause, and lingerBytes how much that may be.
	lingerTime    = 10 * time.Second
	lingerSilence = 3 * time.Second
	lingerBytes   = 64 << 20
)

// linger reads on, for a while, in what the client of a call that has been
// answered still sends. A connection that is closed with something unread in it
// is reset (RFC 9112, 9.6): a client that sends all before it reads then loses
// the answer, and learns nothing but that. net/http sees to that too, with less
// patience, and not at all when the client has sent Expect. Of HTTP/2 the stream
// alone ends.
func (c *Call) linger() {
	if c.bodyRead() || c.W.hijacked.Load() {
		return
	}
	control := http.NewResponseController(c.W.ResponseWriter)
	_ = control.SetReadDeadline(time.Now().Add(restTime))
	if c.R.ProtoMajor != 1 || !c.W.whole() || c.W.Flush() != nil {
		return
	}
	defer context.AfterFunc(c.gate.live, func() { _ = control.SetReadDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 32<<10)
	until := time.Now().Add(lingerTime)
	for left := lingerBytes; left > 0 && c.gate.live.Err() == nil && time.Now().Before(until); {
		deadline := time.Now().Add(lingerSilence)
		if deadline.After(until) {
			deadline = until
		}
		_ = control.SetReadDeadline(deadline)
		n, err := c.R.Body.Read(buf)
		if left -= n; err != nil {
			return
		}
	}
}

// whole reports whether all of an answer has been written whose length is told.
func (w *Writer) whole() bool {
	length := w.Header().Get("Content-Length")
	return w.status == http.StatusNoContent || length != "" && length == strconv.FormatInt(w.Sent, 10)
}
