package api

import (
	"net"
	"net/http"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

func dialectRoutes() []Route {
	return []Route{{
		Method: http.MethodGet, Path: "/v1/dialects", ID: "listDialects", Tag: "Server", Summary: "List the APIs of other projects that the server serves",
		Text:  "Each has the environment variables that point unmodified clients of that project at this server, as the caller reaches it.",
		Query: pageParams(), Status: http.StatusOK, Out: v1.DialectList{},
		handle: listOf(listDialects, dialectPosition, func(part []v1.Dialect, next string) v1.DialectList {
			return v1.DialectList{Dialects: part, Next: next}
		}),
	}}
}

func listDialects(c *call) ([]v1.Dialect, error) {
	if c.api.opts.Dialects == nil {
		return nil, nil
	}
	host := ""
	if local, _ := c.R.Context().Value(http.LocalAddrContextKey).(net.Addr); local != nil && local.Network() != "unix" {
		host = gate.HostName(c.R.Host)
	}
	return c.api.opts.Dialects(host), nil
}

func dialectPosition(d v1.Dialect) string { return d.Name }
