package linux_test

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// The posture of a process is everything that /proc says of it and that means
// something for what it may do. It is written down as text, and compared with
// the text in testdata/posture: so a leak is noticed that nobody has thought
// of. What depends on the machine is checked here and left out there.
//
// SANDPIT_TEST_UPDATE=1 writes the files anew.

//go:embed testdata/posture
var postures embed.FS

// subject is a process that is looked at, from the host.
type subject struct {
	t      *testing.T
	pid    int // on the host
	id     string
	binds  []string // targets of the host image's binds
	guest  bool
	uids   [][3]uint64 // uid_map
	gids   [][3]uint64
	report strings.Builder
}

// TestPosture compares the posture of everything that runs in a sandbox.
func TestPosture(t *testing.T) { testPosture(t, engine.Pool{}) }

// TestPostureOfBlanks does so in sandboxes that were made ahead.
func TestPostureOfBlanks(t *testing.T) { testPosture(t, engine.Pool{Size: 1}) }

func testPosture(t *testing.T, pool engine.Pool) {
	testkit.NeedWorkingHost(t)
	lease, err := images().Acquire(t.Context(), "host", imageOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	var binds []string
	for _, b := range lease.Rootfs().Binds {
		binds = append(binds, b.Target)
	}
	size := &sandpit.TerminalSize{Rows: 24, Cols: 80}
	sleep := []string{"sleep", "1000"}
	mount := t.TempDir()
	if mount, err = filepath.EvalSymlinks(mount); err != nil {
		t.Fatal(err)
	}

	e := engine.New(engine.Options{Driver: newDriver(), Images: images(), Policy: policy.Default(), Pool: pool})
	defer e.Close()
	e.Warm()
	for name, c := range map[string]struct {
		spec   sandpit.Spec
		cmd    sandpit.Command
		before func(t *testing.T, sb sandpit.Sandbox)
		after  func(t *testing.T, p sandpit.Process)
	}{
		"user":          {cmd: sandpit.Command{Argv: sleep}},
		"user-stdin":    {cmd: sandpit.Command{Argv: sleep, Stdin: true}},
		"user-terminal": {cmd: sandpit.Command{Argv: sleep, Terminal: size}},
		"user-resized": {cmd: sandpit.Command{Argv: sleep, Terminal: size}, after: func(t *testing.T, p sandpit.Process) {
			if err := p.Resize(t.Context(), sandpit.TerminalSize{Rows: 50, Cols: 100}); err != nil {
				t.Error(err)
			}
		}},
		"user-after-failed-start": {cmd: sandpit.Command{Argv: sleep}, before: func(t *testing.T, sb sandpit.Sandbox) {
			for _, cmd := range []sandpit.Command{{Argv: []string{"no-such-program"}}, {Argv: sleep, Dir: "/no/such"}, {Argv: []string{"no-such-program"}, Terminal: size, Stdin: true}} {
				if _, err := sandpit.Run(t.Context(), sb, cmd); !errors.Is(err, sandpit.ErrStart) {
					t.Error(err)
				}
			}
		}},
		"root":        {spec: sandpit.Spec{User: "root"}, cmd: sandpit.Command{Argv: sleep}},
		"write-paths": {spec: sandpit.Spec{Write: []string{"/work"}}, cmd: sandpit.Command{Argv: sleep}},
		"read-only":   {spec: sandpit.Spec{ReadOnly: true}, cmd: sandpit.Command{Argv: sleep}},
		"mounts": {
			spec: sandpit.Spec{
				Mounts: []sandpit.Mount{{Source: mount, Target: "/rw"}, {Source: mount, Target: "/ro", ReadOnly: true}},
				Tmpfs:  []sandpit.Tmpfs{{Target: "/scratch", Size: 1 << 20}},
			},
			cmd: sandpit.Command{Argv: sleep},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.spec.Hostname = "posture"
			eventually(t, "there is a blank", func() bool { return e.PoolStats().Ready == pool.Size })
			before := e.PoolStats()
			sb, err := e.Create(t.Context(), c.spec)
			if err != nil {
				t.Fatal(err)
			}
			if after := e.PoolStats(); after.Claimed-before.Claimed != int64(pool.Size) {
				// An ordinary user's blanks have one user, and it is not root.
				if os.Geteuid() == 0 || c.spec.User == "" {
					t.Errorf("it is not made of a blank: %+v", after)
				}
			}
			defer sb.Remove(t.Context())
			if c.before != nil {
				c.before(t, sb)
			}
			p, err := sb.Start(t.Context(), c.cmd)
			if err != nil {
				t.Fatal(err)
			}
			if c.after != nil {
				c.after(t, p)
			}
			guest := guestOf(t, sb.ID())
			noBuilder(t, guest)
			pid := inside(t, guest, p.PID())
			settled(t, pid)
			process := &subject{t: t, pid: pid, id: sb.ID(), binds: binds}
			golden(t, name, process.posture())
			if _, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", guest)); err != nil {
				t.Logf("the guest is closed to its own owner: %v", err)
			} else if !strings.HasPrefix(name, "user-") {
				g := &subject{t: t, pid: guest, id: sb.ID(), binds: binds, guest: true}
				golden(t, name+"-guest", g.posture())
			}
			for _, pid := range append(descendants(guest), guest) {
				everyThread(t, pid)
			}
		})
	}
}

