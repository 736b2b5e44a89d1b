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

// What a Spec or the policy demands and the driver lacks is refused by name, and no sandbox is made.
func TestRequiredFeaturesAreRefused(t *testing.T) {
	dir := t.TempDir()
	host, err := policy.ParseImage("host")
	if err != nil {
		t.Fatal(err)
	}
	images := []policy.Image{host}
	e := engine.New(engine.Options{Driver: limited{bare{dir}}, Images: image.Open(dir, image.Options{NoSync: true})})
	defer e.Close()
	for _, c := range []struct {
		what  string
		spec  sandpit.Spec
		rules *policy.Rules
	}{
		{"limiting memory", sandpit.Spec{Limits: sandpit.Limits{Memory: sandpit.DefaultLimits().Memory}}, nil},
		{"mounting host directories", sandpit.Spec{Mounts: []sandpit.Mount{{Source: dir, Target: "/m"}}}, nil},
		{"restricting writes", sandpit.Spec{Write: []string{"/tmp"}}, nil},
		{"restricting writes", sandpit.Spec{}, &policy.Rules{Images: images, Write: []string{"/tmp"}, OnExpiry: []sandpit.Expiry{sandpit.ExpiryRemove}}},
		{"pausing at the end of the lifetime", sandpit.Spec{OnExpiry: sandpit.ExpiryPause}, nil},
		{"pausing at the end of the lifetime", sandpit.Spec{}, &policy.Rules{Images: images, OnExpiry: []sandpit.Expiry{sandpit.ExpiryPause}}},
	} {
		p := policy.Default()
		p.Rules = c.rules
		_, err := e.As("", p).Create(t.Context(), c.spec)
		if !errors.Is(err, sandpit.ErrUnsupported) || !strings.Contains(err.Error(), c.what) {
			t.Errorf("%s, by policy %v: %v", c.what, c.rules != nil, err)
		}
	}
	if n := len(e.Sandboxes()); n != 0 {
		t.Errorf("there are %d sandboxes", n)
	}
}
