package smoke

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// sandpit runs the program of SANDPIT_TEST_BINARY with a home of its own.
func sandpit(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	binary := os.Getenv("SANDPIT_TEST_BINARY")
	if binary == "" {
		testkit.Lacks(t, "a sandpit program that SANDPIT_TEST_BINARY names, as make test-hosts does")
	}
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "SANDPIT_HOME="+filepath.Join(t.TempDir(), "home"))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// refused reports whether this host must refuse.
func refused() bool { return os.Getenv("SANDPIT_TEST_EXPECT") == "refused" }

func TestRun(t *testing.T) {
	out, errs, code := sandpit(t, "run", "--", "sh", "-c", "id -u; cat /proc/1/comm; exit 3")
	if !refused() {
		if code != 3 {
			t.Errorf("exit code %d, want the program's own, 3\n%s", code, errs)
		}
		if uid, _, _ := strings.Cut(out, "\n"); uid == "" || uid == "0" {
			t.Errorf("uid %q inside, want an ordinary one", uid)
		}
		return
	}

	// A refusal is Sandpit's own exit code, one line that says what and why,
	// and at least one that says what to do.
	if code != 125 || out != "" {
		t.Errorf("exit code %d and output %q, want 125 and none", code, out)
	}
	lines := strings.Split(strings.TrimSpace(errs), "\n")
	if !strings.HasPrefix(lines[0], "sandpit: ") {
		t.Errorf("no clear line first:\n%s", errs)
	}
	if len(lines) < 2 || !strings.HasPrefix(lines[1], "hint: ") {
		t.Errorf("nothing says what to do:\n%s", errs)
	}
	t.Logf("the refusal:\n%s", errs)
}

// What doctor says is what run does.
func TestDoctor(t *testing.T) {
	out, errs, _ := sandpit(t, "doctor", "--json")
	var report struct {
		Available bool `json:"available"`
		Drivers   []struct {
			Name string `json:"name"`
			Gaps []struct{ What, Why, Fix string }
		} `json:"drivers"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, errs)
	}
	if report.Available == refused() {
		t.Errorf("available is %v on a host where sandboxes are %s\n%s", report.Available, os.Getenv("SANDPIT_TEST_EXPECT"), out)
	}
	gaps := 0
	for _, d := range report.Drivers {
		for _, gap := range d.Gaps {
			gaps++
			t.Logf("%s: %s: %s; %s", d.Name, gap.What, gap.Why, gap.Fix)
			if gap.Why == "" || gap.Fix == "" {
				t.Errorf("the gap %q has no reason or no way out", gap.What)
			}
		}
	}
	if refused() && gaps == 0 {
		t.Error("doctor names no reason")
	}
}

// A limit that was asked for is enforced, or refused by name. It is never
// dropped.
func TestLimitIsEnforcedOrRefused(t *testing.T) {
	testkit.NeedWorkingHost(t)
	_, errs, code := sandpit(t, "run", "--memory", "64M", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=512M", "count=1")
	switch {
	case code == 137 && strings.Contains(errs, "memory"):
	case code == 125 && strings.Contains(errs, "memory") && strings.Contains(errs, "hint: "):
		t.Logf("refused:\n%s", errs)
	default:
		t.Errorf("exit code %d\n%s", code, errs)
	}
}

// The end of a command is the end of all that it started.
func TestTimeoutTakesEverything(t *testing.T) {
	testkit.NeedWorkingHost(t)
	_, errs, code := sandpit(t, "run", "--timeout", "3s", "--", "sh", "-c", "setsid sleep 864001 & sleep 864001")
	if code != 124 {
		t.Errorf("exit code %d, want 124\n%s", code, errs)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range dirs {
		if line, err := os.ReadFile(path); err == nil && bytes.HasPrefix(line, []byte("sleep\x00864001")) {
			t.Errorf("%s is left", path)
		}
	}
}
