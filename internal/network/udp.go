package network

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// udpIdle is how long an exchange of datagrams lasts after the last one (RFC 4787, section 4.3,
// asks for 2 minutes at least, of translators of whole networks).
const udpIdle = 2 * time.Minute

// datagrams decides about the first datagram of an exchange. If it returns false, the sandbox
// gets an ICMP error.
func (n *Network) datagrams(r *udp.ForwarderRequest) bool {
	id := r.ID()
	addr, _ := netip.AddrFromSlice(id.LocalAddress.AsSlice())
	to, ok := n.destination(egress.UDP, addr, id.LocalPort)
	f := n.flows.begin(to)
	set := n.rules.Load()
	d := set.rules.Decide(to)
	if !ok {
		d.Allowed, d.Why = false, "the address "+addr.String()+" was not given to a name"
	}
	if f.decide(d); !d.Allowed {
		f.finish(nil)
		return false
	}
	_, release, err := n.bounds.admit()
	if err != nil {
		d.Allowed, d.Why = false, err.Error()
		f.decide(d)
		f.finish(nil)
		return false
	}
	var wq waiter.Queue
	ep, tcpErr := r.CreateEndpoint(&wq)
	if tcpErr != nil {
		release()
		f.finish(errors.New(tcpErr.String()))
		return true
	}
	in := gonet.NewUDPConn(&wq, ep)
	n.work.Go(func() {
		defer release()
		defer n.names.hold(to.Host)()
		defer in.Close()
		up := n.take(in)
		dialler := &dialler{rules: &n.rules, set: set, to: to, flow: f, network: "udp"}
		out, err := dialler.dial(n.ctx)
		if err != nil {
			f.finish(err)
			return
		}
		defer out.Close()
		if n.open(f, func() { in.Close(); out.Close() }) {
			f.finish(n.exchange(in, up, out, f, udpIdle))
		}
	})
	return true
}

// A backlog has datagrams of a sandbox that wait to be sent. Those that find it full are lost: the
// queue of an endpoint bounds their bytes only, of which a datagram may have none.
type backlog struct {
	waiting chan []byte  // closed when no more come
	size    atomic.Int64 // bytes that wait
	err     error        // why no more come; valid once waiting is closed
}

const (
	maxWaiting      = 64       // datagrams
	maxWaitingBytes = 64 << 10 // and up to one datagram more
)

// take takes datagrams from a connection until it ends.
func (n *Network) take(in net.Conn) *backlog {
	b := &backlog{waiting: make(chan []byte, maxWaiting)}
	n.work.Go(func() {
		defer close(b.waiting)
		buf := packets.Get().(*[virtioSize + netaddr.MTU]byte)
		defer packets.Put(buf)
		for {
			var size int
			if size, b.err = in.Read(buf[:]); b.err != nil {
				return
			}
			b.add(buf[:size])
		}
	})
	return b
}

// add adds a datagram, unless there are too many. One goroutine calls it.
func (b *backlog) add(datagram []byte) {
	if b.size.Load() >= maxWaitingBytes {
		return
	}
	select {
	case b.waiting <- bytes.Clone(datagram):
		b.size.Add(int64(len(datagram)))
	default:
	}
}

// exchange passes datagrams on in both directions until there are none for so long.
func (n *Network) exchange(in net.Conn, sent *backlog, out net.Conn, f *flow, idle time.Duration) error {
	pass := func(to net.Conn, datagram []byte, up, down int) error {
		if err := n.bounds.count(n.ctx, f, up, down); err != nil {
			return err
		}
		f.moved(int64(up), int64(down))
		until := time.Now().Add(idle)
		_ = in.SetReadDeadline(until)
		_ = out.SetReadDeadline(until)
		_, err := to.Write(datagram)
		return err
	}
	up := make(chan error, 1)
	go func() {
		defer out.Close()
		for datagram := range sent.waiting {
			sent.size.Add(-int64(len(datagram)))
			if err := pass(out, datagram, len(datagram), 0); err != nil {
				up <- err
				return
			}
		}
		up <- sent.err
	}()
	buf := packets.Get().(*[virtioSize + netaddr.MTU]byte)
	defer packets.Put(buf)
	var err error
	for size := 0; err == nil; {
		if size, err = out.Read(buf[:]); err == nil {
			err = pass(in, buf[:size], 0, size)
		}
	}
	in.Close()
	if err = errors.Join(err, <-up); isTimeout(err) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
