package sandpittest

import (
	"maps"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

var updateProperties = []property{
	{"Update changes the name and labels, and an event tells it", testUpdate},
	{"an Update that is refused changes nothing", testUpdateRefused},
	{"Update changes the limits of a sandbox that runs", testUpdateLimits},
	{"Update sets no memory limit below what is in use", testUpdateMemoryInUse},
}

func testUpdate(t *testing.T, e *env) {
	before, err := e.client.List(t.Context(), sandpit.ListQuery{})
	must(t, err)
	old, name := uniqueName(t), uniqueName(t)
	sb := e.sandbox(t, sandpit.Spec{Name: old, Labels: map[string]string{"a": "1", "b": "2", "c": "3"}})
	must(t, sb.Update(guarded(t), sandpit.Change{Name: name, Labels: map[string]string{"a": "x", "d": ""}, RemoveLabels: []string{"b", "none"}}))
	want := map[string]string{"a": "x", "c": "3", "d": ""}
	check := func() {
		t.Helper()
		got, err := e.client.Get(t.Context(), name)
		must(t, err)
		info, err := got.Info(t.Context())
		must(t, err)
		if info.ID != sb.ID() || info.Name != name || got.Name() != name || sb.Name() != name || !maps.Equal(info.Labels, want) {
			t.Errorf("%q is %+v", sb.Name(), info)
		}
		page, err := e.client.List(t.Context(), sandpit.ListQuery{Labels: want})
		must(t, err)
		if len(page.Sandboxes) != 1 || page.Sandboxes[0].Name != name {
			t.Errorf("listed are %+v", page.Sandboxes)
		}
	}
	check()
	_, err = e.client.Get(t.Context(), old)
	wantKind(t, err, sandpit.ErrNotFound)
	// The old name is free; the new one is not.
	other := e.sandbox(t, sandpit.Spec{Name: old})
	_, err = e.client.Create(guarded(t), sandpit.Spec{Name: name})
	wantKind(t, err, sandpit.ErrExists)
	must(t, sb.Update(guarded(t), sandpit.Change{}))
	must(t, sb.Update(guarded(t), sandpit.Change{Name: name}))
	check()
	// A sandbox that has stopped can be changed, too.
	must(t, sb.Stop(guarded(t), 0))
	want["e"] = "5"
	must(t, sb.Update(guarded(t), sandpit.Change{Labels: map[string]string{"e": "5"}}))
	check()
	state(t, sb, sandpit.StateStopped)
	must(t, sb.Remove(guarded(t)))
	must(t, other.Update(guarded(t), sandpit.Change{Name: name}))
	must(t, other.Remove(guarded(t)))
	got := e.until(t, sandpit.EventQuery{After: before.Seq, Sandbox: name, Kinds: []sandpit.EventKind{sandpit.EventUpdated, sandpit.EventRemoved}},
		func(ev sandpit.Event) bool { return ev.Kind == sandpit.EventRemoved && ev.Sandbox == other.ID() })
	var told []string
	for _, ev := range got {
		told = append(told, strings.TrimPrefix(string(ev.Kind), "sandbox."))
	}
	if strings.Join(told, " ") != "updated updated updated updated removed updated removed" || got[0].Labels["a"] != "x" || got[0].Name != name {
		t.Errorf("got %q: %+v", told, got)
	}
}

func testUpdateRefused(t *testing.T, e *env) {
	name, taken := uniqueName(t), uniqueName(t)
	e.sandbox(t, sandpit.Spec{Name: taken})
	sb := e.sandbox(t, sandpit.Spec{Name: name, Labels: map[string]string{"a": "1"}})
	before, err := sb.Info(t.Context())
	must(t, err)
	labels := map[string]string{"b": "2"}
	for what, c := range map[string]struct {
		change sandpit.Change
		kind   error
		say    string
	}{
		"a name in use":       {sandpit.Change{Name: taken, Labels: labels}, sandpit.ErrExists, "in use"},
		"an invalid name":     {sandpit.Change{Name: "no/name", Labels: labels}, sandpit.ErrInvalid, "no/name"},
		"a bad label":         {sandpit.Change{Name: name + "2", Labels: map[string]string{"": "x"}}, sandpit.ErrInvalid, "label"},
		"too long labels":     {sandpit.Change{Labels: map[string]string{"long": strings.Repeat("x", 5000)}}, sandpit.ErrInvalid, "long"},
		"disk":                {sandpit.Change{Labels: labels, Limits: sandpit.Limits{Disk: 1 << 30}}, sandpit.ErrInvalid, "disk"},
		"files":               {sandpit.Change{Limits: sandpit.Limits{Files: 1 << 10}}, sandpit.ErrInvalid, "files"},
		"nofile":              {sandpit.Change{Limits: sandpit.Limits{NoFile: 1 << 10}}, sandpit.ErrInvalid, "nofile"},
		"output":              {sandpit.Change{Limits: sandpit.Limits{Output: 1 << 10}}, sandpit.ErrInvalid, "output"},
		"life":                {sandpit.Change{Limits: sandpit.Limits{Life: before.Limits.Life}}, sandpit.ErrInvalid, "life"},
		"little memory":       {sandpit.Change{Name: name + "2", Labels: labels, Limits: sandpit.Limits{Memory: 1}}, sandpit.ErrInvalid, "memory"},
		"negative processors": {sandpit.Change{Labels: labels, Limits: sandpit.Limits{CPUs: -1}}, sandpit.ErrInvalid, "cpu"},
	} {
		err := sb.Update(guarded(t), c.change)
		wantKind(t, err, c.kind)
		if err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v", what, err)
		}
	}
	after, err := sb.Info(t.Context())
	must(t, err)
	if after.Name != name || sb.Name() != name || !maps.Equal(after.Labels, before.Labels) || after.Limits != before.Limits {
		t.Errorf("got %+v, before %+v", after, before)
	}
	_, err = e.client.Get(t.Context(), name+"2")
	wantKind(t, err, sandpit.ErrNotFound)
	must(t, sb.Remove(guarded(t)))
	wantKind(t, sb.Update(guarded(t), sandpit.Change{Labels: labels}), sandpit.ErrClosed)
}

