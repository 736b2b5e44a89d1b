package sandpittest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

var killProperties = []property{
	{"a timeout kills, returns the output so far, and says so", testTimeout},
	{"a timeout takes all that the process has started, whatever it did to hide", testTimeoutTrees},
	{"Kill takes all that the process has started, whatever it did to hide", testKillTrees},
	{"a kill spares what other processes have started", testKillSpares},
	{"what ends in time is not killed by its timeout later", testTimeoutUnused},
	{"a fork race is won", testForkRace},
	{"D1a: a program that kills or stops its helper leaves nothing to a timeout, a kill or a stop", testHelperAttacked},
}

func testTimeout(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	cmd := sandpit.Command{Script: "echo so far; echo also >&2; sleep 86451", Timeout: 300 * time.Millisecond}
	out := patiently(t, &cmd.Timeout, func() (sandpit.Output, bool) {
		out := run(t, sb, cmd)
		return out, len(out.Stderr) > 0
	})
	if !out.TimedOut || out.Signal != int(syscall.SIGKILL) || out.ExitCode != 124 || out.Success() || out.OOMKilled {
		t.Errorf("got %+v", out.Result)
	}
	if string(out.Stdout) != "so far\n" || string(out.Stderr) != "also\n" {
		t.Errorf("got %q and %q", out.Stdout, out.Stderr)
	}
	if out.Wall < cmd.Timeout {
		t.Errorf("it ran for %v", out.Wall)
	}
	allDead(t, sb, "86451")
	if got := shell(t, sb, "echo alive"); got != "alive" {
		t.Errorf("got %q", got)
	}
}

// trees are scripts that leave processes with the number 86461 in their
// command lines, and then print "ready" and stay.
var trees = map[string]string{
	"ignores SIGTERM":         `trap '' TERM INT HUP QUIT; echo ready; while :; do sleep 86461; done`,
	"children":                `sleep 86461 & sleep 86461 & echo ready; wait`,
	"child in a new session":  `setsid sleep 86461 & echo ready; wait`,
	"double fork":             `(sleep 86461 & ) & wait; echo ready; sleep 86461`,
	"double fork and session": `(setsid sh -c '(sleep 86461 >/dev/null 2>&1 &) ; sleep 86461' >/dev/null 2>&1 &); echo ready; sleep 86461`,
	"nohup":                   `nohup sleep 86461 >/dev/null 2>&1 & echo ready; sleep 86461`,
	"daemon":                  `(setsid sh -c 'exec >/dev/null 2>&1 </dev/null; cd /; (setsid sleep 86461 &)' &); sleep 0.1; echo ready; sleep 86461`,
	"stopped":                 `sleep 86461 & kill -STOP $!; (setsid sh -c 'sleep 86461 & kill -STOP $$' &); echo ready; kill -STOP $$; sleep 86461`,
	"deep":                    `sh -c "sh -c \"sh -c 'sh -c \\\"sleep 86461; :\\\" ; :'; :\"; :" & echo ready; wait`,
	"killed leader":           `(setsid sleep 86461 &); sleep 86461 & echo ready; exec sleep 86461`,
}

func testTimeoutTrees(t *testing.T, e *env) {
	for name, script := range trees {
		t.Run(name, func(t *testing.T) {
			sb := e.sandbox(t, sandpit.Spec{})
			cmd := sandpit.Command{Script: script, Timeout: 500 * time.Millisecond}
			out := patiently(t, &cmd.Timeout, func() (sandpit.Output, bool) {
				out := run(t, sb, cmd)
				allDead(t, sb, "86461")
				return out, strings.Contains(string(out.Stdout), "ready")
			})
			if !out.TimedOut || !strings.Contains(string(out.Stdout), "ready") {
				t.Errorf("with %v got %+v, %s, %s", cmd.Timeout, out.Result, brief(out.Stdout), brief(out.Stderr))
			}
		})
	}
}

func testKillTrees(t *testing.T, e *env) {
	for name, script := range trees {
		t.Run(name, func(t *testing.T) {
			sb := e.sandbox(t, sandpit.Spec{})
			var out written
			p := start(t, sb, sandpit.Command{Script: script, Stdout: &out})
			out.until(t, "ready")
			if err := p.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if res := wait(t, p); res.Signal != int(syscall.SIGKILL) || res.TimedOut {
				t.Errorf("got %+v", res)
			}
			allDead(t, sb, "86461")
		})
	}
}

func testKillSpares(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	var out written
	other := start(t, sb, sandpit.Command{Script: "(setsid sleep 86471 &); echo ready; sleep 86471", Stdout: &out})
	out.until(t, "ready")
	run(t, sb, sandpit.Command{Script: "sleep 86472", Timeout: 100 * time.Millisecond})
	eventually(t, "the other tree is there", func() bool {
		n := len(running(t, sb, "sleep 86471"))
		return n == 3 || n == 2 // the shell's own line has it too
	})
	if err := other.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	allDead(t, sb, "86471")
}

