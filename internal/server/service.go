package server

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/keys"
	"github.com/sandpit-dev/sandpit/internal/ledger"
)

// DefaultService is the service of an address that names none: Sandpit's own API.
const DefaultService = "sandpit"

// A service is a dialect behind the server's gate.
type service struct {
	dialect func() gate.Dialect
	err     func(gate.Failure) []byte // the body of an error outside of a call
}

// findServices sets all services by name, and refuses addresses of others.
func (s *server) findServices() error {
	s.services = map[string]service{DefaultService: {
		func() gate.Dialect { return api.New(s.api).Dialect() },
		func(f gate.Failure) []byte {
			body, _ := json.Marshal(codec.Error(f)) // of strings, which never fails
			return append(body, '\n')
		},
	}}
	for _, d := range s.opt.Dialects {
		s.services[d.Name] = service{func() gate.Dialect { return s.checked(d.Name, d.New(s.door(d.Name))) }, d.Error}
	}
	for _, l := range s.opt.Settings.Listen {
		if _, ok := s.services[l.service()]; !ok {
			return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "listening on %s: unknown service %.80q", l.Address, l.Service), "use one of: "+strings.Join(slices.Sorted(maps.Keys(s.services)), ", "))
		}
	}
	return nil
}

// boxes returns the sandboxes of all namespaces.
func (s *server) boxes() []engine.Box {
	var all []engine.Box
	for _, sb := range s.engine.Sandboxes() {
		all = append(all, sb)
	}
	return all
}

// box returns the sandbox of an ID, or nil.
func (s *server) box(id string) engine.Box {
	if sb := s.engine.ByID(id); sb != nil {
		return sb
	}
	return nil
}

// door returns what a dialect may use of the server.
func (s *server) door(name string) dialect.Server {
	return dialect.Server{
		Name: name, Gate: s.gate, Tenant: s.backend.tenant, Sandboxes: s.boxes, Version: s.opt.Version, Log: s.opt.Log,
		Domain: s.domainOf(name), Sandbox: s.box, OpenPort: s.backend.openPort, Features: s.backend.has, IsKey: keys.In,
		Tokens: dialect.NewTokens(name, s.state.TokenSecret(), keyring{s.ring, s.policies}.Holder),
		Saved:  s.backend.saved, RemoveSaved: s.backend.removeSaved, TagSaved: s.backend.TagImage, Built: s.backend.built,
		Memory: func(namespace string, bound int64) *ledger.Account { return s.book.Account(namespace, bound) },
		Image:  func(name string) (string, error) { return s.policies.Set().Alias(name) },
	}
}

// checked returns the API of a dialect, with the usual rates and host names if it has none. It panics if a route
// breaks the rules of package dialect: the audit could otherwise take it for an operation of another API, or lack it.
func (s *server) checked(name string, d gate.Dialect) gate.Dialect {
	for _, r := range d.Routes {
		switch {
		case !strings.HasPrefix(r.ID, name+"."):
			panic(fmt.Sprintf("server: the ID %q of a route does not begin with %q", r.ID, name+"."))
		case r.Method != http.MethodGet && !r.Guarded:
			panic("server: the audit does not record what " + r.ID + " is about to do")
		case r.Open && (r.Guarded || r.Admin || strings.Contains(r.Path, "{")):
			panic("server: " + r.ID + " is open to strangers")
		}
	}
	if d.OwnHost == nil {
		d.OwnHost = func(host string) bool {
			_, ok := dialect.Label(host, s.domainOf(name))
			return ok
		}
	}
	fail := d.Fail
	d.Fail = func(c *gate.Call, f gate.Failure) {
		c.W.Header().Set(v1.ServiceHeader, name) // so that clients of Sandpit's own API can say what is wrong
		fail(c, f)
	}
	if d.Rate == 0 {
		d.Rate, d.Burst = dialect.Rate, dialect.Burst
	}
	return d
}

// full returns the response to a connection for which there is no room.
func (s service) full() string {
	body := s.err(gate.Failure{Status: http.StatusServiceUnavailable, Code: errcode.TooManyConnections, Message: gate.TooManyConnections, Hint: "try again in a moment"})
	return fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// Listen is an address to listen on, and what is served there.
type Listen struct {
	Address
	Service string // that is served there; empty: DefaultService
}

// service returns the name of the service.
func (l Listen) service() string { return cmp.Or(l.Service, DefaultService) }

// listener is a listener and the service that is served on it.
type listener struct {
	net.Listener
	service string
}

// servers are the HTTP servers of a service.
type servers struct {
	plain  *http.Server // unix sockets and plain TCP
	secure *http.Server // TLS
}
