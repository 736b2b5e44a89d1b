package main

import (
	"bufio"
	"strings"
	"syscall"
	"testing"

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
