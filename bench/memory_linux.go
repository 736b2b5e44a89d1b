package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// pss is what a process has of the machine's memory, each page that several
// processes share divided among them (proc_pid_smaps(5)), in bytes.
type pss struct{ all, anon, file, shmem int64 }

func (p pss) plus(q pss) pss {
	return pss{p.all + q.all, p.anon + q.anon, p.file + q.file, p.shmem + q.shmem}
}

func readPSS(pid int) (pss, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return pss{}, fmt.Errorf("reading the memory of a process: %w", err)
	}
	var p pss
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			continue
		}
		n *= 1024
		switch f[0] {
		case "Pss:":
			p.all = n
		case "Pss_Anon:":
			p.anon = n
		case "Pss_File:":
			p.file = n
		case "Pss_Shmem:":
			p.shmem = n
		}
	}
	return p, nil
}

// highest is the largest resident set that a process ever had, in bytes. Unlike
// what wait4(2) tells, it is not inherited from who started the process.
func highest(pid int) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n * 1024
		}
	}
	return 0
}

// sameMemory reports whether two processes are one address space, as Sandpit's
// engine and its helpers are: that must not be counted twice (kcmp(2)).
func sameMemory(a, b int) bool {
	const kcmpVM = 1
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpVM, 0, 0, 0)
	return errno == 0 && r == 0
}

// distinct leaves out processes that are one address space with an earlier one
// or with one of those already counted.
func distinct(pids []int, counted ...int) []int {
	var all []int
	for _, pid := range pids {
		same := func(other int) bool { return sameMemory(pid, other) }
		if !slices.ContainsFunc(counted, same) && !slices.ContainsFunc(all, same) {
			all = append(all, pid)
		}
	}
	return all
}

// descendants are the processes below one, by what /proc says of parents.
func descendants(root int) []int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	children := map[int][]int{}
	for _, d := range dirs {
		data, err := os.ReadFile(d + "/stat")
		if err != nil {
			continue
		}
		// The name, in parentheses, may hold anything; the parent is the
		// second field after it (proc_pid_stat(5)).
		f := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
		if len(f) < 2 {
			continue
		}
		parent, _ := strconv.Atoi(string(f[1]))
		pid, _ := strconv.Atoi(filepath.Base(d))
		children[parent] = append(children[parent], pid)
	}
	var all []int
	for next := []int{root}; len(next) > 0; next = next[1:] {
		all = append(all, children[next[0]]...)
		next = append(next, children[next[0]]...)
	}
	return all
}

func mebibytes(n int64) float64 { return float64(n) / mib }

// idleBoxes is how many idle sandboxes are held at once.
func (b *bench) idleBoxes() int {
	if b.opts.quick {
		return 20
	}
	return 100
}

func (b *bench) measureMemory(ctx context.Context) error {
	if err := b.measureIdle(ctx); err != nil {
		return err
	}
	if err := b.measurePeak(ctx); err != nil {
		return err
	}
	return b.measureTrees(ctx)
}

// measureIdle holds many idle sandboxes and adds up what they have.
func (b *bench) measureIdle(ctx context.Context) error {
	n := b.idleBoxes()
	g := b.group("memory", fmt.Sprintf("idle memory per sandbox, %d held by one engine", n), "MiB")
	const total = "all counted"
	fail := func(err error) error {
		g.absolute(total, &series{err: err}, goal{})
		return ctx.Err()
	}
	e, w := b.newEngine()
	defer e.Close()
	// The first sandbox makes the engine grow once and for all.
	warm, err := e.Create(ctx, defaultSpec())
	if err != nil {
		return fail(err)
	}
	if err := b.execTrue(ctx, warm); err != nil {
		return fail(err)
	}
	before, err := readPSS(os.Getpid())
	if err != nil {
		return fail(err)
	}
	machineBefore := available()
	boxes := make([]sandpit.Sandbox, n)
	for i := range boxes {
		if boxes[i], err = e.Create(ctx, defaultSpec()); err != nil {
			return fail(err)
		}
		if err := b.execTrue(ctx, boxes[i]); err != nil {
			return fail(err)
		}
	}
	time.Sleep(2 * time.Second) // let runtimes give back what they don't need
	machineAfter := available()

	guests, helpers, charge := series{}, series{}, series{}
	var guestSum, helperSum pss
	isGuest := map[int]bool{}
	for _, sb := range boxes {
		t, err := w.trace(sb.ID())
		if err != nil {
			return fail(err)
		}
		isGuest[t.pid] = true
		p, err := readPSS(t.pid)
		if err != nil {
			return fail(err)
		}
		guests.add(mebibytes(p.all))
		guestSum = guestSum.plus(p)
		if m, err := sb.Metrics(ctx); err == nil && m.Memory >= 0 {
			charge.add(mebibytes(m.Memory))
		}
	}
	warmTrace, err := w.trace(warm.ID())
	if err != nil {
		return fail(err)
	}
	isGuest[warmTrace.pid] = true
	all := slices.DeleteFunc(descendants(os.Getpid()), func(pid int) bool { return isGuest[pid] })
	for _, pid := range distinct(all, os.Getpid()) {
		if p, err := readPSS(pid); err == nil {
			helpers.add(mebibytes(p.all))
			helperSum = helperSum.plus(p)
		}
	}
	after, err := readPSS(os.Getpid())
	if err != nil {
		return fail(err)
	}

	per := func(bytes int64) *series { return &series{values: []float64{mebibytes(bytes) / float64(n)}} }
	share := per(after.all - before.all + helperSum.all)
	sum := &series{}
	if charge.n() > 0 {
		// The charge has the guest's own pages, its files in memory, and what
		// the kernel keeps for it; not the program's text, which all share.
		sum.add(charge.percentile(50) + mebibytes(guestSum.file)/float64(n) + share.values[0])
		g.absolute(total, sum, goal{below, 4, 1})
	} else {
		// Without a charge what the kernel keeps is not seen: no verdict.
		charge.err = errors.New("this user has no memory cgroup here")
		sum.add(mebibytes(guestSum.all)/float64(n) + share.values[0])
		g.absolute("what can be seen from outside", sum, goal{})
	}
	g.add("of it: charged to its cgroup", &charge)
	g.add("of it: the guest's part of shared files", per(guestSum.file))
	g.add("of it: the engine's growth and its helpers", share)
	g.add("PSS of the guest", &guests)
	if helpers.n() > 0 {
		g.add("PSS of a helper with memory of its own", &helpers)
	}
	g.add("the machine's available memory, less by", per(machineBefore-machineAfter))
	g.Note = fmt.Sprintf("all counted = cgroup charge (its own pages, its files in memory, kernel objects) + the guest's part of shared file pages"+
		" + the growth of the engine with its helpers (%d processes, %d of them with memory of their own). Without a cgroup, the guest's PSS replaces the charge."+
		" The machine's available memory also counts network namespaces, and everything else that happened meanwhile", len(all), helpers.n())
	return ctx.Err()
}

