// Package egress decides which destinations a sandbox may reach. It is pure: it opens no
// connection and resolves no name. One normaliser (Name) serves rules, DNS, TLS, HTTP and
// CONNECT, so that no two of them read one name differently.
//
// Names decide. A rule about a name is matched with the name that the sandbox asked for, and
// the addresses of that name are then checked by themselves (Rules.Dialable), as whoever owns
// the name chooses them.
package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// Rules are a sandbox's egress, compiled. They are immutable.
type Rules struct {
	allow, deny []Rule
	preset      preset
	presetName  string
	resolve     map[string][]netip.Addr
}

// MaxServers bounds the name servers of one sandbox.
const MaxServers = 8

// Compile reads an Egress. Errors match sandpit.ErrInvalid.
func Compile(e sandpit.Egress) (*Rules, error) {
	r := &Rules{presetName: string(e.Preset), resolve: map[string][]netip.Addr{}}
	var known bool
	if r.preset, known = presetOf(e.Preset); !known {
		return nil, sandpit.WithHint(fault.Invalidf("there is no egress preset %q", fault.Clip(string(e.Preset))), "use none, registries, public, all or learn")
	}
	if n := len(e.Allow) + len(e.Deny) + len(e.Resolve); n > sandpit.MaxEgressRules {
		return nil, tooMany(n)
	}
	var err error
	if r.allow, err = parseRules(e.Allow); err != nil {
		return nil, err
	}
	for _, set := range r.preset.sets {
		r.allow = append(r.allow, setMembers(set)...)
	}
	if r.deny, err = parseRules(e.Deny); err != nil {
		return nil, err
	}
	for _, text := range e.Resolve {
		host, addr, err := ParseResolve(text)
		if err != nil {
			return nil, err
		}
		r.resolve[host] = append(r.resolve[host], addr)
	}
	_, err = Servers(e.DNS)
	return r, err
}

func tooMany(n int) error {
	return fault.Invalidf("%d egress rules exceed the limit of %d", n, sandpit.MaxEgressRules)
}

// Allowance reads what a policy allows: rules and presets. Errors match sandpit.ErrInvalid.
func Allowance(texts []string) (*Rules, error) {
	all := &Rules{}
	for _, text := range texts {
		named := []string{text}
		if p, ok := presetOf(sandpit.EgressPreset(text)); ok && text != "" {
			all.preset.public = all.preset.public || p.public
			all.preset.private = all.preset.private || p.private
			named = p.sets
		}
		rules, err := parseRules(named)
		if err != nil {
			return nil, err
		}
		all.allow = append(all.allow, rules...)
	}
	return all, nil
}

// Excess returns something that e asks for and that is not allowed: a rule or preset that is
// not among the allowed ones, or an address of Resolve or DNS that is not among the addresses.
// The part is "egress", "resolve" or "dns", or "" if all is allowed. Errors match
// sandpit.ErrInvalid.
func Excess(e sandpit.Egress, allowed, addresses []string) (part, what string, err error) {
	rules, err := Compile(e)
	if err != nil {
		return "", "", err
	}
	all, err := Allowance(allowed)
	if err != nil {
		return "", "", err
	}
	if rule := rules.beyond(all); rule != "" {
		return "egress", rule, nil
	}
	may, err := parseAddresses(addresses, all.preset.public)
	if err != nil {
		return "", "", err
	}
	for _, text := range e.Resolve {
		if _, addr, err := ParseResolve(text); err != nil || !may(addr) {
			return "resolve", text, err
		}
	}
	for _, text := range e.DNS {
		if servers, err := Servers([]string{text}); err != nil || !may(servers[0].Addr()) {
			return "dns", text, err
		}
	}
	return "", "", nil
}

// Narrows reports whether e allows nothing that was did not allow. Both are valid. It compares only texts and presets: a
// rule in place of a wider one may grant what a preset does not, and without an entry of Resolve a name may lead elsewhere.
func Narrows(e, was sandpit.Egress) bool {
	now, _ := presetOf(e.Preset)
	before, _ := presetOf(was.Preset)
	fewer := e.Preset == was.Preset || len(now.sets) == 0 && (before.public || !now.public) && (before.private || !now.private)
	return fewer && len(without(e.Allow, was.Allow)) == 0 && len(without(was.Deny, e.Deny)) == 0 &&
		slices.Equal(e.Resolve, was.Resolve) && slices.Equal(e.DNS, was.DNS) && !loosens(e, without(was.Allow, e.Allow))
}

