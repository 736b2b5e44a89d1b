package server

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func bounds() *connections {
	return newConnections(Settings{Connections: 64, ConnectionsPerAddress: 8}, 1<<20, slog.New(slog.DiscardHandler))
}

// A connection without a key ends after a time, and not while it is answered.
func TestStrangersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := bounds()
		over := func(far net.Conn) bool {
			_ = far.SetReadDeadline(time.Now())
			_, err := far.Read(make([]byte, 1))
			return err == io.EOF
		}
		add := func() (*connection, net.Conn) {
			near, far := net.Pipe()
			t.Cleanup(func() { _ = far.Close(); _ = near.Close() })
			return a.add(near, "").(*connection), far
		}
		_, quiet := add()
		busy, asks := add()
		a.noteState(busy, http.StateActive)
		known, keeps := add()
		known.admit("a", false)
		time.Sleep(strangerTime - time.Second)
		synctest.Wait()
		if over(quiet) || over(asks) || over(keeps) {
			t.Error("one has ended early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !over(quiet) || over(asks) || over(keeps) {
			t.Error("the quiet one has not ended, or another has")
		}
		a.noteState(busy, http.StateIdle)
		if !over(asks) {
			t.Error("one has not ended after its answer")
		}
		known.admit("", false)
		time.Sleep(strangerTime + time.Second)
		synctest.Wait()
		if !over(keeps) {
			t.Error("one whose key is not valid any more has not ended")
		}
		if n := a.counts(); n.Strangers != 0 || n.Keys != 0 || len(a.waiting.parts) != 0 || len(a.byNamespace) != 0 {
			t.Errorf("%+v are left", n)
		}
	})
}

// Connections take none of the last descriptors; those of the unix socket do.
func TestDescriptorsAreReserved(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accept := func(a *connections) *connection {
		out, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		in, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = out.Close(), in.Close() })
		c, _ := a.add(in, "full").(*connection)
		return c
	}
	a := bounds()
	if descriptor(nil) != 0 {
		t.Error("nothing has a descriptor")
	}
	first := accept(a)
	if first == nil {
		t.Fatal("there is no room for one")
	}
	a.reserved = 1 // any descriptor is one of the last
	if accept(a) == nil {
		t.Error("the oldest stranger did not make room")
	}
	a.makeRoom()
	if accept(a) != nil || a.counts().Strangers != 0 {
		t.Error("one is there without room")
	}
	pair, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer pair.Close()
	out, err := net.Dial("unix", pair.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := pair.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	c, _ := a.add(in, "full").(*connection)
	if c == nil {
		t.Fatal("the unix socket's is refused")
	}
	c.admitPeer()
	if n := a.counts(); n.Peers != 1 || n.Strangers != 0 {
		t.Errorf("%+v", n)
	}
	_ = c.Close()
	if n := a.counts(); n.Peers != 0 {
		t.Errorf("%+v", n)
	}
}

func TestNetworks(t *testing.T) {
	of := func(ip string) []netip.Prefix { return networks(&net.TCPAddr{IP: net.ParseIP(ip)}) }
	for a, b := range map[string]string{"10.0.0.1": "10.0.0.2", "2001:db8:0:1::1": "2001:db8:0:2::1", "::1": "127.0.0.1"} {
		if slices.Equal(of(a), of(b)) {
			t.Errorf("%s and %s are one", a, b)
		}
	}
	for a, b := range map[string]string{"10.0.0.1": "::ffff:10.0.0.1", "2001:db8:0:1::1": "2001:db8:0:1:ffff::2"} {
		if !slices.Equal(of(a), of(b)) {
			t.Errorf("%s and %s are two", a, b)
		}
	}
	if of("2001:db8:1:1::1")[0] != of("2001:db8:1:2::1")[0] || of("2001:db8:1:1::1")[0] == of("2001:db8:2:1::1")[0] {
		t.Error("networks of 48 bits are not told apart")
	}
}

// fakeConn is a connection from an address.
type fakeConn struct {
	net.Conn // nil
	from     string
}

func (c fakeConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.from)} }

func (fakeConn) Close() error { return nil }

