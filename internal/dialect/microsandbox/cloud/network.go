package cloud

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// network says what a sandbox may reach. Ports of the sandbox are not published on addresses of this machine.
type network struct {
	Enabled *bool           `json:"enabled"` // default true
	Policy  *netPolicy      `json:"policy"`
	Secrets *secrets        `json:"secrets"`
	Strict  json.RawMessage `json:"strict"` // whether names that are dialled are checked, which they always are here
	Max     *int64          `json:"max_connections"`
}

// netPolicy is a list of rules, of which the first that is about a connection decides.
type netPolicy struct {
	Egress  string    `json:"default_egress"`
	Ingress string    `json:"default_ingress"`
	Rules   []netRule `json:"rules"`
}

// netRule is one rule. No protocols stand for TCP, and no ports for all.
type netRule struct {
	Direction   string      `json:"direction"` // egress, ingress or any
	Destination destination `json:"destination"`
	Protocols   []string    `json:"protocols"`
	Ports       []portRange `json:"ports"`
	Action      string      `json:"action"` // allow or deny
}

type portRange struct {
	Start uint16 `json:"start"`
	End   uint16 `json:"end"`
}

// destination is "any", or an object with one field.
type destination struct {
	any    bool
	CIDR   string `json:"cidr"`
	Domain string `json:"domain"`
	Suffix string `json:"domain_suffix"` // this domain, and those below it
	Group  string `json:"group"`
}

// UnmarshalJSON is json.Unmarshaler.
func (d *destination) UnmarshalJSON(data []byte) error {
	if string(data) == `"any"` {
		d.any = true
		return nil
	}
	type plain destination
	var of exactly[plain]
	err := json.Unmarshal(data, &of)
	*d = destination(of.is)
	return err
}

// fields returns how many fields are set.
func (d *destination) fields() (n int) {
	for _, field := range []string{d.CIDR, d.Domain, d.Suffix, d.Group} {
		if field != "" {
			n++
		}
	}
	return n
}

// check refuses addresses and names that are none. Sandpit's own notation has more in their places, such as sets, ports and
// protocols, which clients of microsandbox do not mean.
func (d *destination) check() error {
	if d.CIDR != "" {
		_, network := netip.ParsePrefix(d.CIDR)
		if _, err := netip.ParseAddr(d.CIDR); err != nil && network != nil {
			return gate.Invalid(fmt.Sprintf("the cidr %.60q of a network rule is not an address or CIDR block", d.CIDR), "")
		}
	}
	for _, name := range []string{d.Domain, d.Suffix} {
		if _, err := egress.Name(name); name != "" && err != nil {
			return gate.Invalid(fmt.Sprintf("the domain of a network rule: %v", err), "")
		}
	}
	return nil
}

// rooted returns a host name with the dot at the end that tells one without other dots from the name of a set.
func rooted(name string) string {
	if strings.Contains(name, ".") {
		return name
	}
	return name + "."
}

// The actions of rules and defaults.
const (
	allow = "allow"
	deny  = "deny"
)

// egress returns what n asks for. asked is false if it says nothing: then the sandbox gets access to
// public addresses, where the policy and the machine allow it.
func (n *network) egress() (e sandpit.Egress, asked bool, err error) {
	if n.Max != nil {
		if *n.Max <= 0 {
			return e, true, gate.Invalid("network.max_connections is not positive", "")
		}
		e.Bounds.Connections = *n.Max
	}
	switch {
	case n.Enabled != nil && !*n.Enabled:
		return sandpit.Egress{}, true, nil
	case n.Policy == nil:
		e.Preset = sandpit.EgressPublic
		return e, n.Max != nil, nil
	}
	err = n.Policy.rules(&e)
	return e, true, err
}

// rules adds the rules of a policy to e, in which rules have no order, and those that deny win. A policy of which the
// order of rules decides otherwise is refused.
func (p *netPolicy) rules(e *sandpit.Egress) error {
	switch p.Egress {
	case allow:
		e.Preset = sandpit.EgressPublic
	case deny:
	default:
		return gate.Invalid(fmt.Sprintf("network.policy.default_egress %.40q is not known", p.Egress), "use allow or deny")
	}
	var rules []*netRule
	for i := range p.Rules {
		r := &p.Rules[i]
		switch r.Direction {
		case "ingress", "egress", "any":
		default:
			return gate.Invalid(fmt.Sprintf("the direction %.40q of a rule is not known", r.Direction), "use egress, ingress or any")
		}
		if r.Action != allow && r.Action != deny {
			return gate.Invalid(fmt.Sprintf("the action %.40q of a rule is not known", r.Action), "use allow or deny")
		}
		if r.Direction != "ingress" && !r.names() {
			rules = append(rules, r)
		}
	}
	// Rules after the last one with another action than the default's change nothing.
	last := len(rules)
	for last > 0 && rules[last-1].Action == p.Egress && !(p.Egress == allow && rules[last-1].widens()) {
		last--
	}
	allowed := false
	for _, r := range rules[:last] {
		if r.Action == deny && allowed {
			return dialect.Unsupported("a network rule that denies after one that allows is")
		}
		allowed = allowed || r.Action == allow
		if err := r.add(e); err != nil {
			return err
		}
	}
	return nil
}

