package network

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
		"GET / HTTP/1.1\r\n": kindHTTP, "get /x HTTP/1.1\n": kindHTTP, "POST\t/x\x01 http/1.0\n": kindHTTP, "\r\n\n GET / HTTP/1.1\n": kindHTTP, "CONNECT x:1 HTTP/1.1\n": kindHTTP,
		"FROB / HTTP/1.1\n": kindHTTP, "frob /x http/1.0\r\n": kindHTTP, "X-Y.Z\v/\fHTTP/1.1\n": kindHTTP, "M-SEARCH * HTTP/1.1\n": kindHTTP, "GET\r/ HTTP/1.1\n": kindHTTP,
		"\x1cGET / HTTP/1.1\r\n": kindHTTP, "GET\x1f/x HTTP/1.1\n": kindHTTP, "\xa0GET\x85/ HTTP/1.1\n": kindHTTP, "\u2003FROB / HTTP/1.1\n": kindHTTP, "\xc2\xa0EHLO me\r\n": kindOther,
		preface: kindHTTP2, "\nPRI * HTTP/2.0\r\n": kindHTTP, "PRI * HTTP/2.1\r\n": kindHTTP, "PRI\t* HTTP/2.0\r\n": kindHTTP,
		"GET /\r\n": kindUnsure, "\nPOST\u2003/x y\n": kindUnsure, "GET foo\r\n": kindUnsure, "PUT x:http://evil.test/ \n": kindUnsure, "PUT /\xff\n": kindUnsure,
		"OPTIONS rtsp://good.test/ RTSP/1.0\r\n": kindUnsure, "DESCRIBE / RTSP/1.0\n": kindUnsure, "REGISTER sip:x SIP/2.0 \r\n": kindUnsure,
		"get foo\r\n": kindOther, "get /a /b\r\n": kindWords, "get http://good.test/\r\n": kindOther, "gets a b\r\n": kindWords, "put 1 0 60 1\r\n": kindWords, "delete foo noreply\r\n": kindWords, "GET a b\n": kindWords,
		"CONNECT {\"verbose\":false}\r\n": kindOther, "CONNECT\r\n": kindOther, "GET\n": kindOther, "GET \n": kindOther, "PASS a/1.0\r\n": kindOther,
		"\x15\x03\x01\x00\x02\x01\x70": kindTLS, "\x15\x04": kindOther, "\x14G": kindOther, "\x00\x00\x00\x54\x00\x03\x00\x00user": kindOther, "\x10\x0c\x00\x04MQTT": kindOther, "\x80\x2e\x01": kindOther,
		"\x16\x03\x01": kindTLS, "\x16\x04": kindOther,
		"SSH-2.0-x\r\n": kindOther, "EHLO me\r\n": kindOther, "\x00": kindOther, "{": kindOther, "NICK x\r\n": kindOther, "a1 LOGIN x y\r\n": kindWords, "GETX /x\n": kindOther,
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
	for _, part := range []string{"G", "GET", "\r\n", "FROB", "FROB /", "FROB / HTTP/1.1", "GET /x", "GET /\x01", "\x16", "SSH-2.0-x"} {
		if k, sure := looksLike([]byte(part)); sure {
			t.Errorf("%q alone is taken for %d", part, k)
		}
	}
}

