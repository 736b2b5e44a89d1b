package stream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Tunnel connects the client of a call to a port, byte by byte. Each end can close its
// direction separately.
func Tunnel(c *gate.Call, inside net.Conn) error {
	outside, buffered, err := http.NewResponseController(c.W).Hijack()
	if err != nil {
		return fmt.Errorf("taking over the connection: %w", err)
	}
	defer outside.Close()
	c.NoteOutcome(http.StatusSwitchingProtocols, "", nil)
	if _, err := io.WriteString(outside, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nX-Request-Id: "+c.ID+"\r\n\r\n"); err != nil {
		return nil // the client has gone
	}
	// Both ends are closed when the server ends.
	stop := context.AfterFunc(c.Ctx, func() { _ = outside.Close(); _ = inside.Close() })
	defer stop()
	stall := c.Gate().Limits().Tunnel
	in, out := patientReader{inside, stall, new(atomic.Bool)}, patientReader{outside, stall, new(atomic.Bool)}
	var both sync.WaitGroup
	both.Go(func() {
		defer c.Protect("passing on what a client sends", c.Cancel)
		_, err := Copy(PatientWriter{inside, stall}, bufferedReader{buffered.Reader, out})
		closeHalf(inside, err)
		if err != nil {
			_ = outside.Close() // nobody takes the other direction
		}
		in.leaveAlone()
	})
	n, err := Copy(PatientWriter{outside, stall}, in)
	c.W.Sent += n
	closeHalf(outside, err)
	if err != nil {
		_ = inside.Close()
	}
	out.leaveAlone()
	both.Wait()
	return nil
}

// Tunnel connects the client to a port by binary messages. An empty message ends a
// direction.
func (s *Socket) Tunnel(inside net.Conn) {
	stop := context.AfterFunc(s.c.Ctx, func() { _ = inside.Close() })
	defer stop()
	stall := s.c.Gate().Limits().Tunnel
	in := patientReader{inside, stall, new(atomic.Bool)}
	reading, heard := make(chan struct{}), make(chan struct{}, 1)
	ended := make(chan struct{}) // closed when the client has ended its direction
	refused := make(chan error, 1)
	go func() {
		defer close(reading)
		defer s.c.Protect("passing on what a client sends", s.c.Cancel)
		end := sync.OnceFunc(func() { close(ended) })
		for {
			kind, msg, err := s.conn.Reader(s.io)
			if err != nil || kind != websocket.MessageBinary {
				if err == nil {
					refused <- errMessage("it is not binary")
				}
				_ = inside.Close()
				return
			}
			n, err := Copy(PatientWriter{inside, stall}, msg)
			switch {
			case err != nil:
				_ = inside.Close()
				return
			case n == 0:
				closeHalf(inside, nil)
				in.leaveAlone()
				end()
			}
			select {
			case heard <- struct{}{}:
			default:
			}
		}
	}()
	_, err := Copy(socketWriter{s}, in)
	if err == nil {
		s.mu.Lock()
		_ = s.send(websocket.MessageBinary, nil)
		s.mu.Unlock()
		quiet := time.NewTimer(stall)
		defer quiet.Stop()
		for more := true; more; { // the client may still send
			select {
			case <-heard:
				quiet.Reset(stall)
			case <-ended:
				more = false
			case <-reading:
				more = false
			case <-quiet.C:
				more = false
			case <-s.c.Ctx.Done():
				more = false
			}
		}
	}
	end, status := v1.End{Reason: v1.EndEnded}, 0
	if why := s.c.BrokenOff(); why != nil {
		end, status = endOf(s.c, why)
	} else if err != nil && !errors.Is(err, net.ErrClosed) {
		end, status = v1.End{Reason: v1.EndError}, http.StatusBadGateway
	}
	select {
	case why := <-refused:
		end, status = endOf(s.c, why)
		s.c.ReplaceOutcome(status, end.Error.Code, why)
	default:
	}
	s.close(end, status)
	<-reading
}

// socketWriter sends written data as messages.
type socketWriter struct{ s *Socket }

func (w socketWriter) Write(b []byte) (int, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	for rest := b; len(rest) > 0; {
		part := rest[:min(len(rest), v1.MaxFrame)]
		rest = rest[len(part):]
		if err := w.s.send(websocket.MessageBinary, part); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// patientReader reads from one end of a tunnel. Once the other direction has ended,
// each read has a time limit, because an end that has closed only its direction looks
// like one that has left.
type patientReader struct {
	net.Conn
	stall time.Duration
	alone *atomic.Bool
}

func (r patientReader) Read(b []byte) (int, error) {
	if r.alone.Load() {
		_ = r.SetReadDeadline(time.Now().Add(r.stall))
	}
	return r.Conn.Read(b)
}

// leaveAlone says that the other direction has ended.
func (r patientReader) leaveAlone() {
	r.alone.Store(true)
	_ = r.SetReadDeadline(time.Now().Add(r.stall)) // of a Read in progress
}

// PatientWriter is a connection whose writes have a time limit. Without it, a client that
// has left while its data was not read would go unnoticed.
type PatientWriter struct {
	net.Conn
	Stall time.Duration
}

// Write writes to the connection.
func (w PatientWriter) Write(b []byte) (int, error) {
	_ = w.SetWriteDeadline(time.Now().Add(w.Stall))
	return w.Conn.Write(b)
}

// bufferedReader reads what net/http has read ahead, then from the connection.
type bufferedReader struct {
	ahead *bufio.Reader
	conn  net.Conn
}

func (r bufferedReader) Read(b []byte) (int, error) {
	if n := r.ahead.Buffered(); n > 0 {
		return r.ahead.Read(b[:min(n, len(b))])
	}
	return r.conn.Read(b)
}

// closeHalf tells the other end that nothing more will come, or, after an error, that
// something is missing.
func closeHalf(conn net.Conn, err error) {
	half, ok := conn.(interface{ CloseWrite() error })
	if ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	_ = conn.Close()
}
