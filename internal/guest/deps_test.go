package guest_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The guest carries the standard library, x/sys, and these packages of ours.
// Every one more is in every sandbox's memory and in its attack surface.
var (
	guestOurs = []string{
		"cmd/sandpit-guest", "internal/guest/server", "internal/guest/spawn", "internal/guest/wire", "internal/sysprog",
	}
	// Standard packages that would make it larger or slower to start than it is.
	guestNever = []string{"net", "net/http", "encoding/json", "encoding/gob", "regexp", "text/template", "log", "log/slog", "os/exec", "os/user", "crypto/tls", "flag"}
)

func TestGuestDependencies(t *testing.T) {
	const module = "github.com/sandpit-dev/sandpit/"
	cmd := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}} {{.Standard}}", module+"cmd/sandpit-guest")
	cmd.Env = append(cmd.Environ(), "GOOS=linux", "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var ours []string
	for line := range strings.Lines(string(out)) {
		path, standard, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case standard == "true":
			if slices.Contains(guestNever, path) {
				t.Errorf("the guest depends on %s", path)
			}
		case strings.HasPrefix(path, module):
			ours = append(ours, strings.TrimPrefix(path, module))
		case !strings.HasPrefix(path, "golang.org/x/sys/"):
			t.Errorf("the guest depends on %s", path)
		}
	}
	slices.Sort(ours)
	if !slices.Equal(ours, guestOurs) {
		t.Errorf("the guest depends on %q of ours, want %q", ours, guestOurs)
	}
}
