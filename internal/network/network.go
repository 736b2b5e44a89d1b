// Package network is the other end of a sandbox's network interface: a TCP/IP stack in this
// process that decides about each connection and dials allowed ones itself.
//
// Names decide. The name server inside answers for allowed names only, each with an address of
// its own that leads nowhere else, so that every connection carries the name that it was made
// for. The host dials that name, never an address that the sandbox claims, and checks the
// addresses that it gets. What TLS and HTTP say about the name must agree with it.
//
//	program ─ TUN ─ link ─ stack ─ forwarder ─ Decide ─ resolve, check, dial ─ origin
//	                         └──── name server: names, each with its own address
//
// Nothing of this needs rights: a stack opens ordinary connections of this machine.
package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/intercept"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

// nic is the one interface of a stack.
const nic = 1

// Network is the network of one sandbox. All methods are safe for concurrent use.
type Network struct {
	stack *stack.Stack
	link  *link
	names *names
	flows flows

	nameServer *nameServer
	listenEcho ListenEcho
	sockets    *share

	ctx  context.Context // ends with Close
	end  context.CancelFunc
	work sync.WaitGroup // that Close waits for: see enter

	rules  atomic.Pointer[ruleset]
	bounds bounds

	refusals *rate.Limiter // see unlessFlooded
	requests *intercept.Server
	waits    waits
	pings    pings

	once sync.Once // of Close

	mu     sync.Mutex
	closed bool // guarded by mu
}

// ruleset is what an Egress was compiled to.
type ruleset struct {
	egress   sandpit.Egress
	rules    *egress.Rules
	resolver *resolver
	way      *upstream.Way

	requests *intercept.Terms
}

// New makes the network of a sandbox whose interface is file: see driver.Linker. It takes file
// over, also when it fails. Connections are made by way, and echo requests are sent with sockets of echo, or
// if it is nil, with those of this process. The network has its share of sockets. Errors about the terms match
// sandpit.ErrInvalid.
func New(file *os.File, t engine.Terms, way *upstream.Way, echo ListenEcho, sockets *Sockets) (*Network, error) {
	return newNetwork(file, t, way, echo, sockets, waits{head: headTimeout, hold: holdTime})
}

// waits are how long a program inside is waited for.
type waits struct {
	head time.Duration // for a request's header, from its first bytes
	hold time.Duration // for more of what may become a request or TLS, before it is passed on
}

func newNetwork(file *os.File, t engine.Terms, way *upstream.Way, echo ListenEcho, sockets *Sockets, w waits) (*Network, error) {
	if echo == nil {
		echo = listenEcho
	}
	set, err := compile(t, way, nil)
	if err != nil {
		file.Close()
		return nil, err
	}
	n := &Network{names: newNames(), refusals: rate.NewLimiter(refusalRate, refusalRate), listenEcho: echo, pings: newPings(), waits: w}
	l, err := newLink(file, func(packet []byte) bool { return fromInside(packet) && !n.ping(packet) })
	if err != nil {
		file.Close()
		return nil, err
	}
	n.link = l
	n.sockets = sockets.join()
	n.nameServer = newNameServer(n)
	n.ctx, n.end = context.WithCancel(context.Background())
	n.requests = intercept.NewServer(n.ctx, func() *intercept.Terms { return n.rules.Load().requests }, w.head, n.start)
	set.resolver.ctx, set.resolver.sockets = n.ctx, n.sockets
	n.rules.Store(set)
	n.bounds.set(t.Egress.Bounds)
	if n.stack, err = newStack(l); err != nil {
		n.sockets.leave()
		file.Close()
		return nil, err
	}
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, n.unlessFlooded(tcp.NewForwarder(n.stack, maxBuffer, inFlight, n.forward).HandlePacket))
	n.stack.SetTransportProtocolHandler(udp.ProtocolNumber, n.unlessFlooded(udp.NewForwarder(n.stack, n.datagrams).HandlePacket))
	n.work.Go(l.receive)
	if err := n.serveNames(); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// compile compiles terms, which replace those of before, if any.
