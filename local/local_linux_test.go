package local_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/testkit"
	"github.com/sandpit-dev/sandpit/local"
)

var guest local.IsGuest

func TestMain(m *testing.M) {
	guest = local.Guest()
	os.Exit(m.Run())
}

func newClient(t *testing.T, opt local.Options) sandpit.Client {
	t.Helper()
	opt.Guest, opt.Home = guest, t.TempDir()
	c, err := local.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestSandbox(t *testing.T) {
	c := newClient(t, local.Options{Default: sandpit.Limits{Life: time.Hour}, Max: sandpit.Limits{Pids: 100}})
	_, err := c.Create(t.Context(), sandpit.Spec{Limits: sandpit.Limits{Pids: 101}})
	if !errors.Is(err, sandpit.ErrForbidden) {
		t.Errorf("more than may be asked for gives %v", err)
	}
	sb, err := c.Create(t.Context(), sandpit.Spec{Limits: sandpit.Limits{Pids: 64}})
	testkit.Made(t, err)
	defer func() { _ = sb.Remove(context.Background()) }()
	info, err := sb.Info(t.Context())
	if err != nil || info.Limits.Life != time.Hour || info.Limits.Memory != sandpit.DefaultLimits().Memory {
		t.Errorf("got %+v, %v", info, err)
	}
	out, err := sandpit.Exec(t.Context(), sb, "echo", "hello")
	if err != nil || string(out.Stdout) != "hello\n" {
		t.Errorf("got %q, %v", out.Stdout, err)
	}
}

func TestNew(t *testing.T) {
	if _, err := local.New(local.Options{Guest: guest, Home: "data"}); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("a relative directory gives %v", err)
	}
	if embedded.Guest() == nil {
		if _, err := local.New(local.Options{Home: t.TempDir()}); !errors.Is(err, sandpit.ErrUnsupported) || sandpit.Hint(err) == "" {
			t.Errorf("without a guest: %v", err)
		}
	}
	// Where nothing is said, the environment says it.
	t.Setenv("SANDPIT_HOME", t.TempDir())
	c, err := local.New(local.Options{Guest: guest})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
