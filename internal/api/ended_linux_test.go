package api_test

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// alice's other key, and one that expires.
const otherKey, shortKey = "secret-other", "secret-short"

// A key that is revoked ends all that goes on with it, whatever that is and
// whether or not its client takes or sends anything. What goes on with another key
// of its namespace, and what needs no client, goes on.
func TestRevokedKeyEndsAll(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits.Stall = time.Hour })
	s.keys.mu.Lock()
	s.keys.all[otherKey] = gate.Caller{Name: "other", Key: "other", Namespace: "alice"}
	s.keys.mu.Unlock()
	sb, p := s.talking(aliceKey)
	before, asked := s.endedBy("alice"), s.keys.asked(aliceKey)
	open := 0
	for _, k := range kinds(sb, p) {
		for _, network := range []string{"unix", "tcp"} {
			s.begin(sb, network, aliceKey, k)
			open++
		}
	}
	events := kind{"followEvents", "GET /v1/events", "Accept: text/event-stream\r\n", "", 0, false}
	told, others := s.begin(sb, "tcp", aliceKey, events), s.begin(sb, "tcp", otherKey, events)
	open++
	eventually(t, "all are under way", func() bool { return s.keys.asked(aliceKey) == asked+open })
	eventually(t, "the commands run", func() bool { return s.running(sb, otherKey, "7999") })

	s.want(204, nil, ask{method: "DELETE", path: "/v1/keys/alice", key: adminKey})
	eventually(t, "all has ended", func() bool { return s.endedBy("alice") >= before+open })
	eventually(t, "its commands have, too", func() bool { return !s.running(sb, otherKey, "7999") })
	readTo(t, told, "event: end\ndata: {\"reason\":\"error\"")
	readTo(t, told, `"code":"unauthenticated"`)
	if n := s.endedBy("other"); n == 0 || s.ended("followEvents") == 0 {
		t.Error("nothing was recorded")
	}
	var proc v1.Process
	if s.want(200, &proc, ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/processes/" + p.ID, key: otherKey}); proc.Result != nil {
		t.Errorf("the process in the background: %+v", proc)
	}
	// The other's events go on.
	s.want(200, nil, ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/pause", key: otherKey})
	readTo(t, others, "sandbox.paused")
	s.want(200, nil, ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/resume", key: otherKey})
}

// What goes on with a key ends when it expires.
func TestExpiredKeyEndsAll(t *testing.T) {
	s := serve(t, nil)
	sb := s.create(aliceKey, v1.Spec{})
	for life := time.Second; ; life *= 2 {
		s.keys.mu.Lock()
		s.keys.all[shortKey] = gate.Caller{Name: "short", Key: "short", Namespace: "alice", Expires: time.Now().Add(life)}
		s.keys.mu.Unlock()
		resp := s.do(ask{method: "POST", path: execPath(sb), key: shortKey, body: v1.Exec{Command: v1.Command{Argv: []string{"sleep", "600"}}}, header: map[string]string{"Accept": "text/event-stream"}})
		rest, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode == 401 && life < time.Minute {
			continue // the machine is slow
		}
		if err != nil || resp.StatusCode != 200 || !strings.Contains(string(rest), "event: started") || !strings.Contains(string(rest), `"unauthenticated"`) {
			t.Errorf("%s %q, %v", resp.Status, rest, err)
		}
		return
	}
}

// A client that takes nothing of an answer without end is dropped, and what it
// had going on ends.
func TestStalledReadersAreDropped(t *testing.T) {
	testkit.NeedFull(t, "it waits for five seconds")
	s := serve(t, func(o *options) { o.Limits.Stall, o.Limits.Tunnel = 300*time.Millisecond, 300*time.Millisecond })
	sb, p := s.talking("")
	want := map[string]int{}
	for _, k := range kinds(sb, p) {
		if !k.endless {
			continue
		}
		for _, network := range []string{"unix", "tcp"} {
			if want[k.operation] == 0 {
				want[k.operation] = s.ended(k.operation)
			}
			want[k.operation]++
			s.begin(sb, network, adminKey, k)
		}
	}
	for operation, n := range want {
		eventually(t, operation+" has ended", func() bool { return s.ended(operation) >= n })
	}
}

// A tunnel of which one end has ended its direction ends when the other says
// nothing more, and not before.
func TestHalfATunnelEnds(t *testing.T) {
	testkit.NeedFull(t, "it waits for ten seconds")
	// On a busy machine a word may be late: then a longer wait has to do. All words
	// together always take longer than that.
	for wait := 2 * time.Second; ; wait *= 2 {
		early := halfATunnel(t, wait)
		if len(early) == 0 {
			return
		}
		if wait > 30*time.Second {
			t.Fatalf("with a wait of %v: %q", wait, early)
		}
		t.Logf("with a wait of %v: %q", wait, early)
	}
}

// handshake is what makes a connection a WebSocket.
const handshake = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"

// halfATunnel returns what has come of what was said in tunnels that have ended
// before all was.
func halfATunnel(t *testing.T, wait time.Duration) (early []string) {
	s := serve(t, func(o *options) { o.Limits.Tunnel = wait })
	sb := s.create("", v1.Spec{})
	s.python(sb, "", fmt.Sprintf(silent, wait.Seconds()/4), 2)
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, port := range []string{"8080", "9090"} {
		for _, head := range []string{"Connection: Upgrade\r\nUpgrade: tcp\r\n", handshake} {
			conn := s.begin(sb, "unix", adminKey, kind{"connectPort", "GET /v1/sandboxes/" + sb.ID + "/ports/" + port + "/tcp", head, "", 0, false})
			switch {
			case port != "8080":
			case head == handshake:
				_, _ = io.WriteString(conn, masked(2, ""))
			default:
				_ = conn.(interface{ CloseWrite() error }).CloseWrite()
			}
			all.Go(func() {
				got, err := io.ReadAll(conn)
				if err != nil {
					t.Errorf("%s: %q, %v", port, got, err)
				}
				if !strings.Contains(string(got), "end") {
					mu.Lock()
					early = append(early, port+": "+string(got))
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	eventually(t, "all have ended", func() bool { return s.ended("connectPort") == 4 })
	return early
}

// silent says something at times, for longer than a tunnel waits, after the client
// has ended its direction, and then nothing more; at 9090 it ends its own.
const silent = `
import socket, threading, time
held = []
def speak(c, port):
    for word in [b"this takes longer ", b"than a tunnel ", b"waits for ", b"each ", b"word ", b"end"]:
        c.sendall(word)
        time.sleep(%g)
    if port == 9090: c.shutdown(socket.SHUT_WR)
def serve(port):
    l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind(("127.0.0.1", port)); l.listen()
    while True:
        c, _ = l.accept()
        held.append(c)
        threading.Thread(target=speak, args=(c, port)).start()
threading.Thread(target=serve, args=(9090,)).start()
serve(8080)
`

// readTo reads, one byte after the other, until a text has come.
func readTo(t *testing.T, r io.Reader, text string) {
	t.Helper()
	var got []byte
	for b := make([]byte, 1); !strings.HasSuffix(string(got), text); {
		if _, err := io.ReadFull(r, b); err != nil {
			t.Fatalf("waiting for %q after %q: %v", text, got, err)
		}
		got = append(got, b...)
	}
}

// endedBy is how many calls of a key have ended.
func (s *service) endedBy(name string) int {
	n := 0
	for _, e := range s.audit.all() {
		if e.Caller == name && e.Phase == "end" {
			n++
		}
	}
	return n
}

// A key may expire while a request takes its Idempotency-Key. The race detector sees whether the two
// touch the same things.
func TestKeyExpiresMeanwhile(t *testing.T) {
	s := serve(t, nil)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 100 {
				id := fmt.Sprintf("e%d-%d", w, i)
				s.keys.mu.Lock()
				s.keys.all["secret-"+id] = gate.Caller{Name: id, Key: id, Namespace: id, Expires: time.Now().Add(time.Duration(i*15) * time.Microsecond)}
				s.keys.mu.Unlock()
				a := keyed("k", ask{method: "POST", path: "/v1/sandboxes/none/exec", body: v1.Exec{Command: v1.Command{Script: "true"}}})
				a.key = "secret-" + id
				if resp, err := s.try(t.Context(), a); err == nil {
					resp.Body.Close()
				}
			}
		})
	}
	wg.Wait()
}