func compile(t engine.Terms, way *upstream.Way, was *intercept.Terms) (*ruleset, error) {
	e := t.Egress
	rules, err := egress.Compile(e)
	if err != nil {
		return nil, err
	}
	servers, err := egress.Servers(e.DNS)
	if err != nil {
		return nil, err
	}
	if len(servers) == 0 {
		servers = way.Settings().DNS
	}
	requests, err := intercept.Compile(t, rules, way.Roots(), was)
	return &ruleset{egress: e, rules: rules, resolver: newResolver(t, rules, servers, way), way: way, requests: requests}, err
}

// quiet keeps the stack, which logs packets that it does not like, from writing to stderr.
var quiet = sync.OnceFunc(func() { log.SetTarget(&log.Writer{Next: io.Discard}) })

// newStack makes a stack with one interface that has every address.
func newStack(l *link) (*stack.Stack, error) {
	quiet()
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	failed := func(what string, err tcpip.Error) (*stack.Stack, error) {
		s.Destroy()
		return nil, fmt.Errorf("making a network stack: %s: %s", what, err)
	}
	for _, option := range tcpOptions() {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return failed("tcp", err)
		}
	}
	if err := s.CreateNIC(nic, l); err != nil {
		return failed("interface", err)
	}
	// Every destination is ours, and every source is what we answer from.
	if err := s.SetPromiscuousMode(nic, true); err != nil {
		return failed("interface", err)
	}
	if err := s.SetSpoofing(nic, true); err != nil {
		return failed("interface", err)
	}
	for _, a := range []struct {
		address  netip.Addr
		protocol tcpip.NetworkProtocolNumber
	}{{netaddr.Gateway4(), ipv4.ProtocolNumber}, {netaddr.Gateway6(), ipv6.ProtocolNumber}} {
		err := s.AddProtocolAddress(nic, tcpip.ProtocolAddress{Protocol: a.protocol, AddressWithPrefix: tcpipAddr(a.address).WithPrefix()}, stack.AddressProperties{})
		if err != nil {
			return failed(a.address.String(), err)
		}
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}, {Destination: header.IPv6EmptySubnet, NIC: nic}})
	return s, nil
}

// Bounds of what the stack holds for one sandbox.
const (
	inFlight  = 256     // connections that are being dialled or have not been taken up inside
	maxBuffer = 1 << 20 // of a connection, each way
	minBuffer = 64 << 10
	buffers   = 16 << 20 // each way, shared out among open connections; each has minBuffer beyond it

	drainTime = 30 * time.Second // for the sandbox to take what a connection that ended has sent
)

// tcpOptions are for a network without delay or loss, whose other end may never answer.
//
// RACK is off: its probe timer replaces the one that retransmits, which is started again only if
// segments count as outstanding. That count is too low after a recovery (gVisor issue 6113 has
// symptoms of it). So when the last segments and their probe are lost, such as by a sandbox that
// has no memory for them, nothing is ever sent again.
func tcpOptions() []tcpip.SettableTransportProtocolOption {
	sack := tcpip.TCPSACKEnabled(true)
	recovery := tcpip.TCPRecovery(0)
	maxRTO := tcpip.TCPMaxRTOOption(2 * time.Second)
	timeWait := tcpip.TCPTimeWaitTimeoutOption(time.Second)
	linger := tcpip.TCPLingerTimeoutOption(5 * time.Second)
	syn := tcpip.TCPSynRetriesOption(2)
	return []tcpip.SettableTransportProtocolOption{
		&sack, &recovery, &maxRTO, &timeWait, &linger, &syn,
		&tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: maxBuffer, Max: maxBuffer},
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: maxBuffer, Max: maxBuffer},
	}
}