// without returns the texts of a list that another does not have.
func without(list, other []string) []string {
	has := make(map[string]bool, len(other))
	for _, text := range other {
		has[text] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(text string) bool { return has[text] })
}

// loosens reports whether rules that were removed bound connections that e still allows to some requests.
func loosens(e sandpit.Egress, removed []string) bool {
	gone, err := parseRules(slices.DeleteFunc(removed, func(text string) bool { _, _, about := cutMethod(text); return !about }))
	if err != nil || len(gone) == 0 {
		return err != nil
	}
	rules, err := Compile(sandpit.Egress{Preset: e.Preset, Allow: e.Allow})
	return err != nil || slices.ContainsFunc(gone, func(r Rule) bool {
		r.HTTP = nil
		if slices.ContainsFunc(rules.allow, func(a Rule) bool { about := a.HTTP != nil; a.HTTP = nil; return about && a.Includes(&r) }) {
			return false // they are still bound to some
		}
		return rules.preset.public || slices.ContainsFunc(rules.allow, func(a Rule) bool {
			if a.Protocol != TCP || a.HTTP != nil || !a.serves(TCP, r.Port) {
				return false
			}
			a.Port = r.Port
			return a.Host == "" || a.Includes(&r) || r.Includes(&a) // by its address, the same host may be reached
		})
	})
}

// Within splits rules into those that are allowed as a whole, and the others. Errors match sandpit.ErrInvalid.
func Within(rules, allowed []string) (within, others []string, err error) {
	if len(rules) > sandpit.MaxEgressRules {
		return nil, nil, tooMany(len(rules))
	}
	all, err := Allowance(allowed)
	if err != nil {
		return nil, nil, err
	}
	for _, text := range rules {
		members, err := ParseRule(text)
		if err != nil {
			return nil, nil, err
		}
		if one := (Rules{allow: members}); one.beyond(all) == "" {
			within = append(within, text)
		} else {
			others = append(others, text)
		}
	}
	return within, others, nil
}

// PublicAddresses stands for all public addresses in a policy's list, if the policy also allows
// a preset with all public addresses. Otherwise a caller could lead an allowed name anywhere.
const PublicAddresses = "public"

// ParseAddresses reads ADDRESS, CIDR or PublicAddresses. Errors match sandpit.ErrInvalid.
func ParseAddresses(text string) (netip.Prefix, error) {
	if text == PublicAddresses {
		return netip.Prefix{}, nil
	}
	p, ok, err := parsePrefix(text)
	if err == nil && !ok {
		err = fault.Invalidf("%q is not an address, a CIDR or %s", fault.Clip(text), PublicAddresses)
	}
	return p, err
}

// parseAddresses returns whether an address is among those that the texts name.
func parseAddresses(texts []string, public bool) (func(netip.Addr) bool, error) {
	var named []netip.Prefix
	for _, text := range texts {
		p, err := ParseAddresses(text)
		if err != nil {
			return nil, err
		}
		named = append(named, p)
	}
	return func(a netip.Addr) bool {
		return slices.ContainsFunc(named, func(p netip.Prefix) bool {
			return p.Contains(a) || !p.IsValid() && public && netaddr.IsPublic(a)
		})
	}, nil
}

// beyond returns the text of something that r allows and all does not, or "".
func (r *Rules) beyond(all *Rules) string {
	if r.preset.public && !all.preset.public || r.preset.private && !all.preset.private {
		return r.presetName
	}
	for i := range r.allow {
		rule := &r.allow[i]
		byPreset := rule.Protocol == TCP && (all.preset.public && (rule.Host != "" || netaddr.IsPublicNet(rule.Prefix)) ||
			all.preset.private && rule.Host == "" && netaddr.IsPrivateNet(rule.Prefix))
		if !byPreset && !slices.ContainsFunc(all.allow, func(a Rule) bool { return a.Includes(rule) }) {
			return rule.Text
		}
	}
	return ""
}