// names reports whether a rule is about the name server of the host, which is not needed here: a name that may
// be dialled is resolved, and no other.
func (r *netRule) names() bool {
	return r.Destination.Group == "host" && len(r.Ports) == 1 && r.Ports[0] == portRange{53, 53}
}

// widens reports whether a rule may allow more than public addresses over TCP.
func (r *netRule) widens() bool {
	return r.widensProtocol() || r.Destination.CIDR != "" || r.Destination.Group != "" && r.Destination.Group != "public"
}

// private are the addresses of private networks (RFC 1918, RFC 6598, RFC 4193).
func private() []string {
	return []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"}
}

// add adds a rule to e.
func (r *netRule) add(e *sandpit.Egress) error {
	var hosts []string
	d := r.Destination
	if d.fields() > 1 {
		return gate.Invalid("the destination of a network rule has more than one of cidr, domain, domain_suffix and group", "")
	}
	if err := d.check(); err != nil {
		return err
	}
	switch {
	case d.CIDR != "":
		hosts = []string{d.CIDR}
	case d.Domain != "":
		hosts = []string{rooted(d.Domain)}
	case d.Suffix != "":
		hosts = []string{rooted(d.Suffix), "*." + d.Suffix}
	case d.Group == "private":
		hosts = private()
	case r.Action == deny && (d.any || d.Group == "public"):
		hosts = []string{"0.0.0.0/0", "::/0"}
	case d.any || d.Group == "public":
		if len(r.Ports) > 0 || r.widensProtocol() {
			return dialect.Unsupported("a network rule that allows some ports or protocols of all public addresses is")
		}
		e.Preset = sandpit.EgressPublic
		return nil
	case r.Action == deny && slices.Contains([]string{"loopback", "link_local", "metadata", "multicast", "host"}, d.Group):
		return nil // nothing of these can be reached
	case d.Group != "":
		return dialect.Unsupported(fmt.Sprintf("a network rule that allows the group %.40q is", d.Group))
	default:
		return gate.Invalid("the destination of a network rule is missing", "")
	}
	ports, err := r.ports()
	if err != nil {
		return err
	}
	protocols, err := r.prefixes()
	if err != nil {
		return err
	}
	to := &e.Allow
	if r.Action == deny {
		to = &e.Deny
	}
	for _, host := range hosts {
		for _, prefix := range protocols {
			for _, port := range ports {
				at := host
				switch {
				case port != "" && prefix == "ping:":
					return gate.Invalid("a network rule about ICMP has ports", "")
				case port != "" && strings.Contains(host, ":"):
					at = "[" + host + "]:" + port
				case port != "":
					at += ":" + port
				}
				if *to = append(*to, prefix+at); len(*to) > sandpit.MaxEgressRules {
					return gate.Invalid(fmt.Sprintf("the network rules name more than %d hosts and ports", sandpit.MaxEgressRules), "")
				}
			}
		}
	}
	return nil
}

// widensProtocol reports whether a rule names another protocol than TCP.
func (r *netRule) widensProtocol() bool {
	return slices.ContainsFunc(r.Protocols, func(p string) bool { return p != "tcp" })
}

// prefixes returns what the protocols of a rule are in rules of Egress.
func (r *netRule) prefixes() ([]string, error) {
	switch {
	case len(r.Protocols) == 0 && r.Action == allow:
		return []string{""}, nil
	case len(r.Protocols) == 0 && len(r.Ports) > 0:
		return []string{"", "udp:"}, nil
	case len(r.Protocols) == 0:
		return []string{"", "udp:", "ping:"}, nil
	}
	var all []string
	for _, p := range r.Protocols {
		prefix, ok := map[string]string{"tcp": "", "udp": "udp:", "icmpv4": "ping:", "icmpv6": "ping:"}[p]
		if !ok {
			return nil, gate.Invalid(fmt.Sprintf("the protocol %.40q of a network rule is not known", p), "use tcp, udp, icmpv4 or icmpv6")
		}
		if !slices.Contains(all, prefix) {
			all = append(all, prefix)
		}
	}
	return all, nil
}

// ports returns the ports of a rule as text: "" is every port.
func (r *netRule) ports() ([]string, error) {
	if len(r.Ports) == 0 {
		return []string{""}, nil
	}
	var all []string
	for _, x := range r.Ports {
		if x.Start == 0 || x.End < x.Start {
			return nil, gate.Invalid("a range of ports in a network rule is not valid", "")
		}
		if int(x.End-x.Start) >= sandpit.MaxEgressRules {
			return nil, dialect.Unsupported("a network rule with so many ports is")
		}
		for port := int(x.Start); port <= int(x.End); port++ {
			all = append(all, strconv.Itoa(port))
		}
	}
	return all, nil
}
