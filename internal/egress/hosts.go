package egress

import (
	"slices"
	"strings"

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
			return nil, badHost(text, rules)
		}
		if rules[0].Host == "localhost" {
			return nil, badHost("localhost", nil)
		}
		all = append(all, rules[0])
		if h := &all[len(all)-1]; h.Port == 0 {
			h.Port = httpsPort
		}
	}
	return all, nil
}

// badHost says why a text is not a host of a secret. The rules are those that were read from it.
func badHost(text string, rules []Rule) error {
	refused := func(why, hint string) error {
		return sandpit.WithHint(fault.Invalidf("%q is not a host of a secret%s", fault.Clip(text), why), hint)
	}
	switch {
	case text == "localhost":
		return refused(": inside, it is the sandbox itself", "for a service of this machine name another host, and create the sandbox with --resolve HOST:127.0.0.1")
	case len(rules) == 1 && rules[0].Prefix.IsValid():
		return refused(": it is an address, and secrets are bound to names", "write a name, and create the sandbox with --resolve NAME:ADDRESS")
	case text != "" && !strings.ContainsAny(text, ".:/*"):
		return refused(": its name has no dot", "write "+fault.Clip(text)+":443 if that is its name")
	}
	return refused("", "write HOST, HOST:PORT or *.HOST, which is not a public suffix")
}

// Contain reports whether a destination is one of the hosts.
func (h Hosts) Contain(d Destination) bool {
	return slices.ContainsFunc(h, func(r Rule) bool { return r.about(d) })
}
