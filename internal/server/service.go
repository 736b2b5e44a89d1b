package server

import (
	"cmp"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// DefaultService is the service of an address that names none: Sandpit's own API.
const DefaultService = "sandpit"

// services returns the names of all services. Each is a dialect behind the server's gate.
func services() []string { return []string{DefaultService} }

// Listen is an address to listen on, and what is served there.
type Listen struct {
	Address
	Service string // that is served there; empty: DefaultService
}

// service returns the name of the service.
func (l Listen) service() string { return cmp.Or(l.Service, DefaultService) }

// check refuses an unknown service.
func (l Listen) check() error {
	if all := services(); !slices.Contains(all, l.service()) {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "listening on %s: unknown service %.80q", l.Address, l.Service), "use one of: "+strings.Join(all, ", "))
	}
	return nil
}

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
