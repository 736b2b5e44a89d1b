package network

import (
	"bufio"
	"crypto/tls"
	"net"
	"net/netip"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
)

// The name in a ClientHello is that of the connection; where there is none, it is at least not one
// that is denied, whose requests have to be seen, or of a name server that no rule names.
func TestNamesInTLS(t *testing.T) {
	rules, err := egress.Compile(sandpit.Egress{
		Preset: sandpit.EgressPublic, Deny: []string{"evil.test", "DELETE:https://no-delete.test/*"}, Allow: []string{"GET:https://only-get.test/*", "dns.quad9.net", "192.0.2.1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	byName := egress.Destination{Protocol: egress.TCP, Host: "good.test", Port: 443}
	byAddr := egress.Destination{Protocol: egress.TCP, Addr: netip.MustParseAddr("93.184.216.34"), Port: 443}
	for _, c := range []struct {
		to      egress.Destination
		name    string
		allowed bool
	}{
		{byName, "good.test", true},
		{byName, "GOOD.test", true},
		{byName, "other.test", false},
		{byName, "", false},
		{byAddr, "good.test", true},
		{byAddr, "evil.test", false},
		{byAddr, "no-delete.test", false},
		{byAddr, "only-get.test", false},
		{byAddr, "dns.google", false},
		{byAddr, "dns.quad9.net", true}, // a rule names it
		{egress.Destination{Protocol: egress.TCP, Addr: netip.MustParseAddr("192.0.2.1"), Port: 443}, "dns.google", true},
		{byAddr, "", true},
	} {
		client, server := net.Pipe()
		go func() {
			_ = tls.Client(client, &tls.Config{ServerName: c.name, InsecureSkipVerify: true}).Handshake()
			client.Close()
		}()
		why := checkHello(bufio.NewReaderSize(server, peekSize), c.to, rules)
		server.Close()
		if (why == "") != c.allowed {
			t.Errorf("%q to %s: %q", c.name, c.to, why)
		}
	}
}

// What a lenient origin may read as HTTP is told apart in whatever pieces it comes; all else is
// passed on as soon as it can't be HTTP any more.
func TestLooksLike(t *testing.T) {
	for text, want := range map[string]kind{
		"GET / HTTP/1.1\r\n": kindHTTP, "get /x": kindHTTP, "POST\t/x": kindHTTP, "\r\n\n GET /": kindHTTP, "PRI * HTTP/2.0\r\n": kindHTTP, "CONNECT x:1": kindHTTP,
		"FROB / HTTP/1.1\n": kindHTTP, "frob /x http/1.0\r\n": kindHTTP, "X-Y.Z\v/\fHTTP/1.1\n": kindHTTP, "M-SEARCH * HTTP/1.1\n": kindHTTP, "GET\r/": kindHTTP,
		"\x1cGET / HTTP/1.1\r\n": kindHTTP, "GET\x1f/x HTTP/1.1": kindHTTP, "\xa0GET\x85/": kindHTTP, "\u2003FROB / HTTP/1.1\n": kindHTTP, "\xc2\xa0EHLO me\r\n": kindOther,
		"\x15\x03\x01\x00\x02\x01\x70": kindTLS, "\x15\x04": kindOther, "\x14G": kindOther, "\x00\x00\x00\x54\x00\x03\x00\x00user": kindOther, "\x10\x0c\x00\x04MQTT": kindOther, "\x80\x2e\x01": kindOther,
		"\x16\x03\x01": kindTLS, "\x16\x04": kindOther,
		"SSH-2.0-x\r\n": kindOther, "EHLO me\r\n": kindOther, "\x00": kindOther, "{": kindOther, "NICK x\r\n": kindOther, "a1 LOGIN x y\r\n": kindOther, "GETX /x\n": kindOther,
		"0032git-upload-pack /x\x00": kindOther, "AMQP\x00": kindOther, "PING\r\n": kindOther, "*1\r\n": kindOther, "\r\n\x01": kindOther, "<stream": kindOther, "(x": kindOther,
	} {
		for i := 1; i < len(text); i++ {
			if k, sure := looksLike([]byte(text[:i])); sure && k != want {
				t.Errorf("%q of %q is taken for %d", text[:i], text, k)
			}
		}
		if k, sure := looksLike([]byte(text)); k != want || !sure {
			t.Errorf("%q is taken for %d, %v; want %d", text, k, sure, want)
		}
	}
	for _, part := range []string{"G", "GET", "\r\n", "FROB", "FROB /", "FROB / HTTP/1.1", "\x16", "SSH-2.0-x"} {
		if k, sure := looksLike([]byte(part)); sure {
			t.Errorf("%q alone is taken for %d", part, k)
		}
	}
}