// Who connects often pushes out himself, from several addresses or from many of one
// network, and not somebody who has connected once and whose key has yet to come.
func TestTheCrowdMakesRoom(t *testing.T) {
	for name, flood := range map[string]func(i int) string{
		"two addresses":                func(i int) string { return fmt.Sprintf("10.0.0.%d", i%2) },
		"a network of 64 bits":         func(i int) string { return fmt.Sprintf("2001:db8::%x", i) },
		"all networks of one customer": func(i int) string { return fmt.Sprintf("2001:db8:0:%x::1", i) },
	} {
		t.Run(name, func(t *testing.T) {
			a := bounds()
			for i := range 50 {
				a.add(fakeConn{from: flood(i)}, "")
			}
			var lone []*connection
			for _, from := range []string{"192.0.2.1", "192.0.2.2", "2001:db8:1::1"} {
				lone = append(lone, a.add(fakeConn{from: from}, "").(*connection))
			}
			for i := range 1000 {
				a.add(fakeConn{from: flood(i)}, "")
			}
			a.makeRoom()
			for _, c := range lone {
				if c.closed || !c.admit(c.RemoteAddr().String(), false) {
					t.Errorf("%s was pushed out", c.RemoteAddr())
				}
			}
			if n := a.counts(); n.Strangers > 16 || n.Keys != 3 {
				t.Errorf("%+v", n)
			}
			for a.makeRoom() {
			}
			if a.waiting.size != 0 || a.waiting.largest != 0 || len(a.waiting.parts) != 0 {
				t.Errorf("%+v is left", a.waiting)
			}
		})
	}
	// In a network of 48 bits, too, it is the one of 64 that has most.
	a := bounds()
	neighbour := a.add(fakeConn{from: "2001:db8:0:1::1"}, "").(*connection)
	for range 1000 {
		a.add(fakeConn{from: "2001:db8:0:2::1"}, "")
		a.add(fakeConn{from: "10.0.0.1"}, "")
	}
	if neighbour.closed {
		t.Error("the neighbour was pushed out")
	}
	// When each address has one, the oldest goes.
	a = bounds()
	var all []*connection
	for i := range 17 {
		all = append(all, a.add(fakeConn{from: fmt.Sprintf("10.0.1.%d", i)}, "").(*connection))
	}
	for i, c := range all {
		if c.closed != (i == 0) {
			t.Errorf("of 17, number %d has ended: %v", i, c.closed)
		}
	}
}

// Connections that are used with previews are at most a half of those of their namespace, which has
// the rest for its keys.
func TestPreviewsLeaveConnections(t *testing.T) {
	a := newConnections(Settings{Connections: 64, ConnectionsPerAddress: 64}, 1<<20, slog.New(slog.DiscardHandler))
	add := func() *connection { return a.add(fakeConn{from: "10.0.0.1"}, "").(*connection) }
	half := a.perNamespace / 2
	var all []*connection
	for i := range a.perNamespace {
		all = append(all, add())
		if got := all[i].admit("a", true); got != (i < half) {
			t.Fatalf("connection %d of previews: %v", i, got)
		}
		if i >= half && !all[i].admit("a", false) {
			t.Fatalf("connection %d of the namespace is refused", i)
		}
	}
	if all[half].admit("a", true) || add().admit("a", false) || !all[0].admit("a", true) {
		t.Error("the bounds don't hold")
	}
	if !all[0].admit("a", false) || !all[half].admit("a", true) || all[0].admit("a", true) || !add().admit("b", true) {
		t.Error("a connection counts for a preview after a request with the key")
	}
	for _, c := range all {
		_ = c.Close()
	}
	if len(a.byNamespace) != 1 || a.keys != 1 || len(a.previews) != 1 {
		t.Errorf("%d connections, %v, %v are left", a.keys, a.byNamespace, a.previews)
	}
}

// A connection for which there is no room gets the response of its own service.
func TestFullIsTheServices(t *testing.T) {
	for _, full := range []string{"a dialect's own words", ""} {
		a := newConnections(Settings{Connections: 4, ConnectionsPerAddress: 1}, 1<<20, slog.New(slog.DiscardHandler))
		near, far := net.Pipe()
		a.add(near, full)
		go a.add(fakeConn{from: "10.0.0.1"}, "") // which takes its place
		got, err := io.ReadAll(far)
		if err != nil || string(got) != full {
			t.Errorf("%q, %v, want %q", got, err, full)
		}
	}
}

// A request costs its connection one look at whose it is.
func BenchmarkAdmit(b *testing.B) {
	a := bounds()
	near, far := net.Pipe()
	defer far.Close()
	c := a.add(near, "").(*connection)
	defer c.Close()
	for b.Loop() {
		if !c.admit("a", false) {
			b.Fatal("there is no room")
		}
	}
}

// A connection costs this much more from its first to its last moment.
func BenchmarkCount(b *testing.B) {
	a := bounds()
	near, far := net.Pipe()
	defer far.Close()
	for b.Loop() {
		c := a.add(near, "").(*connection)
		c.admit("a", false)
		_ = c.Close()
	}
}

// A flood costs this much for each connection that is pushed out, when each of many
// addresses has one.
func BenchmarkCrowd(b *testing.B) {
	a := newConnections(Settings{Connections: 8192, ConnectionsPerAddress: 1024}, 1<<20, slog.New(slog.DiscardHandler))
	for i := 0; b.Loop(); i++ {
		a.add(fakeConn{from: fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255)}, "")
	}
}