// noBuilder sees that the process that has made the root, the guest's child, is
// no more: it had no filter, and the memory of its maker.
func noBuilder(t *testing.T, guest int) {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range descendants(guest) {
		if args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.Equal(args, own) {
			t.Errorf("process %d, which has made the root, is still there", pid)
		}
	}
}

// What has made a sandbox's root has ended when anything else is started in it.
// On one processor, who is told that it is done often goes on before it does.
func TestBuilderHasEnded(t *testing.T) {
	testkit.NeedWorkingHost(t)
	onOneProcessor(t)
	for range 100 {
		inst := createOne(t)
		noBuilder(t, stateOf(t, inst.Handle()).PID)
		if err := inst.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// onOneProcessor has all threads of this program run on one processor, and what
// it starts, until the test ends.
func onOneProcessor(t *testing.T) {
	t.Helper()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if before.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	all := func(set unix.CPUSet) {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			tid, _ := strconv.Atoi(thread.Name())
			_ = unix.SchedSetaffinity(tid, &set) // it may have ended
		}
	}
	all(one)
	t.Cleanup(func() { all(before) })
}

// settled waits until a sleeping program sleeps: before that its loader still
// opens files.
func settled(t *testing.T, pid int) {
	t.Helper()
	eventually(t, "the program sleeps", func() bool {
		wchan, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
		return err == nil && strings.Contains(string(wchan), "nanosleep")
	})
}

// guestOf finds the first process of a sandbox among this one's children.
func guestOf(t *testing.T, id string) int {
	t.Helper()
	for _, pid := range descendants(os.Getpid()) {
		if isGuest(pid) {
			if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/hostname", pid)); err == nil && strings.TrimSpace(string(name)) == "posture" {
				return pid
			}
		}
	}
	t.Fatalf("the guest of %s is not found; is /proc that of another pid namespace?", id)
	return 0
}

// inside finds the process that has a pid in the guest's pid namespace.
func inside(t *testing.T, guest, pid int) int {
	t.Helper()
	for _, d := range descendants(guest) {
		if f := statusField(d, "NSpid"); len(f) > 1 && f[len(f)-1] == strconv.Itoa(pid) {
			return d
		}
	}
	t.Fatalf("process %d of the sandbox is not found", pid)
	return 0
}

// golden compares with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := "testdata/posture/" + name + ".txt"
	if os.Getenv("SANDPIT_TEST_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := postures.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is not as it should be (-want +got):\n%s", name, diff)
	}
}

func (s *subject) proc(name string) string { return fmt.Sprintf("/proc/%d/%s", s.pid, name) }

