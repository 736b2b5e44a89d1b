package e2b

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/portproxy"
)

// The ports of a sandbox are open to everybody who knows its ID, as in E2B, where the policy allows that, unless it was created
// with allowPublicTraffic=false. Elsewhere a request needs a key, or the token of traffic that creating and connecting
// return. The host name of a port is that of getHost.

// portID is the operation of requests to ports.
const portID = Name + ".usePort"

// The ports of envd and of the code interpreter, which this package serves.
const (
	envdPort = "49983"
	codePort = "49999"
)

// portTarget is a port of a sandbox as a request names it.
type portTarget struct {
	sandbox, port string
	ownHost       bool // by its host name
}

// portOf returns the port that a request is for, or false if it is for this API.
func (a *api) portOf(r *http.Request) (portTarget, bool) {
	t := portTarget{r.Header.Get(headerSandbox), r.Header.Get(headerPort), false}
	if id, port, ok := portproxy.PortOfHost(gate.HostName(r.Host), a.Domain); ok {
		t = portTarget{id, port, true}
	}
	return t, t.sandbox != "" && t.port != "" && t.port != envdPort && t.port != codePort
}

// portRoute is the route of requests to ports.
func (a *api) portRoute() gate.Route {
	return gate.Route{
		ID: portID, Guarded: true, SelfAudited: true, Passes: true, Proof: a.provePort,
		Target: func(r *http.Request) string { t, _ := a.portOf(r); return t.sandbox },
		Handle: func(c *gate.Call) error { return usePort(&call{c, a}) },
	}
}

// newProxy returns the proxy to ports.
func (a *api) newProxy() *portproxy.Proxy {
	return portproxy.New(portproxy.Options{
		Gate:       a.Gate,
		HasKey:     func(text string) bool { return a.IsKey(text) || dialect.InTokens(text) },
		KeyHeaders: []string{headerKey, headerToken},
		Own:        "E2b-",
	})
}

// isLoopback reports whether a request comes from this machine, for a name that only this machine resolves to itself. A proxy on this
// machine may forward requests of others: so one that bears a mark of a proxy does not.
func isLoopback(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	return ok && err == nil && local.IP.IsLoopback() && remote.Addr().Unmap().IsLoopback() &&
		strings.HasSuffix(gate.HostName(r.Host), ".localhost") && !throughProxy(r)
}

// throughProxy reports whether a request has a header that proxies and tunnels add, or the version of HTTP that browsers do not
// speak, and which nginx uses unless it is told otherwise.
func throughProxy(r *http.Request) bool {
	for name := range r.Header {
		switch {
		case strings.HasPrefix(name, "X-Forwarded"), strings.HasPrefix(name, "X-Envoy-"), strings.HasPrefix(name, "Cf-"),
			slices.Contains(proxyHeaders, name):
			return true
		}
	}
	return !r.ProtoAtLeast(1, 1)
}

