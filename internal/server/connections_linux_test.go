package server_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// from connects from an address of loopback, which stands for another host.
func (s *served) from(address string) net.Conn {
	s.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: patience}
	conn, err := d.DialContext(s.t.Context(), "tcp", s.tcp)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

const (
	strangers, keyed, dropped = `sandpit_connections{of="strangers"}`, `sandpit_connections{of="keys"}`, "sandpit_connections_dropped_total"
)

// TestStrangersMakeRoom floods a server with connections that say nothing, stop in
// the handshake or have no key. Callers with a key are served all the time.
func TestStrangersMakeRoom(t *testing.T) {
	t.Parallel()
	many := 200
	if long() {
		many = 5000
	}
	s := newServed(t)
	s.overTCP()
	s.settings.Connections, s.settings.ConnectionsPerAddress = 64, 8 // 16 strangers
	s.start()
	before := s.tls(s.keyOf("before", ""))
	defer before.Close()
	p, err := create(t, before, "").Start(t.Context(), sandpit.Command{Argv: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	others := s.keyOf("others", "")
	hello := &tls.Config{RootCAs: s.roots, ServerName: "127.0.0.1", InsecureSkipVerify: true} //nolint:gosec // whose it is does not matter here
	for i := range many {
		// From a few addresses at first, then from many.
		conn := s.from(fmt.Sprintf("127.1.%d.%d", i/100%2*i%200, 1+i%3))
		switch i % 4 {
		case 0: // nothing
		case 1:
			_, _ = conn.Write([]byte{0x16, 3, 1, 2, 0}) // the head of a record
		case 2:
			_ = tls.Client(conn, hello).Handshake() // it may be dropped meanwhile
		case 3:
			c := tls.Client(conn, hello)
			_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
		}
		if i%20 == 0 {
			// New connections of both the address that floods and another one.
			if status, body, _ := s.get("GET", "https://"+s.tcp+"/v1/sandboxes", others, ""); status != http.StatusOK {
				t.Fatalf("after %d connections a caller is answered %d %s", i, status, body)
			}
		}
	}
	if n := s.figure(strangers); n > 16 {
		t.Errorf("there are %d strangers", n)
	}
	if n := s.figure(dropped); n < many-16 {
		t.Errorf("%d of %d were dropped", n, many)
	}
	if n := strings.Count(s.log.String(), "too many connections without a key"); n == 0 || n > many/10 {
		t.Errorf("the log says so %d times", n)
	}
	// What was there before goes on.
	if _, err := p.Stdin().Write([]byte("still here\n")); err != nil {
		t.Error(err)
	}
	if err := p.Stdin().Close(); err != nil {
		t.Error(err)
	}
	if res, err := p.Wait(t.Context()); err != nil || res.ExitCode != 0 {
		t.Errorf("%+v, %v", res, err)
	}
}

// keptConn is a connection with TLS on which one request follows another.
type keptConn struct {
	t    *testing.T
	conn net.Conn
	br   *bufio.Reader
}

func (s *served) keep(t *testing.T) *keptConn {
	c := s.raw("http/1.1")
	return &keptConn{t, c, bufio.NewReader(c)}
}

// ask makes a request, and returns its answer without the body, and the error in that.
func (k *keptConn) ask(key string) (answer *http.Response, e v1.Error) {
	k.t.Helper()
	fmt.Fprintf(k.conn, "GET /v1/version HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", key)
	resp, err := http.ReadResponse(k.br, nil)
	if err != nil {
		k.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
			k.t.Fatal(err)
		}
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp, e
}

// One namespace may have a part of the connections with all its keys, and all of them
// together another part: the next caller is told to come again, the others are served.
func TestConnectionsOfAKey(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.overTCP()
	s.settings.Connections = 64 // 32 of keys, 8 of one namespace
	s.start()
	greedy, second, other := s.makeKey(v1.NewKey{Namespace: "greedy"}), s.keyOf("greedy", ""), s.keyOf("other", "")
	var mine []*keptConn
	for range 8 {
		k := s.keep(t)
		for range 2 { // it counts once
			if resp, e := k.ask(greedy.Secret); resp.StatusCode != http.StatusOK {
				t.Fatalf("%s %+v", resp.Status, e)
			}
		}
		mine = append(mine, k)
	}
	over := s.keep(t)
	resp, e := over.ask(greedy.Secret)
	if resp.StatusCode != http.StatusServiceUnavailable || e.Code != errcode.TooManyConnections || resp.Header.Get("Retry-After") == "" || !resp.Close {
		t.Errorf("%s %+v %v", resp.Status, e, resp.Header)
	}
	if !errors.Is(errcode.Kind(e.Code), sandpit.ErrUnavailable) {
		t.Errorf("the kind of %s is %v", e.Code, errcode.Kind(e.Code))
	}
	if resp, e := s.keep(t).ask(second); e.Code != errcode.TooManyConnections {
		t.Errorf("another key of the namespace: %s %+v", resp.Status, e)
	}
	if resp, e := s.keep(t).ask(other); resp.StatusCode != http.StatusOK {
		t.Errorf("another: %s %+v", resp.Status, e)
	}
	// An administrator of the same namespace has a share apart.
	admin := s.makeKey(v1.NewKey{Namespace: "greedy", Admin: true})
	boss := s.keep(t)
	if resp, e := boss.ask(admin.Secret); resp.StatusCode != http.StatusOK {
		t.Errorf("an administrator: %s %+v", resp.Status, e)
	}
	_ = boss.conn.Close()
	testkit.Until(t, "the administrator has gone", func() bool { return s.figure(keyed) == 9 })
	// A key that is not valid any more has none.
	if status, body, _ := s.get("DELETE", "http://sandpit/v1/keys/"+greedy.ID, "", ""); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, body)
	}
	for _, k := range mine {
		if resp, e := k.ask(greedy.Secret); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s %+v", resp.Status, e)
		}
	}
	testkit.Until(t, "its connections are a stranger's", func() bool { return s.figure(keyed) == 1 })
	for _, k := range mine {
		_ = k.conn.Close()
	}
	testkit.Until(t, "they are gone", func() bool { return s.figure(strangers) == 0 })
}

// Over plain HTTP a stranger who has to make room is told.
func TestStrangersAreTold(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.overTCP()
	s.settings.Cert, s.settings.Key = "", ""
	s.settings.Connections, s.settings.ConnectionsPerAddress = 64, 2
	s.start()
	first := s.from("127.2.0.1")
	for range 2 {
		s.from("127.2.0.1")
	}
	_ = first.SetReadDeadline(time.Now().Add(patience))
	resp, err := http.ReadResponse(bufio.NewReader(first), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var e v1.Error
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil || resp.StatusCode != http.StatusServiceUnavailable || e.Code != errcode.TooManyConnections || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%s %+v, %v", resp.Status, e, err)
	}
}

// TestUseOfKeysOutlivesTheDrain records when a key was last used, although a call uses up
// the time in which a server drains.
func TestUseOfKeysOutlivesTheDrain(t *testing.T) {
	testkit.NeedFull(t, "it waits for ten seconds")
	t.Parallel()
	s := newServed(t).start()
	c := s.with(s.makeKey(v1.NewKey{Namespace: "team"}).Secret)
	defer c.Close()
	if _, err := create(t, c, "").Start(t.Context(), sandpit.Command{Argv: []string{"cat"}, Stdin: true}); err != nil {
		t.Fatal(err)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	defer s.start() // so that the sandbox is removed
	if log := s.log.String(); !strings.Contains(log, "requests were aborted") || strings.Contains(log, "were not recorded") {
		t.Error(log)
	}
}
