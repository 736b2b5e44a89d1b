package server

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func bounds(files int) *connections {
	return newConnections(Settings{Connections: 64, ConnectionsPerAddress: 8}, files, slog.New(slog.DiscardHandler))
}

// A connection without a key ends after a time, and not while it is answered.
func TestStrangersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := bounds(1 << 20)
		over := func(far net.Conn) bool {
			_ = far.SetReadDeadline(time.Now())
			_, err := far.Read(make([]byte, 1))
			return err == io.EOF
		}
		add := func() (*connection, net.Conn) {
			near, far := net.Pipe()
			t.Cleanup(func() { _ = far.Close(); _ = near.Close() })
			return a.add(near, false).(*connection), far
		}
		_, quiet := add()
		busy, asks := add()
		a.noteState(busy, http.StateActive)
		known, keeps := add()
		known.admit("key a")
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
		known.admit("")
		time.Sleep(strangerTime + time.Second)
		synctest.Wait()
		if !over(keeps) {
			t.Error("one whose key is not valid any more has not ended")
		}
		if n := a.counts(); n.Strangers != 0 || n.Keys != 0 || len(a.byAddress) != 0 || len(a.byCaller) != 0 {
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
		c, _ := a.add(in, true).(*connection)
		return c
	}
	a := bounds(1 << 20)
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
	c, _ := a.add(in, true).(*connection)
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

func TestNetwork(t *testing.T) {
	for a, b := range map[string]string{"10.0.0.1": "10.0.0.2", "2001:db8:0:1::1": "2001:db8:0:2::1", "::1": "127.0.0.1"} {
		if network(&net.TCPAddr{IP: net.ParseIP(a)}) == network(&net.TCPAddr{IP: net.ParseIP(b)}) {
			t.Errorf("%s and %s are one", a, b)
		}
	}
	for a, b := range map[string]string{"10.0.0.1": "::ffff:10.0.0.1", "2001:db8:0:1::1": "2001:db8:0:1:ffff::2"} {
		if network(&net.TCPAddr{IP: net.ParseIP(a)}) != network(&net.TCPAddr{IP: net.ParseIP(b)}) {
			t.Errorf("%s and %s are two", a, b)
		}
	}
}

// A request costs its connection one look at whose it is.
func BenchmarkAdmit(b *testing.B) {
	a := bounds(1 << 20)
	near, far := net.Pipe()
	defer far.Close()
	c := a.add(near, false).(*connection)
	defer c.Close()
	for b.Loop() {
		if !c.admit("key a") {
			b.Fatal("there is no room")
		}
	}
}

// A connection costs this much more from its first to its last moment.
func BenchmarkCount(b *testing.B) {
	a := bounds(1 << 20)
	near, far := net.Pipe()
	defer far.Close()
	for b.Loop() {
		c := a.add(near, false).(*connection)
		c.admit("key a")
		_ = c.Close()
	}
}
