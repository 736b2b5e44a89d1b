package policy

import (
	"maps"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// CheckChange checks what can be known of a change without the sandbox: its name, and that
// it only changes limits of feature.Changeable. Errors match sandpit.ErrInvalid.
func CheckChange(c sandpit.Change) error {
	if c.Name != "" && !notation.IsName(c.Name) {
		return invalid(notation.NameHint, "%s is not a valid sandbox name", quote(c.Name))
	}
	for _, l := range limits() {
		if l.get(&c.Limits) == 0 {
			continue
		}
		switch {
		case slices.Contains(feature.Changeable(), l.feature):
		case l.feature == feature.Life:
			return invalid("change the lifetime instead, for example with 'sandpit extend'", "the limit %q is not changed in this way", string(l.feature))
		default:
			return invalid("create a new sandbox with this limit; memory, cpus and pids can be changed", "the limit %q of a sandbox can't be changed", string(l.feature))
		}
	}
	return nil
}

// Change returns the labels and limits of a sandbox after a change that CheckChange has
// accepted. Errors match sandpit.ErrInvalid or sandpit.ErrForbidden.
func (p Policy) Change(c sandpit.Change, labels map[string]string, was sandpit.Limits) (map[string]string, sandpit.Limits, error) {
	after := maps.Clone(labels)
	for _, key := range c.RemoveLabels {
		delete(after, key)
	}
	if after == nil && len(c.Labels) > 0 {
		after = map[string]string{}
	}
	maps.Copy(after, c.Labels)
	if err := checkLabels(sandpit.Spec{Labels: after}); err != nil {
		return nil, was, err
	}
	resolved, err := p.resolveLimits(sandpit.Spec{Limits: c.Limits})
	if err != nil {
		return nil, was, err
	}
	for _, l := range limits() {
		if l.get(&c.Limits) != 0 {
			l.take(&was, &resolved)
		}
	}
	return after, was, nil
}

// Only returns the limits that are in a set; the others are 0.
func Only(all sandpit.Limits, set feature.Set) (some sandpit.Limits) {
	for _, l := range limits() {
		if set[l.feature] {
			l.take(&some, &all)
		}
	}
	return some
}

// Differing returns which limits are different.
func Differing(a, b sandpit.Limits) feature.Set {
	set := feature.Set{}
	for _, l := range limits() {
		if l.get(&a) != l.get(&b) {
			set[l.feature] = true
		}
	}
	return set
}
