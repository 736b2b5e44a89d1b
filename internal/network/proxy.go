package network

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/intercept"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

const (
	proxyPort   = 3128             // the usual one of HTTP proxies
	headTimeout = 30 * time.Second // for a request's header, from its first bytes
)

// isProxy reports whether an address is that of the HTTP proxy inside, for programs that have to
// use one.
func isProxy(a netip.Addr, port uint16) bool {
	return port == proxyPort && (a == netaddr.Gateway4() || a == netaddr.Gateway6())
}

// forwardProxy serves one request to the proxy (RFC 9110, section 9.3.6; RFC 9112, section 3.2.2),
// as if the sandbox had connected to its host.
func (n *Network) forwardProxy(r *tcp.ForwarderRequest) {
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
	_ = conn.SetReadDeadline(time.Now().Add(headTimeout))
	var read bytes.Buffer
	head := bufio.NewReader(io.TeeReader(io.LimitReader(conn, intercept.MaxHead), &read))
	req, err := http.ReadRequest(head)
	if err != nil {
		refuseProxy(conn, http.StatusBadRequest, "this is not a request to a proxy")
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	connect := req.Method == http.MethodConnect
	to, why := n.proxied(req)
	if why != "" {
		refuseProxy(conn, http.StatusBadRequest, why)
		return
	}
	f := n.flows.begin(to)
	set := n.rules.Load()
	d := set.rules.Decide(to)
	if !connect && d.Allowed && set.rules.Intercepts(to) {
		d = sandpit.EgressDecision{Why: "the rules about requests to " + to.String() + " allow nothing but HTTPS"}
	}
	f.decide(d)
	if !d.Allowed {
		f.finish(nil)
		refuseProxy(conn, http.StatusForbidden, d.Why)
		return
	}
	defer n.names.hold(to.Host)()
	dialler := &dialler{rules: &n.rules, set: set, to: to, flow: f, network: "tcp", proxied: !connect}
	out, err := dialler.dial(n.ctx)
	if err != nil {
		f.finish(err)
		refuseProxy(conn, http.StatusBadGateway, intercept.Reason(err))
		return
	}
	if !n.open(f, func() { conn.ep.Abort(); abort(out) }) {
		return
	}
	in := n.count(conn, f)
	if !connect {
		defer out.Close()
		f.finish(n.serveHTTP(in, bufio.NewReader(io.MultiReader(&read, in)), out, dialler, nil, false))
		return
	}
	if _, err := io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		out.Close()
		f.finish(ended(err))
		return
	}
	f.finish(n.serve(in, out, dialler))
}

// proxied returns the destination of a request to the proxy, or why it has none.
func (n *Network) proxied(req *http.Request) (to egress.Destination, why string) {
	authority := req.URL.Host
	switch {
	case req.Method == http.MethodConnect && (authority != req.RequestURI || req.ContentLength != 0):
		return to, "this is not the form of CONNECT: write HOST:PORT"
	case req.Method != http.MethodConnect && (req.URL.Scheme != "http" || req.URL.User != nil):
		return to, "the proxy serves CONNECT, and requests for http:// addresses"
	case req.Method != http.MethodConnect && req.URL.Port() == "":
		authority = strings.TrimSuffix(authority, ":") + ":80"
	}
	to, err := egress.ParseDestination("tcp:" + authority)
	switch {
	case err != nil:
		return to, err.Error()
	case to.Port == 0:
		return to, "the port is missing"
	case to.Host != "":
		return to, ""
	}
	given, ok := n.destination(egress.TCP, to.Addr, to.Port)
	if !ok {
		return to, "the address " + to.Addr.String() + " was not given to a name"
	}
	return given, ""
}

// refuseProxy answers a request to the proxy.
func refuseProxy(w io.Writer, code int, why string) {
	why = "sandpit: " + why + "\n"
	fmt.Fprintf(w, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", code, http.StatusText(code), len(why), why)
}