func (s *subject) read(name string) string {
	s.t.Helper()
	data, err := os.ReadFile(s.proc(name))
	if err != nil {
		s.t.Errorf("reading %s: %v", name, err)
	}
	return string(data)
}

func (s *subject) section(name string, lines []string) {
	fmt.Fprintf(&s.report, "# %s\n", name)
	for _, l := range lines {
		fmt.Fprintln(&s.report, l)
	}
	fmt.Fprintln(&s.report)
}

// posture writes everything down.
func (s *subject) posture() string {
	s.uids, s.gids = idMap(s.read("uid_map")), idMap(s.read("gid_map"))
	s.section("status", s.status())
	s.section("namespaces", s.namespaces())
	s.section("program", s.program())
	s.section("descriptors", s.descriptors())
	s.section("limits", s.limits())
	s.section("environment", s.environ())
	s.section("mounts", s.mounts())
	s.section("devices", s.devices())
	s.section("sys", s.sys())
	s.section("network", s.network())
	s.kernel()
	s.cgroups()
	s.maps()
	return s.report.String()
}

// idMap reads uid_map or gid_map.
func idMap(text string) [][3]uint64 {
	var all [][3]uint64
	for line := range strings.Lines(text) {
		var m [3]uint64
		if _, err := fmt.Sscan(line, &m[0], &m[1], &m[2]); err == nil {
			all = append(all, m)
		}
	}
	return all
}

// toInside translates an id of the host.
func toInside(m [][3]uint64, id string) string {
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return id
	}
	for _, r := range m {
		if n >= r[1] && n-r[1] < r[2] {
			return strconv.FormatUint(n-r[1]+r[0], 10)
		}
	}
	return "host's " + id
}

// multi reports whether the sandbox has more than one user.
func (s *subject) multi() bool { return len(s.uids) > 1 || s.uids[0][2] > 1 }

// volatile are the fields of /proc/PID/status that say how things are, not
// what a process may do.
var volatile = map[string]bool{
	"State": true, "Tgid": true, "Ngid": true, "Pid": true, "PPid": true, "FDSize": true, "NStgid": true, "NSpgid": true, "NSsid": true, "Kthread": true,
	"RssAnon": true, "RssFile": true, "RssShmem": true, "HugetlbPages": true, "CoreDumping": true, "THP_enabled": true, "untag_mask": true,
	"x86_Thread_features": true, "x86_Thread_features_locked": true, "SigQ": true, "Speculation_Store_Bypass": true, "SpeculationIndirectBranch": true,
	"Cpus_allowed": true, "Cpus_allowed_list": true, "Mems_allowed": true, "Mems_allowed_list": true, "voluntary_ctxt_switches": true, "nonvoluntary_ctxt_switches": true,
}

func (s *subject) status() []string {
	var lines []string
	for line := range strings.Lines(s.read("status")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		f := strings.Fields(value)
		switch {
		case volatile[name] || strings.HasPrefix(name, "Vm"):
			continue
		case s.guest && (name == "SigCgt" || name == "SigIgn" || name == "Threads" || name == "SigBlk" || name == "Name"):
			continue // those of a Go program
		case name == "NSpid":
			lines = append(lines, fmt.Sprintf("%s: %d deep below the host", name, len(f)-len(statusField(os.Getpid(), "NSpid"))))
			continue
		case name == "Uid" || name == "Gid" || name == "Groups":
			m := s.uids
			if name != "Uid" {
				m = s.gids
			}
			for i := range f {
				f[i] = toInside(m, f[i])
			}
			if name == "Groups" && !s.multi() {
				// A single user keeps its owner's groups: setgroups is denied.
				// They are no ids inside.
				f = nil
			}
			if s.guest && name != "Groups" {
				f = slices.Compact(f)
				if own := s.uids[0][0]; len(f) == 1 && f[0] == strconv.FormatUint(own, 10) {
					f = []string{"the first of its namespace"}
				}
			}
		}
		lines = append(lines, strings.TrimSpace(name+": "+strings.Join(f, " ")))
	}
	return lines
}

