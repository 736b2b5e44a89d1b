package process

import (
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// tracerName is the name by which the test binary is a program that traces another, and never reaps it.
const tracerName = "tracer"

func trace(pid string) int {
	runtime.LockOSThread()
	n, err := strconv.Atoi(pid)
	if err != nil {
		return 100
	}
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(n), 0, 0, 0, 0); errno != 0 {
		_, _ = os.Stdout.WriteString(errno.Error())
		return 101
	}
	_, _ = os.Stdout.WriteString("traced")
	select {}
}

// sleeps starts a program below a helper that only sleeps.
func sleeps(t *testing.T, table *Table, killed func(bool)) *spawn.Proc {
	sleep := testkit.NeedProgram(t, "sleep")
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	a := &spawn.Attr{Argv: []string{"sleep", "1000"}, Candidates: []string{sleep}, Dir: "/", Stdin: fd, Stdout: fd, Stderr: fd}
	p, err := table.reaper.spawn(a, nil, killed, func() bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// What is dead, but traced by a program of another command that does not reap it, keeps nobody waiting: its command has
// ended, and nothing hunts for it.
func TestTheDeadThatAreTracedDoNotLive(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	table := adopts(t)
	r := &table.reaper
	killed := make(chan bool, 1)
	p := sleeps(t, table, func(was bool) { killed <- was })
	said, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	helper(t, r, self, []string{tracerName, strconv.Itoa(p.PID())}, w)
	w.Close()
	b := make([]byte, 64)
	if n, err := said.Read(b); err != nil || string(b[:n]) != "traced" {
		testkit.Lacks(t, "to trace a process: "+string(b[:n]))
	}
	table.reaps(t)
	if !table.killTree(p) {
		t.Fatal("its tree is not dead")
	}
	if !<-killed {
		t.Error("its helper could reap it")
	}
	if s := state(p.PID()); s != 'Z' {
		t.Fatalf("it is in state %q, and so no test of this", s)
	}
	table.killOrphans()
	r.mu.Lock()
	if r.hunt != nil || r.orphaned {
		t.Error("it is hunted")
	}
	r.mu.Unlock()
	if r.killAll() {
		t.Error("the tracer does not live")
	}
	if _, err := p.Wait(); err == nil {
		t.Error("it was reaped")
	}
	testkit.Until(t, "all is reaped", func() bool { return syscall.Kill(p.PID(), 0) == syscall.ESRCH })
}

// The end of everything does not wait for whoever keeps the reaper busy with killing something else.
func TestKillAllDoesNotWaitForTheReaper(t *testing.T) {
	table := adopts(t)
	table.reaper.mu.Lock()
	defer table.reaper.mu.Unlock()
	idle := make(chan bool, 1)
	go func() { idle <- table.idle() }()
	select {
	case is := <-idle:
		if !is {
			t.Error("something is being started")
		}
	case <-time.After(testkit.Patience):
		t.Error("it waits")
	}
}

// Trees that die at the same time are killed together, however many they are, and no others.
func TestDyingTreesAreKilledTogether(t *testing.T) {
	table := adopts(t)
	r := &table.reaper
	gone := make(chan bool, 3)
	var all []*spawn.Proc
	for range cap(gone) {
		all = append(all, sleeps(t, table, func(killed bool) { gone <- killed }))
	}
	r.mu.Lock()
	for _, p := range all[1:] {
		r.trees[p.Helper()].dying = true
	}
	r.mu.Unlock()
	if !r.killOnce() {
		t.Error("there was nothing to kill")
	}
	for _, p := range all[1:] {
		if st, err := p.Wait(); err != nil || st.Wait.Signal() != syscall.SIGKILL {
			t.Errorf("got %+v, %v", st, err)
		}
	}
	table.reaps(t)
	for range all[1:] {
		if <-gone {
			t.Error("a helper was killed")
		}
	}
	if s := state(all[0].PID()); s == 0 || s == 'Z' || s == 'T' {
		t.Errorf("another is in state %q", s)
	}
	if !table.killTree(all[0]) || <-gone {
		t.Error("the last one does not end")
	}
}

// A kill of a process that has ended does not reach what has the number of its helper now.
func TestKillSparesTheNextOfANumber(t *testing.T) {
	table := adopts(t)
	gone := make(chan bool, 1)
	p := sleeps(t, table, func(killed bool) { gone <- killed })
	ended := &process{table: table, proc: spawn.Forked(p.PID(), p.Helper(), nil, nil)}
	if err := ended.kill(); err != nil {
		t.Error(err)
	}
	if s := state(p.PID()); s == 0 || s == 'Z' || s == 'T' {
		t.Errorf("the next one is in state %q", s)
	}
	table.reaps(t)
	if !table.killTree(p) || <-gone {
		t.Error("it does not end")
	}
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
}
