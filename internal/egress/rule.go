package egress

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/publicsuffix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// A Protocol is what a rule allows or denies.
type Protocol string

// The protocols. HTTP and TLS are TCP.
const (
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	Ping Protocol = "ping" // ICMP echo
)

// A Rule names destinations: by name or by address, never both.
type Rule struct {
	Text string // as it was written; of a member of a set, the name of the set

	Protocol Protocol
	Host     string       // the Name, or of a wildcard the part after "*."
	Wildcard bool         // the names below Host, not Host itself
	Prefix   netip.Prefix // if Host is empty
	Port     uint16       // 0: any; always 0 for Ping
	HTTP     *HTTPRule    // only these requests; needs TLS interception
}

// HTTPRule bounds a rule to requests over HTTPS.
type HTTPRule struct {
	Method string // "*": any
	Path   string // exact, or a prefix with a final '*'
}

// Matches reports whether a request is one that the rule names.
func (h *HTTPRule) Matches(method, path string) bool {
	if h.Method != "*" && h.Method != method {
		return false
	}
	if prefix, ok := strings.CutSuffix(h.Path, "*"); ok {
		return strings.HasPrefix(path, prefix)
	}
	return path == h.Path
}

// httpsPort is the port of https (RFC 9110, section 4.2.2).
const httpsPort = 443

const ruleHint = "write HOST, HOST:PORT, *.HOST, ADDRESS, CIDR or a set, optionally after udp: or ping:, or METHOD:https://HOST/PATH*"

// ParseRule reads a rule, or the members of a set. Errors match sandpit.ErrInvalid.
func ParseRule(text string) ([]Rule, error) {
	failed := func(err error) ([]Rule, error) {
		return nil, sandpit.WithHint(fault.Invalidf("rule %q: %w", fault.Clip(text), err), ruleHint)
	}
	if members := setMembers(text); members != nil {
		return members, nil
	}
	if _, known := presetOf(sandpit.EgressPreset(text)); known && text != "" || text == "*" {
		preset := text
		if text == "*" {
			preset = string(sandpit.EgressAll)
		}
		return nil, sandpit.WithHint(fault.Invalidf("rule %q: a preset is not a rule", text), "write --egress "+preset)
	}
	if !strings.ContainsAny(text, ".:/") && text != "" { // perhaps a mistyped set
		return nil, sandpit.WithHint(fault.Invalidf("rule %q: there is no such set", fault.Clip(text)),
			"use "+strings.Join(SetNames(), ", ")+", or HOST:PORT for a host whose name has no dot")
	}
	rule := Rule{Text: text, Protocol: TCP}
	rest := text
	if method, url, ok := cutMethod(text); ok {
		var err error
		if rest, rule.HTTP, err = parseHTTP(method, url); err != nil {
			return failed(err)
		}
	} else if after, ok := strings.CutPrefix(text, "udp:"); ok {
		rule.Protocol, rest = UDP, after
	} else if after, ok := strings.CutPrefix(text, "ping:"); ok {
		rule.Protocol, rest = Ping, after
	}
	if scheme, after, ok := strings.Cut(rest, "://"); ok && rule.HTTP == nil {
		return failed(withoutScheme(scheme, after))
	}
	host, port, err := cutPort(rest)
	if err != nil {
		return failed(err)
	}
	rule.Port = port
	switch {
	case rule.Protocol == Ping && port != 0:
		return failed(fault.Invalidf("ping has no ports"))
	case rule.HTTP != nil && port == 0:
		rule.Port = httpsPort
	}
	if prefix, ok, err := parsePrefix(host); err != nil {
		return failed(err)
	} else if ok {
		if rule.HTTP != nil {
			return failed(fault.Invalidf("a method and path need a host name"))
		}
		rule.Prefix = prefix
		return []Rule{rule}, nil
	}
	if rule.Host, rule.Wildcard = strings.CutPrefix(host, "*."); strings.Contains(rule.Host, "*") {
		return failed(fault.Invalidf("'*' stands only for all names below a domain, as in *.example.com"))
	}
	if rule.Host, err = Name(rule.Host); err != nil {
		return failed(err)
	}
	switch {
	case setMembers(rule.Host) != nil:
		return failed(fault.Invalidf("the set %s stands alone, as in --allow %s", rule.Host, rule.Host))
	case rest == text && port == 0 && !strings.Contains(host, "."):
		return failed(fault.Invalidf("there is no set %q; a host without a dot needs a port or a final dot", fault.Clip(text)))
	}
	if suffix, _ := publicsuffix.PublicSuffix(rule.Host); rule.Wildcard && suffix == rule.Host {
		return failed(fault.Invalidf("*.%s covers names of many owners: it is a public suffix", rule.Host))
	}
	return []Rule{rule}, nil
}

// cutMethod cuts METHOD:https://… into its method and URL.
func cutMethod(text string) (method, url string, ok bool) {
	method, url, ok = strings.Cut(text, ":")
	return method, url, ok && strings.HasPrefix(url, "https://")
}

// withoutScheme says what to write in place of a URL.
func withoutScheme(scheme, rest string) error {
	host, _, _ := strings.Cut(rest, "/")
	if port, ok := map[string]string{"http": ":80", "https": ":443"}[scheme]; ok && !strings.Contains(host, ":") {
		host += port
	}
	if strings.Contains(scheme, ":") {
		return fault.Invalidf("rules about requests begin with METHOD:https://")
	}
	return fault.Invalidf("a rule is not a URL: write %s", fault.Clip(host))
}

