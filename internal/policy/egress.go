package policy

import (
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// Egress returns what a sandbox may reach that asks for e: what the policy denies is added.
// beyond returns a rule of e that is not among the allowed ones, or ""; errors of it are
// returned. The error matches sandpit.ErrForbidden if the policy does not allow e.
func (p *Policy) Egress(e sandpit.Egress, beyond func(e sandpit.Egress, allowed []string) (string, error)) (sandpit.Egress, error) {
	var allowed []string
	if p.Rules != nil {
		allowed = p.Rules.Egress
	}
	rule, err := beyond(e, allowed)
	if err != nil || p.Rules == nil {
		return e, err
	}
	if rule != "" {
		hint := "ask the operator to allow it in the policy"
		if len(allowed) > 0 {
			hint = "ask for less: the policy allows " + strings.Join(allowed, ", ")
		}
		return e, p.refuse("egress", "egress", hint, "egress to %s is not allowed", quote(rule))
	}
	own := slices.DeleteFunc(slices.Clone(e.Deny), func(rule string) bool { return slices.Contains(p.Rules.Deny, rule) })
	e.Deny = slices.Concat(p.Rules.Deny, own) // a caller may have read them, and send them back
	return e, nil
}
