package e2b

import (
	"context"
	"net"
	"net/http"
	"testing"
)

// Only a request of this machine, for a name below localhost and without a mark of a proxy, is one of loopback.
func TestIsLoopback(t *testing.T) {
	try := func(what string, want bool, change func(r *http.Request, local *net.TCPAddr)) {
		t.Helper()
		r := &http.Request{Host: "3000-abc.e2b.localhost:8444", RemoteAddr: "127.0.0.1:5", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"User-Agent": {"x"}, "X-Requested-With": {"x"}}}
		local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
		change(r, local)
		if got := isLoopback(r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, local))); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	try("a browser", true, func(*http.Request, *net.TCPAddr) {})
	try("IPv6", true, func(r *http.Request, local *net.TCPAddr) { r.RemoteAddr, local.IP = "[::1]:5", net.IPv6loopback })
	try("HTTP/2", true, func(r *http.Request, _ *net.TCPAddr) { r.ProtoMajor, r.ProtoMinor = 2, 0 })
	try("HTTP/1.0", false, func(r *http.Request, _ *net.TCPAddr) { r.ProtoMinor = 0 })
	try("another name", false, func(r *http.Request, _ *net.TCPAddr) { r.Host = "3000-abc.e2b.example" })
	try("the name of the address", false, func(r *http.Request, _ *net.TCPAddr) { r.Host = "localhost" })
	try("another address here", false, func(_ *http.Request, local *net.TCPAddr) { local.IP = net.IPv4(192, 0, 2, 1) })
	try("another machine", false, func(r *http.Request, _ *net.TCPAddr) { r.RemoteAddr = "192.0.2.1:5" })
	for _, name := range []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "CF-Connecting-IP", "CF-Ray", "True-Client-IP", "X-Envoy-External-Address"} {
		try(name, false, func(r *http.Request, _ *net.TCPAddr) { r.Header.Set(name, "") })
	}
}
