package main

import (
	"bufio"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestCommandWhileServerEnds asks for a server while the one before finishes what
// it has to: the next one takes its place as soon as it is free.
func TestCommandWhileServerEnds(t *testing.T) {
	testkit.NeedFull(t, "it waits for ten seconds")
	needSandboxes(t)
	t.Parallel() // it waits, mostly: as long as a server that ends
	home := shortHome(t)
	s := startService(t, home, nil)
	t.Cleanup(func() { endServer(t, home) })
	if out, err := commandLineAt(t, home, "create", "box").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	long := commandLineAt(t, home, "exec", "box", "--", "sh", "-c", "echo ready; exec sleep 1000")
	var stderr strings.Builder
	long.Stderr = &stderr
	out, err := long.StdoutPipe()
	if err == nil {
		err = long.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("it says %q, %v", line, err)
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.until("it takes nothing new", func() bool { return serverPID(t, home) == 0 })
	if out, err := commandLineAt(t, home, "exec", "box", "--", "echo", "served").Output(); err != nil || string(out) != "served\n" { // ps starts no server
		t.Errorf("the next command: %q %v", out, err)
	}
	<-s.ended
	if got := exitCode(t, long); got != cli.ExitFailure || !strings.HasSuffix(stderr.String(), "\nhint: run 'sandpit attach box p1' to reconnect if it is still running\n") {
		t.Errorf("what was broken off: exit code %d, %s", got, &stderr)
	}
	if out, err := commandLineAt(t, home, "ps", "--quiet", "box").Output(); err != nil || string(out) != "p1\n" {
		t.Errorf("what goes on: %q %v", out, err)
	}
}

// A server that a person starts takes the place of one that a command has started, if that is idle.
func TestServeTakesTheIdlePlace(t *testing.T) {
	needSandboxes(t)
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	if out, err := commandLineAt(t, home, "create", "box").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	background := serverPID(t, home)
	// With a sandbox it stays.
	refuses(t, home, background)
	if out, err := commandLineAt(t, home, "rm", "box").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if now := serverPID(t, home); now != background {
		t.Fatalf("the server is process %d, and was %d", now, background)
	}
	s := startService(t, home, nil)
	if now := serverPID(t, home); now != s.cmd.Process.Pid {
		t.Errorf("the server is process %d, and not %d", now, s.cmd.Process.Pid)
	}
	if want := fmt.Sprintf("sandpit: this server takes the place of the idle one that a command started, process %d\n", background); !strings.Contains(s.log.String(), want) {
		t.Errorf("it says %s", s.log)
	}
	// One that a person has started is not asked.
	refuses(t, home, s.cmd.Process.Pid)
}

// refuses reports an error unless a server that a person starts is refused beside the present one.
func refuses(t *testing.T, home string, pid int) {
	t.Helper()
	cmd := commandLineAt(t, home, "serve")
	log := new(testkit.Buffer)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }).Stop() // one that is not refused goes on
	err := cmd.Wait()
	if want := fmt.Sprintf("another server, process %d, uses it\nhint: run 'kill %d' first", pid, pid); err == nil || !strings.Contains(log.String(), want) {
		t.Errorf("a second server: %v: %s", err, log)
	}
}

// A server that has a run in progress, which is no sandbox that stays, keeps its place.
func TestServeBesideARun(t *testing.T) {
	testkit.NeedFull(t, "it waits for five seconds")
	needSandboxes(t)
	t.Parallel() // it waits, mostly
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	if out, err := commandLineAt(t, home, "stats").CombinedOutput(); err != nil { // which starts a server
		t.Fatalf("%v: %s", err, out)
	}
	background := serverPID(t, home)
	run := commandLineAt(t, home, "run", "--", "sh", "-c", "echo ready; read line; echo $line")
	stdin, err := run.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := run.StdoutPipe()
	if err == nil {
		err = run.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	if line, err := lines.ReadString('\n'); line != "ready\n" {
		t.Fatalf("it says %q, %v", line, err)
	}
	refuses(t, home, background)
	if _, err := stdin.Write([]byte("done\n")); err != nil {
		t.Error(err)
	}
	if line, err := lines.ReadString('\n'); line != "done\n" {
		t.Errorf("it says %q, %v", line, err)
	}
	if err := run.Wait(); err != nil {
		t.Error(err)
	}
	if now := serverPID(t, home); now != background {
		t.Errorf("the server is process %d, and was %d", now, background)
	}
}