func parseHTTP(method, url string) (hostport string, r *HTTPRule, err error) {
	if method != "*" && (method == "" || strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "") {
		return "", nil, fault.Invalidf("%q is not an HTTP method: use capital letters, or * for all", method)
	}
	hostport, path, _ := strings.Cut(strings.TrimPrefix(url, "https://"), "/")
	path = "/" + path
	if strings.ContainsAny(path, "?#%\\") || strings.Contains(strings.TrimSuffix(path, "*"), "*") || strings.Contains(path+"/", "/../") || strings.Contains(path+"/", "/./") || strings.Contains(path, "//") {
		return "", nil, fault.Invalidf("%q is not a path: write it plainly, with at most one '*', at its end", path)
	}
	return hostport, &HTTPRule{Method: method, Path: path}, nil
}

// cutPort cuts a port off a host, an address or a CIDR. IPv6 has a port only in brackets.
func cutPort(s string) (host string, port uint16, err error) {
	var digits string
	switch inner, bracketed := strings.CutPrefix(s, "["); {
	case bracketed:
		var after string
		var ok bool
		if host, after, ok = strings.Cut(inner, "]"); !ok || after != "" && after[0] != ':' {
			return "", 0, fault.Invalidf("the brackets do not hold an address")
		}
		if _, ok, err := parsePrefix(host); err != nil || !ok {
			return "", 0, fault.Invalidf("the brackets do not hold an address")
		}
		if after == "" {
			return host, 0, nil
		}
		digits = after[1:]
	case strings.Count(s, ":") == 1:
		host, digits, _ = strings.Cut(s, ":")
	default:
		return s, 0, nil
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 || digits[0] == '0' || digits[0] == '+' {
		return "", 0, fault.Invalidf("%q is not a port: use a number from 1 to 65535", digits)
	}
	return host, uint16(n), nil
}

// parsePrefix reads an address or a CIDR; ok is false for anything else.
func parsePrefix(s string) (p netip.Prefix, ok bool, err error) {
	if a, ok := Addr(s); ok {
		return netip.PrefixFrom(a, a.BitLen()), true, nil
	}
	if !strings.Contains(s, "/") {
		return netip.Prefix{}, false, nil
	}
	p, err = netip.ParsePrefix(s)
	switch {
	case err != nil:
		before, _, _ := strings.Cut(s, "/")
		a, isAddr := Addr(before)
		switch {
		case isAddr:
			return p, false, fault.Invalidf("%q is not a CIDR: the length after / is a number from 0 to %d", s, a.BitLen())
		case strings.Trim(before, "0123456789.") == "":
			return p, false, fault.Invalidf("%q is not a CIDR: write all four numbers of the address, as in 10.0.0.0/8", s)
		}
		return p, false, fault.Invalidf("%q is neither a host nor a CIDR: a path stands only in METHOD:https://HOST/PATH*", s)
	case p.Addr().Is4In6():
		return p, false, fault.Invalidf("%q holds IPv4 addresses: write it as IPv4", s)
	case p != p.Masked():
		return p, false, fault.Invalidf("%q has bits after its length: the network is %s", s, p.Masked())
	}
	return p, true, nil
}

// names reports whether the rule names a host by its Name.
func (r *Rule) names(host string) bool {
	if r.Host == "" || host == "" {
		return false
	}
	if r.Wildcard {
		return len(host) > len(r.Host)+1 && strings.HasSuffix(host, r.Host) && host[len(host)-len(r.Host)-1] == '.'
	}
	return host == r.Host
}

// covers reports whether an address is within the rule.
func (r *Rule) covers(a netip.Addr) bool { return r.Host == "" && r.Prefix.Contains(a) }

// grants reports whether the rule allows a destination. A network that also has public
// addresses, such as 0.0.0.0/0, grants those only: loopback, private networks, links and
// metadata services need rules that mean them.
func (r *Rule) grants(d Destination) bool {
	return r.about(d) && (d.Host != "" || netaddr.IsPublic(d.Addr) || r.inside())
}

// inside reports whether the rule is about a network without public addresses. Of the larger
// networks there are, none has public ones at neither end.
func (r *Rule) inside() bool {
	least := 4 // 224.0.0.0/4
	if r.Prefix.Addr().Is6() {
		least = 7 // fc00::/7
	}
	return r.Host == "" && r.Prefix.Bits() >= least && !netaddr.IsPublic(r.Prefix.Addr()) && !netaddr.IsPublic(netaddr.Last(r.Prefix))
}

// serves reports whether the rule is about a protocol and port. Port 0 asks about any.
func (r *Rule) serves(p Protocol, port uint16) bool {
	return r.Protocol == p && (r.Port == 0 || port == 0 || r.Port == port)
}

// Includes reports whether everything that o names is named by r.
func (r *Rule) Includes(o *Rule) bool {
	if r.Protocol != o.Protocol || r.Port != 0 && r.Port != o.Port || r.HTTP != nil && !r.HTTP.includes(o.HTTP) {
		return false
	}
	switch {
	case r.Host == "":
		return o.Host == "" && (r.inside() || !o.inside()) && r.Prefix.Bits() <= o.Prefix.Bits() && r.Prefix.Contains(o.Prefix.Addr())
	case r.Wildcard && o.Wildcard:
		return r.Host == o.Host || r.names(o.Host)
	}
	return !o.Wildcard && r.names(o.Host)
}

func (h *HTTPRule) includes(o *HTTPRule) bool {
	if o == nil || h.Method != "*" && h.Method != o.Method {
		return false
	}
	if prefix, ok := strings.CutSuffix(h.Path, "*"); ok {
		return strings.HasPrefix(strings.TrimSuffix(o.Path, "*"), prefix)
	}
	return h.Path == o.Path
}

// parseRules reads rules.
func parseRules(texts []string) (all []Rule, err error) {
	for _, text := range texts {
		rules, err := ParseRule(text)
		if err != nil {
			return nil, err
		}
		all = append(all, rules...)
	}
	return slices.Clip(all), nil
}
