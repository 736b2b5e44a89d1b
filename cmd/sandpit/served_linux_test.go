package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// servedRun is sandpit run by way of a server.
type servedRun struct {
	t      *testing.T
	s      *service
	cmd    *exec.Cmd
	out    io.Reader
	stderr bytes.Buffer // once it has ended
	group  string       // name of the sandbox's cgroups; empty: it has none
	marker string       // in the command lines of what it runs
}

// startServedRun has a server run a script, which says that it is ready, with a
// marker in the command line. With more in its environment it may ask another way.
func startServedRun(t *testing.T, s *service, marker, script string, environ ...string) *servedRun {
	t.Helper()
	r := &servedRun{t: t, s: s, marker: marker}
	// The client has the whole command line, the command just the marker.
	r.cmd = commandLineAt(t, s.home, "run", "-e", "MARK="+marker, "--", "sh", "-c", `exec sh -c "$0" "$MARK-inside"`, script)
	r.cmd.Env = append(r.cmd.Env, environ...)
	r.cmd.Stderr = &r.stderr
	var err error
	if r.out, err = r.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
	})
	buf := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(r.out, buf); err != nil || string(buf) != "ready\n" {
		t.Fatalf("it says %q, %v", buf, err)
	}
	inside := r.inside()
	if len(inside) == 0 {
		t.Fatal("the command is not found")
	}
	groups, err := os.ReadFile(inside[0] + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	if _, name, ok := strings.Cut(string(groups), "/sandpit-"); ok {
		r.group, _, _ = strings.Cut("sandpit-"+name, "\n")
		r.group, _, _ = strings.Cut(r.group, "/")
	}
	return r
}

// inside returns the directories in /proc of what runs in the sandbox.
func (r *servedRun) inside() []string {
	var found []string
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		if line, _ := os.ReadFile(dir + "/cmdline"); bytes.Contains(line, []byte(r.marker+"-inside")) {
			found = append(found, dir)
		}
	}
	return found
}

// nothingIsLeft waits until what it ran, and what that ran in, is gone.
func (r *servedRun) nothingIsLeft() {
	r.t.Helper()
	r.s.until("the command is gone", func() bool { return len(r.inside()) == 0 })
	if r.group == "" {
		return
	}
	r.s.until("its cgroups are gone", func() bool {
		id := strings.TrimPrefix(r.group, "sandpit-")
		return len(groupsOf(map[string]bool{id: true})) == 0
	})
}

// TestServerOfARunIsKilled kills the server of a run with -9: the run ends, says
// why in one line and what to do in another, and leaves nothing.
func TestServerOfARunIsKilled(t *testing.T) {
	needSandboxes(t)
	home := shortHome(t)
	s := startService(t, home, nil)
	t.Cleanup(func() { endServer(t, home) })
	r := startServedRun(t, s, fmt.Sprintf("mark-%d-killed", os.Getpid()), "echo ready; sleep 1000; echo never")
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(r.out)
	if got := exitCode(t, r.cmd); got != cli.ExitFailure || len(rest) > 0 {
		t.Errorf("exit code %d, and it wrote %q", got, rest)
	}
	const want = "sandpit: waiting for the command: the server that ran the command has exited, and the sandbox with it\n" +
		"hint: run the command again, which needs no server\n"
	if got := r.stderr.String(); got != want {
		t.Errorf("it says\n%s", got)
	}
	r.nothingIsLeft()
	// And what the hint says is so.
	if out, err := commandLineAt(t, home, "run", "echo", "well").Output(); err != nil || string(out) != "well\n" {
		t.Errorf("again, without a server: %q %v", out, err)
	}
	startService(t, home, nil)
	for _, dir := range []string{"run", "sandboxes", "images/kept"} {
		var left []os.DirEntry
		testkit.Until(t, dir+" is empty", func() bool {
			left, _ = os.ReadDir(filepath.Join(home, dir))
			return len(left) == 0
		}, func() string { return fmt.Sprint(left) })
	}
}

// TestServerOfARunEnds has the server of runs asked to end: it finishes what
// ends in time, and breaks off the rest, which hears so.
func TestServerOfARunEnds(t *testing.T) {
	testkit.NeedFull(t, "it waits for ten seconds")
	needSandboxes(t)
	t.Parallel() // it waits, mostly: as long as a server that ends
	home := shortHome(t)
	s := startService(t, home, nil)
	short := startServedRun(t, s, fmt.Sprintf("mark-%d-short", os.Getpid()), "trap 'echo asked; exit 5' USR1; echo ready; while :; do sleep 0.02; done")
	long := startServedRun(t, s, fmt.Sprintf("mark-%d-long", os.Getpid()), "echo ready; sleep 1000; echo never")
	waitCatching(t, short.cmd.Process.Pid)
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.until("it takes nothing new", func() bool { return serverPID(t, home) == 0 })
	// First of all: it waits for some seconds.
	if err := short.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	// Who comes now has it done without this server.
	if out, err := commandLineAt(t, home, "run", "echo", "well").Output(); err != nil || string(out) != "well\n" {
		t.Errorf("a new run: %q %v", out, err)
	}
	if rest, _ := io.ReadAll(short.out); string(rest) != "asked\n" {
		t.Errorf("what was finished wrote %q", rest)
	}
	if got := exitCode(t, short.cmd); got != 5 || strings.Contains(short.stderr.String(), "sandpit: ") {
		t.Errorf("what was finished: exit code %d, %s", got, &short.stderr)
	}
	if rest, _ := io.ReadAll(long.out); len(rest) > 0 {
		t.Errorf("what was broken off wrote %q", rest)
	}
	if got := exitCode(t, long.cmd); got != cli.ExitFailure || !strings.HasPrefix(long.stderr.String(), "sandpit: waiting for the command: the server that ran the command has exited") ||
		!strings.Contains(long.stderr.String(), "\nhint: ") {
		t.Errorf("what was broken off: exit code %d, %s", got, &long.stderr)
	}
	<-s.ended
	if got := s.cmd.ProcessState.ExitCode(); got != 0 {
		t.Errorf("the server's exit code is %d", got)
	}
	short.nothingIsLeft()
	long.nothingIsLeft()
}

// TestClientOfARunIsKilled kills sandpit run with -9: what its
// server runs for it is killed.
func TestClientOfARunIsKilled(t *testing.T) {
	needSandboxes(t)
	home := shortHome(t)
	s := startService(t, home, nil)
	t.Cleanup(func() { endServer(t, home) })
	r := startServedRun(t, s, fmt.Sprintf("mark-%d-vanished", os.Getpid()), "trap '' HUP TERM INT PIPE; (setsid sh -c 'while :; do sleep 1; done' \"$0\" &); echo ready; while :; do sleep 1; done")
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := exitCode(t, r.cmd); got != 137 {
		t.Errorf("exit code %d", got)
	}
	r.nothingIsLeft()
}
