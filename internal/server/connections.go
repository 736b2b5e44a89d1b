package server

import (
	"container/list"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit/internal/api"
	"github.com/sandpit-dev/sandpit/internal/httpconn"
)

const (
	// maxConnections is the default maximum of connections.
	maxConnections = 8192

	// leastConnections is the minimum that can be set: some for each share.
	minConnections = 16

	// strangerTime is the time that a connection without a valid key may be idle or
	// incomplete. One with ongoing requests is closed after the next answer.
	strangerTime = 30 * time.Second

	// droppedEvery is the shortest time between two lines of the log about
	// connections that were dropped.
	droppedEvery = 10 * time.Second
)

// connections counts and bounds the connections of all listeners. See the package comment.
// A request over the share of its namespace or of the unix socket is answered with 503, and
// its connection stays a stranger's.
type connections struct {
	strangers, perAddress int // bounds
	keyed, perNamespace   int
	local                 int
	reserved              int // the first number of a descriptor that no connection may have
	log                   *slog.Logger

	mu          sync.Mutex
	waiting     crowd          // all strangers; guarded by mu
	byNamespace map[string]int // guarded by mu
	previews    map[string]int // those in byNamespace that were used with previews last; guarded by mu
	keys        int            // connections in byNamespace; guarded by mu
	peers       int            // connections of users of the unix socket; guarded by mu
	dropped     uint64         // guarded by mu
	told        time.Time      // the log, of those that were dropped; guarded by mu
	toldOf      uint64         // the value of dropped at that time; guarded by mu
}

// shares of all connections: a quarter for strangers, half of which one address
// may have; half for callers with keys, a quarter of which those of one
// namespace may have, of which half may be used with previews; and a quarter for users of the unix
// socket.
func newConnections(s Settings, files int, log *slog.Logger) *connections {
	return &connections{
		strangers: s.Connections / 4, perAddress: s.ConnectionsPerAddress,
		keyed: s.Connections / 2, perNamespace: s.Connections / 8, local: s.Connections / 4,
		reserved: files - reservedFiles(files), log: log,
		byNamespace: map[string]int{}, previews: map[string]int{},
	}
}

// openFiles returns the number of descriptors that this program may have.
func openFiles() int {
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil || lim.Cur > 1<<30 {
		return 1 << 30
	}
	return int(lim.Cur)
}

// reservedFiles is the number of descriptors that are reserved for work in progress: files
// that sandboxes, state and images open for a moment.
func reservedFiles(files int) int { return min(files/8, 1024) }

// connection is a net.Conn that is counted until it is closed.
type connection struct {
	net.Conn
	all  *connections
	full string // the response if there is no room for it; empty: none, as over TLS

	// Guarded by all.mu.
	place     *crowd // among strangers; nil when it is none
	state     http.ConnState
	namespace string // of the caller whose it is
	preview   bool   // the last request was made with a preview
	peer      bool   // of a user of the unix socket
	timedOut  bool   // strangerTime is over
	closed    bool
	timer     *time.Timer
}

// listener returns l with connections that are counted, and are httpconn.Conns. See
// connection.full.
func (a *connections) listener(l net.Listener, full string) net.Listener {
	return countedListener{l, a, full}
}

type countedListener struct {
	net.Listener
	all  *connections
	full string
}

// Accept returns the next connection that may stay.
func (l countedListener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			if l.all.makeRoom() {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		if c := l.all.add(raw, l.full); c != nil {
			return c, nil
		}
	}
}

// add counts a new connection. It returns nil when there is no room for it.
func (a *connections) add(raw net.Conn, full string) net.Conn {
	c := &connection{Conn: httpconn.New(raw), all: a, full: full}
	_, local := raw.(*net.UnixConn)
	var out []*connection
	a.mu.Lock()
	a.enter(c)
	if same := c.place.around; same.size > a.perAddress {
		out = append(out, a.leave(same.next()))
	}
	if a.waiting.size > a.strangers || !local && descriptor(raw) >= a.reserved {
		out = append(out, a.leave(a.waiting.next()))
	}
	a.mu.Unlock()
	a.drop(out)
	if out != nil && out[len(out)-1] == c {
		return nil
	}
	return c
}

