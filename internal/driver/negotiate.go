package driver

import (
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

// Negotiate decides which limits are enforced. required are the features that the
// caller asked for, as feature.Required returns them. If one of them is missing the
// error matches sandpit.ErrUnsupported and names it. A limit that nobody asked for and
// that can't be enforced is a gap. limits is what the sandbox is to get; a default
// number of open files is lowered to what this program may allow.
func (c Capabilities) Negotiate(required []feature.Feature, limits *sandpit.Limits) (enforce feature.Set, gaps []sandpit.Gap, err error) {
	for _, f := range required {
		if !c.Features[f] {
			gap := c.gap(f)
			return nil, nil, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "%s: %s", f.Doing(), gap.Why), gap.Fix)
		}
	}
	enforce = feature.Set{}
	for _, f := range feature.Limits() {
		if c.Features[f] {
			enforce[f] = true
		} else {
			gaps = append(gaps, c.gap(f))
		}
	}
	if c.MaxNoFile > 0 && limits.NoFile > c.MaxNoFile {
		if slices.Contains(required, feature.NoFile) {
			return nil, nil, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "limiting nofile: %d is more than the %d that this program can grant", limits.NoFile, c.MaxNoFile),
				"request fewer, or raise the hard limit (ulimit -Hn) before you start this program")
		}
		limits.NoFile = c.MaxNoFile
	}
	return enforce, gaps, nil
}

// NegotiateChange decides whether limits of a living sandbox can be changed. lacking are the
// gaps that it was made with. If one of the limits can't be changed, the error matches
// sandpit.ErrUnsupported and names it.
func (c Capabilities) NegotiateChange(limits []feature.Feature, lacking []sandpit.Gap) error {
	for _, f := range limits {
		i := slices.IndexFunc(lacking, func(g sandpit.Gap) bool { return g.What == string(f) })
		switch {
		case i >= 0:
			return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "the limit %q is not enforced: %s", string(f), lacking[i].Why), lacking[i].Fix)
		case c.Changeable[f]:
		case c.Features[f]:
			return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "the limit %q of a sandbox can't be changed while it lives", string(f)), "create a new sandbox with this limit")
		default:
			gap := c.gap(f)
			return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "the limit %q can't be enforced: %s", string(f), gap.Why), gap.Fix)
		}
	}
	return nil
}

// gap explains why a feature is missing.
func (c Capabilities) gap(f feature.Feature) sandpit.Gap {
	i := slices.IndexFunc(c.Gaps, func(g sandpit.Gap) bool { return g.What == string(f) })
	if i < 0 {
		return sandpit.Gap{What: string(f), Why: "this driver does not support it", Fix: "use another driver"}
	}
	return c.Gaps[i]
}
