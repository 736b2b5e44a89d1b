package driver

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

func TestNegotiate(t *testing.T) {
	caps := Capabilities{
		Features:  feature.Set{feature.Memory: true, feature.NoFile: true, feature.Disk: true},
		MaxNoFile: 1000,
		Gaps: []sandpit.Gap{
			{What: "pids", Why: "no controller", Fix: "delegate it"},
			{What: "pause", Why: "no freezer", Fix: "use Linux 5.2"},
		},
	}
	limits := sandpit.DefaultLimits()
	enforce, gaps, err := caps.Negotiate([]feature.Feature{feature.Memory}, &limits)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(caps.Features, enforce); diff != "" {
		t.Errorf("enforced:\n%s", diff)
	}
	var missing []string
	for _, g := range gaps {
		missing = append(missing, g.What+": "+g.Why)
	}
	const can = ": this driver does not support it"
	if diff := cmp.Diff([]string{"cpus" + can, "pids: no controller", "files" + can, "output" + can, "life" + can}, missing); diff != "" {
		t.Errorf("gaps:\n%s", diff)
	}
	if limits.NoFile != 1000 {
		t.Errorf("a default of more open files than this program has became %d", limits.NoFile)
	}

	for name, c := range map[string]struct {
		required []feature.Feature
		message  string
		hint     string
	}{
		"limit":       {[]feature.Feature{feature.Memory, feature.Pids}, "limiting pids: no controller", "delegate it"},
		"pause":       {[]feature.Feature{feature.Pause}, "pausing at the end of the lifetime: no freezer", "use Linux 5.2"},
		"mounts":      {[]feature.Feature{feature.Mounts}, "mounting host directories: this driver does not support it", "use another driver"},
		"write paths": {[]feature.Feature{feature.WritePaths}, "restricting writes: this driver does not support it", "use another driver"},
		"nested":      {[]feature.Feature{feature.NestedMounts}, "mounting read-only inside a writable mount: this driver does not support it", "use another driver"},
		"open files": {
			[]feature.Feature{feature.NoFile},
			"limiting nofile: 4096 is more than the 1000 that this program can grant",
			"request fewer, or raise the hard limit (ulimit -Hn) before you start this program",
		},
	} {
		limits := sandpit.DefaultLimits()
		_, _, err := caps.Negotiate(c.required, &limits)
		if !errors.Is(err, sandpit.ErrUnsupported) || err.Error() != c.message || sandpit.Hint(err) != c.hint {
			t.Errorf("%s: %v (%s)", name, err, sandpit.Hint(err))
		}
	}
}

func TestNegotiateChange(t *testing.T) {
	caps := Capabilities{
		Features:   feature.Set{feature.Memory: true, feature.CPUs: true, feature.Pids: true},
		Changeable: feature.Set{feature.Memory: true, feature.Pids: true},
		Gaps:       []sandpit.Gap{{What: "disk", Why: "no quota", Fix: "use another file system"}},
	}
	lacking := []sandpit.Gap{{What: "pids", Why: "no controller then", Fix: "create it again"}}
	if err := caps.NegotiateChange([]feature.Feature{feature.Memory}, lacking); err != nil {
		t.Error(err)
	}
	for f, want := range map[feature.Feature]string{
		feature.CPUs:  `the limit "cpus" of a sandbox can't be changed while it lives (create a new sandbox with this limit)`,
		feature.Pids:  `the limit "pids" is not enforced: no controller then (create it again)`,
		feature.Disk:  `the limit "disk" can't be enforced: no quota (use another file system)`,
		feature.Files: `the limit "files" can't be enforced: this driver does not support it (use another driver)`,
	} {
		err := caps.NegotiateChange([]feature.Feature{feature.Memory, f}, lacking)
		if !errors.Is(err, sandpit.ErrUnsupported) || err.Error()+" ("+sandpit.Hint(err)+")" != want {
			t.Errorf("%s: %v (%s)", f, err, sandpit.Hint(err))
		}
	}
}
