package server

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// dial connects to something that listens in the sandbox, and carries content
// both ways until both have ended.
func (g *guest) dial(s *conn.Stream, m *wire.Dial) error {
	var to unix.Sockaddr
	family := unix.AF_UNIX
	switch ip := loopback(m.Address); {
	case m.Port > 65535:
		return wire.Invalid("there is no port " + strconv.FormatUint(m.Port, 10))
	case m.Port > 0 && len(ip) == 4:
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(m.Port), Addr: [4]byte(ip)}
	case m.Port > 0 && len(ip) == 16:
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Port: int(m.Port), Addr: [16]byte(ip)}
	case m.Port > 0:
		return wire.Invalid("the address is not the sandbox's loopback")
	default:
		path, err := g.settings.Path(nil, m.Address)
		if err != nil {
			return err
		}
		if len(path) > 107 { // sun_path of unix(7), less the NUL
			return wire.Invalid("the path is too long for a socket")
		}
		to = &unix.SockaddrUnix{Name: path}
	}
	s.In, s.Lingers = wire.NewQueue(wire.GuestWindow), true
	go g.connection(s, family, to)
	return nil
}

// linger is how long what the host has sent before it closed the stream may
// take to be written.
const linger = 5 * time.Second

// loopback returns the bytes of an address of the loopback, or nil: nothing else
// can be dialled.
func loopback(s string) []byte {
	switch s {
	case "127.0.0.1":
		return []byte{127, 0, 0, 1}
	case "::1":
		return []byte{15: 1}
	}
	return nil
}

func (g *guest) connection(s *conn.Stream, family int, to unix.Sockaddr) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		s.In.Close()
		s.Fail(err)
		return
	}
	// With the rights of the user: a path may be in a directory that is not his.
	err = g.workers.Do(nil, func() error { return unix.Connect(fd, to) })
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	s.WhenGone(func() {
		_ = f.SetReadDeadline(time.Unix(1, 0))
		_ = f.SetWriteDeadline(time.Now().Add(linger))
	})
	raw, rerr := f.SyscallConn()
	if rerr != nil {
		s.In.Close()
		s.Fail(rerr)
		return
	}
	if err == unix.EINPROGRESS || err == unix.EINTR {
		err = connected(raw)
	}
	if err != nil {
		s.In.Close()
		s.Fail(wire.FileError(err))
		return
	}
	s.Reply(conn.Nothing{})

	sent := make(chan error, 1)
	go func() {
		err := s.Content(func(b []byte) error {
			_, err := f.Write(b)
			return err
		})
		if err == io.EOF {
			err = nil
			_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
		} else if err != conn.ErrGone {
			s.Refuse()
		}
		sent <- err
	}()
	rerr = g.receiveFrom(s, raw)
	switch {
	case s.Gone():
	case rerr == nil:
		s.EndContent()
	default: // what the host still sends goes nowhere
		s.In.Abort(conn.ErrGone)
	}
	werr := <-sent
	var errno unix.Errno
	for _, err := range []error{rerr, werr} {
		if e, ok := errors.AsType[unix.Errno](err); ok {
			errno = e
		}
	}
	s.End(wire.Event, &wire.Closed{Errno: uint64(errno)})
}

// connected waits until a connect has come to its end.
func connected(raw syscall.RawConn) error {
	var errno int
	var err error
	cerr := raw.Write(func(fd uintptr) bool {
		// Ready for writing is what poll says, and before that nothing is known.
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if n, perr := unix.Poll(p, 0); perr == nil && n == 0 || perr == unix.EINTR {
			return false
		}
		errno, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		return true
	})
	switch {
	case cerr != nil:
		return conn.ErrGone
	case err != nil:
		return err
	case errno != 0:
		return unix.Errno(errno)
	}
	return nil
}

// receiveFrom sends what comes from a socket. A buffer is held only while there
// is something.
func (g *guest) receiveFrom(s *conn.Stream, raw syscall.RawConn) error {
	for {
		var buf *[]byte
		n := 0
		var rerr error
		err := raw.Read(func(fd uintptr) bool {
			if buf == nil {
				buf = conn.Buffer()
			}
			if n, rerr = fdio.Read(int(fd), (*buf)[wire.HeaderSize:]); rerr == unix.EAGAIN {
				conn.Release(buf)
				buf = nil
				return false
			}
			return true
		})
		if err == nil {
			err = rerr
		}
		if err == nil && n > 0 {
			g.life.touch(g)
			err = s.Send(wire.Data, *buf, n)
		}
		if buf != nil {
			conn.Release(buf)
		}
		if err != nil || n == 0 {
			return err
		}
	}
}

// ports lists what is listened on.
func ports() (*wire.Ports, error) {
	out := new(wire.Ports)
	for _, name := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT {
			continue
		}
		if err != nil {
			return nil, err
		}
		err = eachLineOf(fd, func(line []byte) {
			if p, ok := parsePort(line); ok && len(out.List) < wire.MaxPorts && !hasPort(out.List, &p) {
				out.List = append(out.List, p)
			}
		})
		unix.Close(fd)
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func hasPort(list []wire.Port, p *wire.Port) bool {
	for i := range list {
		if list[i].Address == p.Address && list[i].Port == p.Port {
			return true
		}
	}
	return false
}

// eachLineOf calls f with each line of a file, in bounded memory. Lines longer
// than the buffer are cut in pieces.
func eachLineOf(fd int, f func(line []byte)) error {
	buf := make([]byte, 16<<10)
	for n := 0; ; {
		k, err := fdio.Read(fd, buf[n:])
		if err != nil {
			return err
		}
		n += k
		rest := buf[:n]
		for {
			line, after, ok := bytes.Cut(rest, []byte{'\n'})
			if !ok && k > 0 && len(rest) < len(buf) {
				break
			}
			if len(line) > 0 {
				f(line)
			}
			rest = after
			if !ok {
				break
			}
		}
		if k == 0 {
			return nil
		}
		n = copy(buf, rest)
	}
}

// parsePort takes a listening socket from a line of /proc/net/tcp or tcp6
// (proc_net(5)): "sl local:port remote:port st tx:rx tr:when retr uid …", the
// address in hexadecimal, in words of the machine's byte order.
func parsePort(line []byte) (wire.Port, bool) {
	const listening = "0A" // TCP_LISTEN of linux/tcp_states.h
	f := bytes.Fields(line)
	if len(f) < 8 || string(f[3]) != listening {
		return wire.Port{}, false
	}
	addr, port, ok := bytes.Cut(f[1], []byte{':'})
	if !ok || len(addr) != 8 && len(addr) != 32 {
		return wire.Port{}, false
	}
	n, err1 := strconv.ParseUint(string(port), 16, 16)
	uid, err2 := strconv.ParseUint(string(f[7]), 10, 32)
	if err1 != nil || err2 != nil {
		return wire.Port{}, false
	}
	ip := make([]byte, 0, 16)
	for ; len(addr) > 0; addr = addr[8:] {
		word, err := strconv.ParseUint(string(addr[:8]), 16, 32)
		if err != nil {
			return wire.Port{}, false
		}
		// Both architectures that there are guests for are little-endian.
		ip = append(ip, byte(word), byte(word>>8), byte(word>>16), byte(word>>24))
	}
	return wire.Port{Address: string(ip), Port: n, UID: uid}, true
}