func (s *subject) namespaces() []string {
	own, its := spaces(os.Getpid()), spaces(s.pid)
	var lines []string
	for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"} {
		state := "own"
		if its[kind] == own[kind] {
			state = "the host's"
		}
		if kind == "cgroup" && !s.limited("memory", "cpus", "pids") {
			state = "own" // there is no group, and nothing to hide
		}
		lines = append(lines, kind+": "+state)
	}
	for kind := range its {
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, strings.TrimSuffix(kind, "_for_children")+":") }) {
			lines = append(lines, kind+": unknown to this test")
		}
	}
	return lines
}

// limited reports whether one of the limits is enforced here.
func (s *subject) limited(limits ...feature.Feature) bool {
	enforced := newDriver().Probe(s.t.Context()).Features
	return slices.ContainsFunc(limits, func(l feature.Feature) bool { return enforced[l] })
}

// same reports whether two paths are one file.
func same(a, b string) bool {
	var x, y unix.Stat_t
	return unix.Stat(a, &x) == nil && unix.Stat(b, &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

func (s *subject) program() []string {
	var lines []string
	add := func(name, value string) { lines = append(lines, name+": "+value) }
	if !s.guest { // whose is that of the program that is the guest
		add("comm", strings.TrimSpace(s.read("comm")))
	}
	add("arguments", strconv.Quote(strings.ReplaceAll(strings.TrimSuffix(s.read("cmdline"), "\x00"), "\x00", " ")))
	exe, _ := os.Readlink(s.proc("exe"))
	if s.guest {
		// It is on no path of the sandbox.
		exe = "not in the sandbox's files"
		if p, err := os.Readlink(s.proc("exe")); err == nil && p != "/" && same(s.proc("root")+p, s.proc("exe")) {
			exe = p
		}
	}
	add("exe", exe)
	for _, name := range []string{"cwd", "root"} {
		target, err := os.Readlink(s.proc(name))
		if err != nil {
			target = err.Error()
		} else if !same(s.proc("root/")+target, s.proc(name)) {
			target = "outside of its root: " + target
		}
		add(name, target)
	}
	score := strings.TrimSpace(s.read("oom_score_adj"))
	if s.guest {
		// The guest has its maker's, which systemd makes 200 for a user's.
		if own, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil && strings.TrimSpace(string(own)) == score {
			score = "its maker's"
		}
	}
	add("oom_score_adj", score)
	add("personality", strings.TrimSpace(s.read("personality")))
	// A process that is not dumpable has files of root's in /proc.
	var st unix.Stat_t
	_ = unix.Stat(s.proc("fd"), &st)
	owner := "its user's"
	if uid := statusField(s.pid, "Uid"); len(uid) > 0 && uid[0] != strconv.FormatUint(uint64(st.Uid), 10) {
		owner = "another's"
	}
	if s.guest {
		// In a namespace without a root it is the host's root, with one that root,
		// which the guest is: whether it is dumpable is tried from inside.
		owner = "not told"
	}
	add("files in /proc", owner)
	return lines
}

func (s *subject) descriptors() []string {
	entries, err := os.ReadDir(s.proc("fd"))
	if err != nil {
		s.t.Errorf("reading descriptors: %v", err)
	}
	var lines []string
	for _, e := range entries {
		target, err := os.Readlink(s.proc("fd/" + e.Name()))
		if err != nil {
			continue
		}
		if kind, _, ok := strings.Cut(target, ":["); ok {
			target = kind
		}
		if strings.HasPrefix(target, "/dev/pts/") {
			target = "/dev/pts/N"
		}
		if target == "/null" && same("/dev/null", s.proc("fd/"+e.Name())) {
			target = "/dev/null" // opened on the host
		}
		if target == "/dev/null" && !same("/dev/null", s.proc("fd/"+e.Name())) {
			target = "a false /dev/null"
		}
		if s.guest {
			lines = append(lines, target)
		} else {
			lines = append(lines, e.Name()+" "+target)
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

func (s *subject) limits() []string {
	own, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		s.t.Fatal(err)
	}
	fields := func(text string) map[string]string {
		m := map[string]string{}
		for line := range strings.Lines(text) {
			if len(line) > 67 && !strings.HasPrefix(line, "Limit ") {
				m[strings.TrimSpace(line[:26])] = strings.Join(strings.Fields(line[26:67]), " ")
			}
		}
		return m
	}
	was, is := fields(string(own)), fields(s.read("limits"))
	var lines []string
	for name, value := range is {
		switch {
		case name == "Max open files" && s.guest:
			continue // the runtime of a Go program raises it
		case name == "Max core file size" || name == "Max locked memory" || name == "Max open files":
		case name == "Max nice priority" || name == "Max realtime priority":
		case name == "Max pending signals" || name == "Max msgqueue size":
			// How much depends on the host. The soft limit is the hard one.
			if soft, hard, _ := strings.Cut(value, " "); soft == hard && number(soft) <= number(was[name]) {
				value = "no more than the host's"
			}
		case value == was[name]:
			continue
		}
		lines = append(lines, name+": "+value)
	}
	slices.Sort(lines)
	return lines
}

// number reads the first number of a text; that of "unlimited" is the largest.
func number(text string) uint64 {
	first, _, _ := strings.Cut(text, " ")
	if n, err := strconv.ParseUint(first, 10, 64); err == nil {
		return n
	}
	return math.MaxUint64
}

func (s *subject) environ() []string {
	env := strings.Split(strings.TrimSuffix(s.read("environ"), "\x00"), "\x00")
	slices.Sort(env)
	return env
}

// mounts lists the mounts, but for the binds of the host image, each of which
// must be read-only and dead for devices and set-user-id programs.
func (s *subject) mounts() []string {
	var lines []string
	for line := range strings.Lines(s.read("mountinfo")) {
		// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
		left, right, _ := strings.Cut(strings.TrimSpace(line), " - ")
		f, r := strings.Fields(left), strings.Fields(right)
		if len(f) < 6 || len(r) < 3 {
			s.t.Errorf("mountinfo has %q", line)
			continue
		}
		target, options, propagation := f[4], strings.Split(f[5], ","), strings.Join(f[6:], " ")
		options = slices.DeleteFunc(options, func(o string) bool { return strings.HasSuffix(o, "atime") || o == "idmapped" })
		if slices.ContainsFunc(s.binds, func(b string) bool { return target == b || strings.HasPrefix(target, b+"/") }) {
			if strings.Join(options, ",") != "ro,nosuid,nodev" && strings.Join(options, ",") != "ro,nosuid,nodev,noexec" || propagation != "" {
				s.t.Errorf("the host's %s is mounted %v %s", target, options, propagation)
			}
			continue
		}
		// Masks and what is there on some machines only are looked at in kernel.
		switch {
		case strings.HasPrefix(target, "/proc/") && target != "/proc/sys":
			continue
		case strings.HasPrefix(target, "/sys/devices/system/") || target == "/sys/fs/cgroup" || strings.HasPrefix(target, "/sys/fs/cgroup/"):
			if !slices.Contains(options, "ro") || !slices.Contains(options, "nosuid") || !slices.Contains(options, "nodev") || !slices.Contains(options, "noexec") {
				s.t.Errorf("%s is mounted %v", target, options)
			}
			continue
		}
		fstype, super := r[0], strings.Split(r[2], ",")
		super = slices.DeleteFunc(super, func(o string) bool {
			switch name, _, _ := strings.Cut(o, "="); name {
			case "uid", "gid", "inode64", "workdir", "upperdir", "lowerdir", "uuid", "redirect_dir", "index", "xino", "metacopy", "nfs_export", "seclabel":
				return true
			}
			return false
		})
		if i := slices.Index(super, "volatile"); i >= 0 {
			super[i] = "fsync=volatile" // as newer kernels call it
		}
		if fstype != "tmpfs" && fstype != "overlay" && fstype != "proc" && fstype != "devpts" && fstype != "mqueue" {
			fstype, super = "the host's", nil // a device or a mount, from the file system on which it is
		} else if strings.HasPrefix(target, "/dev/") && target != "/dev/shm" && target != "/dev/pts" && target != "/dev/mqueue" {
			fstype, super = "the host's", nil
		}
		if target == "/rw" || target == "/ro" {
			fstype, super = "the host's", nil
		}
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s", target, strings.Join(options, ","), propagation, fstype, strings.Join(super, ","))))
	}
	for i, l := range lines {
		lines[i] = strings.Join(strings.Fields(l), " ")
	}
	slices.Sort(lines)
	return lines
}

func (s *subject) devices() []string {
	var lines []string
	root := s.proc("root/dev")
	_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(p, root)
		if err != nil {
			lines = append(lines, name+" "+err.Error())
			return nil
		}
		if name == "" || strings.HasPrefix(name, "/pts/") && name != "/pts/ptmx" {
			return nil // terminals come and go
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			lines = append(lines, name+" "+err.Error())
			return nil
		}
		what := fmt.Sprintf("%o", st.Mode)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFCHR, unix.S_IFBLK:
			what = fmt.Sprintf("%o %d:%d", st.Mode, unix.Major(st.Rdev), unix.Minor(st.Rdev))
		case unix.S_IFLNK:
			target, _ := os.Readlink(p)
			what = "-> " + target
		}
		lines = append(lines, name+" "+what)
		return nil
	})
	return lines
}

func (s *subject) sys() []string {
	var lines []string
	root := s.proc("root/sys")
	_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(p, root)
		switch {
		case err != nil:
			lines = append(lines, name+" "+err.Error())
			return nil
		case name == "/devices/system/cpu" || name == "/devices/system/node":
			if name != "/devices/system/node" { // not on every machine
				lines = append(lines, name)
			}
			return fs.SkipDir
		case name == "/fs/cgroup":
			lines = append(lines, name)
			return fs.SkipDir
		}
		if name != "" {
			lines = append(lines, name)
		}
		return nil
	})
	return lines
}