// Who speaks first, and what, decides whether a connection is read as HTTP, denied or passed on.
func TestWhoSpeaksFirst(t *testing.T) {
	const host = "\r\nHost: good.test\r\n\r\n"
	first := map[string]struct {
		text           string
		silent, spoken string // what becomes of it
	}{
		"a request":                     {"GET / HTTP/1.1" + host, "read", "denied"},
		"a request of another kind":     {"frob /x http/1.0" + host, "read", "denied"},
		"HTTP/0.9":                      {"GET /\r\n", "denied", "passed"},
		"a URL":                         {"GET http://evil.test/\r\n", "denied", "passed"},
		"RTSP":                          {"OPTIONS rtsp://good.test/ RTSP/1.0\r\nCSeq: 1\r\n\r\n", "denied", "passed"},
		"memcached":                     {"get foo\r\n", "passed", "passed"},
		"memcached with a path":         {"get /index.html http://good.test/\r\n", "passed", "passed"},
		"beanstalkd":                    {"put 1 0 60 1\r\nx\r\n", "passed", "passed"},
		"NATS":                          {"CONNECT {\"verbose\":false,\"lang\":\"go\"}\r\nPING\r\n", "passed", "passed"},
		"STOMP":                         {"CONNECT\naccept-version:1.2\n\n\x00", "passed", "passed"},
		"words":                         {"frob /x y\r\nHosts: a\r\nX: host: b\r\n\"host\": c\r\n", "passed", "passed"},
		"words with a host":             {"frob /x y\r\nHost: evil.test\r\n\r\n", "denied", "passed"},
		"words with a host, otherwise":  {"frob /x y\r\nX: a\r \thOST\t : evil.test\r\n\r\n", "denied", "passed"},
		"mail":                          {"EHLO me\r\n", "passed", "passed"},
		"bytes":                         {"\x00\x01", "passed", "passed"},
		"TLS for another name":          {clientHello(t, "evil.test"), "denied", "denied"},
		"TLS for the name":              {clientHello(t, "good.test"), "passed", "passed"},
		"the preface of HTTP/2":         {preface + "\r\nSM\r\n\r\n", "read", "denied"},
		"the preface with a change":     {"PRI  * HTTP/2.0\r\n\r\nSM\r\n\r\n", "read", "denied"},
		"a request after an empty line": {"\r\nFROB / HTTP/1.1" + host, "read", "denied"},
	}
	const greeting = "INFO {}\r\n"
	for _, greets := range []bool{false, true} {
		a := listen(t, func(c net.Conn) {
			if greets {
				_, _ = io.WriteString(c, greeting)
			}
			echo(c)
		})
		in := join(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}})
		for name, f := range first {
			want := f.silent
			c := in.must(at("good.test", a))
			if greets {
				want = f.spoken
				if _, err := io.ReadFull(c, make([]byte, len(greeting))); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := io.WriteString(c, f.text); err != nil {
				t.Fatal(err)
			}
			back := make([]byte, len(f.text))
			got := "read"
			if _, err := io.ReadFull(c, back[:1]); err != nil {
				got = "denied"
			} else if _, err := io.ReadFull(c, back[1:]); err == nil && string(back) == f.text {
				got = "passed"
			}
			c.Close()
			if got != want {
				t.Errorf("%s, greeted %t: %s, not %s; %q", name, greets, got, want, back)
			}
			ended := func() bool { l := in.net.Log().Flows; return !l[len(l)-1].Open }
			in.wait("the end of "+name, ended)
			if l := in.net.Log().Flows; (want == "denied") == l[len(l)-1].Allowed {
				t.Errorf("%s, greeted %t, is noted as %+v", name, greets, l[len(l)-1])
			}
		}
	}
}

// A server that takes other words for a request is not reached by them as another host: neither in any pieces, nor
// by a request after its first response.
func TestWordsAsRequests(t *testing.T) {
	var mu sync.Mutex
	got := ""
	a := listen(t, func(c net.Conn) { // as some read them
		for r := bufio.NewReader(c); ; {
			line, err := r.ReadString('\n')
			mu.Lock()
			got += line
			mu.Unlock()
			if err != nil {
				return
			}
			if line == "\r\n" {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
		}
	})
	for _, hold := range []time.Duration{holdTime, time.Millisecond} {
		in := joinWaiting(t, granted(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}}), waits{hold: hold})
		for _, text := range []string{"frob /x y\r\nHost: evil.test\r\n\r\n", "frob /x y\r\nA: b\r\nConnection: keep-alive\r\n\r\n"} {
			for _, size := range []int{1, 7, len(text)} {
				c := in.must(at("good.test", a))
				for rest := text; rest != ""; {
					n := min(size, len(rest))
					if _, err := io.WriteString(c, rest[:n]); err != nil {
						break
					}
					rest = rest[n:]
				}
				if b, _ := io.ReadAll(c); len(b) > 0 {
					t.Errorf("%q is answered with %q", text, b)
				}
				in.wait("the end", func() bool { l := in.net.Log().Flows; return !l[len(l)-1].Open })
				if l := in.net.Log().Flows; l[len(l)-1].Allowed {
					t.Errorf("%q is noted as %+v", text, l[len(l)-1])
				}
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if strings.Contains(got, "evil") {
		t.Errorf("the origin got %q", got)
	}
}

// The beginning of a response of HTTP is found in whatever pieces it comes. Until then the origin counts as silent.
func TestResponsesInPieces(t *testing.T) {
	const words = "frob /x y\r\nA: b\r\n"
	for name, c := range map[string]struct {
		pieces []string // each is sent once the client has got the one before
		last   string   // that the client sends then
		passes bool
	}{
		"a response":                 {[]string{"H", "TT", "P/1.1 200 OK\r\n\r\n"}, "", false},
		"a response, cut at its end": {[]string{"HTTP", "/1.1 200 OK\r\n\r\n"}, "", false},
		"a host after its beginning": {[]string{"HT"}, "Host: evil.test\r\n\r\n", false},
		"another line":               {[]string{"HT", "TPS\r\n"}, "Host: evil.test\r\n\r\n", true},
		"a response after a line":    {[]string{"H\r\n", "HTTP/1.1\r\n"}, "", true},
	} {
		got := make(chan struct{}, len(c.pieces))
		end := make(chan string, 1)
		a := listen(t, func(conn net.Conn) {
			defer close(end)
			if _, err := io.ReadFull(conn, make([]byte, len(words))); err != nil {
				return
			}
			for _, piece := range c.pieces {
				_, _ = io.WriteString(conn, piece)
				<-got
			}
			b, _ := io.ReadAll(conn)
			end <- string(b)
		})
		in := join(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}})
		conn := in.must(at("good.test", a))
		if _, err := io.WriteString(conn, words); err != nil {
			t.Fatal(err)
		}
		var err error
		for _, piece := range c.pieces {
			if err == nil {
				_, err = io.ReadFull(conn, make([]byte, len(piece)))
			}
			got <- struct{}{}
		}
		_, _ = io.WriteString(conn, c.last)
		_ = conn.CloseWrite()
		if text := <-end; c.passes != (err == nil && text == c.last) || strings.Contains(text, "evil") != c.passes && c.last != "" {
			t.Errorf("%s: the origin got %q, and the client %v", name, text, err)
		}
		in.wait("the end", func() bool { l := in.net.Log().Flows; return !l[len(l)-1].Open })
		if l := in.net.Log().Flows; l[len(l)-1].Allowed != c.passes {
			t.Errorf("%s is noted as %+v", name, l[len(l)-1])
		}
	}
}