// enter adds a connection to the strangers. Precondition: a.mu is held.
func (a *connections) enter(c *connection) {
	around := &a.waiting
	for _, n := range networks(c.RemoteAddr()) {
		around = around.part(n)
	}
	c.place = &crowd{around: around, one: c}
	c.place.grow(1)
	c.timer = time.AfterFunc(strangerTime, c.expire)
}

// leave removes a connection from the strangers. Precondition: a.mu is held.
func (a *connections) leave(c *connection) *connection {
	c.place.grow(-1)
	c.timer.Stop()
	c.place, c.timedOut = nil, false
	return c
}

// makeRoom drops a stranger, if there is one.
func (a *connections) makeRoom() bool {
	a.mu.Lock()
	var out []*connection
	if a.waiting.size > 0 {
		out = append(out, a.leave(a.waiting.next()))
	}
	a.mu.Unlock()
	a.drop(out)
	return out != nil
}

// crowd is a set of strangers: one, or all of a network, in parts. The zero value is empty.
type crowd struct {
	one    *connection // that it is, if it has no parts
	around *crowd      // whose part it is; nil for that of all
	name   netip.Prefix
	size   int
	at     *list.Element // in around.bySize[size]

	parts   map[netip.Prefix]*crowd // those that are networks
	bySize  []*list.List            // of all parts, those of a size; the longest of that size first
	largest int                     // the size of the largest part
}

// part returns the part that is a network. A new one counts from its first stranger.
func (g *crowd) part(n netip.Prefix) *crowd {
	in := g.parts[n]
	if in == nil {
		if g.parts == nil {
			g.parts = map[netip.Prefix]*crowd{}
		}
		in = &crowd{around: g, name: n}
		g.parts[n] = in
	}
	return in
}

// grow adds 1 or -1 to the size of a crowd and of those around it.
func (g *crowd) grow(by int) {
	for ; g.around != nil; g = g.around {
		up := g.around
		if g.at != nil {
			up.bySize[g.size].Remove(g.at)
		}
		if g.size += by; g.size == 0 && g.one == nil {
			delete(up.parts, g.name)
		}
		if g.size > 0 {
			for len(up.bySize) <= g.size {
				up.bySize = append(up.bySize, list.New())
			}
			g.at = up.bySize[g.size].PushBack(g)
			up.largest = max(up.largest, g.size)
		}
		for up.largest > 0 && up.bySize[up.largest].Len() == 0 {
			up.largest-- // once, since a part grows by one
		}
	}
	g.size += by
}

// next returns the connection that has to make room: the oldest of the network that
// has most.
// Precondition: the crowd is not empty.
func (g *crowd) next() *connection {
	for g.one == nil {
		g = g.bySize[g.largest].Front().Value.(*crowd)
	}
	return g.one
}

// drop closes connections that are no longer counted.
func (a *connections) drop(out []*connection) {
	if len(out) == 0 {
		return
	}
	a.mu.Lock()
	a.dropped += uint64(len(out))
	since := a.dropped - a.toldOf
	tell := time.Since(a.told) > droppedEvery
	if tell {
		a.told, a.toldOf = time.Now(), a.dropped
	}
	a.mu.Unlock()
	if tell {
		a.log.Warn("too many connections without a key: some were dropped", "dropped", since, "last", out[len(out)-1].RemoteAddr().String())
	}
	for _, c := range out {
		c.refuse()
	}
}

// refuse closes a connection, and says why where that costs nothing.
func (c *connection) refuse() {
	c.all.mu.Lock()
	fresh := c.state == http.StateNew // nothing was sent yet: it can't block
	c.all.mu.Unlock()
	if fresh && c.full != "" {
		_, _ = io.WriteString(c.Conn, c.full) // best effort
	}
	_ = c.Close()
}

// expire ends a stranger's connection, at once unless it is being answered.
func (c *connection) expire() {
	c.all.mu.Lock()
	c.timedOut = c.place != nil
	end := c.timedOut && c.state != http.StateActive
	c.all.mu.Unlock()
	if end {
		_ = c.Close()
	}
}