// RefuseLoopback refuses rules that look as if they opened services of this machine, and do not: programs
// inside find their own loopback interface at these addresses. Beside a name, which may lead to them,
// addresses of the loopback mean something. Errors match sandpit.ErrInvalid.
func RefuseLoopback(e sandpit.Egress) error {
	r, err := Compile(e)
	if err != nil {
		return err
	}
	names := r.preset.public || slices.ContainsFunc(r.allow, func(rule Rule) bool { return rule.Host != "" && rule.Host != "localhost" })
	for _, rule := range r.allow {
		loopback := rule.Prefix.Addr().IsLoopback() && netaddr.Last(rule.Prefix).IsLoopback() && !names
		if rule.Host != "localhost" && !loopback {
			continue
		}
		host := "host"
		if rule.Port != 0 {
			host += ":" + strconv.Itoa(int(rule.Port))
		}
		if rule.Protocol != TCP {
			host = string(rule.Protocol) + ":" + host
		}
		address := rule.Prefix.Addr().String()
		if rule.Host != "" {
			address = "127.0.0.1"
		}
		return sandpit.WithHint(fault.Invalidf("rule %q: inside, this is the sandbox itself", fault.Clip(rule.Text)),
			"for a service of this machine write --allow "+host+" --resolve host:"+address)
	}
	return nil
}

// ParseResolve reads HOST:ADDRESS. Errors match sandpit.ErrInvalid.
func ParseResolve(text string) (host string, addr netip.Addr, err error) {
	name, address, ok := strings.Cut(text, ":")
	if ok {
		addr, ok = Addr(strings.TrimSuffix(strings.TrimPrefix(address, "["), "]"))
	}
	if !ok {
		return "", addr, fault.Invalidf("resolve %q: write HOST:ADDRESS, such as example.com:192.0.2.1", fault.Clip(text))
	}
	if host, err = Name(name); err != nil {
		return "", addr, fmt.Errorf("resolve %q: %w", fault.Clip(text), err)
	}
	return host, addr, nil
}

// Servers reads name servers, ADDRESS or ADDRESS:PORT. Errors match sandpit.ErrInvalid.
func Servers(texts []string) (servers []netip.AddrPort, err error) {
	const port = 53 // RFC 1035, section 4.2
	if len(texts) > MaxServers {
		return nil, fault.Invalidf("%d name servers exceed the limit of %d", len(texts), MaxServers)
	}
	for _, text := range texts {
		if a, ok := Addr(text); ok {
			servers = append(servers, netip.AddrPortFrom(a, port))
			continue
		}
		ap, err := netip.ParseAddrPort(text)
		if err != nil || ap.Addr().Zone() != "" || ap.Port() == 0 {
			return nil, fault.Invalidf("name server %q: write ADDRESS or ADDRESS:PORT", fault.Clip(text))
		}
		servers = append(servers, netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()))
	}
	return servers, nil
}

// A Destination is where a sandbox wants to go: a Name, or an address.
type Destination struct {
	Protocol Protocol
	Host     string
	Addr     netip.Addr // if Host is empty
	Port     uint16
}

// ParseDestination reads HOST, HOST:PORT or the same after udp: or ping:. Errors match
// sandpit.ErrInvalid.
func ParseDestination(text string) (d Destination, err error) {
	d.Protocol = TCP
	rest := text
	for _, p := range []Protocol{TCP, UDP, Ping} {
		if after, ok := strings.CutPrefix(text, string(p)+":"); ok {
			d.Protocol, rest = p, after
		}
	}
	host, port, err := cutPort(rest)
	if err != nil {
		return d, err
	}
	d.Port = port
	var ok bool
	if d.Addr, ok = Addr(host); !ok {
		d.Host, err = Name(host)
	}
	return d, err
}

