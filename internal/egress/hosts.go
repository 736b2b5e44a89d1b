package egress

import (
	"slices"

	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Hosts are host names, with or without wildcards and ports.
type Hosts []Rule

// ParseHosts reads HOST, HOST:PORT and *.HOST. Errors match sandpit.ErrInvalid.
func ParseHosts(texts []string) (Hosts, error) {
	all, err := parseRules(texts)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(all, func(r Rule) bool {
		return r.Protocol != TCP || r.Host == "" || r.HTTP != nil || setMembers(r.Text) != nil
	}); i >= 0 {
		return nil, fault.Invalidf("%q is not a host: write HOST, HOST:PORT or *.HOST", fault.Clip(all[i].Text))
	}
	return all, nil
}

// Contain reports whether a destination is one of the hosts.
func (h Hosts) Contain(d Destination) bool {
	return slices.ContainsFunc(h, func(r Rule) bool { return r.about(d) })
}
