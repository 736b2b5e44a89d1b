package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

func portRoutes() []Route {
	const tag = "Sandboxes"
	return []Route{
		{Method: http.MethodGet, Path: oneSandbox + "/ports", ID: "listPorts", Tag: tag, Summary: "List the TCP ports on which programs in a sandbox listen", Status: http.StatusOK, Out: v1.PortList{}, handle: asJSON(listPorts)},
		{
			Method: http.MethodGet, Path: oneSandbox + "/ports/{port}/tcp", ID: "connectPort", Tag: tag, Summary: "Connect to a TCP port of a sandbox",
			Text:   "With Upgrade: tcp the connection carries the raw bytes of the TCP connection, and each direction can be closed separately. A WebSocket carries them in binary messages.",
			Status: http.StatusSwitchingProtocols, Upgrade: true, Guarded: true, handle: connectPort,
		},
	}
}

func listPorts(c *call) (v1.PortList, error) {
	n, err := c.sandbox()
	if err != nil {
		return v1.PortList{}, err
	}
	all, err := n.Ports(c.Ctx)
	return v1.PortList{Ports: list(all)}, err
}

// parsePort reads a port's number.
func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, gate.Invalid(fmt.Sprintf("%.20q is not a port", text), "use a number from 1 to 65535")
	}
	return uint16(n), nil
}

// connectPort makes the connection one to a port of the sandbox.
func connectPort(c *call) error {
	port, err := parsePort(c.R.PathValue("port"))
	if err != nil {
		return err
	}
	kind := strings.ToLower(c.R.Header.Get("Upgrade"))
	if c.R.ProtoMajor != 1 || kind != "tcp" && kind != "websocket" {
		c.W.Header().Set("Upgrade", "tcp, websocket")
		c.W.Header().Set("Connection", "Upgrade")
		return &gate.Refusal{Status: http.StatusUpgradeRequired, Code: "invalid", Message: "this path needs a protocol upgrade", Hint: "send the headers Connection: Upgrade and Upgrade: tcp over HTTP/1.1, or connect with a WebSocket client"}
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	n, err := c.sandbox()
	if err != nil {
		return err
	}
	inside, err := n.Dial(c.Ctx, port)
	if err != nil {
		return err
	}
	defer inside.Close()
	if kind == "websocket" {
		s, err := c.accept()
		if err != nil {
			return err
		}
		defer s.conn.CloseNow() //nolint:errcheck // it is closed already when all went well
		return c.relaySocket(s, inside)
	}
	return c.relay(inside)
}

// patientReader reads from one end of a tunnel. Once the other direction has
// ended, what is to come has a time to come in: an end that has only closed its
// direction, and one that has left for good, look the same.
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
	_ = r.SetReadDeadline(time.Now().Add(r.stall)) // of a Read under way
}

// relay makes the connection of the call one to the port, byte by byte. Each end
// can close its direction alone.
func (c *call) relay(inside net.Conn) error {
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
	stall := c.api.gate.Limits().Tunnel
	in, out := patientReader{inside, stall, new(atomic.Bool)}, patientReader{outside, stall, new(atomic.Bool)}
	var both sync.WaitGroup
	both.Go(func() {
		_, err := copyHalf(patientWriter{inside, stall}, bufferedReader{buffered.Reader, out})
		closeHalf(inside, err)
		if err != nil {
			_ = outside.Close() // the other direction has nobody to go to
		}
		in.leaveAlone()
	})
	n, err := copyHalf(patientWriter{outside, stall}, in)
	c.W.Sent += n
	closeHalf(outside, err)
	if err != nil {
		_ = inside.Close()
	}
	out.leaveAlone()
	both.Wait()
	return nil
}

// bufferedReader reads what net/http has read ahead, and then the connection.
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

// patientWriter writes to one end, which has a time to take it. Of a client who
// sends what nobody takes it would not be noticed otherwise that he has left.
type patientWriter struct {
	net.Conn
	stall time.Duration
}

func (w patientWriter) Write(b []byte) (int, error) {
	_ = w.SetWriteDeadline(time.Now().Add(w.stall))
	return w.Conn.Write(b)
}

// copyHalf copies one direction.
func copyHalf(to io.Writer, from io.Reader) (int64, error) {
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(plainWriter{to}, struct{ io.Reader }{from}, *buf)
}

// closeHalf tells the other end that nothing more comes, or, after an error,
// that something is missing.
func closeHalf(conn net.Conn, err error) {
	half, ok := conn.(interface{ CloseWrite() error })
	if ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	_ = conn.Close()
}

// relaySocket is relay over a WebSocket: binary messages, and an empty one for
// the end of a direction.
func (c *call) relaySocket(s *socket, inside net.Conn) error {
	stop := context.AfterFunc(c.Ctx, func() { _ = inside.Close() })
	defer stop()
	stall := c.api.gate.Limits().Tunnel
	in := patientReader{inside, stall, new(atomic.Bool)}
	reading, heard := make(chan struct{}), make(chan struct{}, 1)
	go func() {
		defer close(reading)
		for {
			kind, msg, err := s.conn.Reader(s.io)
			if err != nil || kind != websocket.MessageBinary {
				_ = inside.Close()
				return
			}
			n, err := copyHalf(patientWriter{inside, stall}, msg)
			switch {
			case err != nil:
				_ = inside.Close()
				return
			case n == 0:
				closeHalf(inside, nil)
				in.leaveAlone()
			}
			select {
			case heard <- struct{}{}:
			default:
			}
		}
	}()
	_, err := copyHalf(socketWriter{s}, in)
	if err == nil {
		s.mu.Lock()
		_ = s.send(websocket.MessageBinary, nil)
		s.mu.Unlock()
		quiet := time.NewTimer(stall)
		defer quiet.Stop()
		for more := true; more; { // the client may have more to say
			select {
			case <-heard:
				quiet.Reset(stall)
			case <-reading:
				more = false
			case <-quiet.C:
				more = false
			case <-c.Ctx.Done():
				more = false
			}
		}
	}
	code, reason := websocket.StatusNormalClosure, ""
	switch {
	case errors.Is(c.BrokenOff(), gate.ErrKeyEnded):
		code, reason = websocket.StatusPolicyViolation, gate.ErrKeyEnded.Error()
	case err != nil && !errors.Is(err, net.ErrClosed):
		code = websocket.StatusInternalError
	}
	s.end(code, reason)
	<-reading
	return nil
}

// socketWriter sends what is written as messages.
type socketWriter struct{ s *socket }

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