func (d Destination) String() string {
	host := d.Host
	if host == "" {
		host = d.Addr.String()
		if d.Addr.Is6() && d.Port != 0 {
			host = "[" + host + "]"
		}
	}
	if d.Port != 0 {
		host = fmt.Sprintf("%s:%d", host, d.Port)
	}
	if d.Protocol != TCP {
		host = string(d.Protocol) + ":" + host
	}
	return host
}

// Decide says whether a destination is allowed as far as its name, or its address, protocol and port
// decide. Rules about requests count as allowing, as their requests are decided later: see Request.
func (r *Rules) Decide(d Destination) sandpit.EgressDecision {
	if denied, yes := r.Denies(d); yes {
		return denied
	}
	if i := slices.IndexFunc(r.allow, func(rule Rule) bool { return rule.grants(d) }); i >= 0 {
		return sandpit.EgressDecision{Allowed: true, Rule: r.allow[i].Text, Why: "allowed by the rule " + r.allow[i].Text}
	}
	if d.Protocol == TCP && (r.preset.public && (d.Host != "" || netaddr.IsPublic(d.Addr)) || r.preset.private && d.Host == "" && netaddr.IsPrivate(d.Addr)) {
		if isResolver(d) {
			return sandpit.EgressDecision{Why: whyResolver}
		}
		return sandpit.EgressDecision{Allowed: true, Rule: r.presetName, Why: "allowed by the preset " + r.presetName}
	}
	if d.Host == "" && !netaddr.IsPublic(d.Addr) {
		return sandpit.EgressDecision{Why: "the address is not public, and no rule names it"}
	}
	return sandpit.EgressDecision{Why: "no rule allows it"}
}

const whyResolver = "it is a name server, which no preset allows: a rule has to name it"

// granted reports whether a rule, and not only a preset, allows a destination.
func (r *Rules) granted(d Destination) bool {
	return slices.ContainsFunc(r.allow, func(rule Rule) bool { return rule.grants(d) })
}

// MustResolve says why an allowed name has to be resolved where its addresses are checked. It is "" if a
// proxy may resolve it: a rule names it, and none denies addresses.
func (r *Rules) MustResolve(d Destination) (why string) {
	if i := slices.IndexFunc(r.deny, func(rule Rule) bool { return rule.Host == "" && rule.serves(d.Protocol, d.Port) }); i >= 0 {
		return "the rule " + r.deny[i].Text + " denies addresses"
	}
	if !r.granted(d) {
		return "only the preset " + r.presetName + " allows it"
	}
	return ""
}

// Denies reports whether a rule denies a destination, whatever else may allow it.
func (r *Rules) Denies(d Destination) (sandpit.EgressDecision, bool) {
	i := slices.IndexFunc(r.deny, func(rule Rule) bool { return rule.HTTP == nil && rule.about(d) })
	if i < 0 {
		return sandpit.EgressDecision{}, false
	}
	return sandpit.EgressDecision{Rule: r.deny[i].Text, Why: "denied by the rule " + r.deny[i].Text}, true
}

// Around says why a connection to an address may not ask for a name in TLS, or "". It is not a way around
// rules that deny the name or that are about its requests, which nobody sees on such a connection, nor
// to name servers that no rule names.
func (r *Rules) Around(d Destination, name string) string {
	named := d
	named.Host = name
	denied, yes := r.Denies(named)
	switch {
	case yes:
		return denied.Why
	case r.Intercepts(named):
		return "requests to " + name + " are decided one by one, which takes a connection by its name"
	case isResolver(named) && !r.granted(d) && !r.granted(named):
		return whyResolver
	}
	return ""
}

func (r *Rule) about(d Destination) bool {
	return r.serves(d.Protocol, d.Port) && (d.Host != "" && r.names(d.Host) || d.Host == "" && r.covers(d.Addr))
}

// Resolvable reports whether any destination of a name is allowed: then the name gets an
// address inside.
func (r *Rules) Resolvable(name string) bool {
	denied := func(p Protocol, port uint16) bool { // all of it
		return slices.ContainsFunc(r.deny, func(d Rule) bool {
			return d.HTTP == nil && d.names(name) && d.Protocol == p && (d.Port == 0 || d.Port == port)
		})
	}
	if r.preset.public && !isResolver(Destination{Host: name}) && !denied(TCP, 0) {
		return true
	}
	return slices.ContainsFunc(r.allow, func(rule Rule) bool {
		return rule.names(name) && !denied(rule.Protocol, rule.Port)
	})
}

