package apart

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/network/networktest"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestMain makes the test binary the process, too.
func TestMain(m *testing.M) {
	if os.Args[0] == confinedName {
		os.Exit(confined(os.Args[1], os.Args[2], os.Args[3]))
	}
	if IsProcess(os.Args) {
		os.Exit(Process())
	}
	os.Exit(testkit.Main(m))
}

func newHost(t *testing.T) (*Host, *testkit.Buffer) {
	t.Helper()
	log := new(testkit.Buffer)
	h := New(slog.New(slog.NewTextHandler(log, nil)), nil)
	t.Cleanup(h.Close)
	return h, log
}

// pid returns the process that runs, if it is another than the last one.
func pid(t *testing.T, h *Host, last int) int {
	t.Helper()
	now := 0
	testkit.Until(t, "a process runs", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.child != nil {
			now = h.child.cmd.Process.Pid
		}
		return now != 0 && now != last
	})
	return now
}

// TestNetwork runs the suite of all networks through the process.
func TestNetwork(t *testing.T) {
	h, log := newHost(t)
	networktest.Test(t, h)
	if s := log.String(); strings.Contains(s, "ERROR") {
		t.Error(s)
	}
}

// TestProcessIsKilled kills the process again and again while sandboxes use and change their networks.
func TestProcessIsKilled(t *testing.T) {
	h, log := newHost(t)
	const boxes, kills = 4, 5
	var joined [boxes]engine.Joined
	var inside [boxes]int
	for i := range joined {
		joined[i], inside[i] = networktest.Join(t, h, "good.test")
	}
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for i, j := range joined {
		load.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if err := j.Set(ctx, networktest.Terms(fmt.Sprintf("good%d.test", i))); err != nil && !errors.Is(err, sandpit.ErrUnavailable) {
					t.Errorf("Set: %v", err)
				}
				j.Traffic()
			}
		})
	}
	last := 0
	for range kills {
		last = pid(t, h, last)
		if err := unix.Kill(last, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	pid(t, h, last)
	stop()
	load.Wait()
	for i := range joined {
		networktest.Resolves(t, inside[i], "evil.test")
		if _, err := joined[i].Log(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(log.String(), "signal: killed"); n != kills {
		t.Errorf("%d of %d deaths were logged: %s", n, kills, log)
	}
}

// TestCountsSurvive checks that the next process counts on; network's TestBounds checks that bounds of traffic hold then.
func TestCountsSurvive(t *testing.T) {
	h, _ := newHost(t)
	j, inside := networktest.Join(t, h, "good.test")
	was := pid(t, h, 0)
	counted := engine.Traffic{Denials: 1000, Sent: 5000}
	j.(*member).note(counts{Traffic: counted})
	_ = unix.Kill(was, unix.SIGKILL)
	pid(t, h, was)
	networktest.Resolves(t, inside, "evil.test")
	testkit.Until(t, "the next process counts on", func() bool {
		now := j.Traffic()
		return now.Denials > counted.Denials && now.Sent >= counted.Sent
	})
}

// TestHungProcess checks that a process that does not answer is replaced, also when a sandbox only leaves.
func TestHungProcess(t *testing.T) {
	h, log := newHost(t)
	left, _ := networktest.Join(t, h, "good.test")
	_, inside := networktest.Join(t, h, "good.test")
	was := pid(t, h, 0)
	h.mu.Lock()
	h.child.patience = 100 * time.Millisecond
	h.mu.Unlock()
	if err := unix.Kill(was, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "it has stopped", func() bool { // until then it may answer
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", was))
		for _, thread := range threads {
			if text, err := os.ReadFile(thread); err == nil && !strings.Contains(string(text), "\nState:\tT") {
				return false
			}
		}
		return len(threads) > 0
	})
	if err := left.Close(); err != nil {
		t.Error(err)
	}
	pid(t, h, was)
	networktest.Resolves(t, inside, "evil.test")
	if s := log.String(); !strings.Contains(s, "it did not answer for 100ms") {
		t.Errorf("the log is %s", s)
	}
}

// TestProcessEndsAtOnce has a process that can't run: callers get an error soon, and it is not started
// again and again without a pause.
func TestProcessEndsAtOnce(t *testing.T) {
	h, log := newHost(t)
	h.program = "/bin/false"
	file, inside := networktest.Pair(t)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := h.Join(ctx, file, networktest.Terms("good.test")); !errors.Is(err, sandpit.ErrUnavailable) {
		t.Errorf("Join: %v", err)
	}
	if !networktest.Closed(inside) {
		t.Error("the interface is left open")
	}
	if n := strings.Count(log.String(), "ERROR"); n > 8 {
		t.Errorf("it was started %d times in half a second", n)
	}
}

// processDir starts a process, and returns its directory in /proc.
func processDir(t *testing.T) string {
	t.Helper()
	h, _ := newHost(t)
	networktest.Join(t, h, "good.test")
	return fmt.Sprintf("/proc/%d", pid(t, h, 0))
}

// readIn reads a file of a process.
func readIn(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// after returns the word after another.
func after(text, word string) string {
	words := strings.Fields(text)
	return words[slices.Index(words, word)+1]
}

// TestRights checks that the process has no capability, and no memory that others can read.
func TestRights(t *testing.T) {
	dir := processDir(t)
	status := readIn(t, dir, "status")
	for _, set := range []string{"CapEff:", "CapPrm:", "CapInh:", "CapAmb:"} {
		if caps := after(status, set); caps != "0000000000000000" {
			t.Errorf("%s %s", set, caps)
		}
	}
	if after(status, "NoNewPrivs:") != "1" {
		t.Error("it may get privileges")
	}
	threads, err := filepath.Glob(filepath.Join(dir, "task/*/status"))
	if err != nil || len(threads) == 0 {
		t.Errorf("its threads are %v, %v", threads, err)
	}
	for _, thread := range threads {
		if text, err := os.ReadFile(thread); err == nil && !strings.Contains(string(text), "\nSeccomp:\t2\n") {
			t.Errorf("%s: it has no filter", thread)
		}
	}
	// The kernel gives the files of an undumpable process to root (proc_pid_mem(5)).
	if info, err := os.Stat(filepath.Join(dir, "mem")); err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("its memory belongs to its user: %v", err)
	}
}

// TestBelongings checks that the process of root's server is another user's, without a file or a variable of the
// server.
func TestBelongings(t *testing.T) {
	testkit.NeedRoot(t, "to look into an undumpable process")
	t.Setenv("SECRET_OF_THE_SERVER", "x")
	dir := processDir(t)
	if uid := after(readIn(t, dir, "status"), "Uid:"); uid != "65534" {
		t.Errorf("it is user %s", uid)
	}
	if env := readIn(t, dir, "environ"); strings.Contains(env, "SECRET") || strings.Contains(env, "HOME=") {
		t.Errorf("its environment is %q", env)
	}
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, _ := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
		if !slices.ContainsFunc([]string{"/dev/null", "pipe:", "socket:", "anon_inode:", "/sys/fs/cgroup/"}, func(s string) bool { return strings.HasPrefix(to, s) }) {
			t.Errorf("it has %s", to)
		}
	}
}

// TestSummary checks that the reason of a crash has no value of the program.
func TestSummary(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"panic: the key is hunter2\n\ngoroutine 1 [running]:\nmain.(*process).join(0xc000, {0x1, 0x2})\n\t/x/y.go:1 +0x1\n", "panic; main.(*process).join"},
		{"panic: runtime error: index out of range [5] with length 3\n", "panic: runtime error: index out of range [5] with length 3"},
		{"fatal error: concurrent map writes\n", "fatal error: concurrent map writes"},
		{"hunter2\n" + strings.Repeat("x", 100<<10), ""},
		{fatal + "the server speaks version 2, not 1\n", "the server speaks version 2, not 1"},
	} {
		if got := summary(strings.NewReader(c.text)); got != c.want {
			t.Errorf("%.40q is told as %q, not %q", c.text, got, c.want)
		}
	}
}

