package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestCloseCodes lists the codes with which WebSockets are closed: one end, or error, for
// each code of the specification. The reason is the code of the error.
func TestCloseCodes(t *testing.T) {
	s := serve(t, nil)
	sb := s.create(aliceKey, v1.Spec{})
	full := s.create(aliceKey, v1.Spec{Limits: &v1.Limits{Pids: 20}})
	status := 0
	for n := 0; n < 20 && status != http.StatusForbidden; n++ {
		status, _, _ = s.get(ask{method: "POST", path: "/v1/sandboxes/" + full.ID + "/processes", key: aliceKey, body: v1.Command{Argv: []string{"sleep", "600"}}})
	}

	const command, lasting = `{"argv":["true"]}`, `{"argv":["cat"],"stdin":true}`
	for name, tt := range map[string]struct {
		in     v1.Sandbox
		first  string
		then   func(*websocket.Conn)
		code   websocket.StatusCode
		reason string
	}{
		"the command has ended":  {sb, command, nil, 1000, ""},
		"a limit of the sandbox": {full, command, nil, 1008, errcode.QuotaExceeded},
		"a message is too large": {sb, lasting, func(c *websocket.Conn) {
			sendFrame(t, c, v1.FrameStdin, string(make([]byte, v1.MaxFrame+1)))
		}, 1009, errcode.TooLarge},
		"the first message is too large": {sb, `{"script":"` + strings.Repeat("x", 10<<20) + `"}`, nil, 1009, errcode.TooLarge},
		"the command is malformed":       {sb, `{}`, nil, 4400, errcode.Invalid},
		"no such program":                {sb, `{"argv":["/no/such/program"]}`, nil, 4422, errcode.StartFailed},
		"the sandbox is removed": {s.create(aliceKey, v1.Spec{Name: "box"}), lasting, func(*websocket.Conn) {
			s.want(204, nil, ask{method: "DELETE", path: "/v1/sandboxes/box", key: aliceKey})
		}, 4410, "closed"},
	} {
		conn := s.socket(t.Context(), execPath(tt.in), aliceKey)
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(tt.first)); err != nil {
			t.Fatal(err)
		}
		if tt.then != nil {
			receive(t, conn, v1.FrameStarted, "}")
			tt.then(conn)
		}
		closed(t, name, conn, tt.code, tt.reason)
	}

	local := execPath(s.create("", v1.Spec{}))
	revoked, drained, failed := s.socket(t.Context(), execPath(sb), aliceKey), s.socket(t.Context(), local, ""), s.socket(t.Context(), local, "")
	for _, conn := range []*websocket.Conn{revoked, drained} {
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(lasting)); err != nil {
			t.Fatal(err)
		}
		receive(t, conn, v1.FrameStarted, "}")
	}
	s.want(204, nil, ask{method: "DELETE", path: "/v1/keys/alice", key: adminKey})
	closed(t, "the key has ended", revoked, 1008, errcode.Unauthenticated)
	s.audit.fail(errDisk)
	if err := failed.Write(t.Context(), websocket.MessageText, []byte(command)); err != nil {
		t.Fatal(err)
	}
	closed(t, "the server can't record it", failed, 1011, errcode.AuditUnavailable)
	s.audit.fail(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.gate.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close says %v", err)
	}
	closed(t, "the server ends", drained, 1001, errcode.Unavailable)
}

// Nothing follows the end of a command, also if its input and output are being passed on at that moment.
func TestNothingFollowsTheEnd(t *testing.T) {
	s := serve(t, nil)
	sb := s.create(aliceKey, v1.Spec{})
	for range 30 {
		conn := s.socket(t.Context(), execPath(sb), aliceKey)
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"argv":["cat"],"stdin":true}`)); err != nil {
			t.Fatal(err)
		}
		receive(t, conn, v1.FrameStarted, "}")
		sendFrame(t, conn, v1.FrameStdin, string(make([]byte, 256<<10)))
		if err := conn.Write(t.Context(), websocket.MessageText, []byte("x")); err != nil {
			t.Fatal(err)
		}
		closed(t, "a message is malformed", conn, 4400, errcode.Invalid)
	}
}

// A client that opens a WebSocket and does not say what to run is told so.
func TestFirstMessageInTime(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits.First = 100 * time.Millisecond })
	conn := s.socket(t.Context(), execPath(s.create("", v1.Spec{})), "")
	closed(t, "no first message", conn, 4408, errcode.BodyTimeout)
	eventually(t, "its call has ended", func() bool { return s.ended("execSocket") == 1 })
}

// Nor does a client hold a connection that sends a part of its first message and then nothing.
func TestUnfinishedFirstMessage(t *testing.T) {
	testkit.NeedFull(t, "it waits for five seconds")
	s := serve(t, func(o *options) { o.Limits.First = 200 * time.Millisecond })
	sb := s.create("", v1.Spec{})
	conn := s.dial()
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: sandpit\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: %s\r\n\r\n", execPath(sb), v1.Subprotocol)
	r := bufio.NewReader(conn)
	if resp, err := http.ReadResponse(r, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", resp, err)
	}
	head := binary.BigEndian.AppendUint64([]byte{0x81, 0xff}, 5<<20) // a whole text message, masked (RFC 6455, 5.2)
	_, _ = conn.Write(append(head, 0, 0, 0, 0))
	if _, err := r.Peek(1); err != nil { // its last words
		t.Error(err)
	}
	for range 20 { // more than a Read waits for, so that the server gets to the close handshake
		_, _ = conn.Write(bytes.Repeat([]byte(" "), 64<<10))
		time.Sleep(5 * time.Millisecond)
	}
	if _, err := io.Copy(io.Discard, r); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection stays open")
	}
	eventually(t, "its call has ended", func() bool { return s.ended("execSocket") == 1 })
}

// closed reads the last message of a WebSocket, which is closed with a code and a reason.
func closed(t *testing.T, name string, conn *websocket.Conn, code websocket.StatusCode, reason string) {
	t.Helper()
	var end v1.End
	strict(t, []byte(receive(t, conn, v1.FrameEnd, "}")), &end)
	_, _, err := conn.Read(t.Context())
	var how websocket.CloseError
	if !errors.As(err, &how) || how.Code != code || how.Reason != reason || (end.Error == nil) != (reason == "") || end.Error != nil && end.Error.Code != reason {
		t.Errorf("%s: closed with %v after %+v, want %d %q", name, err, end, code, reason)
	}
}
