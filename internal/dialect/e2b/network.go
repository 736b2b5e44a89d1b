package e2b

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// networkConfig says what a sandbox may reach. In E2B what is allowed wins over what is denied,
// and without either all traffic is allowed.
type networkConfig struct {
	AllowOut      []string        `json:"allowOut,omitempty"`
	DenyOut       []string        `json:"denyOut,omitempty"`
	AllowInternet *bool           `json:"allow_internet_access,omitempty"` // only in a change
	PublicTraffic *bool           `json:"allowPublicTraffic,omitempty"`
	MaskHost      string          `json:"maskRequestHost,omitempty"`
	HTTPSPorts    []int           `json:"httpsPorts,omitempty"`
	Rules         json.RawMessage `json:"rules,omitempty"`
	Proxy         json.RawMessage `json:"egressProxy,omitempty"`
}

// UnmarshalJSON refuses fields that are not known: none may be dropped silently.
func (n *networkConfig) UnmarshalJSON(data []byte) error {
	type plain networkConfig
	return dialect.Exactly("network", data, (*plain)(n))
}

// allTraffic is the rule for everything.
const allTraffic = "0.0.0.0/0"

// egress returns what n allows. n may be nil. internet is the field allow_internet_access.
func (n *networkConfig) egress(internet *bool) (sandpit.Egress, error) {
	if n == nil {
		n = new(networkConfig)
	}
	given := func(raw json.RawMessage) bool { return dialect.Given(raw) && string(raw) != "{}" }
	switch {
	case given(n.Rules):
		return sandpit.Egress{}, dialect.Unsupported("network.rules are")
	case given(n.Proxy):
		return sandpit.Egress{}, dialect.Unsupported("network.egressProxy is")
	case n.MaskHost != "":
		return sandpit.Egress{}, dialect.Unsupported("network.maskRequestHost is")
	case len(n.HTTPSPorts) > 0:
		return sandpit.Egress{}, dialect.Unsupported("network.httpsPorts is")
	}
	for name, list := range map[string][]string{"allowOut": n.AllowOut, "denyOut": n.DenyOut} {
		for _, entry := range list {
			if !isDestination(entry) {
				return sandpit.Egress{}, gate.Invalid(fmt.Sprintf("network.%s: %.60q is not an IP address, CIDR block or host name", name, entry), "use entries such as 203.0.113.7, 10.0.0.0/8, example.com and *.example.com")
			}
		}
	}
	closed := internet != nil && !*internet || slices.Contains(n.DenyOut, allTraffic)
	switch {
	case slices.Contains(n.AllowOut, allTraffic):
		return sandpit.Egress{Preset: sandpit.EgressPublic}, n.checkRedundant()
	case closed:
		return sandpit.Egress{Allow: n.AllowOut}, nil
	case len(n.AllowOut) > 0 && len(n.DenyOut) > 0:
		return sandpit.Egress{}, dialect.Unsupported(fmt.Sprintf("network.allowOut with a denyOut other than [%q] is", allTraffic))
	}
	return sandpit.Egress{Preset: sandpit.EgressPublic, Deny: n.DenyOut}, n.checkRedundant()
}

// isDestination reports whether an entry of a list of destinations is one of E2B's: an IP address, a CIDR block or a host name.
// Sandpit's own notation has more, such as sets and ports, which clients of E2B do not mean.
func isDestination(entry string) bool {
	if _, err := netip.ParsePrefix(entry); err == nil {
		return true
	}
	if _, err := netip.ParseAddr(entry); err == nil {
		return true
	}
	name, err := egress.Name(strings.TrimPrefix(entry, "*."))
	return err == nil && strings.Contains(name, ".") // names of sets have no dot
}

// maxRedundant bounds the bytes of a redundant AllowOut as JSON. It is kept in the data of the dialect, which is bounded, too.
const maxRedundant = 32 << 10

// checkRedundant refuses an AllowOut that is redundant if the engine would refuse it as the rules of closed egress, or if it is too large to keep.
func (n *networkConfig) checkRedundant() error {
	const hint = "omit network.allowOut: all public addresses are allowed without it"
	if len(n.AllowOut) > sandpit.MaxEgressRules {
		return gate.Invalid(fmt.Sprintf("network.allowOut has %d entries, and may have %d", len(n.AllowOut), sandpit.MaxEgressRules), hint)
	}
	data, err := json.Marshal(n.AllowOut)
	if err != nil {
		return err
	}
	if len(data) > maxRedundant {
		return gate.Invalid(fmt.Sprintf("network.allowOut has %d bytes, and may have %d where all public addresses are allowed", len(data), maxRedundant), hint)
	}
	rules := slices.DeleteFunc(slices.Clone(n.AllowOut), func(rule string) bool { return rule == allTraffic })
	if _, err := egress.Compile(sandpit.Egress{Allow: rules}); err != nil {
		return fmt.Errorf("network.allowOut: %w", err)
	}
	return nil
}

// mentionsEgress reports whether n, which may be nil, says what the sandbox may reach.
func (n *networkConfig) mentionsEgress() bool {
	return n != nil && (n.AllowOut != nil || n.DenyOut != nil)
}

// redundant returns the AllowOut of n, which may be nil, if it is not a part of e, because that allows all traffic in any case.
func (n *networkConfig) redundant(e sandpit.Egress) []string {
	if n == nil || e.Preset != sandpit.EgressPublic {
		return nil
	}
	return n.AllowOut
}

// networkOf describes what a sandbox with a state may reach, and who may reach it, or returns nil if that is the default.
func networkOf(e sandpit.Egress, s state) *networkConfig {
	out := new(networkConfig)
	if s.Private {
		out.PublicTraffic = new(false)
	}
	switch e.Preset {
	case sandpit.EgressPublic, sandpit.EgressAll, sandpit.EgressLearn:
		if out.AllowOut, out.DenyOut = s.AllowOut, e.Deny; len(s.AllowOut)+len(e.Deny) == 0 && !s.Private {
			return nil
		}
	default:
		out.AllowOut, out.DenyOut = e.Allow, []string{allTraffic}
	}
	return out
}

// setNetwork replaces what a sandbox may reach.
func setNetwork(c *call) error {
	in := new(networkConfig)
	if err := c.readJSON(in); err != nil {
		return c.Untouched(err)
	}
	if in.PublicTraffic != nil {
		return c.Untouched(dialect.Unsupported("changing network.allowPublicTraffic is"))
	}
	e, err := in.egress(in.AllowInternet)
	if err != nil {
		return c.Untouched(err)
	}
	sb, _, err := c.live()
	if err != nil {
		return err
	}
	if err := sb.SetEgress(c.Ctx, e); err != nil {
		return err
	}
	if err := c.change(sb, func(s *state) { s.AllowOut = in.redundant(e) }); err != nil {
		return err
	}
	return c.done()
}