func testUpdateLimits(t *testing.T, e *env) {
	e.needUncountedGuest(t)
	e.need(t, feature.Memory, feature.CPUs, feature.Pids)
	sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Memory: 64 << 20, CPUs: 0.5, Pids: 24}})
	spawn := func() string {
		eventually(t, "no process of before counts", func() bool {
			m, err := sb.Metrics(t.Context())
			must(t, err)
			return m.Pids == 0
		})
		out, err := sandpit.Shell(guarded(t), sb, "i=2; while sleep 86604 & do i=$((i+1)); echo $i; done")
		must(t, err)
		must(t, sb.Stop(guarded(t), 0)) // those that sleep
		must(t, sb.Restart(guarded(t)))
		lines := strings.Fields(string(out.Stdout))
		if len(lines) == 0 {
			return ""
		}
		return lines[len(lines)-1]
	}
	set := func(limits sandpit.Limits) {
		t.Helper()
		info, err := sb.Info(t.Context())
		must(t, err)
		want := info.Limits
		want.Memory, want.CPUs, want.Pids = limits.Memory, limits.CPUs, limits.Pids
		must(t, sb.Update(guarded(t), sandpit.Change{Limits: limits}))
		if info, err = sb.Info(t.Context()); err != nil || info.Limits != want {
			t.Errorf("the limits are %+v, want %+v, %v", info.Limits, want, err)
		}
	}
	if got := spawn(); got != "24" {
		t.Errorf("at first there are %s processes", got)
	}
	set(sandpit.Limits{Memory: 256 << 20, CPUs: 1.5, Pids: 40})
	if got := spawn(); got != "40" {
		t.Errorf("with a higher limit there are %s processes", got)
	}
	if out := run(t, sb, sandpit.Command{Script: "head -c 100M /dev/zero | tail -c 100M | wc -c"}); strings.TrimSpace(string(out.Stdout)) != "104857600" {
		t.Errorf("with a higher limit of memory: %+v, %s", out.Result, brief(out.Stdout))
	}
	set(sandpit.Limits{Memory: 48 << 20, CPUs: 0.25, Pids: 20})
	if got := spawn(); got != "20" {
		t.Errorf("with a lower limit there are %s processes", got)
	}
	if out := run(t, sb, sandpit.Command{Script: "head -c 100M /dev/zero | tail -c 100M | wc -c; exit 1"}); strings.Contains(string(out.Stdout), "104857600") || !out.OOMKilled {
		t.Errorf("with a lower limit of memory: %+v, %s", out.Result, brief(out.Stdout))
	}
}

func testUpdateMemoryInUse(t *testing.T, e *env) {
	e.need(t, feature.Memory)
	const before, less = 128 << 20, 32 << 20
	sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Memory: before}})
	p := start(t, sb, sandpit.Command{Argv: []string{"sleep", "86605"}, Background: true})
	if got := shell(t, sb, "head -c 64M /dev/zero >/dev/shm/f && echo filled"); got != "filled" {
		t.Fatalf("got %q", got)
	}
	err := sb.Update(guarded(t), sandpit.Change{Labels: map[string]string{"a": "b"}, Limits: sandpit.Limits{Memory: less, CPUs: 0.5}})
	wantKind(t, err, sandpit.ErrState)
	info, err := sb.Info(t.Context())
	must(t, err)
	if info.Limits.Memory != before || info.Limits.CPUs == 0.5 || len(info.Labels) > 0 {
		t.Errorf("got %+v", info)
	}
	// Nothing was killed, and the limit is where it was.
	if m, err := sb.Metrics(t.Context()); err != nil || m.OOMKills > 0 || m.Memory < 64<<20 {
		t.Errorf("got %+v, %v", m, err)
	}
	if got := shell(t, sb, "head -c 30M /dev/zero >/dev/shm/g && echo filled; rm /dev/shm/f /dev/shm/g"); got != "filled" {
		t.Errorf("got %q", got)
	}
	must(t, sb.Update(guarded(t), sandpit.Change{Limits: sandpit.Limits{Memory: less}}))
	if info, err = sb.Info(t.Context()); err != nil || info.Limits.Memory != less {
		t.Errorf("got %+v, %v", info, err)
	}
	must(t, p.Kill(guarded(t)))
}
