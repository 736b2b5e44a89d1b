package server_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// raw opens a connection with TLS on which one protocol is spoken by hand.
func (s *served) raw(protocol string) *tls.Conn {
	s.t.Helper()
	conn, err := tls.Dial("tcp", s.tcp, &tls.Config{RootCAs: s.roots, NextProtos: []string{protocol}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// frame2 is a frame of HTTP/2 (RFC 9113, 4.1).
func frame2(kind, flags byte, stream uint32, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	b = append(b, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

// Frames of HTTP/2 and their flags.
const (
	headers2, reset2, settings2 = 1, 3, 4
	endStream2, endHeaders2     = 1, 4
)

// TestRapidReset begins requests over HTTP/2 and calls each off at once, as many
// as it can (CVE-2023-44487). Others are served meanwhile, and what was begun ends.
func TestRapidReset(t *testing.T) {
	t.Parallel()
	streams := 20_000
	if long() {
		streams = 1_000_000
	}
	s := newServed(t)
	s.overTCP()
	s.start()
	c := s.tls(s.keyOf("other", ""))
	defer c.Close()
	for _, path := range []string{"/v1/events", "/v1/sandboxes", "/healthz"} {
		conn := s.raw("h2")
		// The static table of HPACK (RFC 7541, A): GET, https, and literals for
		// ":path", ":authority" and "authorization".
		head := []byte{0x82, 0x87, 0x04, byte(len(path))}
		head = append(head, path...)
		head = append(append(head, 0x01, byte(len(s.tcp))), s.tcp...)
		head = append(append(head, 0x0f, 0x08, byte(len("Bearer "+s.key))), "Bearer "+s.key...)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, conn)
		}()
		if _, err := conn.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame2(settings2, 0, 0, nil)...)); err != nil {
			t.Fatal(err)
		}
		peak, sent := 0, 0
		for ; sent < streams; sent++ {
			id := uint32(2*sent + 1)
			b := frame2(headers2, endStream2|endHeaders2, id, head)
			b = append(b, frame2(reset2, 0, id, []byte{0, 0, 0, 8})...) // CANCEL
			if _, err := conn.Write(b); err != nil {
				break // it has had enough
			}
			if sent%1000 == 0 {
				if _, err := c.List(t.Context(), sandpit.ListQuery{}); err != nil {
					t.Errorf("%s: another is not served: %v", path, err)
				}
				peak = max(peak, runtime.NumGoroutine())
			}
		}
		_ = conn.Close()
		<-ended
		if peak > 3000 { // some of each of the 250 streams that a connection may have
			t.Errorf("%s: %d goroutines", path, peak)
		}
		t.Logf("%s: %d streams, %d goroutines", path, sent, peak)
	}
	testkit.Until(t, "all has ended", func() bool { return s.figure("sandpit_open_streams") == 0 })
}

// webSocket opens a WebSocket by hand.
func (s *served) webSocket(path string) (*tls.Conn, *bufio.Reader) {
	s.t.Helper()
	conn := s.raw("http/1.1")
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", path, s.tcp, s.key)
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		s.t.Fatal(resp, err)
	}
	return conn, br
}

// message is a frame of a WebSocket's client (RFC 6455, 5.2), masked with zeros.
func message(opcode byte, payload []byte) []byte {
	b := []byte{0x80 | opcode, 0x80 | 127}
	if len(payload) < 126 {
		b[1] = 0x80 | byte(len(payload))
	} else {
		b = binary.BigEndian.AppendUint64(b, uint64(len(payload)))
	}
	return append(append(b, 0, 0, 0, 0), payload...)
}

// Opcodes of a WebSocket.
const (
	textMessage, binaryMessage, pingMessage, pongMessage = 1, 2, 9, 10
)

// TestFloodedSocket sends many messages of every kind to a command over a
// WebSocket. Others are served meanwhile; to who reads, the command is what it is
// without, and who does not read is dropped.
func TestFloodedSocket(t *testing.T) {
	testkit.NeedFull(t, "it waits for eight seconds")
	t.Parallel()
	count := 20_000
	if long() {
		count = 1_000_000
	}
	s := newServed(t)
	s.overTCP()
	s.start()
	c := s.tls(s.key)
	defer c.Close()
	sb := create(t, c, "")
	other := s.tls(s.keyOf("other", ""))
	defer other.Close()
	framed := func(kind byte, payload string) []byte {
		return message(binaryMessage, append([]byte{kind}, payload...))
	}
	for name, flood := range map[string]struct {
		piece []byte
		count int
	}{
		"pings":          {message(pingMessage, []byte("are you there")), count},
		"pongs":          {message(pongMessage, nil), count},
		"frames of ping": {framed(v1.FramePing, ""), count},
		"empty input":    {framed(v1.FrameStdin, ""), count},
		"sizes":          {framed(v1.FrameResize, `{"rows":1,"cols":1}`), 150}, // that come faster wait
	} {
		t.Run(name, func(t *testing.T) {
			conn, br := s.webSocket("/v1/sandboxes/" + sb.ID() + "/exec")
			got := make(chan []byte, 1)
			go func() {
				var all []byte
				buf := make([]byte, 4<<10)
				for {
					n, err := br.Read(buf)
					all = append(all, buf[:n]...)
					if err != nil || bytes.Contains(all[max(0, len(all)-n-100):], []byte(`"exit_code":0`)) {
						got <- all
						return
					}
				}
			}()
			send := func(b []byte) {
				if _, err := conn.Write(b); err != nil {
					t.Fatal(err)
				}
			}
			send(message(textMessage, []byte(`{"argv":["cat"],"stdin":true}`)))
			many := bytes.Repeat(flood.piece, 50)
			for i := range flood.count / 50 {
				send(many)
				if i%100 == 0 {
					if _, err := other.List(t.Context(), sandpit.ListQuery{}); err != nil {
						t.Errorf("another is not served: %v", err)
					}
				}
			}
			send(framed(v1.FrameStdin, "still here\n"))
			send(framed(v1.FrameEOF, ""))
			if all := <-got; !bytes.Contains(all, []byte("still here\n")) || !bytes.Contains(all, []byte(`"exit_code":0`)) {
				t.Errorf("after %d bytes it ends with %q", len(all), all[max(0, len(all)-200):])
			}
			_ = conn.Close()
		})
	}
	t.Run("pings of who does not read", func(t *testing.T) {
		conn, _ := s.webSocket("/v1/sandboxes/" + sb.ID() + "/exec")
		if _, err := conn.Write(message(textMessage, []byte(`{"argv":["sleep","7998"]}`))); err != nil {
			t.Fatal(err)
		}
		many := bytes.Repeat(message(pingMessage, bytes.Repeat([]byte("x"), 125)), 1000)
		for {
			if _, err := conn.Write(many); err != nil {
				break
			}
		}
		testkit.Until(t, "its command has ended", func() bool {
			all, err := sb.Processes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range all {
				if p.Result == nil && strings.Contains(strings.Join(p.Argv, " "), "7998") {
					return false
				}
			}
			return true
		})
	})
}
