package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/upstream"
	"github.com/sandpit-dev/sandpit/internal/upstream/upstreamtest"
)

// through is a sandbox behind a proxy, in a network without name servers.
func through(t *testing.T, p *upstreamtest.Proxy, terms engine.Terms, noProxy string) *inside {
	t.Helper()
	terms.Egress.DNS = []string{closedPort(t)}
	way, err := upstream.New(upstream.Settings{Proxy: p.URL.String(), NoProxy: noProxy, Roots: append(originRoots(), p.Roots...)})
	if err != nil {
		t.Fatal(err)
	}
	return joinBy(t, terms, way)
}

// closedPort returns an address at which nobody answers.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.LocalAddr().String()
}

// last returns the last flow to a port.
func (in *inside) last(port int) sandpit.Flow {
	in.t.Helper()
	all := in.net.Log().Flows
	for i := len(all) - 1; i >= 0; i-- {
		if int(all[i].Port) == port {
			return all[i]
		}
	}
	in.t.Fatalf("no flow to port %d: %+v", port, all)
	return sandpit.Flow{}
}

// TestUpstreamProxies checks that each kind of proxy gets the names that rules name, that no other
// name server is needed, and that both ends and both directions work, also with TLS that is
// intercepted.
func TestUpstreamProxies(t *testing.T) {
	for _, scheme := range []string{"http", "https", "socks5"} {
		t.Run(scheme, func(t *testing.T) {
			p := upstreamtest.Start(t, scheme)
			o := newOrigin(t, true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(w, r.Body)
				fmt.Fprint(w, r.Header.Get("Authorization") == value)
			}))
			terms := o.terms(t, []engine.Secret{{Name: "mine", Placeholder: placeholder, Value: []byte(value), Hosts: []string{o.host("good.test")}}}, "good.test:PORT", "other.test")
			terms.Egress.Resolve = nil
			in := through(t, p, terms, "")
			b := sandboxedIn(t, in, terms)
			status, text := do(t, b.client("good.test", o.port, true), "POST", o.url("/"), strings.NewReader("body "), "Authorization", placeholder)
			if status != http.StatusOK || text != "body true" {
				t.Errorf("%d %q", status, text)
			}
			echo := echoServer(t)
			conn := in.must(fmt.Sprintf("other.test:%d", echo))
			if _, err := io.WriteString(conn, "hello"); err != nil {
				t.Fatal(err)
			}
			_ = conn.CloseWrite()
			if text, err := io.ReadAll(conn); err != nil || string(text) != "hello" {
				t.Errorf("%q, %v", text, err)
			}
			if asked := p.Asked(); !slices.Equal(asked, []string{"good.test", "other.test"}) {
				t.Errorf("the proxy was asked for %q", asked)
			}
			if _, err := in.dial("third.test:1"); err == nil {
				t.Error("a name that no rule allows was reached")
			}
		})
	}
}

// echoServer returns the port of a server that sends back what it gets.
func echoServer(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// TestUpstreamAddresses checks which connections the proxy gets addresses of, and which are direct.
func TestUpstreamAddresses(t *testing.T) {
	p := upstreamtest.Start(t, "http")
	port := echoServer(t)
	for _, c := range []struct {
		name    string
		egress  sandpit.Egress
		noProxy string
		host    string
		asked   []string
		works   bool
		why     string
	}{
		{"an address", sandpit.Egress{Allow: []string{"203.0.113.7"}}, "", "203.0.113.7", []string{"203.0.113.7"}, true, ""},
		{"an address that a preset allows", sandpit.Egress{Preset: sandpit.EgressPublic}, "", "203.1.113.7", []string{"203.1.113.7"}, true, ""},
		{"an address that a name has by Resolve", sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:203.0.113.7"}}, "", "good.test", []string{"203.0.113.7"}, true, ""},
		{"this machine's own address", sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}}, "", "good.test", nil, true, ""},
		{"a name in no-proxy", sandpit.Egress{Allow: []string{"a.good.test"}, Resolve: []string{"a.good.test:127.0.0.1"}}, "good.test", "a.good.test", nil, true, ""},
		{"a private address that no rule names", sandpit.Egress{Preset: sandpit.EgressPublic}, "", "10.0.0.7", nil, false, "not public"},
		{"a name that only a preset allows", sandpit.Egress{Preset: sandpit.EgressPublic}, "", "good.test", nil, false, "preset public"},
		{"a name, beside a denied address", sandpit.Egress{Allow: []string{"good.test"}, Deny: []string{"10.0.0.0/8"}}, "", "good.test", nil, false, "10.0.0.0/8"},
		{"UDP", sandpit.Egress{Allow: []string{"udp:203.0.113.7"}}, "", "", nil, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.Forget()
			in := through(t, p, granted(t, c.egress), c.noProxy)
			if c.host != "" {
				conn, err := in.dial(fmt.Sprintf("%s:%d", c.host, port))
				if (err == nil) != c.works {
					t.Fatal(err)
				}
				if err == nil {
					conn.Close()
				}
			}
			if asked := p.Asked(); !slices.Equal(asked, c.asked) {
				t.Errorf("the proxy was asked for %q", asked)
			}
			if text := fmt.Sprintf("%+v", in.net.Log()); !strings.Contains(text, c.why) {
				t.Error(text)
			}
		})
	}
}

