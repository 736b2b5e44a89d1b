package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/portproxy"
)

// Headers that name a port of a sandbox, on any path.
const (
	headerSandbox = "X-Sandpit-Sandbox"
	headerPort    = "X-Sandpit-Port"

	ownHeaders = "X-Sandpit-" // what the server's own begin with
)

// target is where a request is passed on to.
type target struct {
	sandbox string
	port    string
	byHost  bool // the name that was asked for is the port's alone, not the server's
}

// passingID is the operation of a request to a port of a sandbox.
const passingID = "proxy"

// proxyRoute is the route of requests to ports of sandboxes.
func proxyRoute() *Route {
	return &Route{ID: passingID, Guarded: true, selfAudited: true, handle: forward}
}

// portOfHost is portproxy.PortOfHost for several domains.
func portOfHost(name string, domains []string) (sandbox, port string, ok bool) {
	for _, d := range domains {
		if sandbox, port, ok = portproxy.PortOfHost(name, d); ok {
			break
		}
	}
	return sandbox, port, ok
}

// target returns the port to which a request is forwarded.
func (a *API) target(r *http.Request) (target, bool) {
	if sandbox, port, ok := portOfHost(gate.HostName(r.Host), a.domains); ok {
		return target{sandbox, port, true}, true
	}
	sandbox, port := r.Header.Get(headerSandbox), r.Header.Get(headerPort)
	if sandbox == "" && port == "" {
		return target{}, false
	}
	if sandbox == "" {
		sandbox = "-" // no sandbox has that name
	}
	return target{sandbox, port, false}, true
}

// forward passes the request on.
func forward(c *call) error {
	to, _ := c.api.target(c.R)
	port, err := portproxy.ParsePort(to.port)
	if err != nil {
		return err
	}
	detail := "port " + strconv.Itoa(int(port))
	if id := c.Caller.Preview; id != "" {
		detail += " preview " + id
	}
	if err := c.Intend(detail); err != nil {
		return err
	}
	if answered, err := c.enterPreview(to); answered || err != nil {
		return err
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	if err := c.api.proxy.CheckKeys(c.Call); err != nil {
		return err
	}
	n, err := c.sandbox()
	if c.Caller.Preview != "" && errors.Is(err, sandpit.ErrNotFound) {
		err = gate.ErrPreviewEnded // with its sandbox
	}
	if err != nil {
		return err
	}
	c.api.proxy.Forward(c.Call, portproxy.Target{
		Port: port, OwnHost: to.byHost,
		Dial: func(ctx context.Context) (net.Conn, error) { return n.Dial(ctx, port) },
	})
	return nil
}
