package gate

import (
	"bufio"
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
	hijacked atomic.Bool
}

// stall is the default of Limits.Stall.
const stall = 30 * time.Second

// renew restarts the time that the client has.
func (w *Writer) renew() { w.call.writeFor(w.call.gate.opts.Limits.Stall) }

// Unwrap returns the underlying writer, for http.ResponseController.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends the status.
func (w *Writer) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write sends a part of the body.
func (w *Writer) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.renew()
	n, err := w.ResponseWriter.Write(b)
	w.Sent += int64(n)
	if err != nil {
		err = Gone(err)
	}
	return n, err
}

// Flush sends buffered data.
func (w *Writer) Flush() error {
	w.renew()
	if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
		return Gone(err)
	}
	return nil
}

// Hijack lets the handler take the connection over. It renews the deadline first: net/http
// may send a head, which must not fail because the handler took long.
func (w *Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.renew()
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.Taken()
	}
	return conn, rw, err
}

// Taken notes that a library has taken the connection over or has answered, by other
// means than w. The gate then writes nothing.
func (w *Writer) Taken() { w.hijacked.Store(true) }
