package httpconn_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/httpconn"
)

// pieces notes what is written to it.
type pieces struct {
	net.Conn
	got  []int
	all  []byte
	fail error
}

func (p *pieces) Write(b []byte) (int, error) {
	p.got = append(p.got, len(b))
	p.all = append(p.all, b...)
	return len(b), p.fail
}

func write(t *testing.T, w io.Writer, b []byte) {
	t.Helper()
	if n, err := w.Write(b); n != len(b) || err != nil {
		t.Fatalf("wrote %d of %d: %v", n, len(b), err)
	}
}

// What is short waits for what follows, in order, and no longer than it is to.
func TestHold(t *testing.T) {
	var p pieces
	c := httpconn.New(&p)
	want := []byte{}
	put := func(n int) {
		t.Helper()
		b := bytes.Repeat([]byte{byte(n)}, n)
		want = append(want, b...)
		write(t, c, b)
	}
	put(1)
	put(2)
	if fmt.Sprint(p.got) != "[1 2]" {
		t.Errorf("before Hold: %v", p.got)
	}
	c.Hold()
	put(3)
	put(4)
	if len(p.got) != 2 {
		t.Errorf("what is to be held: %v", p.got)
	}
	put(100_000)
	if !bytes.Equal(p.all, want) {
		t.Errorf("%d bytes were written of %d, or others", len(p.all), len(want))
	}
	put(5)
	if err := c.Release(); err != nil || !bytes.Equal(p.all, want) {
		t.Errorf("%v; %d bytes were written of %d, or others", err, len(p.all), len(want))
	}
	sent := len(p.got)
	if err := c.Release(); err != nil || len(p.got) != sent {
		t.Errorf("nothing was sent as %v: %v", p.got[sent:], err)
	}
	put(6)
	if !bytes.Equal(p.all, want) {
		t.Error("something is held after Release")
	}
	c.Hold()
	put(7)
	p.fail = errors.New("broken")
	if err := c.Release(); !errors.Is(err, p.fail) {
		t.Errorf("what can't be written: %v", err)
	}

	var none *httpconn.Conn
	none.Hold()
	if err := none.Release(); err != nil {
		t.Error(err)
	}
}

// A Conn is found beneath others.
func TestFind(t *testing.T) {
	c := httpconn.New(&pieces{})
	if httpconn.Find(c) != c || httpconn.Find(tls.Client(c, &tls.Config{})) != c || httpconn.Find(&pieces{}) != nil { //nolint:gosec // it is never used
		t.Error("another one was found, or none")
	}
}

// listener makes a Conn of each connection.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return httpconn.New(c), nil
}

// Of a chunk of a body nothing is sent before the whole.
func TestChunk(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	type key struct{}
	written, release := make(chan struct{}), make(chan struct{})
	server := &http.Server{
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, key{}, httpconn.Find(c))
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := r.Context().Value(key{}).(*httpconn.Conn)
			c.Hold()
			_, _ = w.Write(make([]byte, 10_000))
			close(written)
			<-release
			_ = c.Release()
		}),
	}
	defer server.Close()
	go func() { _ = server.Serve(listener{l}) }()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	write(t, c, []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	<-written
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := c.Read(make([]byte, 10)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes came before all was written: %v", n, err)
	}
	close(release)
	_ = c.SetReadDeadline(time.Time{})
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); n != 10_000 || err != nil {
		t.Errorf("%d bytes came: %v", n, err)
	}
}

// Directions end separately.
func TestCloseWrite(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	theirs, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	c, err := listener{l}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.(*httpconn.Conn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := theirs.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %v", err)
	}
	write(t, theirs, []byte("x"))
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if err := httpconn.New(&pieces{}).CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}
