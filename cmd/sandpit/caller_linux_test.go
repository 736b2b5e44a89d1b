package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// ordinary returns a directory that an ordinary user may write to, and a function that makes
// a command line of that user with no environment but the given one. It is this user, unless
// this is root.
func ordinary(t *testing.T) (dir string, command func(env []string, argv ...string) *exec.Cmd) {
	t.Helper()
	program := filepath.Join(binDir(t), "sandpit")
	dir = shortHome(t)
	if os.Geteuid() != 0 {
		return dir, func(env []string, argv ...string) *exec.Cmd {
			return &exec.Cmd{Path: program, Args: append([]string{"sandpit"}, argv...), Env: env}
		}
	}
	const uid = 54321
	if err := os.Chown(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	program = filepath.Join(dir, "sandpit") // the other one is in a directory of root's
	to, err := os.OpenFile(program, os.O_CREATE|os.O_WRONLY, 0o755)
	if err == nil {
		_, err = io.Copy(to, from)
		err = errors.Join(err, to.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir, func(env []string, argv ...string) *exec.Cmd {
		return &exec.Cmd{
			Path: program, Args: append([]string{"sandpit"}, argv...), Env: env, Dir: "/",
			SysProcAttr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}},
		}
	}
}

// The host image needs no state: a user without a home, as of cron and of services, can run a
// command, and nothing is left of it.
func TestRunWithoutHome(t *testing.T) {
	needSandboxes(t)
	dir, command := ordinary(t)
	_, err := command([]string{"SANDPIT_HOME=" + filepath.Join(dir, "data")}, "run", "true").Output()
	testkit.Need(t, "sandboxes of an ordinary user", err)
	temp, closed := filepath.Join(dir, "tmp"), filepath.Join(dir, "closed")
	for name, mode := range map[string]os.FileMode{temp: 0o777, closed: 0} {
		if err := errors.Join(os.Mkdir(name, 0o700), os.Chmod(name, mode)); err != nil {
			t.Fatal(err)
		}
	}
	for name, env := range map[string][]string{
		"none":            nil,
		"not absolute":    {"HOME=home"},
		"missing":         {"HOME=/nonexistent"},
		"not writable":    {"HOME=/usr"},
		"not accessible":  {"HOME=" + closed},
		"not a directory": {"HOME=/dev/null"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr strings.Builder
			cmd := command(append(env, "TMPDIR="+temp), "run", "--", "sh", "-c", "echo ok; exit 3")
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if cmd.ProcessState.ExitCode() != 3 || string(out) != "ok\n" {
				t.Errorf("%q, %v\n%s", out, err, &stderr)
			}
			if left, err := os.ReadDir(temp); len(left) > 0 || err != nil {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
	// What has state needs a place for it.
	cmd := command([]string{"TMPDIR=" + temp}, "run", "--image", "example.invalid/x", "true")
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 125 || !strings.Contains(string(out), "HOME is not set to an absolute path") {
		t.Errorf("an image: %s", out)
	}
}

// Where there is no data directory, doctor says that commands can be run.
func TestDoctorWithoutHome(t *testing.T) {
	needSandboxes(t)
	_, command := ordinary(t)
	_, err := command(nil, "run", "true").Output()
	testkit.Need(t, "sandboxes of an ordinary user", err)
	out, err := command(nil, "doctor").Output()
	if err != nil || !strings.HasSuffix(string(out), "\nsandpit run works here; images and sandboxes that stay need SANDPIT_HOME\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A user who may not connect to the server of another is told so, and not that none is running.
func TestServerOfAnother(t *testing.T) {
	testkit.NeedRoot(t, "to have a server of another user")
	home := shortHome(t)
	startServer(t, home)
	t.Cleanup(func() { endServer(t, home) })
	_, command := ordinary(t)
	for mode, want := range map[os.FileMode]string{
		0o755: "the server in " + home + " belongs to root: permission denied",
		0o700: home + ": permission denied",
	} {
		if err := os.Chmod(home, mode); err != nil {
			t.Fatal(err)
		}
		for _, line := range [][]string{{"ps"}, {"create"}} {
			cmd := command([]string{"SANDPIT_HOME=" + home}, line...)
			out, _ := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != 125 || string(out) != "sandpit: looking for a server: "+want+"\nhint: set SANDPIT_HOME to a directory of yours\n" {
				t.Errorf("%s, mode %o: %s", line, mode, out)
			}
		}
	}
}

// create names the default limits that are not enforced, as run does, unless it is to be quiet.
func TestCreateNamesLimits(t *testing.T) {
	needSandboxes(t)
	dir, command := ordinary(t)
	home := filepath.Join(dir, "data")
	t.Cleanup(func() { endServer(t, home) })
	said := func(argv ...string) bool {
		t.Helper()
		var stderr strings.Builder
		cmd := command([]string{"SANDPIT_HOME=" + home}, argv...)
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, &stderr)
		}
		return strings.Contains(stderr.String(), "are not enforced on this machine; ")
	}
	_, err := command([]string{"SANDPIT_HOME=" + home}, "run", "true").Output()
	testkit.Need(t, "sandboxes of an ordinary user", err)
	if ran, made := said("run", "true"), said("create", "one"); ran != made {
		t.Errorf("run names limits: %v; create: %v", ran, made)
	}
	if said("create", "-q", "two") {
		t.Error("create -q names limits")
	}
}

// What was written to the standard input of a command arrives, however many run at once.
func TestInputArrives(t *testing.T) {
	needSandboxes(t)
	runs, atOnce := 40, 8
	if os.Getenv("SANDPIT_TEST_LONG") != "" {
		runs, atOnce = 50_000, 50
	}
	for _, way := range []string{"alone", "with a server"} {
		t.Run(way, func(t *testing.T) {
			home := shortHome(t)
			if way != "alone" {
				t.Cleanup(func() { endServer(t, home) })
				startServer(t, home)
			}
			program := filepath.Join(binDir(t), "sandpit")
			var next atomic.Int64
			var all sync.WaitGroup
			for range atOnce {
				all.Go(func() {
					for n := next.Add(1); n <= int64(runs) && !t.Failed(); n = next.Add(1) {
						line := fmt.Sprintln("line", n)
						var stderr strings.Builder
						cmd := exec.Command(program, "run", "--", "sh", "-c", `read -r a && echo "$a"`)
						cmd.Env = append(os.Environ(), "SANDPIT_HOME="+home)
						cmd.Stdin, cmd.Stderr = strings.NewReader(line), &stderr
						if out, err := cmd.Output(); err != nil || string(out) != line {
							t.Errorf("run %d: %q, %v\n%s", n, out, err, &stderr)
						}
					}
				})
			}
			all.Wait()
		})
	}
}
