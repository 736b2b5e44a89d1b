package spawn

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/sysprog"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// A program that is told to have been executed may share its maker's memory
// for a while: as long as this one waits for a byte. Its score is not raised
// before that is over, as that would raise its maker's.
func TestOOMScoreWaitsForTheExec(t *testing.T) {
	score := func(pid string) string {
		data, err := os.ReadFile("/proc/" + pid + "/oom_score_adj")
		testkit.Need(t, "a /proc that has oom_score_adj", err)
		return strings.TrimSpace(string(data))
	}
	own := score("self")
	if own == "500" {
		testkit.Lacks(t, "to be started with another oom_score_adj than 500, so that a raised one can be told")
	}
	for _, exec := range []bool{true, false} {
		t.Run("executes "+strconv.FormatBool(exec), func(t *testing.T) {
			var fds [2]int
			if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fds[0])
			var p sysprog.Program
			p.Call("closing", unix.SYS_CLOSE, sysprog.Int(fds[1]))
			p.Call("waiting", unix.SYS_READ, sysprog.Int(fds[0]), p.Bytes(make([]byte, 1)), sysprog.Int(1))
			if exec {
				argv, err := p.Strs([]string{"sleep", "1000"})
				if err != nil {
					t.Fatal(err)
				}
				p.Call("executing", unix.SYS_EXECVE, p.Str("/bin/sleep"), argv, sysprog.Int(0))
			}
			child, err := p.Fork(sysprog.ForkOptions{Cgroup: -1, Report: -1})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = unix.Kill(child.PID, unix.SIGKILL)
				_, _ = syscall.Wait4(child.PID, nil, 0, nil)
				child.Release()
			}()
			done := make(chan struct{})
			go func() {
				defer close(done)
				raiseOOMScore(child.PID, 500)
			}()
			for until := time.Now().Add(50 * time.Millisecond); time.Now().Before(until); time.Sleep(time.Millisecond) {
				if now := score("self"); now != own {
					t.Fatalf("this program has the score %s, not %s", now, own)
				}
			}
			unix.Close(fds[1])
			<-done
			if now := score("self"); now != own {
				t.Fatalf("this program has the score %s, not %s", now, own)
			}
			if exec {
				if now := score(strconv.Itoa(child.PID)); now != "500" {
					t.Errorf("the program has the score %s, not 500", now)
				}
			}
		})
	}
}

// Whose a program's files are is settled a moment after it is told to have been
// executed, as seen by a maker that is not root and, like the guest, not dumpable.
func TestOOMScoreIsSet(t *testing.T) {
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_DUMPABLE, uintptr(dumpable), 0, 0, 0) }()
	for i := range 50 {
		var p sysprog.Program
		argv, err := p.Strs([]string{"sleep", "1000"})
		if err != nil {
			t.Fatal(err)
		}
		p.Call("executing", unix.SYS_EXECVE, p.Str("/bin/sleep"), argv, sysprog.Int(0))
		child, err := p.Fork(sysprog.ForkOptions{Cgroup: -1, Report: -1})
		if err != nil {
			t.Fatal(err)
		}
		raiseOOMScore(child.PID, 500)
		data, err := os.ReadFile("/proc/" + strconv.Itoa(child.PID) + "/oom_score_adj")
		_ = unix.Kill(child.PID, unix.SIGKILL)
		_, _ = syscall.Wait4(child.PID, nil, 0, nil)
		child.Release()
		testkit.Need(t, "a /proc that has oom_score_adj", err)
		if now := strings.TrimSpace(string(data)); now != "500" {
			t.Fatalf("program %d has the score %s, not 500", i+1, now)
		}
	}
}

func TestExecComplete(t *testing.T) {
	for _, tc := range []struct {
		stat         string
		executed, ok bool
	}{
		{"7 (sh) S 1 7 7 0 -1 4194304 100 0", true, true},
		{"7 (sh) S 1 7 7 0 -1 4194368 100 0", false, true},
		{"7 (a) S 1 7 7 0 -1 0 ) R 1 7 7 0 -1 64 100 0", false, true},
		{"7 (sh) Z 1 7 7 0 -1 4194304 100 0", false, false},
		{"7 (sh) S 1 7 7 0 -1 x", false, false},
		{"7 (sh) S 1 7 7 0 -1", false, false},
		{"", false, false},
	} {
		if executed, ok := execComplete([]byte(tc.stat)); executed != tc.executed || ok != tc.ok {
			t.Errorf("%q: got %t, %t", tc.stat, executed, ok)
		}
	}
}
