package gate

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Writer is the http.ResponseWriter of a call. It notes what is sent, and limits the time
// in which the client must take each part. Only one goroutine at a time may use it.
type Writer struct {
	http.ResponseWriter

	// Sent counts the bytes of the answer, for the audit. A handler that has taken the
	// connection over adds what it sends.
	Sent int64

	call     *Call
	status   int
	refusing bool // refuse is writing its error
	refused  bool // by refuse: what the handler goes on to write is dropped
	hijacked atomic.Bool
	conn     net.Conn // what Hijack has returned; set before hijacked
}

// stall is the default of Limits.Stall.
const stall = 30 * time.Second

// renew restarts the time that the client has.
func (w *Writer) renew() { w.call.writeFor(w.call.gate.opts.Limits.Stall) }

// Unwrap returns the underlying writer, for http.ResponseController.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// errNotIntended is a mistake in the handler of a route that is SelfAudited.
var errNotIntended = errors.New("the handler answered without calling Intend")

// refuse answers with an error in place of status if the audit must have the call and does not
// have it, because the handler forgot Call.Intend. It then returns that error.
func (w *Writer) refuse(status int) error {
	c := w.call
	switch informational := status < 200 && status != http.StatusSwitchingProtocols; {
	case w.refused:
		return errNotIntended
	case w.refusing || w.status != 0 || status >= 400 || informational || c.later && status == http.StatusSwitchingProtocols:
		return nil
	case c.route == nil || !c.route.Guarded || c.Vital || c.intended:
		return nil
	}
	w.refusing = true // a dialect may tell of an error with a status of success
	c.Fail(errNotIntended)
	w.refusing, w.refused = false, true
	return errNotIntended
}

// WriteHeader sends the status. On a guarded route it answers 500 in place of success if the
// handler has not called Call.Intend, unless the call is vital. Write, FlushError and Hijack do the same.
func (w *Writer) WriteHeader(status int) {
	if w.refuse(status) != nil {
		return
	}
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write sends a part of the body.
func (w *Writer) Write(b []byte) (int, error) {
	if err := w.refuse(http.StatusOK); err != nil {
		return 0, err
	}
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.renew()
	defer w.call.hasWritten()
	n, err := w.ResponseWriter.Write(b)
	w.Sent += int64(n)
	if err != nil {
		err = Gone(err)
	}
	return n, err
}

// FlushError sends buffered data. http.ResponseController looks for this name.
func (w *Writer) FlushError() error {
	if err := w.refuse(http.StatusOK); err != nil {
		return err
	}
	w.renew()
	defer w.call.hasWritten()
	if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
		return Gone(err)
	}
	return nil
}

// Hijack lets the handler take the connection over. It renews the deadline first: net/http
// may send a head, which must not fail because the handler took long.
func (w *Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if err := w.refuse(http.StatusSwitchingProtocols); err != nil {
		return nil, nil, err
	}
	w.renew()
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.conn = conn
		w.Taken()
		if w.call.BrokenOff() != nil { // meanwhile
			w.CloseIn(LastWords)
		}
	}
	return conn, rw, err
}

// CloseIn closes a connection that was taken over, after d for the last words. Its handler
// may have ended already but for a client that does not say goodbye.
func (w *Writer) CloseIn(d time.Duration) {
	if w.conn != nil {
		time.AfterFunc(d, func() { _ = w.conn.Close() })
	}
}

// Taken notes that a library has taken the connection over or has answered, by other
// means than w. The gate then writes nothing.
func (w *Writer) Taken() { w.hijacked.Store(true) }
