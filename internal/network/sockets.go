package network

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Sockets shares out what the connections of all networks of a process take of the machine: descriptors of the
// process, and local ports. A network gets as many of each as it leaves free, at most. So with n networks
// that take all they can, each has one part in n+1, and one is left for another. It is safe for concurrent use.
//
// Local ports are counted by what a kernel tells apart: a port may be used for many addresses over TCP, and once
// for UDP. One of a connection that this side ended first is in use for another minute (TIME_WAIT, RFC 9293,
// section 3.6.1).
type Sockets struct {
	// Busy is called with the number of connections that move much to sandboxes when that has changed, one call at a
	// time. nil: nothing is. It must not change once a network has joined.
	Busy func(connections int)

	files int    // descriptors that networks may have
	ports int    // local ports that they may use for one destination
	reuse string // net.ipv4.tcp_tw_reuse

	moving sync.Mutex // held while Busy is called, which may wait for the garbage collector
	busy   int        // connections that move much, guarded by moving

	mu   sync.Mutex
	open pool                  // guarded by mu
	used map[destination]*pool // guarded by mu
}

// Parts of what this machine has that networks may not take.
const (
	filesLeft = 8 // one in so many, and maxFilesLeft at most: for interfaces, files and requests
	portsLeft = 4 // one in so many: for the other programs of this machine

	maxFilesLeft = 1024
)

// timeWait is how long Linux keeps a connection in TIME_WAIT (TCP_TIMEWAIT_LEN).
const timeWait = time.Minute

// NewSockets returns Sockets by the present limits of this process and machine.
func NewSockets() *Sockets {
	files := 1 << 20
	var lim syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim) == nil && lim.Cur < 1<<20 {
		files = int(lim.Cur) //nolint:gosec // see the condition
	}
	first, last := 32768, 60999 // Linux' defaults
	if text := sysctl("ip_local_port_range"); text != "" {
		_, _ = fmt.Sscan(text, &first, &last)
	}
	ports := max(last-first+1, portsLeft)
	return &Sockets{files: files - min(files/filesLeft, maxFilesLeft), ports: ports - ports/portsLeft, reuse: sysctl("tcp_tw_reuse")}
}

// sysctl returns a setting of the machine's IP, which IPv6 has, too; "": it is not known.
func sysctl(name string) string {
	text, _ := os.ReadFile("/proc/sys/net/ipv4/" + name)
	return strings.TrimSpace(string(text))
}

// destination is what a local port can be used for once: an address over TCP, or any over another protocol. The
// address of an upstream proxy is zero.
type destination struct {
	protocol egress.Protocol
	addr     netip.AddrPort
}

// pool has the places of networks.
type pool struct {
	all int
	by  map[*share]int
}

// take takes a place of a limited number for a network. It reports false if the network has as many as are free.
func (p *pool) take(who *share, limit int) bool {
	if p.by[who] >= limit-p.all {
		return false
	}
	if p.by == nil {
		p.by = map[*share]int{}
	}
	p.all++
	p.by[who]++
	return true
}

func (p *pool) give(who *share) {
	p.all--
	if p.by[who]--; p.by[who] == 0 {
		delete(p.by, who)
	}
}

// share is what one network has of Sockets.
type share struct{ of *Sockets }

// join counts the network's interface, which is not refused.
func (s *Sockets) join() *share {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open.all++
	return &share{s}
}

// leave ends the use of the interface. Connections may end later.
func (s *share) leave() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.open.all--
}

// busy counts a connection that moves much, until idle is called.
func (s *share) busy() (idle func()) {
	add := func(n int) {
		s.of.moving.Lock()
		defer s.of.moving.Unlock()
		if s.of.busy += n; s.of.Busy != nil {
			s.of.Busy(s.of.busy)
		}
	}
	add(1)
	return func() { add(-1) }
}

// dial makes a connection for the network, whose places are free once it has ended. Errors of a network that has
// its share match sandpit.ErrExhausted.
func (s *share) dial(protocol egress.Protocol, addr netip.AddrPort, dial func() (net.Conn, error)) (net.Conn, error) {
	if s == nil {
		return dial()
	}
	to := destination{protocol: protocol}
	if protocol == egress.TCP {
		to.addr = addr
	}
	if err := s.take(to); err != nil {
		return nil, err
	}
	conn, err := dial()
	if err != nil {
		s.closed()
		s.unused(to)
		return nil, err
	}
	return s.placed(conn, to), nil
}

func (s *share) take(to destination) error {
	all := s.of
	all.mu.Lock()
	defer all.mu.Unlock()
	if !all.open.take(s, all.files) {
		return fault.Errorf(sandpit.ErrExhausted, "too many connections for the descriptors of the network process, which all sandboxes share (RLIMIT_NOFILE)")
	}
	p := all.used[to]
	if p == nil {
		p = new(pool)
	}
	if !p.take(s, all.ports) {
		all.open.give(s)
		return fault.Errorf(sandpit.ErrExhausted, "too many connections there, now and in the last minute, for the local ports of this machine, which all sandboxes share (ip_local_port_range)")
	}
	if all.used == nil {
		all.used = map[destination]*pool{}
	}
	all.used[to] = p
	return nil
}

