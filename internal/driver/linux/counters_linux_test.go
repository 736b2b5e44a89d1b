package linux_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// Attacks on what the kernel counts by user, and on what it shares by id.

// take takes something up to limit times, and keeps it. It returns how often it
// had it, and why it ended.
func take(limit int, one func(i int) error) string {
	for i := range limit {
		if err := one(i); err != nil {
			return fmt.Sprintf("%d %s", i, errName(err))
		}
	}
	return strconv.Itoa(limit)
}

// counted are what the kernel counts by user, or for all.
var counted = map[string]func(i int) error{
	"inotify": func(int) error {
		_, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		return err
	},
	"timers": func(int) error {
		var id int32
		_, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&id)))
		return noError(errno)
	},
	"queues": func(i int) error {
		name := []byte(fmt.Sprintf("sandpit-test-%d-%d\x00", os.Getpid(), i))
		_, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(&name[0])), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, 0o600, 0, 0, 0)
		if errno == 0 { // it lives on as a descriptor
			_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(&name[0])), 0, 0)
		}
		return noError(errno)
	},
	"terminals": func(int) error {
		_, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		return err
	},
	"flight": func(int) error { // 253 descriptors at a time, which is SCM_MAX_FD
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(make([]int, 253)...), nil, 0)
	},
}

func noError(errno unix.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

// probeCounters takes of what is named in its arguments: NAME=MOST.
func probeCounters(args []string) map[string]string {
	got := map[string]string{}
	for _, arg := range args {
		name, limit, _ := strings.Cut(arg, "=")
		n, _ := strconv.Atoi(limit)
		got[name] = take(n, counted[name])
	}
	return got
}

// holdFile is where probeHold says what it has.
const holdFile = "/tmp/held"

// probeHold is probeCounters, and holds what it has until it is killed.
func probeHold(args []string) map[string]string {
	data, _ := json.Marshal(probeCounters(args))
	if os.WriteFile(holdFile+"~", data, 0o644) == nil && os.Rename(holdFile+"~", holdFile) == nil {
		time.Sleep(time.Hour)
	}
	return nil
}

// TestAttackL4L5Counters: what a sandbox takes of what is counted by user ends
// at a limit of its own, and counts for nobody else where that can be.
func TestAttackL4L5Counters(t *testing.T) {
	for name, pool := range map[string]engine.Pool{"new": {}, "of a blank": {Size: 1}} {
		t.Run(name, func(t *testing.T) {
			testkit.NeedWorkingHost(t)
			e := engine.New(engine.Options{Driver: newDriver(), Images: images(), Policy: policy.Default(), Pool: pool})
			defer e.Close()
			e.Warm()
			for _, user := range users {
				t.Run("as "+user, func(t *testing.T) {
					eventually(t, "there is a blank", func() bool { return e.PoolStats().Ready == pool.Size })
					sb := box(t, e, sandpit.Spec{User: user, Hostname: "posture"})
					owner := ownerOf(t, guestOf(t, sb.ID()))
					limit := func(name string) int {
						data, err := os.ReadFile("/proc/sys/user/" + name)
						n, aerr := strconv.Atoi(strings.TrimSpace(string(data)))
						if err != nil || aerr != nil {
							t.Fatal(err, aerr)
						}
						return n
					}
					insideLimit := func(name string) string {
						return strings.TrimSpace(string(sh(t, sb, "cat /proc/sys/user/"+name).Stdout))
					}
					if n := insideLimit("max_user_namespaces"); n != "0" {
						t.Errorf("%s user namespaces may be made inside", n)
					}
					// Each ends long before the host's does, whoever they count for.
					takes := []string{"timers=4200", "queues=40", "terminals=80"}
					if os.Geteuid() == 0 {
						if owner < 0x70000000 {
							t.Errorf("the user namespace is owned by %d, with whom it shares counters", owner)
						}
					} else {
						for _, name := range []string{"max_inotify_instances", "max_inotify_watches"} {
							if got, want := insideLimit(name), strconv.Itoa(limit(name)/4); got != want {
								t.Errorf("%s is %s inside, not %s", name, got, want)
							}
						}
						takes = append(takes, "inotify=40")
					}
					got := tryOut(t, sb, sandpit.Command{}, "counters", takes...)
					t.Log(got)
					for what, ends := range map[string][2]string{ // at most, and why
						"timers": {"4096", "EAGAIN"}, "queues": {"20", "EMFILE"}, "terminals": {"64", "ENOSPC"}, "inotify": {"32", "EMFILE"},
					} {
						is, ok := got[what]
						n, why, _ := strings.Cut(is, " ")
						if ok && (number(n) == 0 || number(n) > number(ends[0]) || why != ends[1]) {
							t.Errorf("%s: it had %q, want at most %s and %s", what, is, ends[0], ends[1])
						}
					}
				})
			}
		})
	}
}

// TestCountersAreKnown: what the kernel counts by user and user namespace is the
// sandbox's own or can't be used inside. A kernel that counts more needs a look.
func TestCountersAreKnown(t *testing.T) {
	known := map[string]string{
		"max_inotify_instances": "of its own, or a part", "max_inotify_watches": "of its own, or a part",
		"max_fanotify_groups": "refused: fanotify_init", "max_fanotify_marks": "refused: fanotify_mark",
		// Without a new user namespace they take a capability that nobody has inside.
		"max_user_namespaces": "none", "max_cgroup_namespaces": "refused", "max_ipc_namespaces": "refused", "max_mnt_namespaces": "refused",
		"max_net_namespaces": "refused", "max_pid_namespaces": "refused", "max_time_namespaces": "refused", "max_uts_namespaces": "refused",
	}
	entries, err := os.ReadDir("/proc/sys/user")
	if err != nil || len(entries) == 0 {
		t.Fatal(entries, err)
	}
	for _, e := range entries {
		if known[e.Name()] == "" {
			t.Errorf("nobody has looked at /proc/sys/user/%s: is it the sandbox's own?", e.Name())
		}
	}
}

// ownerOf returns the owner of the user namespace of a process.
func ownerOf(t *testing.T, pid int) uint32 {
	t.Helper()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	const getOwnerUID = 0xb704 // NS_GET_OWNER_UID of ioctl_ns(2)
	var uid uint32
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, ns.Fd(), getOwnerUID, uintptr(unsafe.Pointer(&uid))); errno != 0 {
		t.Fatal(errno)
	}
	return uid
}

