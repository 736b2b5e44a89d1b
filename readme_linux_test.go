package sandpit_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/server"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestMain lets this test program be its own guest.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == linux.GuestName {
		os.Exit(server.Main(os.Args))
	}
	os.Exit(m.Run())
}

// The code of the README does what it says.
func TestReadmeCode(t *testing.T) {
	driver := linux.New(linux.Options{Dir: t.TempDir()})
	caps := driver.Examine(t.Context())
	testkit.NeedSandboxes(t, caps.Available, caps.Gaps)
	images := image.Open(filepath.Join(t.TempDir(), "images"), image.Options{NoSync: true})
	client := engine.New(engine.Options{Driver: driver, Images: images, Policy: policy.Default()})
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, tt := range []struct{ program, want, err string }{
		{"echo $((6 * 7))", "42\n", ""},
		{"cat nowhere", "", "exit code 1: "},
		{"head -c 100000000 /dev/zero >/tmp/fill", "", "No space left"},
	} {
		got, err := try(t.Context(), client, tt.program)
		if string(got) != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: got %q, %v", tt.program, got, err)
		}
	}
}