// available returns the available memory that the kernel reports, in bytes.
func available() int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemAvailable:" {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n * 1024
		}
	}
	return 0
}

// measurePeak looks at the most that a sandbox and its command ever had.
func (b *bench) measurePeak(ctx context.Context) error {
	g := b.group("memory", "peak memory of one sandbox that runs `true`", "MiB")
	e, _ := b.newEngine()
	defer e.Close()
	const charged = "charged to its cgroup (in-process)"
	rec := contest(ctx, b.fewer(20, 5), b.budget()/2, &contestant{name: charged, once: func(ctx context.Context, rec *record) error {
		sb, err := e.Create(ctx, defaultSpec())
		if err != nil {
			return err
		}
		err = b.execTrue(ctx, sb)
		m, merr := sb.Metrics(ctx)
		rerr := sb.Remove(context.WithoutCancel(ctx))
		if err == nil && merr == nil && m.MemoryPeak < 0 {
			merr = errors.New("this machine does not tell")
		}
		if err := errors.Join(err, merr, rerr); err != nil {
			return err
		}
		rec.get(charged).add(mebibytes(m.MemoryPeak))
		return nil
	}})
	g.add(charged, rec.get(charged))
	return ctx.Err()
}

// measureTrees compares what a whole command keeps resident while its program
// does nothing, and the most that its processes ever had.
func (b *bench) measureTrees(ctx context.Context) error {
	idle := b.group("memory", "idle memory of a whole command with `sleep` in it: PSS of all its processes", "MiB")
	peak := b.group("memory", "peak memory of the same: the largest resident sets of all its processes", "MiB")
	peak.Note = "shared pages are counted in each process"
	sleep, err := realProgram("sleep")
	if err != nil {
		idle.add(own, &series{err: err})
		return nil
	}
	argv := []string{sleep, "1000"}
	mine := b.treeOf(ctx, always(append([]string{b.sandpit, "run", "--"}, argv...)...))
	idle.add(own, &mine.idle)
	peak.add(own, &mine.peak)
	for _, p := range b.allPeers(ctx) {
		if p.err != nil || p.file == "" {
			continue
		}
		its := b.treeOf(ctx, func() ([]string, error) { return p.run(argv...) })
		idle.against(p.name, &its.idle, own, &mine.idle, goal{})
		peak.against(p.name, &its.peak, own, &mine.peak, goal{})
	}
	return ctx.Err()
}

// tree is the memory of the processes of a command.
type tree struct{ idle, peak series }

// treeOf starts a command some times, lets it settle, adds up the memory of its
// processes, and ends it.
func (b *bench) treeOf(ctx context.Context, next func() ([]string, error)) *tree {
	t := &tree{}
	for range b.fewer(5, 2) {
		if err := b.lookAtTree(ctx, t, next); err != nil {
			t.idle.err, t.peak.err = err, err
			break
		}
	}
	return t
}

func (b *bench) lookAtTree(ctx context.Context, t *tree, next func() ([]string, error)) error {
	argv, err := next()
	if err != nil {
		return err
	}
	p, err := os.StartProcess(argv[0], argv, &os.ProcAttr{Dir: "/", Env: b.env, Files: []*os.File{b.null, b.null, b.null}})
	if err != nil {
		return err
	}
	select {
	case <-time.After(700 * time.Millisecond):
	case <-ctx.Done():
	}
	pids := distinct(append([]int{p.Pid}, descendants(p.Pid)...))
	var sum pss
	var peak int64
	for _, pid := range pids {
		if one, err := readPSS(pid); err == nil {
			sum = sum.plus(one)
			peak += highest(pid)
		}
	}
	// As a person would end it. The first process of a container does not
	// listen: then it is killed, and its runtime tidies up.
	_ = p.Signal(syscall.SIGTERM)
	deaf := time.AfterFunc(time.Second, func() {
		for _, pid := range descendants(p.Pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	hung := time.AfterFunc(10*time.Second, func() { _ = p.Kill() })
	_, err = p.Wait()
	deaf.Stop()
	hung.Stop()
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case len(pids) < 2:
		return fmt.Errorf("%s: it ended before it could be looked at", argv[0])
	}
	t.idle.add(mebibytes(sum.all))
	t.peak.add(mebibytes(peak))
	return nil
}
