package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/network/apart"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// underTest is the program under test: the one that SANDPIT_TEST_BINARY names,
// as the suites on other hosts do, or this test program under its names.
func underTest() string { return os.Getenv("SANDPIT_TEST_BINARY") }

// TestMain lets this test program be sandpit, its guest, its terminal guard and
// its network process when it is started under those names.
func TestMain(m *testing.M) {
	parts := map[string]func(){
		linux.GuestName: main,
		cli.GuardName:   main,

		apart.ProcessName: main,
	}
	if underTest() == "" {
		parts["sandpit"] = main
	}
	testscript.Main(m, parts)
}

// binDir returns a directory with the program under test as sandpit.
func binDir(t *testing.T) string {
	t.Helper()
	program := underTest()
	if program == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		program = self
	}
	dir := t.TempDir()
	if err := os.Symlink(program, filepath.Join(dir, "sandpit")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// dataDir returns a data directory of the test's own.
func dataDir(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "data")
}

// needSandboxes skips where none can be made, with doctor's reason.
func needSandboxes(t *testing.T) {
	t.Helper()
	caps := newDriver(dataDir(t)).Examine(t.Context())
	testkit.NeedSandboxes(t, caps.Available, caps.Gaps)
}

// enforceable returns those of some limits that this user can have enforced: one
// that was asked for and can't be is refused.
func enforceable(t *testing.T, l sandpit.Limits) sandpit.Limits {
	t.Helper()
	enforced := newDriver(dataDir(t)).Probe(t.Context()).Features
	if !enforced["memory"] {
		l.Memory = 0
	}
	if !enforced["cpus"] {
		l.CPUs = 0
	}
	if !enforced["pids"] {
		l.Pids = 0
	}
	return l
}

// TestScripts runs the command line as people do: see testdata/script.
func TestScripts(t *testing.T) {
	needSandboxes(t)
	params := scripts(t)
	params.Dir = "testdata/script"
	testscript.Run(t, params)
}

// TestScriptsWithServer runs them again where the user has a server, which run
// and shell then use: nobody is to see a difference.
func TestScriptsWithServer(t *testing.T) {
	needSandboxes(t)
	params := scripts(t)
	all, err := filepath.Glob("testdata/script/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		if !strings.HasPrefix(filepath.Base(file), "server_") { // those start their own
			params.Files = append(params.Files, file)
		}
	}
	alone := params.Setup
	params.Setup = func(env *testscript.Env) error {
		if err := alone(env); err != nil {
			return err
		}
		startServer(t, filepath.Join(env.WorkDir, "data"))
		return nil
	}
	testscript.Run(t, params)
}

// TestScriptsAtServer runs those about run and shell at a configured server, which makes their
// sandboxes: all that the command line promises of them holds there, too.
func TestScriptsAtServer(t *testing.T) {
	needSandboxes(t)
	params := scripts(t)
	for _, name := range [...]string{"run", "limits", "json", "network"} {
		params.Files = append(params.Files, "testdata/script/"+name+".txt")
	}
	alone := params.Setup
	params.Setup = func(env *testscript.Env) error {
		if err := alone(env); err != nil {
			return err
		}
		home := filepath.Join(env.WorkDir, "server")
		env.Defer(func() { endServer(t, home) })
		startServer(t, home)
		env.Setenv("SANDPIT_SERVER", server.SocketIn(home).String())
		return nil
	}
	testscript.Run(t, params)
}

// scripts is how scripts are run.
func scripts(t *testing.T) testscript.Params {
	enforced := newDriver(dataDir(t)).Probe(t.Context()).Features
	return testscript.Params{
		RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": code,
		},
		Condition: func(condition string) (bool, error) {
			what, ok := strings.CutPrefix(condition, "enforces:")
			if !ok {
				return false, fmt.Errorf("unknown condition %q", condition)
			}
			return enforced[feature.Feature(what)], nil
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("SANDPIT_HOME", filepath.Join(env.WorkDir, "data"))
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("XDG_CONFIG_HOME", "")
			env.Setenv("ESCAPE", "\x1b[2Jx")
			origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello "+r.Host) }))
			env.Defer(origin.Close)
			_, port, err := net.SplitHostPort(origin.Listener.Addr().String())
			if err != nil {
				return err
			}
			env.Setenv("ORIGIN", port)
			names, err := serveNames(env)
			if err != nil {
				return err
			}
			env.Setenv("NAMES", names)
			if !enforced[feature.Memory] || !enforced[feature.CPUs] || !enforced[feature.Pids] {
				env.Setenv("SANDPIT_QUIET", "true") // else every run would say so
			}
			// An ordinary user's limits are asked for over the session bus.
			for _, name := range [...]string{"XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"} {
				env.Setenv(name, os.Getenv(name))
			}
			if program := underTest(); program != "" {
				env.Setenv("PATH", filepath.Dir(program)+":"+env.Getenv("PATH"))
			}
			home := filepath.Join(env.WorkDir, "data")
			env.Defer(func() { endServer(t, home) })
			return nil
		},
	}
}

// code runs a command line and expects its exit code: code 125 sandpit run.
func code(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N command...")
	}
	got := "0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = strconv.Itoa(exit.ExitCode())
	}
	if got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

// TestRefusal runs where no sandbox can be made: the error says why and what to
// do. Where they can be made, a user namespace that allows no other is such a place.
func TestRefusal(t *testing.T) {
	// A directory as the image: the host's needs more ids than that namespace has.
	argv := []string{"sandpit", "run", "--image", "dir:/usr", "true"}
	doctor := []string{"sandpit", "doctor"}
	if os.Getenv("SANDPIT_TEST_EXPECT") != "refused" {
		testkit.NeedProgram(t, "unshare")
		_, err := exec.Command("unshare", "-Ur", "sh", "-c", "echo 0 >/proc/sys/user/max_user_namespaces").CombinedOutput()
		testkit.Need(t, "a limit of user namespaces that can be set", err)
		forbid := []string{"unshare", "-Ur", "sh", "-c", `echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"`, "sh"}
		argv, doctor = append(forbid, argv...), append(forbid[:len(forbid):len(forbid)], doctor...)
	}
	cmd := commandLine(t, argv...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if got := exitCode(t, cmd); got != cli.ExitFailure {
		t.Errorf("exit code %d", got)
	}
	lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "sandpit: ") || !strings.HasPrefix(lines[1], "hint: ") {
		t.Errorf("not an error and a hint:\n%s", stderr.String())
	}

	cmd = commandLine(t, doctor...)
	var stdout strings.Builder
	cmd.Stdout = &stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if got := exitCode(t, cmd); got != 1 {
		t.Errorf("doctor: exit code %d", got)
	}
	if !strings.Contains(stdout.String(), "fix: ") || !strings.HasSuffix(stdout.String(), "sandboxes can't be created here\n") {
		t.Errorf("doctor does not say what to do:\n%s", stdout.String())
	}
}
