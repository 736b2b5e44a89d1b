package policy

import (
	"fmt"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Excess returns something that e asks for and that is neither among the allowed rules and
// presets nor among the addresses that it may name. The part is "egress", "resolve" or
// "dns", or "" if everything is allowed. Errors match sandpit.ErrInvalid.
type Excess func(e sandpit.Egress, allowed, addresses []string) (part, what string, err error)

// Within splits rules into those that are within the allowed ones, and the others. More than
// sandpit.MaxEgressRules are refused before they are read. Errors match sandpit.ErrInvalid.
type Within func(rules, allowed []string) (within, others []string, err error)

// Egress returns what a sandbox may reach that asks for e: with what the policy denies, and
// with its bounds. Errors match sandpit.ErrInvalid if e is invalid, and sandpit.ErrForbidden
// if the policy does not allow it.
func (p *Policy) Egress(e sandpit.Egress, excess Excess) (sandpit.Egress, error) {
	if err := p.boundTraffic(&e.Bounds); err != nil {
		return e, err
	}
	if p.Rules == nil {
		_, _, err := excess(e, nil, nil)
		return e, err
	}
	e = p.learn(e)
	part, what, err := excess(e, p.Rules.Egress, p.Rules.Resolve)
	if err != nil {
		return e, err
	}
	hint := func(allowed []string) string {
		if len(allowed) == 0 {
			return "ask the operator to allow it in the policy"
		}
		return "ask for less: the policy allows " + few(allowed)
	}
	switch part {
	case "":
	case "egress":
		say := hint(p.Rules.Egress)
		if set := p.oneSet(excess); e.Preset == sandpit.EgressRegistries && set != "" && set != what {
			say = "write --allow " + set + " in place of --egress registries"
		}
		return e, p.refuse(part, "egress", say, "egress to %s is not allowed", quote(what))
	case "dns":
		return e, p.refuse(part, "resolve", hint(p.Rules.Resolve), "the name server %s is not allowed", quote(what))
	default:
		return e, p.refuse(part, "resolve", hint(p.Rules.Resolve), "resolving %s is not allowed", quote(what))
	}
	e = p.WithDenied(e)
	if over := len(e.Allow) + len(e.Resolve) + len(e.Deny) - sandpit.MaxEgressRules; over > 0 {
		return e, invalid(fmt.Sprintf("remove %d of the sandbox's own rules, or all that it allows", over),
			"%d egress rules, with denials that the policy adds, exceed the limit of %d", over+sandpit.MaxEgressRules, sandpit.MaxEgressRules)
	}
	return e, nil
}

// WithDenied returns e with what the policy denies, too.
func (p *Policy) WithDenied(e sandpit.Egress) sandpit.Egress {
	if p.Rules == nil {
		return e
	}
	own := slices.DeleteFunc(slices.Clone(e.Deny), func(rule string) bool { return slices.Contains(p.Rules.Deny, rule) })
	e.Deny = slices.Concat(p.Rules.Deny, own) // a caller may have read them, and send them back
	return e
}

// WithoutDenials returns the policy for what reaches nothing.
func (p Policy) WithoutDenials() Policy {
	if p.Rules != nil {
		rules := *p.Rules
		rules.Deny, p.Rules = nil, &rules
	}
	return p
}

// oneSet returns a set of EgressRegistries that is allowed, or "".
func (p *Policy) oneSet(excess Excess) string {
	for _, set := range [...]string{"package-registries", "git-hosts"} {
		if part, _, err := excess(sandpit.Egress{Allow: []string{set}}, p.Rules.Egress, nil); err == nil && part == "" {
			return set
		}
	}
	return ""
}

// RefuseDenied refuses rules of a caller that the policy denies as a whole, which would allow nothing. Errors
// match sandpit.ErrForbidden.
func (p *Policy) RefuseDenied(e sandpit.Egress, within Within) error {
	if p.Rules == nil || len(p.Rules.Deny) == 0 || len(e.Allow) == 0 {
		return nil
	}
	denied, _, err := within(e.Allow, p.Rules.Deny)
	if err != nil || len(denied) == 0 { // Egress returns the error, with what else is wrong
		return nil
	}
	return p.refuse("egress", "deny", "omit it, or ask the operator", "egress to %s is denied", quote(denied[0]))
}

// learn returns e with everything that the policy allows, if e asks for EgressLearn and the
// policy allows less than public addresses.
func (p *Policy) learn(e sandpit.Egress) sandpit.Egress {
	may := func(preset sandpit.EgressPreset) bool { return slices.Contains(p.Rules.Egress, string(preset)) }
	if e.Preset != sandpit.EgressLearn || may(sandpit.EgressPublic) || may(sandpit.EgressAll) || len(e.Allow) > sandpit.MaxEgressRules { // as many are refused
		return e
	}
	e.Preset = sandpit.EgressNone
	for _, rule := range p.Rules.Egress {
		switch preset := sandpit.EgressPreset(rule); {
		case preset == sandpit.EgressRegistries:
			e.Preset = preset
		case preset != sandpit.EgressNone && !slices.Contains(e.Allow, rule):
			e.Allow = append(slices.Clip(e.Allow), rule)
		}
	}
	return e
}

// boundTraffic checks the bounds of a sandbox's traffic, and sets those that the policy has
// and the caller did not name.
func (p *Policy) boundTraffic(b *sandpit.EgressBounds) error {
	var most sandpit.EgressBounds
	if p.Rules != nil {
		most = p.Rules.Traffic
	}
	limits := notation.TrafficBounds(&most)
	for i, bound := range notation.TrafficBounds(b) {
		switch value, limit := *bound.Value, *limits[i].Value; {
		case value < 0 || value > maxTraffic:
			return invalid("use a number from 1 to "+bound.Format(maxTraffic), "the %s of %d is impossible", bound.Noun, value)
		case limit == 0:
		case value == 0 && (bound.Default == 0 || bound.Default > limit):
			*bound.Value = limit
		case value > limit:
			return p.refuse(bound.Name, "maximum."+bound.Name, "request at most "+bound.Format(limit),
				"the %s of %s is more than the maximum of %s", bound.Noun, bound.Format(value), bound.Format(limit))
		}
	}
	return nil
}

// LowerTraffic lowers bounds that are as before to the policy's maxima, which may have been tightened since. A bound
// that the caller has changed stays as it is, for Egress to check.
func (p *Policy) LowerTraffic(b *sandpit.EgressBounds, was sandpit.EgressBounds) {
	if p.Rules == nil {
		return
	}
	most := p.Rules.Traffic
	limits, before := notation.TrafficBounds(&most), notation.TrafficBounds(&was)
	for i, bound := range notation.TrafficBounds(b) {
		if limit := *limits[i].Value; limit > 0 && *bound.Value > limit && *bound.Value == *before[i].Value {
			*bound.Value = limit
		}
	}
}

// maxTraffic is more than any sandbox moves.
const maxTraffic = 1 << 60
