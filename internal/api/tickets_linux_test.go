package api_test

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/coder/websocket"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// ticket returns a path with a ticket for it.
func (s *service) ticket(key, path string) string {
	s.t.Helper()
	var made v1.Ticket
	h := s.want(201, &made, ask{method: "POST", path: "/v1/tickets", key: key, body: v1.NewTicket{Path: path}})
	if h.Get("Cache-Control") != "no-store" || made.ExpiresAt.IsZero() {
		s.t.Errorf("%+v %v", made, h)
	}
	if strings.Contains(path, "?") {
		return path + "&ticket=" + made.Ticket
	}
	return path + "?ticket=" + made.Ticket
}

// Streams and sockets are opened with a ticket in place of a key. They are the key's, and end
// with it. No log, audit entry or sandbox has the ticket.
func TestTickets(t *testing.T) {
	s := serve(t, nil)
	sb := s.create(aliceKey, v1.Spec{})
	path := s.ticket(aliceKey, execPath(sb))
	dial := func(path string) (*websocket.Conn, error) {
		conn, resp, err := websocket.Dial(t.Context(), strings.Replace(s.base, "http", "ws", 1)+path, &websocket.DialOptions{HTTPClient: s.tcp, Subprotocols: []string{v1.Subprotocol}})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", resp.Status, err)
		}
		t.Cleanup(func() { _ = conn.CloseNow() })
		return conn, nil
	}
	conn, err := dial(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"argv":["/bin/sh"],"terminal":{"rows":24,"cols":80}}`)); err != nil {
		t.Fatal(err)
	}
	receive(t, conn, v1.FrameStarted, `"terminal":true`)
	sendFrame(t, conn, v1.FrameStdin, "echo a\"\"b\n")
	receive(t, conn, v1.FrameStdout, "ab")
	if _, err := dial(path); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("a second use: %v", err)
	}
	events := s.do(ask{method: "GET", path: s.ticket(aliceKey, "/v1/events"), key: "none"})
	defer events.Body.Close()
	br := bufio.NewReader(events.Body)
	readTo(t, br, "event: begin\ndata: {\"seq\":")
	s.want(200, nil, ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/pause", key: aliceKey})
	readTo(t, br, "event: sandbox.paused\n")
	s.want(200, nil, ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/resume", key: aliceKey})

	// What a ticket is not for.
	s.refused(401, "ticket_invalid", ask{method: "GET", path: s.ticket(aliceKey, "/v1/events") + "&after=5", key: "none"})
	s.refused(400, "invalid", ask{method: "POST", path: "/v1/tickets", key: aliceKey, body: v1.NewTicket{Path: "/v1/sandboxes"}})
	s.refused(400, "invalid", ask{method: "POST", path: "/v1/tickets", body: v1.NewTicket{Path: "/v1/events"}})
	s.refused(404, "not_found", ask{method: "GET", path: s.ticket(bobKey, "/v1/sandboxes/"+sb.ID+"/logs"), key: "none"})
	stray := s.ticket(aliceKey, "/v1/events")
	_, stray, _ = strings.Cut(stray, "?")
	s.refused(400, "invalid", ask{method: "GET", path: "/?" + stray, key: aliceKey, header: map[string]string{"X-Sandpit-Sandbox": sb.ID, "X-Sandpit-Port": "80"}})

	s.want(204, nil, ask{method: "DELETE", path: "/v1/keys/alice", key: adminKey})
	if end := ended(t, conn, websocket.StatusPolicyViolation); end.Error == nil || end.Error.Code != "unauthenticated" {
		t.Errorf("it ended with %+v", end)
	}
	readTo(t, br, "event: end\ndata: {\"reason\":\"error\"")
	s.refused(401, "ticket_invalid", ask{method: "GET", path: "/v1/events?" + stray, key: "none"})
	if err := s.gate.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if text := s.log.String() + fmt.Sprintf("%+v", s.audit.all()); strings.Contains(text, "st_") {
		t.Errorf("a ticket was written down: %s", text)
	}
}
