package linux_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// probeStream sends to a port of good.test what is echoed, by TCP with large and small segments, and by
// UDP with small and large datagrams.
func probeStream(args []string) map[string]string {
	got := map[string]string{}
	families := []string{"4", "6"}
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		families = families[:1]
	}
	sent := make([]byte, 1<<20+1)
	for i := range sent {
		sent[i] = byte(i * i >> 7)
	}
	for _, family := range families {
		for _, segment := range []int{0, 100, 1400} {
			got[fmt.Sprintf("tcp%s, segments of %d", family, segment)] = errName(echoed("tcp"+family, args[0], segment, sent))
		}
		for _, size := range []int{1, 1400, 65000} {
			got[fmt.Sprintf("udp%s, %d", family, size)] = errName(echoed("udp"+family, args[0], 0, sent[:size]))
		}
	}
	return got
}

// echoed sends, and returns an error unless the same comes back. A segment has no more than the given
// number of bytes, if it is not 0.
func echoed(network, port string, segment int, sent []byte) error {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if segment > 0 {
			err = c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, segment) })
		}
		return err
	}}
	c, err := d.Dial(network, "good.test:"+port)
	if err != nil {
		return err
	}
	defer c.Close()
	received := make([]byte, len(sent))
	if network[:3] == "udp" {
		err = exchanged(c, sent, received)
	} else {
		written := make(chan error, 1)
		go func() {
			_, err := c.Write(sent)
			written <- err
		}()
		if _, err = io.ReadFull(c, received); err == nil {
			err = <-written
		}
	}
	if err != nil {
		return err
	}
	if !bytes.Equal(received, sent) {
		return errors.New("other bytes came back")
	}
	return nil
}

// exchanged sends a datagram, again if it is lost, until one comes back.
func exchanged(c net.Conn, sent, received []byte) error {
	for try := 1; ; try++ {
		if _, err := c.Write(sent); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		n, err := c.Read(received)
		if err == nil && n != len(sent) {
			return fmt.Errorf("%d bytes came back", n)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || try == 30 {
			return err
		}
	}
}

// Streams and datagrams arrive as they were sent, by each protocol and in whatever sizes the sandbox
// asks for. Of its interface, the sums of TCP and UDP are left out.
func TestEgressCarriesAnySize(t *testing.T) {
	e := withNetwork(t, 0)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	datagrams, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { datagrams.Close() })
	go func() {
		for b := make([]byte, 1<<16); ; {
			n, from, err := datagrams.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = datagrams.WriteTo(b[:n], from)
		}
	}()
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	sb := box(t, e, sandpit.Spec{Egress: sandpit.Egress{
		Allow: []string{"good.test:" + port, "udp:good.test:" + port}, Resolve: []string{"good.test:127.0.0.1"},
	}})
	got := tryOut(t, sb, sandpit.Command{}, "stream", port)
	if len(got) < 6 {
		t.Errorf("only %v was tried", got)
	}
	refused(t, got, "")
}