func (s *subject) network() []string {
	var lines []string
	for line := range strings.Lines(s.read("net/dev")) {
		if name, _, ok := strings.Cut(line, ":"); ok {
			lines = append(lines, "interface "+strings.TrimSpace(name))
		}
	}
	for line := range strings.Lines(s.read("net/unix")) {
		if f := strings.Fields(line); len(f) == 8 && f[0] != "Num" {
			lines = append(lines, "unix socket "+f[7])
		}
	}
	for line := range strings.Lines(s.read("net/route")) {
		if f := strings.Fields(line); f[0] != "Iface" {
			lines = append(lines, "route by "+f[0])
		}
	}
	for _, name := range []string{"tcp", "udp", "raw", "tcp6", "udp6"} {
		if data, err := os.ReadFile(s.proc("net/" + name)); err == nil && strings.Count(string(data), "\n") > 1 {
			lines = append(lines, "sockets in "+name)
		}
	}
	return lines
}

// openProc are the entries of /proc, beside processes, that may be seen: what
// tells about the kernel and its load, and acts on nothing. All others must be
// masked. One that is unknown fails the test, to be put into one of both.
var openProc = map[string]bool{
	"bootconfig": true, "buddyinfo": true, "cgroups": true, "cmdline": true, "consoles": true, "cpuinfo": true, "crypto": true, "devices": true, "diskstats": true,
	"dma": true, "execdomains": true, "fb": true, "filesystems": true, "iomem": true, "ioports": true, "kpagecgroup": true, "kpagecount": true, "kpageflags": true,
	"key-users": true, "loadavg": true, "locks": true, "meminfo": true, "misc": true, "mounts": true, "mtrr": true, "net": true, "pagetypeinfo": true,
	"partitions": true, "pressure": true, "schedstat": true, "self": true, "slabinfo": true, "softirqs": true, "stat": true, "swaps": true, "sys": true,
	"sysvipc": true, "thread-self": true, "tty": true, "uptime": true, "version": true, "version_signature": true, "vmallocinfo": true, "vmcore": true,
	"vmstat": true, "zoneinfo": true, "allocinfo": true, "config.gz": true, "mdstat": true, "xen": true, "cpu": true,
}