// Dialable says whether an address may be dialled for an allowed destination. Who owns a name
// chooses its addresses, so that it may not lead to this machine or a private network,
// unless Resolve or a rule about addresses says so. The reasons do not name the address: the sandbox
// reads them, and would learn addresses of private networks from names that only this side resolves.
func (r *Rules) Dialable(d Destination, a netip.Addr) sandpit.EgressDecision {
	a = a.Unmap()
	byAddr := Destination{Protocol: d.Protocol, Addr: a, Port: d.Port}
	if denied, yes := r.Denies(byAddr); yes {
		denied.Why = "its address is " + denied.Why
		return denied
	}
	switch {
	case isResolver(byAddr) && !r.granted(d) && !r.Named(d, a):
		return sandpit.EgressDecision{Why: "its address is denied: " + whyResolver}
	case netaddr.IsPublic(a), r.Named(d, a), r.preset.private && netaddr.IsPrivate(a):
		return sandpit.EgressDecision{Allowed: true}
	}
	return sandpit.EgressDecision{Why: "its address is not public, and no rule names it"}
}

// Named reports whether a rule about addresses, or Resolve, names an address for a destination.
func (r *Rules) Named(d Destination, a netip.Addr) bool {
	byAddr := Destination{Protocol: d.Protocol, Addr: a, Port: d.Port}
	return d.Host != "" && slices.Contains(r.resolve[d.Host], a) || r.granted(byAddr)
}

// Mentions reports whether a rule about addresses, or Resolve, is about an address at all.
func (r *Rules) Mentions(a netip.Addr) bool {
	for _, addrs := range r.resolve {
		if slices.Contains(addrs, a) {
			return true
		}
	}
	return slices.ContainsFunc(r.allow, func(rule Rule) bool { return rule.covers(a) })
}

// MentionsAny reports whether there is an address that Mentions reports.
func (r *Rules) MentionsAny() bool {
	return len(r.resolve) > 0 || slices.ContainsFunc(r.allow, func(rule Rule) bool { return rule.Host == "" })
}

// Addresses returns the addresses that Resolve gives a name.
func (r *Rules) Addresses(name string) []netip.Addr { return r.resolve[name] }

// Intercepts reports whether requests to a destination are decided one by one, so that TLS has
// to be intercepted.
func (r *Rules) Intercepts(d Destination) bool {
	about := func(rule Rule) bool { return rule.HTTP != nil && rule.about(d) }
	return slices.ContainsFunc(r.allow, about) || slices.ContainsFunc(r.deny, about)
}

// AboutRequests returns the text of a rule with a method and a path, or "".
func (r *Rules) AboutRequests() string {
	for _, rules := range [][]Rule{r.deny, r.allow} {
		if i := slices.IndexFunc(rules, func(rule Rule) bool { return rule.HTTP != nil }); i >= 0 {
			return rules[i].Text
		}
	}
	return ""
}

// Request decides about a request over HTTP to an allowed destination.
func (r *Rules) Request(d Destination, method, path string) sandpit.EgressDecision {
	matches := func(rule Rule) bool { return rule.about(d) && (rule.HTTP == nil || rule.HTTP.Matches(method, path)) }
	if i := slices.IndexFunc(r.deny, matches); i >= 0 {
		return sandpit.EgressDecision{Rule: r.deny[i].Text, Why: "denied by the rule " + r.deny[i].Text}
	}
	if i := slices.IndexFunc(r.allow, matches); i >= 0 {
		return sandpit.EgressDecision{Allowed: true, Rule: r.allow[i].Text, Why: "allowed by the rule " + r.allow[i].Text}
	}
	if r.preset.public {
		return sandpit.EgressDecision{Allowed: true, Rule: r.presetName, Why: "allowed by the preset " + r.presetName}
	}
	return sandpit.EgressDecision{Why: "no rule allows " + fault.Clip(method) + " " + fault.Clip(path)}
}
