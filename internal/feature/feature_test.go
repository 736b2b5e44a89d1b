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
