package main

import (
	"bufio"
	"fmt"
	"os/exec"
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

// A server that a person starts takes the place of one that a command has started. Sandboxes and their
// processes go on.
func TestServeTakesThePlace(t *testing.T) {
	needSandboxes(t)
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	for _, args := range [][]string{{"create", "box"}, {"exec", "-d", "box", "--", "sleep", "1000"}} {
		if out, err := commandLineAt(t, home, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	background := serverPID(t, home)
	s := startService(t, home, nil)
	if now := serverPID(t, home); now != s.cmd.Process.Pid {
		t.Errorf("the server is process %d, and not %d", now, s.cmd.Process.Pid)
	}
	if want := fmt.Sprintf("sandpit: this server takes the place of the one that a command started, process %d\n", background); !strings.Contains(s.log.String(), want) {
		t.Errorf("it says %s", s.log)
	}
	if out, err := commandLineAt(t, home, "ps", "--quiet", "box").Output(); err != nil || string(out) != "p1\n" {
		t.Errorf("what goes on: %q %v", out, err)
	}
	// One that a person has started is not asked.
	refuses(t, home, fmt.Sprintf("another server, process %d, uses it\nhint: run 'kill %[1]d' first", s.cmd.Process.Pid))
}

// inProgress starts a command line, of which place is all but the program in the sandbox, and returns when that runs. done has it end,
// and returns an error unless it answers and succeeds.
func inProgress(t *testing.T, home string, place ...string) (done func() error) {
	t.Helper()
	command := commandLineAt(t, home, append(place, "--", "sh", "-c", "echo ready; read line; echo $line")...)
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	if line, err := lines.ReadString('\n'); line != "ready\n" {
		t.Fatalf("it says %q, %v", line, err)
	}
	return func() error {
		if _, err := stdin.Write([]byte("done\n")); err != nil {
			return err
		}
		if line, err := lines.ReadString('\n'); line != "done\n" {
			return fmt.Errorf("it says %q, %v", line, err)
		}
		return command.Wait()
	}
}

// A server that a person starts while the one before still finishes what it has to waits for it.
func TestServeWhileServerEnds(t *testing.T) {
	needSandboxes(t)
	home := shortHome(t)
	first := startService(t, home, nil)
	t.Cleanup(func() { endServer(t, home) })
	if out, err := commandLineAt(t, home, "create", "box").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	done := inProgress(t, home, "exec", "-i", "box")
	if err := first.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	first.until("it takes nothing new", func() bool { return serverPID(t, home) == 0 })
	waits := fmt.Sprintf("sandpit: another server, process %d, is ending, or just starting; waiting for it\n", first.cmd.Process.Pid)
	ended := make(chan error, 1)
	second := startService(t, home, func(cmd *exec.Cmd) {
		log := cmd.Stderr.(*testkit.Buffer)
		go func() {
			for t.Context().Err() == nil && !strings.Contains(log.String(), waits) {
				time.Sleep(2 * time.Millisecond)
			}
			ended <- done()
		}()
	})
	if !strings.Contains(second.log.String(), waits) {
		t.Error("it does not say that it waits")
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if now := serverPID(t, home); now != second.cmd.Process.Pid {
		t.Errorf("the server is process %d, and not %d", now, second.cmd.Process.Pid)
	}
}

// refuses reports an error unless a server that a person starts is refused beside the present one, with a reason.
func refuses(t *testing.T, home, want string) {
	t.Helper()
	cmd := commandLineAt(t, home, "serve")
	log := new(testkit.Buffer)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }).Stop() // one that is not refused goes on
	if err := cmd.Wait(); err == nil || !strings.Contains(log.String(), want) {
		t.Errorf("a second server: %v: %s", err, log)
	}
}

// A server that has a run or a command in progress keeps its place.
func TestServeBesideACommand(t *testing.T) {
	testkit.NeedFull(t, "it waits for five seconds")
	needSandboxes(t)
	for name, place := range map[string][]string{"run": {"run"}, "exec": {"exec", "box"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits, mostly
			home := shortHome(t)
			t.Cleanup(func() { endServer(t, home) })
			if out, err := commandLineAt(t, home, "create", "box").CombinedOutput(); err != nil { // which starts a server
				t.Fatalf("%v: %s", err, out)
			}
			background := serverPID(t, home)
			done := inProgress(t, home, place...)
			refuses(t, home, fmt.Sprintf("taking the place of the server that a command started, process %d: it has requests in progress\nhint: wait until commands such as 'sandpit exec' have ended, or cancel them with 'kill %[1]d'; then run this again (sandboxes keep running)\n", background))
			if err := done(); err != nil {
				t.Error(err)
			}
			if now := serverPID(t, home); now != background {
				t.Errorf("the server is process %d, and was %d", now, background)
			}
		})
	}
}