// TestLargeLog checks that the newest flows of any log fit into a message.
func TestLargeLog(t *testing.T) {
	worst := sandpit.EgressDecision{Rule: strings.Repeat("&", 200), Why: strings.Repeat("<", 200)}
	var l sandpit.EgressLog
	const flows = 10000
	for i := range flows {
		l.Flows = append(l.Flows, sandpit.Flow{Host: strings.Repeat("x", 253), EgressDecision: worst, Error: worst.Why, Sent: int64(i)})
	}
	l.Denials = []sandpit.EgressDenial{{Destination: l.Flows[0].Host, Rule: worst.Rule, Why: worst.Why}}
	l.Lost = 5
	fitting := fit(l)
	if body, err := encode(&message{Log: &fitting}); err != nil {
		t.Errorf("%d bytes: %v", len(body), err)
	}
	n := len(fitting.Flows)
	if n < flows/10 || n == flows || fitting.Flows[n-1].Sent != flows-1 || fitting.Lost != int64(5+flows-n) || len(fitting.Denials) != 1 {
		t.Errorf("%d flows are kept, %d are lost, %d denials", n, fitting.Lost, len(fitting.Denials))
	}
	l.Flows = l.Flows[:10]
	if small := fit(l); len(small.Flows) != 10 || small.Lost != 5 {
		t.Errorf("of 10 flows %d are kept", len(small.Flows))
	}
}