// A client that sends nothing, or little, and ends its direction gets all that its origin says, also later.
func TestClientsThatOnlyRead(t *testing.T) {
	const greeting, rest = "hello\n", "bye\n"
	for _, greets := range []bool{false, true} {
		a := listen(t, func(c net.Conn) {
			if greets {
				_, _ = io.WriteString(c, greeting)
			}
			b, _ := io.ReadAll(c)
			_, _ = c.Write(append(b, rest...))
		})
		in := joinOn(t, (&origin{port: int(a.Port())}).terms(t, nil, "good.test", "GET:https://other.test:PORT/*"))
		for _, text := range []string{"", "x", "GET", "a b c\n"} {
			c := in.must(at("good.test", a))
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatal(err)
			}
			_ = c.CloseWrite()
			want := text + rest
			if greets {
				want = greeting + want
			}
			if b, err := io.ReadAll(c); err != nil || string(b) != want {
				t.Errorf("after %q, greeted %t: %q, %v", text, greets, b, err)
			}
		}
		c := in.must(at("other.test", a))
		_ = c.CloseWrite()
		if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
			t.Errorf("where requests are checked: %q, %v", b, err)
		}
		in.wait("the end", func() bool {
			return !slices.ContainsFunc(in.net.Log().Flows, func(f sandpit.Flow) bool { return f.Open })
		})
		for _, f := range in.net.Log().Flows {
			if !f.Allowed || f.Error != "" {
				t.Errorf("it is noted as %+v", f)
			}
		}
	}
}

// TLS after a greeting is passed on for the name of the connection only, also where a secret is for it.
func TestTLSAfterGreeting(t *testing.T) {
	const greeting = "220 ready\r\n"
	a := listen(t, func(c net.Conn) {
		_, _ = io.WriteString(c, greeting)
		echo(c)
	})
	o := &origin{port: int(a.Port())}
	in := joinOn(t, o.terms(t, o.twoSecrets(false, false), "good.test:PORT"))
	for name, passes := range map[string]bool{"good.test": true, "evil.test": false} {
		hello := clientHello(t, name)
		c := in.must(at("good.test", a))
		back := make([]byte, len(greeting)+len(hello))
		if _, err := io.ReadFull(c, back[:len(greeting)]); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, hello); err != nil {
			t.Fatal(err)
		}
		_, err := io.ReadFull(c, back[len(greeting):])
		if passes != (err == nil && string(back) == greeting+hello) {
			t.Errorf("for %s: %q, %v", name, back, err)
		}
	}
}

// clientHello returns the beginning of TLS.
func clientHello(t *testing.T, name string) string {
	t.Helper()
	client, server := net.Pipe()
	go func() { _ = tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake() }()
	hello := make([]byte, peekSize)
	n, err := server.Read(hello)
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
	return string(hello[:n])
}
