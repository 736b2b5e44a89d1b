package main

import (
	"bufio"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/server"
)

// TestUnreadOutput checks that a stdout that nobody reads does not hold up stderr: of run and exec, by
// themselves, by way of this user's server, and at a configured one.
func TestUnreadOutput(t *testing.T) {
	needSandboxes(t)
	home := shortHome(t)
	parent := t
	var s *service
	for _, tt := range []struct {
		name   string
		argv   []string
		served bool // by a server of this user
		remote bool // by the one that is configured
	}{
		{"run", []string{"run"}, false, false},
		{"run by way of this user's server", []string{"run"}, true, false},
		{"run at a server", []string{"run"}, true, true},
		{"exec", []string{"exec", "box"}, true, false},
		{"exec with input", []string{"exec", "-i", "box"}, true, false},
		{"exec at a server", []string{"exec", "box"}, true, true},
		{"exec at a server with input", []string{"exec", "-i", "box"}, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.served && s == nil {
				s = startService(parent, home, nil)
				if out, err := commandLineAt(t, home, "create", "box").CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			testUnreadOutput(t, home, tt.argv, tt.remote)
		})
	}
}

func testUnreadOutput(t *testing.T, home string, argv []string, remote bool) {
	cmd := commandLineAt(t, home, append(argv, "--", "sh", "-c", "head -c 20000000 /dev/zero & head -c 5000000 /dev/zero >&2; echo free >&2; wait")...)
	if remote {
		cmd.Env = append(cmd.Env, "SANDPIT_SERVER="+server.SocketIn(home).String())
	}
	_, err := cmd.StdinPipe() // which stays open
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	stdout, err := cmd.StdoutPipe()
	must(err)
	stderr, err := cmd.StderrPipe()
	must(err)
	must(cmd.Start())
	last := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(stderr).ReadString('\n')
		last <- line
	}()
	select {
	case line := <-last:
		if !strings.HasSuffix(line, "\x00free\n") {
			t.Errorf("stderr ends with %q", line[max(0, len(line)-80):])
		}
	case <-time.After(patience):
		t.Error("stderr is held up")
	}
	n, err := io.Copy(io.Discard, stdout)
	if code := exitCode(t, cmd); code != 0 || n != 20000000 || err != nil {
		t.Errorf("exit code %d, %d bytes, %v", code, n, err)
	}
}
