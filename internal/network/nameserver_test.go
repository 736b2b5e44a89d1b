package network

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServerOutside is a name server of an attacker. Its answers have a lifetime of 0.
type nameServerOutside struct {
	addr   string
	answer func(name string, count int) []string // addresses, and before them a name for a CNAME

	mu    sync.Mutex
	asked map[string]int // questions by type and name, guarded by mu
}

func serveNamesOutside(t testing.TB, answer func(name string, count int) []string) *nameServerOutside {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServerOutside{addr: conn.LocalAddr().String(), answer: answer, asked: map[string]int{}}
	var work sync.WaitGroup
	work.Go(func() {
		buf := make([]byte, 4096)
		for {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var q dnsmessage.Message
			if err := q.Unpack(buf[:size]); err != nil || len(q.Questions) == 0 {
				continue
			}
			if msg, err := s.respond(&q).Pack(); err == nil {
				_, _ = conn.WriteTo(msg, from)
			}
		}
	})
	t.Cleanup(func() { conn.Close(); work.Wait() })
	return s
}

func (s *nameServerOutside) respond(q *dnsmessage.Message) *dnsmessage.Message {
	question := q.Questions[0]
	name := strings.TrimSuffix(question.Name.String(), ".")
	key := strings.TrimPrefix(question.Type.String(), "Type") + " " + name
	s.mu.Lock()
	s.asked[key]++
	count := s.asked[key]
	s.mu.Unlock()
	msg := &dnsmessage.Message{Header: dnsmessage.Header{ID: q.ID, Response: true, RecursionAvailable: true}, Questions: q.Questions[:1]}
	all := s.answer(name, count)
	if all == nil {
		msg.RCode = dnsmessage.RCodeNameError
		return msg
	}
	head := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET}
	for _, text := range all {
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			canonical := dnsmessage.MustNewName(text + ".")
			head.Type = dnsmessage.TypeCNAME
			msg.Answers = append(msg.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.CNAMEResource{CNAME: canonical}})
			head.Name = canonical
		case a.Is4() && question.Type == dnsmessage.TypeA:
			head.Type = dnsmessage.TypeA
			msg.Answers = append(msg.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && question.Type == dnsmessage.TypeAAAA:
			head.Type = dnsmessage.TypeAAAA
			msg.Answers = append(msg.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	return msg
}

// questions returns what was asked for, and how often.
func (s *nameServerOutside) questions() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]int{}
	for k, n := range s.asked {
		all[k] = n
	}
	return all
}
