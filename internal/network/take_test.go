package network

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// What an origin sends arrives whole and in order, whatever sizes it comes in and is read by, and the connection counts as
// one that moves much until it ends.
func TestTaken(t *testing.T) {
	const size = 6 << 20
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	a := listen(t, func(c net.Conn) {
		one := make([]byte, 1)
		_, _ = io.ReadFull(c, one)
		for b, i := data, 0; len(b) > 0; i++ {
			n := min(len(b), []int{1, 100, 65025, 65026, 300000}[i%5])
			if _, err := c.Write(b[:n]); err != nil {
				return
			}
			b = b[n:]
		}
	})
	var mu sync.Mutex
	var busy []int
	sockets := NewSockets()
	sockets.Busy = func(connections int) {
		mu.Lock()
		defer mu.Unlock()
		busy = append(busy, connections)
	}
	in := joinAs(t, granted(t, good(sandpit.EgressBounds{})), nil, nil, sockets, waits{head: headTimeout, hold: holdTime})
	c := in.must(at("good.test", a))
	if _, err := io.WriteString(c, "\x00"); err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	all := 0
	for b := make([]byte, 200<<10); ; {
		n, err := c.Read(b[:1+all%len(b)])
		sum.Write(b[:n])
		if all += n; errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if all < size/2 && all%7 == 0 { // slower than the origin, for a while
			time.Sleep(time.Millisecond)
		}
	}
	if want := sha256.Sum256(data); all != size || !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Errorf("%d bytes arrived, with another sum than the %d that were sent", all, size)
	}
	c.Close()
	in.wait("the end of the connection", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(busy) == 2
	})
	if busy[0] != 1 || busy[1] != 0 {
		t.Errorf("connections that move much: %v, want 1 and then 0", busy)
	}
	if got := in.net.flows.traffic().Received; got != size {
		t.Errorf("%d bytes are counted, want %d", got, size)
	}
}

// An origin's urgent byte is left out, as by any program that does not ask for it, and neither stops nor breaks the rest.
func TestUrgentData(t *testing.T) {
	const part = 100_000
	a := listen(t, func(c net.Conn) {
		one := make([]byte, 1)
		_, _ = io.ReadFull(c, one)
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Error(err)
			return
		}
		for range 5 {
			_, _ = io.WriteString(c, strings.Repeat("x", part))
			if err := raw.Control(func(fd uintptr) {
				if err := syscall.Sendto(int(fd), []byte("!"), syscall.MSG_OOB, nil); err != nil && !errors.Is(err, syscall.EAGAIN) {
					t.Error(err)
				}
			}); err != nil {
				t.Error(err)
			}
			_, _ = io.ReadFull(c, one) // the mark of the next one would take this one's place
		}
	})
	in := join(t, good(sandpit.EgressBounds{}))
	c := in.must(at("good.test", a))
	defer c.Close()
	if _, err := io.WriteString(c, "\x00"); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		got := make([]byte, part)
		if _, err := io.ReadFull(c, got); err != nil || strings.Trim(string(got), "x") != "" {
			t.Fatalf("%q arrived beside what was sent: %v", strings.Trim(string(got), "x"), err)
		}
		if _, err := io.WriteString(c, "\x00"); err != nil {
			t.Fatal(err)
		}
	}
	if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
		t.Errorf("%q came after everything: %v", rest, err)
	}
}