// TestStarve has one sandbox take all that it can of what the kernel counts by
// user or for the whole host, while the user of the host, and a neighbour, go
// on with theirs. It is for machines that nobody uses, see internal/hosttest.
func TestStarve(t *testing.T) {
	testkit.NeedWholeMachine(t)
	testkit.NeedWorkingHost(t)
	all := []string{"inotify=100000", "timers=200000", "queues=1000", "terminals=5000", "flight=1000"}
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		own := os.Geteuid() == 0
		neighbour := box(t, c, sandpit.Spec{User: user})
		hostile := box(t, c, sandpit.Spec{User: user})
		if _, err := hostile.Start(t.Context(), sandpit.Command{Argv: append([]string{"/probe", "probe:hold"}, all...)}); err != nil {
			t.Fatal(err)
		}
		var held string
		eventually(t, "it has all that it can have", func() bool {
			held = string(sh(t, hostile, "cat "+holdFile+" 2>/dev/null").Stdout)
			return held != ""
		})
		t.Logf("it has %s", held)
		has := map[string]string{}
		if err := json.Unmarshal([]byte(held), &has); err != nil {
			t.Fatal(err)
		}
		for what := range counted {
			first, _, _ := strings.Cut(has[what], " ")
			if n, err := strconv.Atoi(first); err != nil || n == 0 {
				t.Errorf("the attacker had no %s: %q: this proves nothing", what, has[what])
			}
		}
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		var one []string
		for name := range counted {
			one = append(one, name+"=1")
		}
		out, err := exec.Command(self, append([]string{"probe:counters"}, one...)...).Output()
		host := map[string]string{}
		if err == nil {
			err = json.Unmarshal(out, &host)
		}
		if err != nil {
			t.Fatal(err)
		}
		for who, got := range map[string]map[string]string{"the host": host, "a neighbour": tryOut(t, neighbour, sandpit.Command{}, "counters", one...)} {
			for what, is := range got {
				switch {
				case is == "1":
				case what == "flight" && !own:
					t.Logf("descriptors in flight are one user's, a stated gap: %s: %s", who, is)
				default:
					t.Errorf("STARVE: %s of %s: %s", what, who, is)
				}
			}
		}
	})
}

// probeIDs changes what belongs to the host, and reads what only its root may.
func probeIDs([]string) map[string]string {
	got := map[string]string{}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		dev := "/dev/" + name
		got["chmod "+name] = errName(unix.Chmod(dev, 0o600))
		got["chown "+name] = errName(unix.Chown(dev, 1000, 1000))
		got["utime "+name] = errName(unix.Utimes(dev, make([]unix.Timeval, 2)))
		got["setxattr "+name] = errName(unix.Setxattr(dev, "user.x", []byte("x"), 0))
	}
	for _, dir := range []string{"/proc", "/proc/tty"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			name := filepath.Join(dir, e.Name())
			info, err := os.Stat(name)
			if err != nil || e.Name()[0] <= '9' || info.Mode().Perm()&0o004 != 0 {
				continue
			}
			got["read "+name] = tryRead(name)
		}
	}
	for _, name := range []string{"/proc/slabinfo", "/proc/kpagecount", "/proc/vmallocinfo", "/proc/pagetypeinfo", "/proc/allocinfo", "/proc/timer_list"} {
		got["read "+name] = tryRead(name)
	}
	return got
}

