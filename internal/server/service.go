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
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// DefaultService is the service of an address that names none: Sandpit's own API.
const DefaultService = "sandpit"

// A service is a dialect behind the server's gate.
type service struct {
	dialect func(api.Options) gate.Dialect
	full    func() string // the response to a connection for which there is no room
}

// services returns all services by name.
func services() map[string]service {
	return map[string]service{
		DefaultService: {func(o api.Options) gate.Dialect { return api.New(o).Dialect() }, fullV1},
	}
}

// fullV1 is service.full of DefaultService.
func fullV1() string {
	body, _ := json.Marshal(v1.Error{Code: errcode.TooManyConnections, Message: gate.TooManyConnections, Hint: "try again in a moment"}) // of strings, which never fails
	return fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s\n", len(body)+1, body)
}

// Listen is an address to listen on, and what is served there.
type Listen struct {
	Address
	Service string // that is served there; empty: DefaultService
}

// service returns the name of the service.
func (l Listen) service() string { return cmp.Or(l.Service, DefaultService) }

// check refuses an unknown service.
func (l Listen) check() error {
	all := services()
	if _, ok := all[l.service()]; !ok {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "listening on %s: unknown service %.80q", l.Address, l.Service), "use one of: "+strings.Join(slices.Sorted(maps.Keys(all)), ", "))
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
