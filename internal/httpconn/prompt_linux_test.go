package httpconn_test

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/httpconn"
)

// A prompt connection acknowledges what it has read, and does not wait for data to send with the acknowledgement.
func TestPrompt(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	raw, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	control := func(f func(fd int) error) {
		t.Helper()
		conn, err := raw.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var failed error
		if err := conn.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil || failed != nil {
			t.Fatal(err, failed)
		}
	}
	control(func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0) }) // as in a dialogue
	c := httpconn.New(raw)
	c.Prompt()
	write(t, peer, []byte("x"))
	if n, err := c.Read(make([]byte, 10)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	control(func(fd int) error {
		if quick, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK); quick != 1 || err != nil {
			t.Errorf("after Read, acknowledgements wait: %d, %v", quick, err)
		}
		return nil
	})

	(*httpconn.Conn)(nil).Prompt()
	one, other := net.Pipe()
	defer one.Close()
	defer other.Close()
	c = httpconn.New(one)
	c.Prompt()
	go func() { _, _ = other.Write([]byte("y")) }()
	if n, err := c.Read(make([]byte, 10)); n != 1 || err != nil {
		t.Errorf("what is not TCP: %d, %v", n, err)
	}
}
