package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

// resolver finds the addresses of allowed names, on this side. It is safe for concurrent use.
type resolver struct {
	ctx     context.Context // of the network: ends what goes on
	sockets *share          // of the network
	rules   *egress.Rules

	servers []netip.AddrPort // none: those of this machine, by way
	way     *upstream.Way
	chosen  bool          // the caller has named them
	granted []netip.Addr  // Terms.Own
	next    atomic.Uint32 // server: each try asks the next one

	mu    sync.Mutex
	cache map[string]*answer // guarded by mu
	own   []netip.Addr       // this machine's addresses, guarded by mu
	ownAt time.Time          // when they were read, guarded by mu
}

// answer is a lookup that goes on or is kept.
type answer struct {
	done  chan struct{}
	until time.Time
	addrs []netip.Addr
	err   error
}

const (
	maxAnswers    = 1024             // names whose addresses are kept
	maxAddrs      = 16               // of a name
	keepAnswer    = 10 * time.Second // how long; Go's resolver does not tell their lifetime
	keepFailure   = time.Second
	lookupTimeout = 10 * time.Second
	tryTimeout    = 2 * time.Second // of a name server, which is asked twice: programs inside wait for 5 s or more
	keepOwn       = 5 * time.Second
)

// newResolver makes a resolver that asks servers, or if there are none, those of this machine, which way knows.
func newResolver(t engine.Terms, rules *egress.Rules, servers []netip.AddrPort, way *upstream.Way) *resolver {
	return &resolver{rules: rules, way: way, servers: servers, chosen: len(t.Egress.DNS) > 0, granted: t.Own, cache: map[string]*answer{}}
}

// dial connects to a name server.
func (r *resolver) dial(ctx context.Context, network, server string) (conn net.Conn, err error) {
	if len(r.servers) > 0 {
		s := r.servers[int(r.next.Add(1)-1)%len(r.servers)]
		if verdict := r.notOwn(s.Addr(), true); r.chosen && !verdict.Allowed {
			return nil, errors.New(verdict.Why)
		}
		server = s.String()
	} else if server, err = r.way.NameServer(ctx, server); err != nil {
		return nil, err
	}
	protocol := egress.TCP
	if strings.HasPrefix(network, "udp") {
		protocol = egress.UDP
	}
	addr, _ := netip.ParseAddrPort(server)
	conn, err = r.sockets.dial(protocol, addr, func() (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, network, server) })
	if err == nil {
		context.AfterFunc(ctx, func() { conn.Close() }) // Go waits for an answer longer than for ctx
	}
	if udp, ok := conn.(udpConn); ok {
		return briefly{udp}, nil
	}
	return conn, err
}

// briefly is a connection to a name server, which has tryTimeout where Go's resolver gives it 5 s.
type briefly struct{ udpConn }

// udpConn tells Go's resolver that it has to do with datagrams.
type udpConn interface {
	net.Conn
	net.PacketConn
}

// SetDeadline is called before a question is sent.
func (c briefly) SetDeadline(t time.Time) error {
	if most := time.Now().Add(tryTimeout); most.Before(t) {
		t = most
	}
	return c.udpConn.SetDeadline(t)
}

// addresses asks for the addresses of a name. The error does not say which name servers there are: callers
// may be anybody.
func (r *resolver) addresses(ctx context.Context, name string) ([]netip.Addr, error) {
	var asked atomic.Bool
	dns := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, server string) (net.Conn, error) {
		asked.Store(true)
		return r.dial(ctx, network, server)
	}}
	addrs, err := dns.LookupNetIP(ctx, "ip", name+".")
	if err == nil && (len(addrs) == 0 || len(r.servers) > 0 && !asked.Load()) { // then /etc/hosts has answered
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	if failed := (*net.DNSError)(nil); errors.As(err, &failed) {
		why := failed.Err[strings.LastIndex(failed.Err, ": ")+1:]
		if failed.IsTimeout {
			why = "no name server answered in time"
		}
		err = &net.DNSError{Err: strings.TrimSpace(why), Name: name, IsTimeout: failed.IsTimeout, IsTemporary: failed.IsTemporary, IsNotFound: failed.IsNotFound}
	}
	return addrs, err
}

// lookup returns the addresses of a Name, at least one.
func (r *resolver) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	if addrs := r.rules.Addresses(name); len(addrs) > 0 {
		return addrs, nil
	}
	r.mu.Lock()
	a := r.cache[name]
	if a == nil || !a.until.IsZero() && time.Now().After(a.until) {
		if len(r.cache) >= maxAnswers {
			for other := range r.cache { // any
				delete(r.cache, other)
				break
			}
		}
		a = &answer{done: make(chan struct{})}
		r.cache[name] = a
		go r.ask(a, name)
	}
	r.mu.Unlock()
	select {
	case <-a.done:
		return a.addrs, a.err
	case <-ctx.Done():
		return nil, fault.Errorf(sandpit.ErrUnavailable, "resolving %s: %w", name, context.Cause(ctx))
	}
}

// ask asks the name servers, for all who wait for the answer.
func (r *resolver) ask(a *answer, name string) {
	ctx, cancel := context.WithTimeout(r.ctx, lookupTimeout)
	defer cancel()
	addrs, err := r.addresses(ctx, name)
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	slices.SortStableFunc(addrs, func(x, y netip.Addr) int { return x.BitLen() - y.BitLen() }) // IPv4 first
	keep := keepAnswer
	if notFound := (*net.DNSError)(nil); err != nil && !(errors.As(err, &notFound) && notFound.IsNotFound) {
		keep = keepFailure
	}
	r.mu.Lock()
	a.addrs, a.err, a.until = addrs[:min(len(addrs), maxAddrs)], err, time.Now().Add(keep)
	r.mu.Unlock()
	close(a.done)
}

// notOwn denies addresses of this machine, also public ones, unless they are named, and were this
// machine's own when that was granted.
func (r *resolver) notOwn(a netip.Addr, named bool) sandpit.EgressDecision {
	if named && slices.Contains(r.granted, a) {
		return sandpit.EgressDecision{Allowed: true}
	}
	own, err := r.ownAddresses()
	switch {
	case err != nil:
		return sandpit.EgressDecision{Why: "whether its address is this machine's own is not known: " + err.Error()}
	case named && slices.Contains(own, a):
		return sandpit.EgressDecision{Why: "its address has become this machine's own since the rules were set"}
	case slices.Contains(own, a):
		return sandpit.EgressDecision{Why: "its address is this machine's own, and no rule names it"}
	}
	return sandpit.EgressDecision{Allowed: true}
}

// ownAddresses returns the addresses of this machine's interfaces.
func (r *resolver) ownAddresses() ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.ownAt) < keepOwn {
		return r.own, nil
	}
	own, err := machineAddresses()
	if err != nil {
		return nil, err
	}
	r.own, r.ownAt = own, time.Now()
	return own, nil
}

func machineAddresses() (own []netip.Addr, err error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			return nil, err
		}
		own = append(own, p.Addr().Unmap())
	}
	return own, nil
}