// proxyHeaders are those by which a request is known to have passed a proxy, besides those with a prefix of their own.
var proxyHeaders = []string{"Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "Client-Ip", "True-Client-Ip", "X-Original-Forwarded-For", "X-Original-Host", "X-Proxyuser-Ip", "Proxy-Connection", "Fly-Client-Ip", "Fastly-Client-Ip"}

// errPrivate is the error of requests without the token that they need.
func errPrivate(what string) error {
	return &gate.Refusal{Code: errcode.Forbidden, Message: "the sandbox is secured with a traffic access token, and the header e2b-traffic-access-token " + what, Hint: "send trafficAccessToken of the sandbox"}
}

// provePort is gate.Route.Proof of requests to ports.
func (a *api) provePort(c *gate.Call) (who gate.Caller, ok bool, err error) {
	t, _ := a.portOf(c.R)
	if token := c.R.Header.Get(headerTraffic); token != "" {
		sandbox, who, err := a.Tokens.Verify(c.Ctx, token)
		if err != nil || sandbox != t.sandbox+traffic {
			return gate.Caller{}, false, errPrivate("is not valid")
		}
		return who, true, nil
	}
	if !t.ownHost || a.IsKey(c.R.Header.Get(headerKey)) {
		return who, false, nil
	}
	return a.open(c)
}

// open returns who uses an open port: the holder of the last key that was used to create or connect, and which may open it.
func (a *api) open(c *gate.Call) (who gate.Caller, ok bool, err error) {
	sb := a.Sandbox(c.Target)
	if sb == nil {
		return who, false, errGone
	}
	s := stateOf(sb)
	if s.Private {
		return who, false, errPrivate("is missing")
	}
	for _, key := range slices.Backward(s.Keys) {
		_, owner, ended := a.Tokens.Of(c.Ctx, key, c.Target)
		if ended != nil {
			continue
		}
		if who, err = a.OpenPort(owner, isLoopback(c.R)); err == nil {
			return who, true, nil
		}
	}
	return gate.Caller{}, false, errNotOpen
}

// errNotOpen is the error of requests without a right to a port. It says nothing about the policy to strangers.
var errNotOpen error = &gate.Refusal{
	Code: errcode.Forbidden, Message: "this port can't be used without a key here",
	Hint: "create a preview of the port with 'sandpit preview', send the header e2b-traffic-access-token, or ask the operator to allow open-ports in the policy",
}

// asGone returns errGone for the error of a sandbox that is being removed, which the SDKs take for what it is.
func asGone(err error) error {
	if errcode.Of(err) == errcode.Closed {
		return errGone
	}
	return err
}

// errGone is the error of requests to the data plane of a sandbox that is not there.
var errGone error = &gate.Refusal{Code: errcode.Closed, Message: "the sandbox was not found"}

// usePort forwards a request to a port.
func usePort(c *call) error {
	t, _ := c.api.portOf(c.R)
	port, err := portproxy.ParsePort(t.port)
	if err != nil {
		return err
	}
	if err := c.Intend("port " + strconv.Itoa(int(port))); err != nil {
		return err
	}
	if c.Caller.Preview != "" {
		if _, _, err := c.api.open(c.Call); err != nil { // it may have ended since it was proven
			return err
		}
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	if err := c.api.proxy.CheckKeys(c.Call); err != nil {
		return err
	}
	sb, err := c.running()
	if err != nil {
		return err
	}
	c.api.proxy.Forward(c.Call, portproxy.Target{Port: port, OwnHost: t.ownHost, Dial: func(ctx context.Context) (net.Conn, error) { return sb.Dial(ctx, port) }})
	return nil
}

// failPort answers a request to a port with an error. People in a browser get a page.
func failPort(c *gate.Call, t portTarget, f gate.Failure) {
	portproxy.ForStranger(c, &f)
	status, title, text := f.Status, "This port can't be shown now", "Try again in a moment."
	switch f.Code {
	case errcode.Closed, errcode.State:
		status, text = http.StatusBadGateway, "The sandbox was not found, or it is not running."
	case errcode.Unavailable:
		if c.BrokenOff() == nil {
			status, text = http.StatusBadGateway, "The sandbox is running, but nothing listens on this port."
			f.Message, f.Hint = "the sandbox is running, but the port is not open", "start a server on the port"
		}
	case errcode.Forbidden, errcode.Unauthenticated, errcode.PreviewInvalid:
		text = "It is not open to everybody. Ask its owner for a preview of the port."
	}
	if portproxy.WantsPage(c.R) {
		portproxy.ShowPage(c, status, title, text)
		return
	}
	port, _ := strconv.Atoi(t.port)
	body, _ := json.Marshal(struct { // of numbers and strings, which never fails
		Code    int    `json:"code"`
		Message string `json:"message"`
		Sandbox string `json:"sandboxId"`
		Port    int    `json:"port"`
	}{status, f.Text(), t.sandbox, port})
	writeJSON(c.W, status, body)
}
