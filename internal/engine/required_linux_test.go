package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// limited is a driver that can do nothing but make sandboxes.
type limited struct{ bare }

func (d limited) Probe(context.Context) driver.Capabilities {
	return driver.Capabilities{Available: true}
}

// What a Spec asks for and the driver lacks is refused by name, and no sandbox is made.
func TestRequiredFeaturesAreRefused(t *testing.T) {
	dir := t.TempDir()
	e := engine.New(engine.Options{
		Driver: limited{bare{dir}}, Images: image.Open(dir, image.Options{NoSync: true}), Policy: policy.Default(),
	})
	defer e.Close()
	for what, spec := range map[string]sandpit.Spec{
		"limiting memory":                    {Limits: sandpit.Limits{Memory: sandpit.DefaultLimits().Memory}},
		"mounting host directories":          {Mounts: []sandpit.Mount{{Source: dir, Target: "/m"}}},
		"restricting writes":                 {Write: []string{"/tmp"}},
		"pausing at the end of the lifetime": {OnExpiry: sandpit.ExpiryPause},
	} {
		_, err := e.Create(t.Context(), spec)
		if !errors.Is(err, sandpit.ErrUnsupported) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := len(e.Sandboxes()); n != 0 {
		t.Errorf("there are %d sandboxes", n)
	}
}
