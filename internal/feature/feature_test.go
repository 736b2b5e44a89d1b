package feature

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// A new field of Limits must have a feature, or nobody would negotiate it.
func TestEachLimitIsAFeature(t *testing.T) {
	fields := reflect.TypeFor[sandpit.Limits]()
	var names []Feature
	for i := range fields.NumField() {
		names = append(names, Feature(strings.ToLower(fields.Field(i).Name)))

		var spec sandpit.Spec
		field := reflect.ValueOf(&spec.Limits).Elem().Field(i)
		field.Set(reflect.ValueOf(1).Convert(field.Type()))
		if diff := cmp.Diff([]Feature{names[i]}, Required(spec)); diff != "" {
			t.Errorf("a Spec with %s requires:\n%s", fields.Field(i).Name, diff)
		}
	}
	if diff := cmp.Diff(names, Limits()); diff != "" {
		t.Error(diff)
	}
}

func TestRequired(t *testing.T) {
	for name, c := range map[string]struct {
		spec sandpit.Spec
		want []Feature
	}{
		"nothing":       {sandpit.Spec{Image: "host", OnExpiry: sandpit.ExpiryStop, ReadOnly: true}, nil},
		"mounts":        {sandpit.Spec{Mounts: []sandpit.Mount{{Source: "/a", Target: "/b"}}}, []Feature{Mounts}},
		"no write path": {sandpit.Spec{Write: []string{}}, []Feature{WritePaths}},
		"egress":        {sandpit.Spec{Egress: sandpit.Egress{Allow: []string{"a.test", "udp:a.test"}, Deny: []string{"ping:a.test"}}}, []Feature{Egress}},
		"users":         {sandpit.Spec{RootInside: true}, []Feature{Users}},
		"ping":          {sandpit.Spec{Egress: sandpit.Egress{Allow: []string{"ping:a.test"}}}, []Feature{Egress, Ping}},
		"pause":         {sandpit.Spec{OnExpiry: sandpit.ExpiryPause}, []Feature{Pause}},
	} {
		if diff := cmp.Diff(c.want, Required(c.spec)); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

func TestFeaturesAreDistinct(t *testing.T) {
	all := All()
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != len(all) {
		t.Errorf("%d of %v are distinct", n, all)
	}
	if !Memory.IsLimit() || Pause.IsLimit() {
		t.Error("limits are told from other features wrongly")
	}
}

func TestProtectedIn(t *testing.T) {
	mount := func(target string, readOnly bool) sandpit.Mount {
		return sandpit.Mount{Target: target, ReadOnly: readOnly}
	}
	mounts := []sandpit.Mount{
		mount("/w/a/.git", true), mount("/w/", false), mount("/w/r", true), mount("/w/r/in", true),
		mount("/w/r/rw", false), mount("/w/r/rw/x/y/", true), mount("/w-beside", true), mount("/w/plain", false),
		mount("/w/plain/a/in", false), mount("/w/plain/a/in/.git", true),
	}
	got := map[string]string{}
	for _, m := range mounts {
		got[m.Target] = ProtectedIn(mounts, m)
	}
	want := map[string]string{
		"/w/a/.git": "/w", "/w/": "", "/w/r": "/w", "/w/r/in": "", "/w/r/rw": "", "/w/r/rw/x/y/": "/w/r/rw", "/w-beside": "", "/w/plain": "",
		"/w/plain/a/in": "", "/w/plain/a/in/.git": "/w",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for n, required := range map[int]bool{2: true, 1: false} {
		if slices.Contains(Required(sandpit.Spec{Mounts: mounts[:n]}), NestedMounts) != required {
			t.Errorf("the first %d mounts require nested-mounts: want %v", n, required)
		}
	}
}
