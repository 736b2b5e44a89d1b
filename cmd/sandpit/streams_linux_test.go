package main

import (
	"bufio"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testkit"
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

// TestEventsOverASlowConnection lists past events by way of a proxy that delays each piece: all
// are shown, however long they take.
func TestEventsOverASlowConnection(t *testing.T) {
	testkit.NeedFull(t, "it waits for eight seconds")
	_, _ = withSandbox(t)
	socket, ok := strings.CutPrefix(os.Getenv("SANDPIT_SERVER"), "unix://")
	if !ok {
		t.Fatal("the server has no socket")
	}
	l, err := net.Listen("unix", filepath.Join(shortHome(t), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	slowly := func(to, from net.Conn) {
		defer to.Close()
		for buf := make([]byte, 64<<10); ; {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			time.Sleep(300 * time.Millisecond)
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", socket)
			if err != nil {
				_ = near.Close()
				continue
			}
			go slowly(far, near)
			go slowly(near, far)
		}
	}()
	t.Setenv("SANDPIT_SERVER", "unix://"+l.Addr().String())
	for _, argv := range [][]string{{"sandpit", "events"}, {"sandpit", "events", "--filter", "kind=sandbox.created"}} {
		out, err := commandLine(t, argv...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "  sandbox.created  box\n") {
			t.Errorf("%v: %v: %s", argv, err, out)
		}
	}
	for _, argv := range [][]string{
		{"sandpit", "events", "--filter", "kind=sandbox.removed"},
		{"sandpit", "events", "--after", "9000000000000000000"},
	} {
		if out, err := commandLine(t, argv...).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%v: %v: %s", argv, err, out)
		}
	}
}