func tcpipAddr(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

// Set changes what the sandbox may reach. Open connections that are no longer allowed end.
// Errors match sandpit.ErrInvalid.
func (n *Network) Set(t engine.Terms) error {
	now := n.rules.Load()
	set, err := compile(t, now.way, now.requests)
	if err != nil {
		return err
	}
	set.resolver.ctx, set.resolver.sockets = n.ctx, n.sockets
	was := n.rules.Swap(set)
	n.bounds.set(t.Egress.Bounds)
	n.flows.end(func(f *flow) error {
		replaced := was.requests.Changed(set.requests, f.to)
		switch {
		case !was.rules.Intercepts(f.to) && set.rules.Intercepts(f.to):
			return errors.New("requests to " + f.to.String() + " are now decided one by one")
		case f.switched && replaced != nil:
			return replaced
		}
		return set.allows(f)
	})
	return nil
}

// allows returns an error that says why a connection may not go on. Precondition: f.all.mu is
// held.
func (s *ruleset) allows(f *flow) error {
	d := s.rules.Decide(f.to)
	if d.Allowed && f.addr.IsValid() {
		d = s.dialable(f.to, f.addr)
	}
	if why := s.rules.MustResolve(f.to); d.Allowed && f.byName && why != "" {
		return errors.New("its address is known to the upstream proxy only, and " + why)
	}
	if !d.Allowed {
		return errors.New(d.Why)
	}
	return nil
}

// open lets a connection that was dialled begin, unless the rules of now do not allow it. Rules
// that come later find it among the open ones, so none slips between.
func (n *Network) open(f *flow, closeAll func()) bool {
	return f.open(closeAll, func() error { return n.rules.Load().allows(f) })
}

// Log returns the last connections and denials.
func (n *Network) Log() sandpit.EgressLog { return n.flows.log() }

// Resume lets the network count on from what an earlier one of the same sandbox has counted. It
// is called right after New.
func (n *Network) Resume(t engine.Traffic) {
	n.bounds.sent.Add(t.Sent)
	n.bounds.received.Add(t.Received)
	n.flows.resume(t)
}

// Traffic returns what was counted so far.
func (n *Network) Traffic() engine.Traffic { return n.flows.traffic() }

// Denials returns the denials since the last call.
func (n *Network) Denials() []sandpit.EgressDenial { return n.flows.take() }

// Close ends all connections and the interface, and returns when nothing of them is left.
func (n *Network) Close() {
	n.once.Do(func() {
		n.mu.Lock()
		n.closed = true
		n.mu.Unlock()
		n.end()
		n.flows.end(func(*flow) error { return net.ErrClosed })
		n.link.Close()
		n.link.Wait() // before Destroy, which waits for it with the lock that packets need
		done := make(chan struct{})
		go func() {
			n.work.Wait()
			close(done)
		}()
		for ended := false; !ended; {
			for _, ep := range n.stack.RegisteredEndpoints() { // also those that were made meanwhile
				ep.Abort()
			}
			select {
			case <-done:
				ended = true
			case <-time.After(10 * time.Millisecond):
			}
		}
		n.stack.Destroy()
		n.sockets.leave()
	})
}

// enter adds to the work that Close waits for. It reports false once Close was called.
func (n *Network) enter() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.work.Add(1)
	return true
}

// refusalRate is the number of refusals per second, and at once, that get an answer.
const refusalRate = 1000

// unlessFlooded returns a handler of packets that belong to no connection. While a sandbox makes
// more of those that are refused than refusalRate, they are dropped, and only counted: a refusal
// takes the sandbox less than this machine.
func (n *Network) unlessFlooded(handle func(stack.TransportEndpointID, *stack.PacketBuffer) bool) func(stack.TransportEndpointID, *stack.PacketBuffer) bool {
	return func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		if n.refusals.Tokens() < 1 {
			n.flows.dropped()
			return true
		}
		handled := handle(id, pkt)
		if !handled { // so it is answered by a reset or an ICMP error
			n.refusals.Allow()
		}
		return handled
	}
}

