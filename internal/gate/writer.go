package gate

import (
	"bufio"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Writer is the http.ResponseWriter of a call. It notes what is sent, and gives the client
// a limited time in which it must have taken each part. One goroutine at a time may use it.
type Writer struct {
	http.ResponseWriter

	// Sent counts the bytes of the answer, for the audit. Who has taken the connection over
	// adds what it sends.
	Sent int64

	call     *Call
	status   int
	hijacked atomic.Bool
}

// stall is the default of Limits.Stall.
const stall = 30 * time.Second

// renew gives the client time from now on.
func (w *Writer) renew() { w.call.writeFor(w.call.gate.opts.Limits.Stall) }

// Unwrap is for http.ResponseController.
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

// Flush sends what is held back.
func (w *Writer) Flush() error {
	w.renew()
	if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
		return Gone(err)
	}
	return nil
}

// Hijack takes the connection over. The head of the answer is sent before, which
// must not fail for the time that the handler has taken.
func (w *Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.renew()
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.Taken()
	}
	return conn, rw, err
}

// Taken notes that the answer is somebody else's from now on: the connection was taken over,
// or a library has answered. The gate then writes nothing more.
func (w *Writer) Taken() { w.hijacked.Store(true) }
