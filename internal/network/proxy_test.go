package network

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/intercept"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// The gateway serves programs that have to use a proxy as if they had connected themselves.
func TestProxy(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %d", r.Method, r.Host, r.RequestURI, len(body))
	}
	plain := serveHTTP(t, handler)
	secure := httptest.NewTLSServer(http.HandlerFunc(handler))
	t.Cleanup(secure.Close)
	secureAt := netip.MustParseAddrPort(secure.Listener.Addr().String())
	in := join(t, sandpit.Egress{Allow: []string{"good.test", "example.com"}, Resolve: []string{"good.test:127.0.0.1", "example.com:127.0.0.1"}})
	proxy := netip.AddrPortFrom(netaddr.Gateway4(), proxyPort).String()
	client := secure.Client()
	transport := client.Transport.(*http.Transport)
	transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy})
	transport.DialContext = func(_ context.Context, _, a string) (net.Conn, error) { return in.dial(a) }
	t.Cleanup(transport.CloseIdleConnections)
	get := func(address string) string {
		t.Helper()
		res, err := client.Post(address, "text/plain", strings.NewReader("body"))
		if err != nil {
			return err.Error()
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(fmt.Sprintf("%d %s", res.StatusCode, b))
	}
	for range 2 {
		for _, name := range []string{"good.test", "example.com"} {
			if got, want := get("http://"+at(name, plain)+"/x?y"), "200 POST "+at(name, plain)+" /x?y 4"; got != want {
				t.Errorf("over HTTP: %q; want %q", got, want)
			}
		}
	}
	if got, want := get("https://"+at("example.com", secureAt)+"/x"), "200 POST "+at("example.com", secureAt)+" /x 4"; got != want {
		t.Errorf("over HTTPS: %q; want %q", got, want)
	}
	if got := get("http://" + at("evil.test", plain) + "/"); !strings.HasPrefix(got, "403 sandpit: no rule allows it") {
		t.Errorf("a name that is not allowed: %q", got)
	}
	if got := get("https://" + at("evil.test", secureAt) + "/"); !strings.Contains(got, "Forbidden") {
		t.Errorf("a name that is not allowed, over HTTPS: %q", got)
	}
	for _, name := range []string{"evil.test:" + fmt.Sprint(plain.Port()), "evil.test:" + fmt.Sprint(secureAt.Port())} {
		if in.denied(name) == "" {
			t.Errorf("the denial of %s is not in the log", name)
		}
	}
	good := at("good.test", plain)
	for _, head := range []string{
		"CONNECT 127.0.0.1:80 HTTP/1.1\r\n\r\n", "CONNECT [::1]:80 HTTP/1.1\r\n\r\n", "CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n", "CONNECT 2852039166:80 HTTP/1.1\r\n\r\n",
		"CONNECT evil.test\x00.good.test:80 HTTP/1.1\r\n\r\n", "CONNECT good.test HTTP/1.1\r\n\r\n", "CONNECT good.test:0 HTTP/1.1\r\n\r\n", "CONNECT good.test@evil.test:80 HTTP/1.1\r\n\r\n",
		"CONNECT http://" + good + "/ HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT 198.19.99.99:80 HTTP/1.1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: " + good + "\r\n\r\n", "GET https://" + good + "/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://u@" + good + "/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET http://169.254.169.254/ HTTP/1.1\r\nHost: " + good + "\r\n\r\n", "GET http://good.test:1x/ HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\r\n\r\n", "\r\n",
		"GET http://" + good + "/ HTTP/1.1\r\nX: " + strings.Repeat("x", intercept.MaxHead) + "\r\n\r\n",
	} {
		c := in.must(proxy)
		go func() { _, _ = io.WriteString(c, head); _ = c.CloseWrite() }()
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil && res.StatusCode < 400 {
			t.Errorf("%.80q is answered with %d", head, res.StatusCode)
		}
		c.Close()
	}
	// What goes through is looked at as on any connection.
	c := in.must(proxy)
	if _, err := io.WriteString(c, "CONNECT "+good+" HTTP/1.1\r\nHost: "+good+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	const established = "HTTP/1.1 200 Connection established\r\n\r\n"
	answer := make([]byte, len(established))
	if _, err := io.ReadFull(c, answer); err != nil || string(answer) != established {
		t.Fatalf("CONNECT is answered with %q, %v", answer, err)
	}
	if got := request(t, c, "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"); got != http.StatusForbidden {
		t.Errorf("another Host through CONNECT is answered with %d", got)
	}
}