func testTimeoutUnused(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	cmd := sandpit.Command{Script: "sleep 86481 & echo done", Timeout: 300 * time.Millisecond}
	out := patiently(t, &cmd.Timeout, func() (sandpit.Output, bool) {
		out := run(t, sb, cmd)
		return out, !out.TimedOut
	})
	if out.TimedOut || !out.Success() {
		t.Errorf("with %v got %+v", cmd.Timeout, out.Result)
	}
	// The program has ended in time: what it left behind was not asked to end.
	time.Sleep(cmd.Timeout + 200*time.Millisecond)
	survives(t, sb, "sleep 86481")
}

func testForkRace(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	// Every process starts another and ends: whoever looks at the list sees yesterday's.
	out := run(t, sb, sandpit.Command{
		Script: `printf 'sh /tmp/race 86491 & exit\n' >/tmp/race
for i in 1 2 3 4 5 6 7 8 9 10; do (setsid sh /tmp/race 86491 &); done; sleep 86491`,
		Timeout: 500 * time.Millisecond,
	})
	if !out.TimedOut {
		t.Errorf("got %+v", out.Result)
	}
	allDead(t, sb, "86491")
}

// slowly prepares directories that the kernel takes long to look into, and returns a PATH of them.
func slowly(t *testing.T, sb sandpit.Sandbox, dirs int) string {
	t.Helper()
	shell(t, sb, `mkdir -p /tmp/slow/d; cd /tmp/slow; t=; while [ ${#t} -lt 3990 ]; do t=$t"d/../"; done
i=0; while [ $i -lt 38 ]; do ln -s "${t}k$((i+1))" k$i; i=$((i+1)); done; ln -s d k38`)
	return "PATH=" + strings.Join(slices.Repeat([]string{"/tmp/slow/k0"}, dirs), ":")
}

func testHelperAttacked(t *testing.T, e *env) {
	// Two daemons: one stays, and the others start their successors and end. The parent of a program is its helper.
	const daemons = `printf 'trap "" TERM HUP INT; sleep 0.02; setsid sh /tmp/link 86511 &' >/tmp/link
(setsid sh -c 'trap "" TERM HUP INT; sleep 86511; :' &)
for i in 1 2 3; do (setsid sh /tmp/link 86511 &); done
echo ready; until [ -e /tmp/go ]; do sleep 0.01; done
kill -%s $PPID; echo done
while :; do sleep 86511; done`
	for _, signal := range []string{"KILL", "STOP"} {
		for _, by := range []string{"timeout", "kill", "stop"} {
			if !e.opt.Long && (signal == "STOP") != (by == "stop") {
				continue
			}
			t.Run(signal+" and "+by, func(t *testing.T) {
				sb := e.sandbox(t, sandpit.Spec{User: "root"}) // who may signal it
				path := slowly(t, sb, 20)
				// Whatever is being started meanwhile does not keep them alive.
				end, all := make(chan struct{}), sync.WaitGroup{}
				for range 2 {
					all.Go(func() {
						for {
							select {
							case <-end:
								return
							default:
							}
							_, err := sb.Start(guarded(t), sandpit.Command{Argv: []string{"no-such-program"}, Env: []string{path}})
							if !errors.Is(err, sandpit.ErrStart) && !errors.Is(err, sandpit.ErrState) {
								t.Errorf("a start that is slow: %v", err)
								return
							}
						}
					})
				}
				defer all.Wait()
				finish := sync.OnceFunc(func() { close(end) })
				defer finish()
				var out written
				cmd := sandpit.Command{Script: fmt.Sprintf(daemons, signal), Stdout: &out}
				if by == "timeout" {
					cmd.Timeout = 2 * time.Second
				}
				p := start(t, sb, cmd)
				if by != "timeout" {
					out.until(t, "ready")
				}
				shell(t, sb, "touch /tmp/go")
				if signal == "STOP" {
					out.until(t, "done")
				}
				if signal == "KILL" || by == "timeout" {
					if res := wait(t, p); res.Signal != int(syscall.SIGKILL) {
						t.Errorf("got %+v", res)
					}
				}
				switch by {
				case "timeout":
					allDead(t, sb, "86511")
				case "kill":
					must(t, p.Kill(guarded(t)))
				case "stop":
					must(t, sb.Stop(guarded(t), 0))
					finish()
					all.Wait()
					must(t, sb.Restart(guarded(t)))
				}
				if left := running(t, sb, "86511"); len(left) > 0 {
					t.Errorf("still alive: %q", left)
				}
			})
		}
	}
}