var maskedProc = map[string]bool{
	"acpi": true, "asound": true, "bus": true, "driver": true, "dynamic_debug": true, "fs": true, "interrupts": true, "irq": true, "kallsyms": true, "kcore": true,
	"keys": true, "kmsg": true, "latency_stats": true, "modules": true, "sched_debug": true, "scsi": true, "sysrq-trigger": true, "timer_list": true, "timer_stats": true,
}

// kernel checks what is seen of the kernel in /proc.
func (s *subject) kernel() {
	entries, err := os.ReadDir(s.proc("root/proc"))
	if err != nil {
		s.t.Errorf("reading /proc: %v", err)
	}
	pids := 0
	for _, e := range entries {
		name := e.Name()
		if _, err := strconv.Atoi(name); err == nil {
			pids++
			continue
		}
		if openProc[name] {
			continue
		}
		// A machine that is described by a device tree: a link into a part of
		// /sys that no sandbox has.
		if target, err := os.Readlink(s.proc("root/proc/" + name)); err == nil && path.IsAbs(target) {
			if _, err := os.Lstat(s.proc("root" + target)); !errors.Is(err, fs.ErrNotExist) {
				s.t.Errorf("/proc/%s leads to %s: %v", name, target, err)
			}
			continue
		}
		if !maskedProc[name] {
			s.t.Errorf("/proc/%s is neither known to be harmless nor masked", name)
			continue
		}
		p := s.proc("root/proc/" + name)
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil {
			s.t.Errorf("%s: %v", name, err)
			continue
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			inner, err := os.ReadDir(p)
			if err != nil || len(inner) > 0 {
				s.t.Errorf("/proc/%s is not masked: %d entries, %v", name, len(inner), err)
			}
		case unix.S_IFCHR:
			if unix.Major(st.Rdev) != 1 || unix.Minor(st.Rdev) != 3 {
				s.t.Errorf("/proc/%s is not masked", name)
			}
		default:
			s.t.Errorf("/proc/%s is not masked: %o", name, st.Mode)
		}
	}
	if pids > 20 {
		s.t.Errorf("%d processes are seen", pids)
	}
}

