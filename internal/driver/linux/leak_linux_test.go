package linux_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/claim"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/drivertest"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	guestclient "github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// hostState is what a sandbox could leave on the machine. Other programs may
// come and go meanwhile, so that of the whole machine only what bears a mark
// of this program is in it.
type hostState struct {
	Children    []string // processes below this one, zombies too
	Mounts      []string // of this mount namespace
	Cgroups     []string // directories that are ours by name and owner
	Loops       []string // loop devices with their files
	Descriptors []string // of this process
	Files       []string // in the data directory
}

// guard bounds what should take no time.
const guard = 2 * time.Minute

// look takes the state of the machine.
func look(t *testing.T, home string) hostState {
	t.Helper()
	s := hostState{
		Children:    below(os.Getpid()),
		Mounts:      mounts(t),
		Cgroups:     cgroups(),
		Loops:       loops(),
		Descriptors: descriptors(t),
		Files:       tree(t, home),
	}
	return s
}

// process is what /proc/PID/stat says.
type process struct {
	pid, ppid int
	state     string
	name      string
}

// processes reads the process table.
func processes() map[int]process {
	all := map[int]process{}
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		open, end := strings.IndexByte(string(data), '('), strings.LastIndexByte(string(data), ')')
		f := strings.Fields(string(data[end+1:]))
		if open < 0 || len(f) < 2 {
			continue
		}
		p := process{state: f[0], name: string(data[open+1 : end])}
		p.pid, _ = strconv.Atoi(strings.TrimSpace(string(data[:open])))
		p.ppid, _ = strconv.Atoi(f[1])
		all[p.pid] = p
	}
	return all
}

// descendants returns the pids of the processes below one.
func descendants(pid int) []int {
	all := processes()
	in := map[int]bool{pid: true}
	var found []int
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if in[p.ppid] && !in[p.pid] {
				in[p.pid], grown = true, true
				found = append(found, p.pid)
			}
		}
	}
	slices.Sort(found)
	return found
}

func below(pid int) []string {
	all := processes()
	var lines []string
	for _, d := range descendants(pid) {
		lines = append(lines, fmt.Sprintf("%d %s %s", d, all[d].name, all[d].state))
	}
	return lines
}

func mounts(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var ours []string
	for line := range strings.Lines(string(data)) {
		// Others mount things, too: what they mount is not built by a sandbox.
		if strings.Contains(line, "lowerdir=l0") || strings.Contains(line, home) {
			ours = append(ours, line)
		}
	}
	return ours
}

// cgroups lists the groups of the sandboxes that this test binary has made.
func cgroups() []string {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && made.has(strings.TrimSuffix(strings.TrimPrefix(d.Name(), "sandpit-"), ".scope")) {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// loops returns the loop devices of this test's files. Others may come and go: the
// tests of another package mount file systems of their own.
func loops() []string {
	names, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	var found []string
	for _, name := range names {
		if data, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(data), home) {
			found = append(found, name+" "+strings.TrimSpace(string(data)))
		}
	}
	return found
}

func descriptors(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		// The directory itself is open while it is read, and closed now.
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			found = append(found, target)
		}
	}
	slices.Sort(found)
	return found
}

func tree(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if filepath.Base(filepath.Dir(path)) == "host" {
			// The host image follows the host, which others may be changing.
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		found = append(found, strings.TrimPrefix(path, dir))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// regions counts private mappings of exactly 32 KiB that can be read and
// written: each child made by package sysprog has one until it is released.
// The runtime has one now and then, too.
func regions(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		var from, to uint64
		var rights string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &rights); err == nil && to-from == 32<<10 && rights == "rw-p" && len(strings.Fields(line)) == 5 {
			n++
		}
	}
	return n
}

// settledLook looks until nothing is on its way out that an earlier test has
// closed or killed: there is no process and no goroutine, unless these are
// somebody's who goes on, and two looks in a row see the same.
func settledLook(t *testing.T) hostState {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if len(descendants(os.Getpid())) == 0 && goleak.Find() == nil {
			break
		}
	}
	for range 3 { // package net keeps pipes for splice in a sync.Pool, which is emptied in two
		runtime.GC()
	}
	before := look(t, home)
	for end := time.Now().Add(guard); time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
		now := look(t, home)
		if cmp.Equal(before, now, cmpopts.EquateEmpty()) {
			break
		}
		before = now
	}
	return before
}

