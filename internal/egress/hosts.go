package egress

import (
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Hosts are host names, with or without wildcards and ports.
type Hosts []Rule

// ParseHosts reads HOST, HOST:PORT and *.HOST, on port 443 where there is none. Errors match sandpit.ErrInvalid.
func ParseHosts(texts []string) (Hosts, error) {
	all := make(Hosts, 0, len(texts))
	for _, text := range texts {
		rules, err := ParseRule(text)
		if err != nil || len(rules) != 1 || rules[0].Protocol != TCP || rules[0].Host == "" || rules[0].HTTP != nil {
			return nil, sandpit.WithHint(fault.Invalidf("%q is not a host of a secret", fault.Clip(text)), "write HOST, HOST:PORT or *.HOST, which is not a public suffix")
		}
		all = append(all, rules[0])
		if h := &all[len(all)-1]; h.Port == 0 {
			h.Port = httpsPort
		}
	}
	return all, nil
}

// Contain reports whether a destination is one of the hosts.
func (h Hosts) Contain(d Destination) bool {
	return slices.ContainsFunc(h, func(r Rule) bool { return r.about(d) })
}
