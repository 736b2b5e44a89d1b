package server

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// domainOf returns the domain of a dialect, below which it answers by host name at addresses of Sandpit's own API.
func (s *server) domainOf(dialect string) string {
	return dialect + "." + gate.HostName(cmp.Or(s.opt.Settings.Domain, "localhost"))
}

// byHost serves the dialects by their host names, and main for all others.
func (s *server) byHost(main http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := gate.HostName(r.Host)
		for _, d := range s.opt.Dialects {
			if _, ok := dialect.Label(name, s.domainOf(d.Name)); ok {
				s.handlers[d.Name].ServeHTTP(w, r)
				return
			}
		}
		main.ServeHTTP(w, r)
	})
}

// dialects is api.Options.Dialects.
func (s *server) dialects(host string) []v1.Dialect {
	var all []v1.Dialect
	for _, d := range s.opt.Dialects {
		out := v1.Dialect{Name: d.Name, Title: d.Title, KeyFormat: string(d.KeyFormat), URL: s.urlOf(d.Name, host)}
		if out.URL != "" && d.Settings != nil {
			for _, x := range d.Settings(out.URL) {
				out.Settings = append(out.Settings, v1.DialectSetting(x))
			}
		}
		all = append(all, out)
	}
	slices.SortFunc(all, func(a, b v1.Dialect) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// urlOf returns the URL of a dialect for clients that call the server by a host name, or "" for those on this
// machine: that of its first TCP address, or its host name at an address of Sandpit's own API if the server has a
// domain. It returns "" if there is neither.
func (s *server) urlOf(name, host string) string {
	scheme := "http"
	if s.opt.Settings.Cert != "" {
		scheme = "https"
	}
	for _, l := range s.listeners {
		a, ok := l.Addr().(*net.TCPAddr)
		if !ok || l.service != name {
			continue
		}
		at := a.IP.String()
		if a.IP.IsUnspecified() {
			at = cmp.Or(host, "127.0.0.1")
		}
		return scheme + "://" + net.JoinHostPort(at, strconv.Itoa(a.Port))
	}
	if scheme, port, err := s.web(); err == nil && s.opt.Settings.Domain != "" {
		return scheme + "://" + net.JoinHostPort("api."+s.domainOf(name), port)
	}
	return ""
}

// sayDialects shows how clients are pointed at the dialects that have addresses.
func (s *server) sayDialects() {
	for _, d := range s.dialects("") {
		var all strings.Builder
		for _, x := range d.Settings {
			value := x.Value
			if x.Key {
				value = "KEY"
			}
			fmt.Fprintf(&all, " %s=%s", x.Name, value)
		}
		if all.Len() > 0 {
			s.opt.Say(fmt.Sprintf("for clients of %s ('sandpit env --new-key %s' makes a key): export%s", d.Title, d.Name, all.String()))
		}
	}
}