// TestAttackL6HostIDs: neither with ids of its own nor with those of the host
// does root inside change the host's devices or read what root may.
func TestAttackL6HostIDs(t *testing.T) {
	var before []os.FileInfo
	devices := []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}
	look := func() (all []os.FileInfo) {
		for _, d := range devices {
			info, err := os.Stat(d)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, info)
		}
		return all
	}
	before = look()
	try := func(t *testing.T, c sandpit.Client, user string) {
		sb := box(t, c, sandpit.Spec{User: user})
		refused(t, tryOut(t, sb, sandpit.Command{}, "ids"), "EROFS", "EPERM", "EACCES", "ENOENT", "EIO", "empty", "EOPNOTSUPP")
		if out := sh(t, sb, "echo x >/dev/null && head -c 3 /dev/zero | wc -c && : >>/dev/null"); strings.TrimSpace(string(out.Stdout)) != "3" {
			t.Errorf("devices are of no use: %+v, %s", out.Result, out.Stderr)
		}
		for i, info := range look() {
			is, was := info.Sys().(*syscall.Stat_t), before[i].Sys().(*syscall.Stat_t)
			if is.Mode != was.Mode || is.Uid != was.Uid || is.Gid != was.Gid {
				t.Errorf("WRITE: %s is %v, was %v", devices[i], is, was)
			}
		}
	}
	t.Run("own", func(t *testing.T) { asEach(t, try) })
	t.Run("same", func(t *testing.T) {
		testkit.NeedWorkingHost(t)
		for _, user := range users {
			e, sees := sameIDs(t)
			t.Run("as "+user, func(t *testing.T) {
				try(t, e, user)
				sb := box(t, e, sandpit.Spec{User: user, Hostname: "posture"})
				if got := strings.Fields(string(sh(t, sb, "cat /proc/self/uid_map").Stdout)); len(got) != 3 || got[1] != "0" {
					t.Errorf("the ids are %v, not those of the host: this proves nothing", got)
				}
				if owner := ownerOf(t, guestOf(t, sb.ID())); owner < 0x70000000 {
					t.Errorf("the user namespace is owned by %d", owner)
				}
			})
			sees()
		}
	})
}

// sameIDs returns an engine whose sandboxes have the ids of the host, because
// its store lies on a file system that can't map them.
func sameIDs(t *testing.T) (c *engine.Engine, done func()) {
	t.Helper()
	testkit.NeedRoot(t, "to make sandboxes with the ids of the host")
	dir := t.TempDir()
	for _, name := range []string{"lower", "upper", "work", "at"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	layers, at := filepath.Join(dir, "upper"), filepath.Join(dir, "at")
	if err := unix.Mount("tmpfs", layers, "tmpfs", 0, "size=256m"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(layers, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	opts := fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", dir, layers, layers)
	if err := unix.Mount("overlay", at, "overlay", 0, opts); err != nil {
		_ = unix.Unmount(layers, unix.MNT_DETACH)
		t.Fatal(err)
	}
	images, guests := engine.Home(at)
	opt := options()
	opt.Dir = guests
	e := engine.New(engine.Options{
		Driver: driverWith(opt), Policy: policy.Default(),
		Images: image.Open(images, image.Options{NoSync: true, Fetcher: fetch.New(fetch.Options{})}),
	})
	return e, func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		_ = unix.Unmount(at, unix.MNT_DETACH)
		_ = unix.Unmount(layers, unix.MNT_DETACH)
	}
}

// probeTCP fills buffers of connections over the loopback, up to a number of
// MiB, and tells how many bytes they hold.
func probeTCP(args []string) map[string]string {
	limit, _ := strconv.Atoi(args[0])
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return map[string]string{"listen": errName(err)}
	}
	piece := make([]byte, 256<<10)
	held, stuck := 0, 0
	for held < limit<<20 && stuck < 8 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			break
		}
		if _, err := l.Accept(); err != nil {
			break
		}
		before := held
		for {
			_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			n, err := c.Write(piece)
			held += n
			if err != nil {
				break
			}
		}
		if stuck++; held-before > 64<<10 {
			stuck = 0
		}
	}
	return map[string]string{"held": strconv.Itoa(held >> 20)}
}

