package gate

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// guard keeps web pages out. A page that reaches this machine through its own DNS name
// (rebinding) sends a foreign Host. A page that makes a browser send a request
// sends an Origin, or a Sec-Fetch-Site that names another site.
type guard struct {
	hosts   []string // lower case, without a port
	origins []string
}

func newGuard(opts Options) guard {
	g := guard{
		hosts:   []string{"localhost", "127.0.0.1", "::1", "sandpit"},
		origins: opts.Origins,
	}
	for _, h := range opts.Hosts {
		g.hosts = append(g.hosts, HostName(h))
	}
	return g
}

// HostName returns the name or address in a Host header: lower case, without port,
// brackets and the dot at the end.
func HostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// guard refuses a request that is for another host, or comes from a web page that
// is not allowed.
func (c *Call) guard() error {
	g, d := &c.gate.guard, c.service.dialect
	name := HostName(c.R.Host)
	own := d.OwnHost != nil && d.OwnHost(name)
	if !own && !g.ours(c.R, name) {
		return &Refusal{Code: errcode.HostRefused, Message: fmt.Sprintf("Host %.100q is not accepted", name), Hint: "use localhost or the server's address, or ask the operator to add the name to hosts in server.yaml"}
	}
	origin := c.R.Header.Get("Origin")
	switch {
	case origin == "":
		switch c.R.Header.Get("Sec-Fetch-Site") {
		case "", "none", "same-origin":
			return nil
		}
		if own && opensPage(c.R) {
			return nil // a link to a page of a sandbox, which carries no key
		}
	case slices.Contains(g.origins, origin):
		c.share(origin)
		return nil
	case own && sameHost(origin, c.R.Host):
		return nil // for example a page of a sandbox that sends requests to that sandbox
	}
	hint := "ask the operator to allow this Origin (origins in server.yaml)"
	if own {
		hint = "open the address itself in a browser; other pages can use it only if the operator allows their Origin (origins in server.yaml)"
	}
	return &Refusal{Code: errcode.OriginRefused, Message: "requests from this Origin are not allowed", Hint: hint}
}

// opensPage reports whether a browser makes the request to show a page in a tab: not in a frame,
// and not for another page to read or run (Fetch Metadata, 2.1 and 2.2). Other sites may link to
// pages, as everywhere.
func opensPage(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) &&
		r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// ours reports whether a host name is this server's. The address at which the request
// arrived is, too.
func (g *guard) ours(r *http.Request, name string) bool {
	if slices.Contains(g.hosts, name) {
		return true
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	if local.Network() == "unix" {
		return name == "" || name == "unix"
	}
	asked, err := netip.ParseAddr(name)
	if err != nil {
		return false
	}
	at, err := netip.ParseAddrPort(local.String())
	return err == nil && asked.Unmap() == at.Addr().Unmap().WithZone("")
}

// sameHost reports whether an origin is on the host that the request names.
func sameHost(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, host)
}

// share lets an allowed page read the answer (CORS; Fetch Standard, 3.2), and answers
// the preflight request of its browser.
func (c *Call) share(origin string) {
	h := c.W.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Add("Vary", "Origin")
	h.Set("Access-Control-Expose-Headers", c.service.dialect.ExposeHeaders)
	if c.R.Method == http.MethodOptions && c.R.Header.Get("Access-Control-Request-Method") != "" {
		h.Set("Access-Control-Allow-Methods", strings.Join(c.service.methods, ", "))
		h.Set("Access-Control-Allow-Headers", c.service.dialect.AllowHeaders)
		h.Set("Access-Control-Max-Age", "600")
		c.W.WriteHeader(http.StatusNoContent)
	}
}
