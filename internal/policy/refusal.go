package policy

import (
	"errors"
	"fmt"

	"github.com/sandpit-dev/sandpit"
)

// Refusal is the error of a request that a policy does not allow. It matches
// sandpit.ErrForbidden.
type Refusal struct {
	Part string // of the request: "image", "memory", "mounts", …
	Rule string // that refused it: the policy's name and field, "team.images"
	text string
}

func (r *Refusal) Error() string { return sandpit.ErrForbidden.Error() + ": " + r.text }

// Unwrap returns sandpit.ErrForbidden.
func (r *Refusal) Unwrap() error { return sandpit.ErrForbidden }

// Rule returns the rule that refused a request, for the audit, or "".
func Rule(err error) string {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Rule
	}
	return ""
}

// refuse returns a Refusal with a hint.
func (p *Policy) refuse(part, field, hint, format string, args ...any) error {
	rule, text := field, fmt.Sprintf(format, args...)
	if p.Name != "" {
		rule = p.Name + "." + field
		text += " (" + rule + ")"
	}
	return sandpit.WithHint(&Refusal{Part: part, Rule: rule, text: text}, hint)
}