// cgroups checks that the process is in the groups of its sandbox.
func (s *subject) cgroups() {
	for line := range strings.Lines(s.read("cgroup")) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		ours := strings.Contains(f[2], "sandpit-"+s.id)
		for _, c := range []struct {
			controller string
			limit      feature.Feature
		}{{"memory", feature.Memory}, {"cpu", feature.CPUs}, {"pids", feature.Pids}} {
			if slices.Contains(strings.Split(f[1], ","), c.controller) && s.limited(c.limit) && !ours {
				s.t.Errorf("%s is limited, and the process is in %s", c.limit, line)
			}
		}
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil && f[0] == "0" && s.limited("memory", "cpus", "pids") && !ours {
			s.t.Errorf("the process is in %s", line)
		}
		if f[1] == "" && ours && !s.guest {
			s.limitsInside(f[2])
		}
	}
}

// limitsInside checks that a program reads its limits in /sys/fs/cgroup, and where
// /proc/self/cgroup says that it is.
func (s *subject) limitsInside(group string) {
	outside := "/sys/fs/cgroup" + group
	_, inside, _ := strings.Cut(group+"/", "/sandpit-"+s.id+"/")
	for _, c := range []struct {
		limit feature.Feature
		name  string
		from  string // the group that has it
	}{{feature.Memory, "memory.max", path.Dir(outside)}, {feature.CPUs, "cpu.max", path.Dir(outside)}, {feature.Pids, "pids.max", outside}} {
		if inside == "" || !s.limited(c.limit) {
			continue
		}
		want, err := os.ReadFile(c.from + "/" + c.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a hierarchy of v1 limits it
		}
		for _, dir := range []string{"", inside} {
			got, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/sys/fs/cgroup/%s%s", s.pid, dir, c.name))
			if string(got) != string(want) || err != nil {
				s.t.Errorf("in /sys/fs/cgroup/%s the limit %s is %q, want %q: %v", dir, c.name, got, want, err)
			}
		}
	}
}

