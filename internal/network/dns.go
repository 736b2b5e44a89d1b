package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

const (
	dnsPort      = 53
	dnsTTL       = 30              // seconds: the addresses hold as long as the sandbox
	dnsRate      = 200             // questions per second; what is above has no answer
	dnsBurst     = 400             // questions
	dnsTCP       = 16              // connections at once
	dnsTCPIdle   = 5 * time.Second // without a question
	maxQuestions = 64              // that wait for an answer from outside
)

// nameServer answers the questions of one sandbox.
type nameServer struct {
	n       *Network
	limit   *rate.Limiter
	waiting chan struct{} // questions
	streams chan struct{} // connections
}

// isNameServer reports whether an address is that of the name server inside.
func isNameServer(a netip.Addr, port uint16) bool {
	return port == dnsPort && (a == netaddr.Gateway4() || a == netaddr.Gateway6())
}

func newNameServer(n *Network) *nameServer {
	return &nameServer{n: n, limit: rate.NewLimiter(dnsRate, dnsBurst), waiting: make(chan struct{}, maxQuestions), streams: make(chan struct{}, dnsTCP)}
}

// serveNames starts the name server inside.
func (n *Network) serveNames() error {
	s := n.nameServer
	for _, at := range []struct {
		address  netip.Addr
		protocol tcpip.NetworkProtocolNumber
	}{{netaddr.Gateway4(), header.IPv4ProtocolNumber}, {netaddr.Gateway6(), header.IPv6ProtocolNumber}} {
		full := tcpip.FullAddress{NIC: nic, Addr: tcpipAddr(at.address), Port: dnsPort}
		packets, err := gonet.DialUDP(n.stack, &full, nil, at.protocol)
		if err != nil {
			return fmt.Errorf("serving names: %w", err)
		}
		n.work.Go(func() { s.packets(packets) })
		context.AfterFunc(n.ctx, func() { packets.Close() })
	}
	return nil
}

// packets answers questions over UDP.
func (s *nameServer) packets(conn *gonet.UDPConn) {
	buf := make([]byte, 4096)
	for {
		size, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if !s.limit.Allow() {
			continue
		}
		s.answer(append([]byte(nil), buf[:size]...), func(b []byte) { _, _ = conn.WriteTo(b, from) })
	}
}

// forwardNames answers questions over TCP (RFC 7766).
func (n *Network) forwardNames(r *tcp.ForwarderRequest) {
	s := n.nameServer
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		r.Complete(true)
		return
	}
	size, release, err := n.bounds.admit()
	if err != nil {
		r.Complete(true)
		return
	}
	defer release()
	conn, err := n.accept(r, size)
	if err != nil {
		return
	}
	defer drain(conn.ep)
	for s.one(conn) == nil {
	}
}

// one answers the next question of a connection.
func (s *nameServer) one(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(dnsTCPIdle))
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return err
	}
	q := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, q); err != nil {
		return err
	}
	if err := s.limit.Wait(s.n.ctx); err != nil {
		return err
	}
	answered := make(chan error, 1)
	if !s.answer(q, func(b []byte) {
		_, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
		answered <- err
	}) {
		return errors.New("not a question")
	}
	return <-answered
}

// answer answers a question, now or after somebody outside was asked. It reports whether it
// calls reply.
func (s *nameServer) answer(q []byte, reply func([]byte)) bool {
	var p dnsmessage.Parser
	head, err := p.Start(q)
	if err != nil || head.Response {
		return false
	}
	question, err := p.Question()
	if _, more := p.Question(); err != nil || head.OpCode != 0 || !errors.Is(more, dnsmessage.ErrSectionDone) { // RFC 9619
		reply(respond(head, nil, dnsmessage.RCodeFormatError, netip.Addr{}))
		return true
	}
	say := func(code dnsmessage.RCode, a netip.Addr) { reply(respond(head, &question, code, a)) }
	name, err := egress.Name(question.Name.String())
	if err != nil || question.Class != dnsmessage.ClassINET {
		say(dnsmessage.RCodeNameError, netip.Addr{})
		return true
	}
	if name == "localhost" {
		say(dnsmessage.RCodeNameError, netip.Addr{}) // it is in /etc/hosts (RFC 6761, section 6.3)
		return true
	}
	set := s.n.rules.Load()
	if service, ok := serviceOf(name); ok && set.rules.Resolvable(service) {
		say(dnsmessage.RCodeNameError, netip.Addr{}) // clients such as apt ask, and then for the name itself
		return true
	}
	if !set.rules.Resolvable(name) {
		s.n.flows.refused(name, question.Type.String(), set.rules.Decide(egress.Destination{Protocol: egress.TCP, Host: name}).Why)
		say(dnsmessage.RCodeNameError, netip.Addr{})
		return true
	}
	select {
	case s.waiting <- struct{}{}:
	default:
		say(dnsmessage.RCodeServerFailure, netip.Addr{})
		return true
	}
	s.n.work.Go(func() {
		defer func() { <-s.waiting }()
		ctx, cancel := context.WithTimeout(s.n.ctx, lookupTimeout)
		defer cancel()
		var err error
		if to := (egress.Destination{Protocol: egress.TCP, Host: name}); !set.byName(to) {
			_, err = set.lookup(ctx, to)
		}
		a4, a6, room := s.n.names.address(name)
		switch notFound := (*net.DNSError)(nil); {
		case err != nil:
			s.n.flows.unresolved(name, question.Type.String(), set.rules.Decide(egress.Destination{Protocol: egress.TCP, Host: name}), err)
			if errors.As(err, &notFound) && notFound.IsNotFound {
				say(dnsmessage.RCodeNameError, netip.Addr{})
				return
			}
			say(dnsmessage.RCodeServerFailure, netip.Addr{})
		case !room:
			say(dnsmessage.RCodeServerFailure, netip.Addr{})
		case question.Type == dnsmessage.TypeA:
			say(dnsmessage.RCodeSuccess, a4)
		case question.Type == dnsmessage.TypeAAAA:
			say(dnsmessage.RCodeSuccess, a6)
		default: // there is nothing of that type
			say(dnsmessage.RCodeSuccess, netip.Addr{})
		}
	})
	return true
}

// serviceOf returns the name whose service a name of an SRV record is about (RFC 2782):
// _SERVICE._PROTOCOL.NAME.
func serviceOf(name string) (string, bool) {
	labels := strings.SplitN(name, ".", 3)
	if len(labels) < 3 || labels[0][0] != '_' || labels[1][0] != '_' {
		return "", false
	}
	return labels[2], true
}

// respond makes an answer with at most one address.
func respond(head dnsmessage.Header, q *dnsmessage.Question, code dnsmessage.RCode, a netip.Addr) []byte {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{
		ID: head.ID, Response: true, OpCode: head.OpCode, RecursionDesired: head.RecursionDesired, RecursionAvailable: true, RCode: code,
	})
	b.EnableCompression()
	ok := b.StartQuestions()
	if q != nil && ok == nil {
		ok = b.Question(*q)
	}
	if a.IsValid() && ok == nil {
		rh := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: dnsTTL}
		if ok = b.StartAnswers(); ok == nil && a.Is4() {
			ok = b.AResource(rh, dnsmessage.AResource{A: a.As4()})
		} else if ok == nil {
			ok = b.AAAAResource(rh, dnsmessage.AAAAResource{AAAA: a.As16()})
		}
	}
	msg, err := b.Finish()
	if ok != nil || err != nil {
		return nil
	}
	return msg
}