// forward decides about a connection that the sandbox wants to make. It is called in a
// goroutine of its own, of which the stack bounds the number.
func (n *Network) forward(r *tcp.ForwarderRequest) {
	if !n.enter() {
		r.Complete(false)
		return
	}
	defer n.work.Done()
	id := r.ID()
	addr, _ := netip.AddrFromSlice(id.LocalAddress.AsSlice())
	switch {
	case isNameServer(addr, id.LocalPort):
		n.forwardNames(r)
		return
	case isProxy(addr, id.LocalPort):
		n.forwardProxy(r)
		return
	}
	to, ok := n.destination(egress.TCP, addr, id.LocalPort)
	f := n.flows.begin(to)
	refuse := func(err error) {
		n.refusals.Allow()
		f.finish(err)
		r.Complete(true)
	}
	set := n.rules.Load()
	if !ok {
		f.decide(sandpit.EgressDecision{Why: "the address " + addr.String() + " was not given to a name"})
		refuse(nil)
		return
	}
	d := set.rules.Decide(to)
	f.decide(d)
	if !d.Allowed {
		refuse(nil)
		return
	}
	size, release, err := n.bounds.admit()
	if err != nil {
		f.decide(sandpit.EgressDecision{Why: err.Error()})
		refuse(nil)
		return
	}
	defer release()
	defer n.names.hold(to.Host)()
	dialler := &dialler{rules: &n.rules, set: set, to: to, flow: f, network: "tcp"}
	out, err := dialler.dial(n.ctx)
	if err != nil {
		refuse(err)
		return
	}
	in, err := n.accept(r, size)
	if err != nil {
		out.Close()
		f.finish(err)
		return
	}
	if n.open(f, func() { in.ep.Abort(); abort(out) }) {
		f.finish(n.serve(n.count(in, f), out, dialler))
	}
	drain(in.ep)
}

// abort closes a connection with a reset, if it can: its other end must not take what it got for all.
func abort(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
	c.Close()
}

// end is the sandbox's end of a connection.
type end struct {
	*gonet.TCPConn
	ep    tcpip.Endpoint // of TCPConn
	queue *waiter.Queue  // for its events
}

// accept takes up a connection that was admitted with buffers of a size. The caller has to drain it.
func (n *Network) accept(r *tcp.ForwarderRequest, size int64) (*end, error) {
	wq := new(waiter.Queue)
	ep, err := r.CreateEndpoint(wq)
	r.Complete(false)
	if err != nil {
		return nil, errors.New(err.String())
	}
	ep.SocketOptions().SetSendBufferSize(size, true)
	ep.SocketOptions().SetReceiveBufferSize(size, true)
	return &end{gonet.NewTCPConn(wq, ep), ep, wq}, nil
}

// count counts and bounds what is moved for a flow.
func (n *Network) count(e *end, f *flow) *counted {
	return &counted{end: e, ctx: n.ctx, flow: f, bounds: &n.bounds, sockets: n.sockets}
}

// drain closes a connection and returns once the sandbox has taken what was sent to it, so that
// the connection counts as long as it holds memory.
func drain(ep tcpip.Endpoint) {
	ep.Close()
	timer := time.AfterFunc(drainTime, ep.Abort)
	defer timer.Stop()
	if ep, ok := ep.(*tcp.Endpoint); ok {
		ep.Wait()
	}
}

// dialable says whether an address may be dialled for an allowed destination.
func (s *ruleset) dialable(to egress.Destination, a netip.Addr) sandpit.EgressDecision {
	if d := s.rules.Dialable(to, a); !d.Allowed {
		return d
	}
	return s.resolver.notOwn(a, s.rules.Named(to, a))
}

// destination returns where an address that the sandbox uses leads to.
func (n *Network) destination(p egress.Protocol, addr netip.Addr, port uint16) (egress.Destination, bool) {
	name, given := n.names.name(addr)
	if !given {
		return egress.Destination{Protocol: p, Addr: addr.Unmap(), Port: port}, true
	}
	return egress.Destination{Protocol: p, Host: name, Addr: addr, Port: port}, name != ""
}

