package main

import (
	"net"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/net/dns/dnsmessage"
)

// serveNames starts a name server that knows a private address for names below private.test, and no other name.
// It returns its address.
func serveNames(env *testscript.Env) (string, error) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	env.Defer(func() { conn.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var msg dnsmessage.Message
			if msg.Unpack(buf[:n]) != nil || len(msg.Questions) != 1 {
				continue
			}
			msg.Response, msg.RCode, msg.Additionals = true, dnsmessage.RCodeNameError, nil
			if q := msg.Questions[0]; strings.HasSuffix(q.Name.String(), ".private.test.") {
				msg.RCode = dnsmessage.RCodeSuccess
				if q.Type == dnsmessage.TypeA {
					head := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, Type: q.Type, TTL: 1}
					msg.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AResource{A: [4]byte{10, 9, 9, 9}}}}
				}
			}
			if b, err := msg.Pack(); err == nil {
				_, _ = conn.WriteTo(b, from)
			}
		}
	}()
	return conn.LocalAddr().String(), nil
}
