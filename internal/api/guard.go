package api

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// guard keeps web pages out: one that was given a name of this machine by its
// own DNS (rebinding) sends a foreign Host, and one that makes a browser send a
// request has an Origin, or a Sec-Fetch-Site that says so.
type guard struct {
	hosts   []string // lower case, without a port
	domains []string
	origins []string
}

func newGuard(opts Options) guard {
	g := guard{
		hosts:   []string{"localhost", "127.0.0.1", "::1", "sandpit"},
		domains: []string{"localhost"},
		origins: opts.Origins,
	}
	for _, h := range opts.Hosts {
		g.hosts = append(g.hosts, hostName(h))
	}
	if opts.Domains != nil {
		g.domains = nil
	}
	for _, d := range opts.Domains {
		g.domains = append(g.domains, hostName(d))
	}
	return g
}

// hostName is the name or address in a Host header: lower case, without port,
// brackets and the dot at the end.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// check decides whether a request is for this server and from nobody that it
// does not know.
func (g *guard) check(c *call) error {
	name := hostName(c.r.Host)
	_, _, isSandbox := splitSandboxHost(name, g.domains)
	if !isSandbox && !g.ours(c.r, name) {
		return &refusal{status: http.StatusMisdirectedRequest, code: errcode.HostRefused, message: "this server is not asked for by that Host", hint: "use an address or a name that it was told to answer to"}
	}
	origin := c.r.Header.Get("Origin")
	switch {
	case origin == "":
		switch c.r.Header.Get("Sec-Fetch-Site") {
		case "", "none", "same-origin":
			return nil
		}
	case slices.Contains(g.origins, origin):
		return c.share(origin)
	case isSandbox && sameHost(origin, c.r.Host):
		return nil // a page of the sandbox speaks to the sandbox
	}
	return &refusal{status: http.StatusForbidden, code: errcode.OriginRefused, message: "web pages may not use this server", hint: "have its Origin allowed by who runs the server"}
}

// ours reports whether a name is this server's. On a socket that others can
// reach, the address at which it was reached is, too.
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

// sameHost reports whether an origin is the host that is asked.
func sameHost(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, host)
}

// share lets a page that is allowed to read the answer, as CORS says (Fetch
// Standard, 3.2), and answers the question that its browser asks before.
func (c *call) share(origin string) error {
	h := c.w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Add("Vary", "Origin")
	h.Set("Access-Control-Expose-Headers", "X-Request-Id, Retry-After, Location, Idempotent-Replayed")
	if c.r.Method == http.MethodOptions && c.r.Header.Get("Access-Control-Request-Method") != "" {
		h.Set("Access-Control-Allow-Methods", "GET, POST, PUT, DELETE")
		h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Range, X-Sandpit-Key, X-Sandpit-Port, X-Sandpit-Sandbox")
		h.Set("Access-Control-Max-Age", "600")
		return c.done()
	}
	return nil
}