// TestUpstreamRulesChange checks that a connection whose address only the proxy knows ends when its address
// begins to matter, and no sooner.
func TestUpstreamRulesChange(t *testing.T) {
	port := echoServer(t)
	for name, e := range map[string]sandpit.Egress{
		"addresses are denied":      {Allow: []string{"good.test"}, Deny: []string{"10.0.0.0/8"}},
		"only a preset is left":     {Preset: sandpit.EgressPublic},
		"nothing allows it anymore": {Allow: []string{"other.test"}},
	} {
		t.Run(name, func(t *testing.T) {
			in := through(t, upstreamtest.Start(t, "http"), granted(t, sandpit.Egress{Allow: []string{"good.test"}}), "")
			conn := in.must(fmt.Sprintf("good.test:%d", port))
			if err := in.net.Set(granted(t, sandpit.Egress{Allow: []string{"good.test", "other.test"}, Deny: []string{"third.test"}})); err != nil {
				t.Fatal(err)
			}
			hello := make([]byte, 6)
			if _, err := io.WriteString(conn, "hello\n"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, hello); err != nil {
				t.Fatal(err)
			}
			if err := in.net.Set(granted(t, e)); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Read(hello); err == nil || isTimeout(err) {
				t.Errorf("it goes on: %v", err)
			}
		})
	}
}

// TestUpstreamNameServers checks that the operator's name servers are asked for sandboxes that name none.
func TestUpstreamNameServers(t *testing.T) {
	port := echoServer(t)
	answer := func(string, int) []string { return []string{"127.0.0.1"} }
	operators, own := serveNamesOutside(t, answer), serveNamesOutside(t, answer)
	way, err := upstream.New(upstream.Settings{DNS: []netip.AddrPort{netip.MustParseAddrPort(operators.addr)}})
	if err != nil {
		t.Fatal(err)
	}
	e := sandpit.Egress{Allow: []string{"good.test", "127.0.0.1"}}
	joinBy(t, granted(t, e), way).must(fmt.Sprintf("good.test:%d", port))
	if operators.questions()["A good.test"] == 0 {
		t.Error("the operator's name server was not asked")
	}
	e.Allow, e.DNS = []string{"other.test", "127.0.0.1"}, []string{own.addr}
	joinBy(t, granted(t, e), way).must(fmt.Sprintf("other.test:%d", port))
	if operators.questions()["A other.test"] != 0 || own.questions()["A other.test"] == 0 {
		t.Error("the sandbox's own name server was not asked alone")
	}
}

