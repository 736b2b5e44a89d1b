package main

import (
	"bufio"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// TestSignalsEndStreams ends what has no end of its own: the exit code says that
// a signal did it, and not that all was shown.
func TestSignalsEndStreams(t *testing.T) {
	needSandboxes(t)
	home := shortHome(t)
	s := startService(t, home, nil)
	t.Cleanup(func() { endServer(t, home) })
	for _, argv := range [][]string{{"create", "box"}, {"exec", "box", "echo", "written"}} {
		if out, err := commandLineAt(t, home, argv...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for _, tt := range []struct {
		argv []string
		sig  syscall.Signal
		want int
	}{
		{[]string{"logs", "-f", "box"}, syscall.SIGINT, 130},
		{[]string{"logs", "-f", "box"}, syscall.SIGTERM, 143},
		{[]string{"events", "-f"}, syscall.SIGINT, 130},
		{[]string{"events", "-f"}, syscall.SIGHUP, 129},
		{[]string{"forward", "box", "0:80"}, syscall.SIGINT, 130},
	} {
		t.Run(strings.Join(tt.argv, " "), func(t *testing.T) {
			heedSignals(t)
			cmd := commandLineAt(t, home, tt.argv...)
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			var begun atomic.Bool
			go func() {
				if _, err := bufio.NewReader(out).ReadString('\n'); err == nil {
					begun.Store(true)
				}
			}()
			s.until("it shows something", func() bool {
				if !begun.Load() && tt.argv[0] == "events" { // it shows what happens from some moment on
					_ = commandLineAt(t, home, "exec", "box", "true").Run()
				}
				return begun.Load()
			})
			if err := cmd.Process.Signal(tt.sig); err != nil {
				t.Fatal(err)
			}
			if got := exitCode(t, cmd); got != tt.want {
				t.Errorf("exit code %d, want %d", got, tt.want)
			}
		})
	}
}
