package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Lint that can't build its tools fails in continuous integration, and only there.
func TestLintWithoutTools(t *testing.T) {
	script, err := os.ReadFile("../../scripts/lint.sh")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "scripts", "lint.sh") // beside which there is no module of tools
	if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, script, 0o644); err != nil {
		t.Fatal(err)
	}
	for ci, fails := range map[string]bool{"": false, "true": true} {
		cmd := exec.Command("bash", file)
		cmd.Env = append(os.Environ(), "CI="+ci)
		out, err := cmd.CombinedOutput()
		if (err != nil) != fails || !strings.Contains(string(out), "lint: not run") {
			t.Errorf("with CI=%q: %v\n%s", ci, err, out)
		}
	}
}