// closed gives back a descriptor.
func (s *share) closed() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.open.give(s)
}

// unused gives back a local port.
func (s *share) unused(to destination) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	p := s.of.used[to]
	if p.give(s); p.all == 0 {
		delete(s.of.used, to)
	}
}

// lingers returns how long a port is in TIME_WAIT before another connection can use it.
func (s *Sockets) lingers(a netip.Addr) time.Duration {
	if s.reuse == "1" || s.reuse == "2" && a.IsLoopback() {
		return time.Second // see tcp_tw_reuse in Linux' ip-sysctl
	}
	return timeWait
}

// placed returns a connection that gives its places back when it is closed.
func (s *share) placed(c net.Conn, to destination) net.Conn {
	p := &place{share: s, to: to}
	switch c := c.(type) {
	case *net.TCPConn:
		return &tcpSocket{c, p}
	case *net.UDPConn:
		return &udpSocket{c, p}
	}
	return &otherSocket{c, p}
}

// place is what a connection has.
type place struct {
	share *share
	to    destination

	mu    sync.Mutex
	fin   bool // the sending direction was ended, guarded by mu
	first bool // before the other end did so, guarded by mu
	reset bool // Close will reset the connection, guarded by mu
	gone  bool // guarded by mu
}

// ending notes that the sending direction ends, after the other end's or not.
func (p *place) ending(after bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.fin {
		p.fin, p.first = true, !after
	}
}

func (p *place) resets() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reset = true
}

// close gives everything back once the connection was closed, the port when it is out of use. after says
// whether the other end had ended before.
func (p *place) close(after bool) {
	p.ending(after)
	p.mu.Lock()
	gone := p.gone
	waits := p.to.protocol == egress.TCP && p.first && !(p.reset && !after)
	p.gone = true
	p.mu.Unlock()
	if gone {
		return
	}
	p.share.closed()
	if !waits {
		p.share.unused(p.to)
		return
	}
	time.AfterFunc(p.share.of.lingers(p.to.addr.Addr()), func() { p.share.unused(p.to) })
}

// tcpSocket is a TCP connection with its place.
type tcpSocket struct {
	*net.TCPConn
	place *place
}

// CloseWrite ends the sending direction.
func (c *tcpSocket) CloseWrite() error {
	c.place.ending(atEnd(c.TCPConn))
	return c.TCPConn.CloseWrite()
}

// SetLinger has Close reset the connection, if sec is 0.
func (c *tcpSocket) SetLinger(sec int) error {
	err := c.TCPConn.SetLinger(sec)
	if err == nil && sec == 0 {
		c.place.resets()
	}
	return err
}

// Close closes the connection.
func (c *tcpSocket) Close() error {
	after := atEnd(c.TCPConn)
	err := c.TCPConn.Close()
	c.place.close(after)
	return err
}

// atEnd reports whether the other end has ended its direction, or the whole connection. It asks for the state in
// the first byte of TCP_INFO: a read would take the error that a reset leaves, and that others must see.
func atEnd(c *net.TCPConn) (end bool) {
	const (
		tcpInfo                    = 11      // of linux/tcp.h
		closed, closeWait, lastAck = 7, 8, 9 // of net/tcp_states.h
	)
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		info, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpInfo) //nolint:gosec // a descriptor
		state := info & 0xff
		end = err == nil && (state == closed || state == closeWait || state == lastAck)
	})
	return end
}

// udpSocket is a UDP socket with its place.
type udpSocket struct {
	*net.UDPConn
	place *place
}

// Close closes the socket.
func (c *udpSocket) Close() error {
	err := c.UDPConn.Close()
	c.place.close(true)
	return err
}

// otherSocket is another connection with its place, such as one through a proxy.
type otherSocket struct {
	net.Conn
	place *place
}

// CloseWrite ends the sending direction, if that is possible. That of TLS counts as ended, though its TCP connection
// may not be.
func (c *otherSocket) CloseWrite() error {
	c.place.ending(c.atEnd())
	closeWrite(c.Conn)
	return nil
}

// Close closes the connection.
func (c *otherSocket) Close() error {
	after := c.atEnd()
	err := c.Conn.Close()
	c.place.close(after)
	return err
}

// atEnd does what the function does, for the TCP connection below, if there is one.
func (c *otherSocket) atEnd() bool {
	for conn := c.Conn; ; {
		switch below := conn.(type) {
		case *net.TCPConn:
			return atEnd(below)
		case interface{ NetConn() net.Conn }:
			conn = below.NetConn()
		default:
			return false
		}
	}
}