// unchanged returns what reports differences from now.
func unchanged(t *testing.T) func() {
	t.Helper()
	// What is made once and kept: the host image, the guest, the poller, the file
	// of names.
	names, err := claim.Open(filepath.Join(images().Dir(), "locks", "names"))
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(names)
	lease, err := images().Acquire(t.Context(), "host", imageOptions())
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	warmUp(t)
	before := settledLook(t)
	routines := goleak.IgnoreCurrent()
	return func() {
		t.Helper()
		// What is on its way out gets a moment: the kernel closes descriptors
		// and reaps in its own time.
		var diff string
		for end := time.Now().Add(guard); ; time.Sleep(20 * time.Millisecond) {
			after := look(t, home)
			if diff = cmp.Diff(before, after, cmpopts.EquateEmpty()); diff == "" || time.Now().After(end) {
				break
			}
			runtime.GC()
		}
		if diff != "" {
			t.Errorf("the machine is not as it was (-before +after):\n%s", diff)
		}
		if err := testkit.Leaks(routines); err != nil {
			t.Error(err)
		}
	}
}

var warm sync.Once

// warmUp makes a sandbox once, for what the runtime and the driver keep after
// the first: the poller's descriptors, threads, a guest on disk.
func warmUp(t *testing.T) {
	t.Helper()
	warm.Do(func() {
		d := newDriver()
		inst, err := d.Create(t.Context(), drivertest.Plan(d, hostRoot(t)))
		if err != nil {
			t.Fatalf("creating: %v (hint: %s)", err, sandpit.Hint(err))
		}
		conn, err := inst.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if err := inst.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// handleState is what the driver's handles hold.
type handleState struct {
	PID    int      `json:"pid"`
	Groups []string `json:"groups"`
}

func stateOf(t *testing.T, h driver.Handle) handleState {
	t.Helper()
	var st handleState
	if err := json.Unmarshal(h.State, &st); err != nil || st.PID <= 0 {
		t.Fatalf("the handle is %s: %v", h.State, err)
	}
	return st
}

func killGuest(t *testing.T, inst driver.Instance) {
	t.Helper()
	if err := unix.Kill(stateOf(t, inst.Handle()).PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func killBlank(t *testing.T, b driver.Blank) {
	t.Helper()
	if err := unix.Kill(linux.BlankPID(b), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// spaces returns the namespaces of a process, by kind.
func spaces(pid int) map[string]string {
	found := map[string]string{}
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/ns/*", pid))
	for _, l := range links {
		if target, err := os.Readlink(l); err == nil {
			found[filepath.Base(l)] = target
		}
	}
	return found
}

// A pin holds namespaces, so that their numbers mean nothing else meanwhile.
type pin struct {
	names map[string]bool // "mnt:[4026531840]"
	fds   []int
}

// pinSpaces pins the namespaces of processes, but those that this one is in.
func pinSpaces(pids []int) *pin {
	p := &pin{names: map[string]bool{}}
	own := spaces(os.Getpid())
	for _, pid := range pids {
		for kind, ns := range spaces(pid) {
			if own[kind] == ns || p.names[ns] {
				continue
			}
			fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, kind), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				continue
			}
			// What the descriptor is, which may no longer be what was read.
			var st unix.Stat_t
			_ = unix.Fstat(fd, &st)
			p.names[fmt.Sprintf("%s:[%d]", strings.TrimSuffix(kind, "_for_children"), st.Ino)] = true
			p.fds = append(p.fds, fd)
		}
	}
	return p
}

func (p *pin) release() {
	for _, fd := range p.fds {
		unix.Close(fd)
	}
	p.fds = nil
}

// inside returns the processes that are in one of the namespaces.
func (p *pin) inside() []string {
	var found []string
	for pid, proc := range processes() {
		if proc.state == "Z" {
			continue
		}
		for _, ns := range spaces(pid) {
			if p.names[ns] {
				found = append(found, fmt.Sprintf("%d %s %s %s", pid, proc.name, proc.state, ns))
			}
		}
	}
	slices.Sort(found)
	return found
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	within(t, guard, what, ok)
}

func within(t *testing.T, bound time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not so: %s", what)
		}
	}
}

// TestLeakAfterNormalEnd: after Remove nothing is left, whatever ran inside.
func TestLeakAfterNormalEnd(t *testing.T) {
	testkit.NeedWorkingHost(t)
	mount := t.TempDir()
	for name, c := range map[string]struct {
		spec   sandpit.Spec
		script string
	}{
		"nothing":   {},
		"a program": {script: "echo hello"},
		"daemons":   {script: "for i in 1 2 3; do (setsid sleep 1000 >/dev/null 2>&1 &); done"},
		"files":     {spec: sandpit.Spec{User: "root"}, script: "head -c 10000000 /dev/zero >/tmp/f; mkfifo /dev/shm/p; mkdir -p /x/y"},
		"mounts":    {spec: sandpit.Spec{Mounts: []sandpit.Mount{{Source: mount, Target: "/m"}}, Tmpfs: []sandpit.Tmpfs{{Target: "/t"}}}, script: "echo x >/t/x; touch /m/x"},
		"paths":     {spec: sandpit.Spec{Write: []string{"/w"}}, script: "echo x >/w/x"},
		"a name":    {spec: sandpit.Spec{Name: fmt.Sprintf("leak-%d", os.Getpid())}},
		"ipc":       {script: "ipcmk -M 4096 -S 1 -Q"},
	} {
		t.Run(name, func(t *testing.T) {
			check := unchanged(t)
			e := engine.New(engine.Options{Driver: newDriver(), Images: images(), Policy: policy.Default()})
			sb, err := e.Create(t.Context(), c.spec)
			if err != nil {
				t.Fatal(err)
			}
			spaces := pinSpaces(descendants(os.Getpid()))
			// An ordinary user sees nothing of a guest that is not dumpable.
			if len(spaces.names) < 6 && os.Geteuid() == 0 {
				t.Errorf("the sandbox is in %d namespaces of its own", len(spaces.names))
			}
			if c.script != "" {
				if out, err := sandpit.Shell(t.Context(), sb, c.script); err != nil || !out.Success() {
					t.Logf("%s: %+v, %v, %s", c.script, out.Result, err, out.Stderr)
				}
			}
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
			if left := spaces.inside(); len(left) > 0 {
				t.Errorf("these are still in the sandbox's namespaces: %q", left)
			}
			spaces.release()
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			check()
		})
	}
	// Close removes what is there.
	check := unchanged(t)
	e := engine.New(engine.Options{Driver: newDriver(), Images: images(), Policy: policy.Default()})
	for range 3 {
		if _, err := e.Create(t.Context(), sandpit.Spec{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := e.Create(t.Context(), sandpit.Spec{}); !errors.Is(err, sandpit.ErrState) {
		t.Errorf("after Close: %v", err)
	}
	check()
}

// createSteps are the names that linux.Options.Fault is called with by Create.
var createSteps = []string{"host", "cgroup", "program", "clone", "ids", "trees", "answer", "instance"}

// destroySteps are those of Destroy, of which the second is left out where a
// sandbox has no cgroup.
var destroySteps = []string{"kill", "remove-cgroup", "forget"}

// failingAt is a driver of which a step of Create fails.
func failingAt(step string, err error) *recorder {
	opt := options()
	opt.Fault = func(s string) error {
		if s == step {
			return err
		}
		return nil
	}
	return driverWith(opt)
}

// TestLeakAfterErrors: an error at any step of Create leaves nothing.
func TestLeakAfterErrors(t *testing.T) {
	testkit.NeedWorkingHost(t)
	fault := errors.New("injected")
	seen := map[string]bool{}
	opt := options()
	opt.Fault = func(step string) error { seen[step] = true; return nil }
	d := driverWith(opt)
	inst, err := d.Create(t.Context(), drivertest.Plan(d, hostRoot(t)))
	if err != nil {
		t.Fatal(err)
	}
	if err := inst.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen["remove-cgroup"] = true
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, slices.Sorted(slices.Values(slices.Concat(createSteps, destroySteps)))) {
		t.Errorf("the steps are now %q", got)
	}
	dir := t.TempDir()
	for _, step := range createSteps {
		for name, change := range map[string]func(*driver.Plan){
			"plain": func(*driver.Plan) {},
			"full": func(p *driver.Plan) {
				p.Mounts = []sandpit.Mount{{Source: dir, Target: "/m"}}
				p.Tmpfs = []sandpit.Tmpfs{{Target: "/t", Size: 1 << 20}}
				p.Write = []string{"/w"}
			},
			"linked": func(p *driver.Plan) { p.Link = linkOf(t) },
			"users":  func(p *driver.Plan) { p.MultiUser = multiUser(t); p.UID, p.GID = 0, 0 },
		} {
			t.Run(step+" "+name, func(t *testing.T) {
				t.Cleanup(unchanged(t))
				d := failingAt(step, fault)
				plan := drivertest.Plan(d, hostRoot(t))
				change(&plan)
				if _, err := d.Create(t.Context(), plan); !errors.Is(err, fault) {
					t.Errorf("the error is %v", err)
				}
			})
		}
	}
}

// blankSteps are the names that linux.Options.Fault is called with for a blank
// that is bound.
var blankSteps = append([]string{"bind"}, createSteps...)

// TestLeakOfBlanks: an error at any step of Prepare or Bind leaves nothing, and
// neither does an engine with a pool.
func TestLeakOfBlanks(t *testing.T) {
	testkit.NeedWorkingHost(t)
	fault := errors.New("injected")
	for _, step := range blankSteps {
		t.Run(step, func(t *testing.T) {
			t.Cleanup(unchanged(t))
			d := failingAt(step, fault)
			plan := drivertest.Plan(d, hostRoot(t))
			plan.Link = linkOf(t)
			b, err := d.Prepare(t.Context(), plan.ID, driver.BlankPlan{Ephemeral: true, UID: plan.UID, GID: plan.GID, Limits: plan.Limits, Enforce: plan.Enforce})
			if err == nil {
				_, err = b.Bind(t.Context(), plan)
			}
			if !errors.Is(err, fault) {
				t.Errorf("the error is %v", err)
			}
		})
	}
	t.Run("pool", func(t *testing.T) {
		check := unchanged(t)
		e := engine.New(engine.Options{Driver: newDriver(), Images: images(), Policy: policy.Default(), Pool: engine.Pool{Size: 3}})
		e.Warm()
		eventually(t, "there are blanks", func() bool { return e.PoolStats().Ready == 3 })
		for range 5 {
			sb, err := e.Create(t.Context(), sandpit.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		}
		for range 2 { // with some being made
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
		check()
	})
}

// TestLeakAfterGuestDeath: a guest that is killed from outside leaves nothing
// once the sandbox is removed, and its sandbox is failed until then.
func TestLeakAfterGuestDeath(t *testing.T) {
	testkit.NeedWorkingHost(t)
	t.Cleanup(unchanged(t))
	e := engine.New(engine.Options{Driver: newDriver(), Images: images(), Policy: policy.Default()})
	defer e.Close()
	before := descendants(os.Getpid())
	sb, err := e.Create(t.Context(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range descendants(os.Getpid()) {
		if !slices.Contains(before, pid) && isGuest(pid) {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := p.Wait(t.Context()); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("waiting: %v", err)
	}
	eventually(t, "the sandbox is failed", func() bool {
		info, err := sb.Info(t.Context())
		return err == nil && info.State == sandpit.StateFailed
	})
	if _, err := sb.Start(t.Context(), sandpit.Command{Script: "true"}); err == nil {
		t.Error("a process starts in it")
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// isGuest reports the first process of a pid namespace.
func isGuest(pid int) bool {
	f := statusField(pid, "NSpid")
	return len(f) > 1 && f[len(f)-1] == "1"
}

// statusField returns the values of a field of /proc/PID/status.
func statusField(pid int, name string) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.Fields(v)
		}
	}
	return nil
}

// Environment of an owner, the process that is killed with -9: its data
// directory, and what it does.
const (
	ownerEnv = "SANDPIT_TEST_OWNER"
	ownerDo  = "SANDPIT_TEST_OWNER_DO"
)

// ownerLine is what an owner prints: the id of each sandbox before it is made,
// and a word about where it is.
type ownerLine struct {
	ID, Word string
}

// owner makes sandboxes until it is killed. It is told by its environment to
// stay with one ("stay"), with one whose guest waits in the kernel for a program
// ("held"), to make and remove them ("loop"), or to stop at a
// step of Create.
func owner(dir string) int {
	home = dir
	do := os.Getenv(ownerDo)
	say := func(l ownerLine) {
		data, _ := json.Marshal(l)
		_, _ = os.Stdout.Write(append(data, '\n'))
	}
	fail := func(err error) int {
		say(ownerLine{Word: "error: " + err.Error()})
		return 1
	}
	opt := options()
	id := ""
	opt.Fault = func(step string) error {
		if step == do {
			say(ownerLine{ID: id, Word: "there"})
			select {}
		}
		return nil
	}
	d := driverWith(opt)
	lease, err := images().Acquire(context.Background(), "host", imageOptions())
	if err != nil {
		return fail(err)
	}
	for {
		id = engine.NewID()
		say(ownerLine{ID: id})
		plan := driver.Plan{
			ID: id, Name: id, Hostname: "owned", Root: driver.Root{Layers: lease.Rootfs().Layers},
			Limits: sandpit.DefaultLimits(), Enforce: d.Probe(context.Background()).Features, UID: 1000, GID: 1000, Ephemeral: true,
		}
		for _, b := range lease.Rootfs().Binds {
			plan.Root.Binds = append(plan.Root.Binds, driver.Bind(b))
		}
		if strings.HasPrefix(do, "blank") {
			// One that waits while another is made.
			var b driver.Blank
			for i := range 2 {
				if i > 0 {
					plan.ID = engine.NewID()
					say(ownerLine{ID: plan.ID})
				}
				bp := driver.BlankPlan{Ephemeral: true, UID: 1000, GID: 1000, Limits: plan.Limits, Enforce: plan.Enforce}
				if b, err = d.Prepare(context.Background(), plan.ID, bp); err != nil {
					return fail(err)
				}
			}
			if do == "blank" {
				say(ownerLine{Word: "there"})
				select {}
			}
			do = strings.TrimPrefix(do, "blank ")
			if _, err := b.Bind(context.Background(), plan); err != nil {
				return fail(err)
			}
			return fail(errors.New("it was bound"))
		}
		self, err := os.Executable()
		if err != nil {
			return fail(err)
		}
		plan.Mounts = append(plan.Mounts, sandpit.Mount{Source: self, Target: "/probe", ReadOnly: true})
		inst, err := d.Create(context.Background(), plan)
		if err != nil {
			return fail(err)
		}
		if do == "stay" || do == "held" {
			conn, err := inst.Dial(context.Background())
			if err != nil {
				return fail(err)
			}
			c, err := guestclient.New(context.Background(), conn, guestclient.Options{Config: &guestclient.Config{User: "1000:1000"}})
			if err != nil {
				return fail(err)
			}
			if do == "held" {
				_, _, err = holdGuest(context.Background(), c, sandpit.Command{})
			} else {
				_, err = c.Start(context.Background(), sandpit.Command{Script: "trap '' TERM HUP; (setsid sleep 1000 &); while :; do sleep 1; done"})
			}
			if err != nil {
				return fail(err)
			}
			say(ownerLine{ID: id, Word: "there"})
			select {}
		}
		if err := inst.Destroy(context.Background()); err != nil {
			return fail(err)
		}
	}
}

// TestLeakAfterKill: a program that is killed with -9 leaves nothing, at
// whatever moment it is killed.
func TestLeakAfterKill(t *testing.T) {
	testkit.NeedWorkingHost(t)
	kills := 5
	if os.Getenv("SANDPIT_TEST_LONG") != "" {
		kills = 200
	}
	dos := append([]string{"stay", "held", "blank", "blank bind", "blank trees", "blank answer"}, createSteps...)
	for range kills {
		// In the hands of the kernel most of the time, or just where the child
		// is new and has not yet asked to die with its owner.
		dos = append(dos, "loop", "ids")
	}
	t.Cleanup(unchanged(t))
	// The owner's directory has what each owner would make on its first run.
	for i, do := range dos {
		t.Run(fmt.Sprintf("%d %s", i, do), func(t *testing.T) { killOwner(t, do) })
	}
}

// TestLeakAfterKillBesideAnother: neither its watcher nor its cgroups stay for
// as long as another sandbox uses the directory that all have in common. A
// watcher that waits for that gives up after a minute.
func TestLeakAfterKillBesideAnother(t *testing.T) {
	testkit.NeedWorkingHost(t)
	t.Cleanup(unchanged(t))
	d := newDriver()
	inst, err := d.Create(t.Context(), drivertest.Plan(d, hostRoot(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := inst.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	const lessThanAWatcherWaits = 30 * time.Second
	killOwnerWithin(t, "stay", lessThanAWatcherWaits)
}

func killOwner(t *testing.T, do string) {
	killOwnerWithin(t, do, guard)
}

// killOwnerWithin kills an owner, and looks at what is left within a time.
func killOwnerWithin(t *testing.T, do string, bound time.Duration) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	files := tree(t, home)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), ownerEnv+"="+home, ownerDo+"="+do)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	kill := func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
		}
	}
	defer func() { kill(); _ = cmd.Wait() }()

	ids := map[string]bool{}
	lines := bufio.NewScanner(stdout)
	next := func() (ownerLine, bool) {
		var l ownerLine
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &l) != nil {
			return l, false
		}
		if l.ID != "" {
			ids[l.ID] = true
		}
		if strings.HasPrefix(l.Word, "error") {
			t.Fatal(l.Word)
		}
		return l, true
	}
	if do == "loop" {
		for range 3 {
			next()
		}
		time.Sleep(rand.N(30 * time.Millisecond))
	} else {
		for l, ok := next(); l.Word != "there"; l, ok = next() {
			if !ok {
				t.Fatal("the owner ends before it is there")
			}
		}
	}

	// Everything below it, and the namespaces of all that.
	var pidfds []int
	all := descendants(cmd.Process.Pid)
	for _, pid := range all {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			pidfds = append(pidfds, fd)
			defer unix.Close(fd)
		}
	}
	spaces := pinSpaces(all)
	defer spaces.release()
	held := socketsOf(cmd.Process.Pid)
	kill()
	began := time.Now()
	for {
		if _, ok := next(); !ok { // what it had written when it died
			break
		}
	}

	within(t, bound, "all processes of the killed owner are dead", func() bool {
		for _, fd := range pidfds {
			// It can be read when the process has ended, reaped or not: by
			// whom and when an orphan is reaped is another's business.
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, _ := unix.Poll(p, 0); n == 0 {
				return false
			}
		}
		return true
	})
	t.Logf("all processes are dead after %v", time.Since(began))
	var left []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("left: %q", left)
		}
	})
	within(t, bound, "nothing is in the namespaces", func() bool { left = spaces.inside(); return len(left) == 0 })
	within(t, bound, "no cgroup is left", func() bool {
		left = nil
		_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && ids[strings.TrimSuffix(strings.TrimPrefix(d.Name(), "sandpit-"), ".scope")] {
				left = append(left, path)
			}
			return nil
		})
		return len(left) == 0
	})
	t.Logf("no cgroup is left after %v", time.Since(began))
	within(t, bound, "no socket is left", func() bool {
		left = slices.DeleteFunc(sockets(), func(s string) bool { return !slices.Contains(held, s) })
		return len(left) == 0
	})
	if diff := cmp.Diff(files, tree(t, home)); diff != "" {
		t.Errorf("the data directory is not as it was:\n%s", diff)
	}
}

// socketsOf lists the abstract sockets with our name that a process holds, by
// name and number.
func socketsOf(pid int) []string {
	held := map[string]bool{}
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, l := range links {
		if target, err := os.Readlink(l); err == nil {
			held[target] = true
		}
	}
	return slices.DeleteFunc(sockets(), func(s string) bool { return !held[strings.Fields(s)[1]] })
}

// sockets lists the abstract sockets with our name.
func sockets() []string {
	data, _ := os.ReadFile("/proc/net/unix")
	var found []string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 8 && strings.HasPrefix(f[7], "@sandpit") {
			found = append(found, f[7]+" socket:["+f[6]+"]")
		}
	}
	return found
}

func imageOptions() image.AcquireOptions { return image.AcquireOptions{} }

// TestLeakOfMemory: what a child works in is given back.
func TestLeakOfMemory(t *testing.T) {
	testkit.NeedWorkingHost(t)
	t.Cleanup(unchanged(t))
	d := newDriver()
	fault := errors.New("injected")
	opt := options()
	opt.Fault = func(step string) error {
		if step == "instance" {
			return fault
		}
		return nil
	}
	failing := driverWith(opt)
	before := regions(t)
	for range 20 {
		inst, err := d.Create(t.Context(), drivertest.Plan(d, hostRoot(t)))
		if err != nil {
			t.Fatal(err)
		}
		if err := inst.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := failing.Create(t.Context(), drivertest.Plan(d, hostRoot(t))); !errors.Is(err, fault) {
			t.Fatal(err)
		}
	}
	if n := regions(t) - before; n >= 20 {
		t.Errorf("%d mappings more after 40 sandboxes", n)
	}
}
