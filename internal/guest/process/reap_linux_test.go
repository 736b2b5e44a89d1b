package process

import (
	"os"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// What a helper leaves that is killed while it starts is hunted as what any other leaves.
func TestHelpersThatAreKilledWhileTheyStart(t *testing.T) {
	sleep := testkit.NeedProgram(t, "sleep")
	var r reaper
	r.clear()
	for name, known := range map[string]bool{"before it is known": false, "while its program is executed": true} {
		killed := make(chan bool, 1)
		_, err := r.begin(nil, func(made func(int) bool) (*spawn.Proc, error) {
			pid, err := syscall.ForkExec(sleep, []string{"sleep", "1000"}, &syscall.ProcAttr{Env: os.Environ()})
			if err != nil {
				t.Fatal(err)
			}
			if known && !made(pid) {
				t.Error("it is no child")
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			testkit.Until(t, "it is reaped", func() bool { r.reap(); return syscall.Kill(pid, 0) == syscall.ESRCH })
			return spawn.Forked(pid, pid, nil, nil), nil
		}, func(was bool) { killed <- was }, func() bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		if !<-killed {
			t.Errorf("%s: it counts as ended", name)
		}
		r.mu.Lock()
		if !r.orphaned || len(r.young) != 0 || len(r.early) != 0 || len(r.trees) != 0 {
			t.Errorf("%s: orphans may live: %t; left are %v, %v and %v", name, r.orphaned, r.young, r.early, r.trees)
		}
		r.orphaned = false
		r.mu.Unlock()
	}
}