// noteState is for http.Server.ConnState.
func (a *connections) noteState(conn net.Conn, state http.ConnState) {
	c := connectionOf(conn)
	if c == nil {
		return
	}
	a.mu.Lock()
	c.state = state
	end := c.timedOut && state == http.StateIdle
	a.mu.Unlock()
	if end {
		_ = c.Close()
	}
}

// admit notes the namespace of the requests on a connection: that of callers with a valid
// key or preview, or "" for a stranger. It reports whether the namespace, and its previews, may have
// one more connection.
func (c *connection) admit(namespace string, preview bool) bool {
	a := c.all
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case c.closed || c.peer || c.namespace == namespace && c.preview == preview:
		return true
	case namespace == "":
		a.forget(c)
		a.enter(c)
		return true
	case c.namespace != namespace && a.byNamespace[namespace] >= a.perNamespace,
		c.namespace == "" && a.keys >= a.keyed,
		preview && a.previews[namespace] >= a.perNamespace/2:
		return false
	}
	a.forget(c)
	c.namespace, c.preview = namespace, preview
	a.byNamespace[namespace]++
	a.keys++
	if preview {
		a.previews[namespace]++
	}
	return true
}

// admitPeer notes that a user of the unix socket is at the other end. If there is no room
// for one, the connection is a stranger's until its first request.
func (c *connection) admitPeer() {
	a := c.all
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.place == nil || a.peers >= a.local {
		return
	}
	a.forget(c)
	c.peer = true
	a.peers++
}

// forget stops counting a connection. Precondition: a.mu is held.
func (a *connections) forget(c *connection) {
	switch {
	case c.place != nil:
		a.leave(c)
	case c.peer:
		a.peers--
		c.peer = false
	case c.namespace != "":
		a.keys--
		if a.byNamespace[c.namespace]--; a.byNamespace[c.namespace] == 0 {
			delete(a.byNamespace, c.namespace)
		}
		if c.preview {
			if a.previews[c.namespace]--; a.previews[c.namespace] == 0 {
				delete(a.previews, c.namespace)
			}
		}
		c.namespace, c.preview = "", false
	}
}

// Close closes the connection and stops counting it.
func (c *connection) Close() error {
	c.all.mu.Lock()
	if !c.closed {
		c.closed = true
		c.all.forget(c)
	}
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// NetConn returns the underlying connection.
func (c *connection) NetConn() net.Conn { return c.Conn }

// CloseWrite is that of httpconn.Conn.
func (c *connection) CloseWrite() error { return httpconn.Find(c.Conn).CloseWrite() }

// connectionOf returns the connection that another one wraps, or nil.
func connectionOf(c net.Conn) *connection {
	for {
		switch in := c.(type) {
		case *connection:
			return in
		case interface{ NetConn() net.Conn }:
			c = in.NetConn()
		default:
			return nil
		}
	}
}

// counts are for the metrics.
func (a *connections) counts() api.Connections {
	a.mu.Lock()
	defer a.mu.Unlock()
	return api.Connections{Strangers: a.waiting.size, Keys: a.keys, Peers: a.peers, Dropped: a.dropped}
}

// networks returns the network that counts as one address, preceded by the larger one that
// it belongs to when a connection must make room: in IPv6 the 64 bits that every customer
// gets, and the 48 that one may get (RFC 6177). Unix sockets have none, and count as one
// address.
func networks(a net.Addr) []netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return []netip.Prefix{{}}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is4() {
		return []netip.Prefix{netip.PrefixFrom(ip, 32)}
	}
	wide, _ := ip.Prefix(48) // of an address that is valid
	narrow, _ := ip.Prefix(64)
	return []netip.Prefix{wide, narrow}
}

// descriptor returns the number of a connection's descriptor, which is the lowest
// that was free, or 0 when it can't be told.
func descriptor(c net.Conn) (n int) {
	if sc, ok := c.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { n = int(fd) })
		}
	}
	return n
}