// TestCountsThatDoNotFit checks that denials without room in an answer come with a later one, and that
// traffic is always counted.
func TestCountsThatDoNotFit(t *testing.T) {
	p := &process{joined: map[uint64]*network.Network{}}
	const boxes = 3
	for i := range uint64(boxes) {
		file, inside := networktest.Pair(t)
		n, err := network.New(file, networktest.Terms("good.test"), nil, nil, network.NewSockets())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		networktest.Resolves(t, inside, "evil.test")
		p.joined[i] = n
	}
	told := map[uint64]bool{}
	for _, c := range []struct{ size, want int }{{1, 1}, {maxTexts, boxes}} {
		all := p.counts(c.size)
		for _, n := range all {
			if len(n.Denials) > 0 {
				told[n.Sandbox] = true
			}
			if n.Traffic.Denials == 0 {
				t.Errorf("the traffic is %+v", n.Traffic)
			}
		}
		if len(all) != boxes || len(told) != c.want {
			t.Errorf("counts of %d sandboxes, denials of %d; want %d and %d", len(all), len(told), boxes, c.want)
		}
	}
}

// TestLateCounts checks that denials are not lost when nobody waits for the answer that has them.
func TestLateCounts(t *testing.T) {
	h, _ := newHost(t)
	j, inside := networktest.Join(t, h, "good.test")
	networktest.Resolves(t, inside, "evil.test")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h.mu.Lock()
	c := h.child
	h.mu.Unlock()
	_, _ = c.ask(ctx, &message{Op: opCounts}, -1)
	m := j.(*member)
	testkit.Until(t, "the denials are noted", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.denials.List()) == 1 && m.traffic.Denials > 0
	})
}

// TestMessages checks that no end believes what the other sends.
func TestMessages(t *testing.T) {
	for _, c := range []struct {
		sent, want string
	}{
		{"", "EOF"},
		{"\x00\x00\x00\x05", "EOF"},
		{"\xff\xff\xff\xff", "exceeds the limit"},
		{"\x00\x00\x00\x02{]", "not valid JSON"},
	} {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		file := os.NewFile(uintptr(ends[0]), "end")
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = unix.Write(ends[1], []byte(c.sent))
		unix.Close(ends[1])
		body, _, err := receive(conn.(*net.UnixConn))
		if err == nil {
			_, err = decode(body)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v", c.sent, err)
		}
		conn.Close()
	}
}

// TestRenewalsOfOneSandbox checks that the requests of one sandbox to renew secrets leave places to others.
func TestRenewalsOfOneSandbox(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[1])
	file := os.NewFile(uintptr(ends[0]), "end")
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p := newProcess(conn.(*net.UnixConn))
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	waits := func(sandbox uint64) int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.renewing[sandbox]
	}
	for range ownRenewals {
		asking.Go(func() { _ = p.renew(1)(ctx, "token") })
	}
	testkit.Until(t, "the sandbox waits", func() bool { return waits(1) == ownRenewals })
	if err := p.renew(1)(ctx, "token"); !errors.Is(err, sandpit.ErrExhausted) {
		t.Errorf("one more: %v", err)
	}
	asking.Go(func() { _ = p.renew(2)(ctx, "token") })
	testkit.Until(t, "another sandbox waits", func() bool { return waits(2) == 1 })
	cancel()
	testkit.Until(t, "the places are given back", func() bool { return waits(1)+waits(2) == 0 && len(p.renewals) == 0 })
}