// TestAttackL8SocketBuffers: what is sent and not received counts as memory.
func TestAttackL8SocketBuffers(t *testing.T) {
	testkit.NeedWorkingHost(t)
	caps := newDriver().Probe(t.Context())
	if !caps.Features[feature.Memory] {
		testkit.Lacks(t, "a limit of memory")
	}
	for _, g := range caps.Gaps {
		if g.What == feature.GapTCPBuffers {
			testkit.Lacks(t, "a limit of TCP buffers: "+g.Why)
		}
	}
	const limit = 128
	sb := box(t, client(t, options()), sandpit.Spec{Limits: sandpit.Limits{Memory: limit << 20}})
	out, err := sandpit.Run(t.Context(), sb, sandpit.Command{Argv: []string{"/probe", "probe:tcp", strconv.Itoa(3 * limit)}})
	if err != nil {
		t.Fatal(err)
	}
	if out.OOMKilled {
		return // held, by v2
	}
	got := map[string]string{}
	if err := json.Unmarshal(out.Stdout, &got); err != nil {
		t.Fatalf("%+v: %s%s", out.Result, out.Stdout, out.Stderr)
	}
	t.Logf("it had %s MiB in buffers", got["held"])
	if number(got["held"]) > limit+limit/4 {
		t.Errorf("STARVE: %s MiB in buffers, with a limit of %d", got["held"], limit)
	}
}

// TestStarveCoreHandler: the program that the host pipes core files to is not
// started for a process of a sandbox, which is to be root outside, whatever
// limit the process chooses.
func TestStarveCoreHandler(t *testing.T) {
	testkit.NeedWholeMachine(t)
	testkit.NeedRoot(t, "to choose the handler")
	const pattern = "/proc/sys/kernel/core_pattern"
	was, err := os.ReadFile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ran, handler := filepath.Join(dir, "ran"), filepath.Join(dir, "handler")
	script := "#!/bin/sh\ncat >/dev/null\necho \"$1\" >>" + ran + "\n"
	if err := os.WriteFile(handler, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(pattern, []byte("|"+handler+" %e"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(pattern, was, 0o644) })
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		sb := box(t, c, sandpit.Spec{User: user})
		for _, limit := range []string{"", "ulimit -c 0; ", "ulimit -Sc 0; ", "ulimit -c unlimited; "} {
			sh(t, sb, "cp /bin/sleep /tmp/inside; ("+limit+"exec /tmp/inside 100) & sleep 0.2; kill -SEGV $!; wait")
		}
	})
	// One of the host's own tells that the handler works, after all others.
	cmd := exec.Command("sh", "-c", "ulimit -c unlimited; kill -SEGV $$")
	_ = cmd.Run()
	var log string
	eventually(t, "the handler runs for the host", func() bool {
		data, _ := os.ReadFile(ran)
		log = string(data)
		return strings.Contains(log, "sh")
	})
	if strings.Contains(log, "inside") {
		t.Errorf("ESCAPE: the host's handler ran for %q", log)
	}
}

// TestAttackL10OwnScore: root inside does not make the kernel choose the guest
// when memory runs out, where it has ids of its own.
func TestAttackL10OwnScore(t *testing.T) {
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		if os.Geteuid() != 0 && user == "root" {
			testkit.Lacks(t, "root, for as another user root inside is that user, to whom the guest's file belongs")
		}
		sb := box(t, c, sandpit.Spec{User: user})
		script := `for p in /proc/1 /proc/1/task/* /proc/[2-9] /proc/1[0-9]; do
			case $p in */task/*) ;; *) [ "$(cat $p/comm 2>/dev/null)" = "$(cat /proc/1/comm)" ] || continue;; esac
			(echo 1000 >$p/oom_score_adj) 2>/dev/null && echo "$p"
		done; cat /proc/1/oom_score_adj`
		if out := sh(t, sb, script); strings.TrimSpace(string(out.Stdout)) != "0" {
			t.Errorf("the guest's score can be raised: %s %s", out.Stdout, out.Stderr)
		}
	})
}

// TestStrangersTakeNoRanges: names that every user of the machine may take decide
// about no range of ids.
func TestStrangersTakeNoRanges(t *testing.T) {
	testkit.NeedRoot(t, "to have ranges of ids")
	// In a network of its own, so that nobody else is denied anything.
	runtime.LockOSThread()
	was, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(was)
	testkit.Need(t, "root to make a network namespace", unix.Unshare(unix.CLONE_NEWNET))
	defer func() {
		if err := unix.Setns(was, unix.CLONE_NEWNET); err != nil {
			t.Error(err) // and the thread ends with the test
			return
		}
		runtime.UnlockOSThread()
	}()
	for n := range linux.Ranges {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@sandpit-ids-" + strconv.Itoa(n)}); err != nil {
			t.Fatal(err)
		}
	}
	base, lock, err := linux.ChooseRange()
	if err != nil {
		t.Fatalf("strangers deny ranges of ids: %v", err)
	}
	defer unix.Close(lock)
	// And it is held.
	n := linux.RangeNumber(base)
	if other, lock, err := linux.ChooseRange(); err != nil || linux.RangeNumber(other) == n {
		t.Errorf("%d was chosen twice: %v", n, err)
	} else {
		unix.Close(lock)
	}
}