// dialTimeout bounds how long an origin may take to accept a connection.
const dialTimeout = 30 * time.Second

// A dialler makes connections to one destination.
type dialler struct {
	rules   *atomic.Pointer[ruleset] // of now, which each dial goes by
	set     *ruleset                 // that the connection began with
	to      egress.Destination
	flow    *flow
	network string // "tcp", "udp" or "ping"
	proxied bool   // by requests to the proxy, of which each may have another host

	listenEcho ListenEcho // of "ping"
}

// dial resolves the destination, checks its addresses, and connects to the first that answers. A name
// may be left to the upstream proxy: see byName.
func (d *dialler) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	set := d.rules.Load()
	verdict := set.rules.Decide(d.to)
	d.flow.decide(verdict)
	if !verdict.Allowed {
		return nil, errors.New(verdict.Why)
	}
	if why := set.uncarried(d.to); why != "" {
		d.flow.decide(sandpit.EgressDecision{Why: why})
		return nil, errors.New(why)
	}
	if set.byName(d.to) {
		d.flow.leftToProxy()
		return set.resolver.sockets.dial(egress.TCP, netip.AddrPort{}, func() (net.Conn, error) {
			return set.way.Dial(ctx, net.JoinHostPort(d.to.Host, strconv.Itoa(int(d.to.Port))))
		})
	}
	addrs := []netip.Addr{d.to.Addr}
	if d.to.Host != "" {
		var err error
		if addrs, err = set.lookup(ctx, d.to); err != nil {
			return nil, err
		}
	}
	if _, err := set.resolver.ownAddresses(); err != nil {
		return nil, err // which is not a denial
	}
	var first error
	var denied *sandpit.EgressDecision
	for i, a := range addrs {
		if verdict := set.dialable(d.to, a); !verdict.Allowed {
			denied = &verdict
			continue
		}
		// A silent address leaves time for the others.
		conn, err := d.connect(ctx, set, a, dialTimeout/time.Duration(min(len(addrs)-i, 4)))
		if err == nil && set.direct(d.to, a) && fromItself(conn, a) && !set.rules.Named(d.to, a) {
			conn.Close()
			denied = &sandpit.EgressDecision{Why: "its address is this machine's own, and no rule names it"}
			continue
		}
		if err == nil {
			d.flow.dialled(netip.AddrPortFrom(a, d.to.Port))
			return conn, nil
		}
		if first == nil {
			first = err
		}
	}
	if denied != nil {
		d.flow.decide(*denied) // of addresses that are as good as none
		return nil, errors.New(denied.Why)
	}
	return nil, first
}

// fromItself reports whether a connection to an address comes from that address: it is this machine's own, by
// a local route at least.
func fromItself(conn net.Conn, a netip.Addr) bool {
	from, err := netip.ParseAddrPort(conn.LocalAddr().String())
	own := from.Addr().Unmap().WithZone("")
	return err == nil && (own == a || own.IsLoopback()) // with IPv6 it is ::1
}

// connect connects to an address that was checked.
func (d *dialler) connect(ctx context.Context, set *ruleset, a netip.Addr, timeout time.Duration) (net.Conn, error) {
	direct := set.direct(d.to, a)
	var addr netip.AddrPort // of the proxy
	if direct {
		addr = netip.AddrPortFrom(a, d.to.Port)
	}
	return set.resolver.sockets.dial(d.to.Protocol, addr, func() (net.Conn, error) {
		if d.network != "ping" || !direct {
			return set.connect(ctx, d.network, d.to, a, timeout)
		}
		c, err := d.listenEcho(ctx, a.Is6())
		if err != nil {
			return nil, err
		}
		return &echoSocket{PacketConn: c, to: a}, nil
	})
}