// maps checks that ids inside are no ids that mean something on the host.
func (s *subject) maps() {
	if !s.multi() {
		for _, m := range [][][3]uint64{s.uids, s.gids} {
			if len(m) != 1 || m[0][2] != 1 {
				s.t.Errorf("the ids are mapped %v", m)
			}
		}
		if got := strings.TrimSpace(s.read("setgroups")); got != "deny" {
			s.t.Errorf("setgroups is %s", got)
		}
		return
	}
	if os.Geteuid() != 0 {
		return
	}
	full, _ := os.ReadFile("/proc/self/uid_map")
	if m := idMap(string(full)); len(m) != 1 || m[0][2] != 1<<32-1 {
		return // a container: no ids of its own to give
	}
	if slices.ContainsFunc(newDriver().Examine(s.t.Context()).Gaps, func(g sandpit.Gap) bool { return g.What == feature.GapOwnIDs }) {
		s.t.Log("ids inside are those outside, as the driver says itself")
		return
	}
	for _, m := range [][][3]uint64{s.uids, s.gids} {
		if len(m) != 1 || m[0][0] != 0 || m[0][1] < 1<<30 || m[0][2] != 1<<16 {
			s.t.Errorf("the ids are mapped %v", m)
		}
	}
}

// everyThread checks that no thread of a process has more than it should.
func everyThread(t *testing.T, pid int) {
	t.Helper()
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/status", pid))
	if len(names) == 0 {
		return
	}
	// The first thread is compared with the expectation; the others with it,
	// but for what the guest's file workers give up.
	fields := func(name string) map[string]string {
		data, _ := os.ReadFile(name)
		m := map[string]string{}
		for line := range strings.Lines(string(data)) {
			k, v, _ := strings.Cut(strings.TrimSpace(line), ":")
			m[k] = strings.TrimSpace(v)
		}
		return m
	}
	first := fields(names[0])
	for _, name := range names {
		f := fields(name)
		if f["VmSize"] == "" {
			continue // without memory it has ended, or is about to
		}
		if f["NoNewPrivs"] != "1" || f["Seccomp"] != "2" || f["TracerPid"] != "0" {
			t.Errorf("%s: NoNewPrivs %s, Seccomp %s, TracerPid %s", name, f["NoNewPrivs"], f["Seccomp"], f["TracerPid"])
		}
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			have, _ := strconv.ParseUint(f[set], 16, 64)
			allowed, _ := strconv.ParseUint(first[set], 16, 64)
			if have&^allowed != 0 {
				t.Errorf("%s: %s is %s, that of the first thread %s", name, set, f[set], first[set])
			}
		}
		task := path.Dir(name)
		for _, link := range []string{"ns/user", "ns/mnt", "ns/net", "ns/pid", "ns/ipc", "ns/uts", "ns/cgroup"} {
			one, err1 := os.Readlink(task + "/" + link)
			main, err2 := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, link))
			if err1 == nil && err2 == nil && one != main {
				t.Errorf("%s is in %s, its process in %s", task, one, main)
			}
		}
		for _, dir := range []string{"root", "cwd"} {
			if !same(task+"/"+dir, fmt.Sprintf("/proc/%d/%s", pid, dir)) {
				if _, err := os.Stat(task + "/" + dir); err == nil {
					t.Errorf("%s/%s is another than that of its process", task, dir)
				}
			}
		}
	}
}
