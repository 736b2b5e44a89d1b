package guest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// serveOn answers each connection to a listener with f.
func serveOn(t *testing.T, network, address string, f func(net.Conn)) net.Addr {
	t.Helper()
	l, err := net.Listen(network, address)
	testkit.Need(t, network+" on "+address, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				f(c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr()
}

func dialPort(t *testing.T, c *client.Client, a net.Addr) *client.Conn {
	t.Helper()
	conn, err := c.Dial(within(t, time.Minute), uint16(a.(*net.TCPAddr).Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// echo answers with what it gets, and then that it was all.
func echo(c net.Conn) {
	_, _ = io.Copy(c, c)
	_, _ = io.WriteString(c, "end")
}

// unheard is a port of 127.0.0.1 that nobody listens on, and nobody else can:
// it is bound for as long as the test lasts.
func unheard(t *testing.T) uint16 {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	a, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return uint16(a.(*unix.SockaddrInet4).Port)
}

func TestDial(t *testing.T) {
	c := start(t)
	four := serveOn(t, "tcp4", "127.0.0.1:0", echo)
	six := serveOn(t, "tcp6", "[::1]:0", echo)
	content := bytes.Repeat([]byte("0123456789abcdef"), 200_000) // more than any window
	for _, a := range []net.Addr{four, six} {
		conn := dialPort(t, c, a)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := conn.Write(content); err != nil {
				t.Error(err)
			}
			if err := conn.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		got, err := io.ReadAll(conn)
		wg.Wait()
		if err != nil || string(got) != string(content)+"end" {
			t.Errorf("%s: got %d bytes, %v", a, len(got), err)
		}
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ports, err := c.Ports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []net.Addr{four, six, l.Addr()} {
		a := a.(*net.TCPAddr)
		if !slices.Contains(ports, sandpit.Port{Port: uint16(a.Port), Address: a.IP.String()}) {
			t.Errorf("%v is not in %+v", a, ports)
		}
	}
	l.Close()
	if _, err := c.Dial(t.Context(), unheard(t)); !errors.Is(err, sandpit.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if _, err := c.Dial(t.Context(), 0); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func TestDialUnix(t *testing.T) {
	dir, err := os.MkdirTemp("", "dial")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	serveOn(t, "unix", path, echo)
	c := start(t)
	conn, err := c.DialUnix(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "hello ")
	_ = conn.CloseWrite()
	if b, err := io.ReadAll(conn); string(b) != "hello end" {
		t.Errorf("got %q, %v", b, err)
	}
	if _, err := c.DialUnix(t.Context(), dir+"/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := c.DialUnix(t.Context(), "/"+strings.Repeat("x", 200)); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if os.Geteuid() != 0 {
		return
	}
	// Not with the guest's rights.
	conf := config()
	conf.User = "12345:12345"
	other := newGuest(t).client(client.Options{Config: conf})
	if _, err := other.DialUnix(t.Context(), path); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v", err)
	}
}

func TestHowConnectionsEnd(t *testing.T) {
	c := start(t)
	got := make(chan string, 1)
	sink := serveOn(t, "tcp4", "127.0.0.1:0", func(c net.Conn) {
		b, _ := io.ReadAll(c)
		got <- fmt.Sprint(len(b))
	})
	// What was written before the end arrives.
	conn := dialPort(t, c, sink)
	if _, err := conn.Write(make([]byte, 200_000)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if _, err := conn.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
	select {
	case n := <-got:
		if n != "200000" {
			t.Errorf("%s bytes have arrived", n)
		}
	case <-time.After(time.Minute):
		t.Fatal("the connection does not end")
	}
	// The other end closes both directions, or breaks off.
	rude := serveOn(t, "tcp4", "127.0.0.1:0", func(c net.Conn) {
		_, _ = io.ReadFull(c, make([]byte, 1))
		_ = c.(*net.TCPConn).SetLinger(0)
	})
	conn = dialPort(t, c, rude)
	_, _ = conn.Write([]byte("x"))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v", err)
	}
	polite := serveOn(t, "tcp4", "127.0.0.1:0", func(net.Conn) {})
	conn = dialPort(t, c, polite)
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %v", err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err := conn.Write(make([]byte, 1000)); errors.Is(err, syscall.EPIPE) {
			break
		} else if err != nil || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestDeadlinesOfAConnection(t *testing.T) {
	c := start(t)
	stop := make(chan struct{})
	a := serveOn(t, "tcp4", "127.0.0.1:0", func(c net.Conn) { <-stop; echo(c) })
	conn := dialPort(t, c, a)
	for _, d := range []time.Duration{-time.Second, time.Millisecond} {
		_ = conn.SetReadDeadline(time.Now().Add(d))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	}
	_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	total := 0
	for {
		n, err := conn.Write(make([]byte, 100_000))
		total += n
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			break
		}
	}
	// It goes on afterwards.
	_ = conn.SetDeadline(time.Time{})
	close(stop)
	_ = conn.CloseWrite()
	if n, err := io.Copy(io.Discard, conn); err != nil || n != int64(total)+3 {
		t.Errorf("got %d of %d bytes, %v", n, total+3, err)
	}
}

// An HTTP client gets along with it.
func TestHTTPOverDial(t *testing.T) {
	c := start(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	defer srv.Close()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return c.Dial(ctx, uint16(srv.Listener.Addr().(*net.TCPAddr).Port))
	}}
	defer tr.CloseIdleConnections()
	body := strings.Repeat("x", 300_000)
	for range 3 {
		res, err := (&http.Client{Transport: tr}).Post("http://sandbox/", "text/plain", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if string(b) != body {
			t.Errorf("got %d bytes, %v", len(b), err)
		}
	}
}
