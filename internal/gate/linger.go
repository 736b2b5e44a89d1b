package gate

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

// Bounds of the part of a body that is read and discarded after the answer.
const (
	// restTime is how long net/http may read the rest of a body, so that the
	// connection can be used again.
	restTime = 5 * time.Second

	// lingerTime is how long a client may keep sending after the whole answer,
	// lingerSilence how long it may pause, and lingerBytes how much it may send.
	lingerTime    = 10 * time.Second
	lingerSilence = 3 * time.Second
	lingerBytes   = 64 << 20
)

// linger reads what the client still sends after the answer, for a while. Closing a
// connection with unread data resets it (RFC 9112, 9.6), and a client that sends everything
// before it reads would lose the answer. net/http lingers too, but for a shorter time,
// and not at all if the client has sent Expect. In HTTP/2 only the stream ends.
func (c *Call) linger() {
	if c.bodyRead() || c.W.hijacked.Load() {
		return
	}
	_ = c.control.SetReadDeadline(time.Now().Add(restTime))
	if c.R.ProtoMajor != 1 || !c.W.whole() || c.W.FlushError() != nil {
		return
	}
	defer context.AfterFunc(c.gate.live, func() { _ = c.control.SetReadDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 32<<10)
	until := time.Now().Add(lingerTime)
	for left := lingerBytes; left > 0 && c.gate.live.Err() == nil && time.Now().Before(until); {
		deadline := time.Now().Add(lingerSilence)
		if deadline.After(until) {
			deadline = until
		}
		_ = c.control.SetReadDeadline(deadline)
		n, err := c.R.Body.Read(buf)
		if left -= n; err != nil {
			return
		}
	}
}

// whole reports whether an answer of known length has been written completely.
func (w *Writer) whole() bool {
	length := w.Header().Get("Content-Length")
	return w.status == http.StatusNoContent || length != "" && length == strconv.FormatInt(w.Sent, 10)
}
