package network

import (
	"errors"
	"io"
	"net"
	"net/netip"
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
	release, err := n.bounds.admit()
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
		dialler := &dialler{rules: &n.rules, set: set, to: to, flow: f, network: "udp"}
		out, err := dialler.dial(n.ctx)
		if err != nil {
			f.finish(err)
			return
		}
		defer out.Close()
		if n.open(f, func() { in.Close(); out.Close() }) {
			f.finish(n.exchange(in, out, f))
		}
	})
	return true
}

// exchange passes datagrams on in both directions until there are none for udpIdle.
func (n *Network) exchange(in, out net.Conn, f *flow) error {
	move := func(to, from net.Conn, sent bool) error {
		buf := packets.Get().(*[netaddr.MTU]byte)
		defer packets.Put(buf)
		for {
			size, err := from.Read(buf[:])
			if err != nil {
				return err
			}
			up, down := size, 0
			if !sent {
				up, down = 0, size
			}
			f.moved(int64(up), int64(down))
			if err := n.bounds.count(n.ctx, up, down); err != nil {
				return err
			}
			until := time.Now().Add(udpIdle)
			_ = in.SetReadDeadline(until)
			_ = out.SetReadDeadline(until)
			if _, err := to.Write(buf[:size]); err != nil {
				return err
			}
		}
	}
	up := make(chan error, 1)
	go func() {
		err := move(out, in, true)
		out.Close()
		up <- err
	}()
	err := move(in, out, false)
	in.Close()
	if err = errors.Join(err, <-up); isTimeout(err) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