// TestNameServerOfWay checks that the name server that a Way chooses is asked where there are no others, also for the proxy's
// own name.
func TestNameServerOfWay(t *testing.T) {
	port := echoServer(t)
	outside := serveNamesOutside(t, func(string, int) []string { return []string{"127.0.0.1"} })
	by := func(proxy string) *upstream.Way {
		t.Helper()
		way, err := upstream.New(upstream.Settings{Proxy: proxy})
		if err != nil {
			t.Fatal(err)
		}
		return way.AskBy(func(context.Context, string) (string, error) { return outside.addr, nil })
	}
	joinBy(t, granted(t, sandpit.Egress{Allow: []string{"good.test", "127.0.0.1"}}), by("")).must(fmt.Sprintf("good.test:%d", port))
	if outside.questions()["A good.test"] == 0 {
		t.Error("the name server was not asked")
	}
	_, _ = by("http://proxy.test:1").Dial(t.Context(), "good.test:80") // where nothing listens
	if outside.questions()["A proxy.test"] == 0 {
		t.Error("the name server was not asked for the proxy")
	}
	unknown := errors.New("no name servers are known")
	way := (*upstream.Way)(nil).AskBy(func(context.Context, string) (string, error) { return "", unknown })
	in := joinBy(t, granted(t, sandpit.Egress{Allow: []string{"good.test"}}), way)
	if _, err := in.net.rules.Load().resolver.lookup(t.Context(), "good.test"); err == nil || !strings.Contains(err.Error(), unknown.Error()) {
		t.Errorf("the lookup fails with %v", err)
	}
}

// TestUpstreamCarriesTCP checks that rules about what a proxy does not carry are refused by name,
// except for hosts that are reached directly.
func TestUpstreamCarriesTCP(t *testing.T) {
	way, err := upstream.New(upstream.Settings{Proxy: "http://127.0.0.1:1", NoProxy: "inner.test,198.51.100.0/24"})
	if err != nil {
		t.Fatal(err)
	}
	h := InProcess{Way: way}
	for rule, ok := range map[string]bool{
		"udp:good.test:53": false, "udp:203.0.113.0/24": false, "udp:*.good.test": false, "ping:good.test": false, "good.test": true,
		"udp:inner.test": true, "udp:*.inner.test:53": true, "udp:198.51.100.7": true,
	} {
		_, _, err := h.Excess(sandpit.Egress{Allow: []string{rule}}, nil, nil)
		if (err == nil) != ok || err != nil && (!errors.Is(err, sandpit.ErrUnsupported) || !strings.Contains(err.Error(), rule) || sandpit.Hint(err) == "") {
			t.Errorf("%s: %v", rule, err)
		}
	}
	if d, err := h.Decide(engine.Terms{Egress: sandpit.Egress{Allow: []string{"udp:good.test"}}}, "udp:good.test:53"); err != nil || d.Allowed || d.Why != onlyTCP {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestUpstreamFailures checks what is said about a proxy that does not do its work, without its
// password and address.
func TestUpstreamFailures(t *testing.T) {
	working := upstreamtest.Start(t, "http")
	secure := upstreamtest.Start(t, "https")
	socks := upstreamtest.Start(t, "socks5")
	wrong := func(p *upstreamtest.Proxy) *url.URL {
		u := *p.URL
		u.User = url.UserPassword(upstreamtest.User, "wr0ng")
		return &u
	}
	nobody := *working.URL
	nobody.User = nil
	for name, c := range map[string]struct {
		proxy *url.URL
		want  string
	}{
		"wrong password":         {wrong(working), "correct them in upstream-proxy"},
		"wrong password (SOCKS)": {wrong(socks), "SOCKS5"},
		"no password":            {&nobody, "add them to upstream-proxy"},
		"unknown certificate":    {secure.URL, "ca-bundle"},
		"nobody listens":         {&url.URL{Scheme: "http", Host: "127.0.0.1:1", User: url.UserPassword("bert", "wr0ng")}, "check that it runs"},
	} {
		t.Run(name, func(t *testing.T) {
			in := through(t, &upstreamtest.Proxy{URL: c.proxy}, granted(t, sandpit.Egress{Allow: []string{"good.test"}}), "")
			if _, err := in.dial("good.test:443"); err == nil {
				t.Fatal("it was reached")
			}
			text := in.last(443).Error
			if !strings.Contains(text, "the upstream proxy") || !strings.Contains(text, c.want) {
				t.Errorf("%q", text)
			}
			for _, hidden := range []string{"wr0ng", "hush", "127.0.0.1", "localhost"} {
				if strings.Contains(text, hidden) {
					t.Errorf("%q has %q", text, hidden)
				}
			}
		})
	}
}
