package linux_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	guest "github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// probeSetID tries every way to make a file with a set-id bit in a directory.
func probeSetID(args []string) map[string]string {
	dir := args[0]
	got := map[string]string{}
	unix.Umask(0)
	n := 0
	name := func() string { n++; return fmt.Sprintf("%s/%d", dir, n) }
	try := func(what string, err error) { got[what] = errName(err) }
	file := func() (string, int) {
		name := name()
		fd, err := unix.Open(name, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o755)
		if err != nil {
			panic(err)
		}
		return name, fd
	}
	for _, mode := range []uint32{0o4755, 0o2755, 0o6777, 0o7000} {
		m := fmt.Sprintf(" %o", mode)
		path, fd := file()
		p, _ := unix.BytePtrFromString(path)
		at := uintptr(unsafe.Pointer(p))
		try("fchmod"+m, unix.Fchmod(fd, mode))
		got["fchmodat"+m] = call(unix.SYS_FCHMODAT, ^uintptr(99), at, uintptr(mode))
		got["fchmodat, high bits"+m] = call(unix.SYS_FCHMODAT, ^uintptr(99), at, uintptr(mode)|1<<32)
		got["fchmodat2"+m] = call(unix.SYS_FCHMODAT2, ^uintptr(99), at, uintptr(mode), 0)
		_, err := unix.Open(name(), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, mode)
		try("openat"+m, err)
		if tmp, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, mode); err != nil {
			try("O_TMPFILE"+m, err)
		} else {
			try("O_TMPFILE"+m, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", tmp), unix.AT_FDCWD, name(), unix.AT_SYMLINK_FOLLOW))
		}
		try("mknodat"+m, unix.Mknod(name(), unix.S_IFREG|mode, 0))
		_, err = unix.Openat2(unix.AT_FDCWD, name(), &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY | unix.O_CLOEXEC, Mode: uint64(mode)})
		try("openat2"+m, err)
		d := name()
		if err := unix.Mkdir(d, mode|0o700); err != nil {
			try("mkdir"+m, err)
			continue
		}
		p, _ = unix.BytePtrFromString(d)
		got["of a directory"+m] = call(unix.SYS_FCHMODAT, ^uintptr(99), uintptr(unsafe.Pointer(p)), uintptr(mode))
	}
	// From what the sandbox has already.
	for _, program := range []string{"/usr/bin/passwd", "/usr/bin/su", "/bin/su", "/usr/bin/newgrp"} {
		if unix.Access(program, unix.F_OK) == nil {
			try("link of "+program, unix.Link(program, name()))
			try("rename of "+program, unix.Rename(program, name()))
		}
	}
	own := "/tmp/of-the-sandbox"
	if err := os.WriteFile(own, nil, 0o755); err == nil {
		try("link of its own", unix.Link(own, name()))
		try("rename of its own", unix.Rename(own, name()))
	}
	// Rights by capabilities of the file: vfs_cap_data, version 2, all of them.
	path, _ := file()
	all := append([]byte{1, 0, 0, 2}, []byte("\xff\xff\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00")...)
	try("file capabilities", unix.Setxattr(path, "security.capability", all, 0))
	v3 := append(append([]byte{1, 0, 0, 3}, all[4:]...), 0, 0, 0, 0)
	try("file capabilities of a namespace", unix.Setxattr(path, "security.capability", v3, 0))
	return got
}

// probePass passes descriptors of a new file and of the directory that it is in
// to the first who connects to a socket there.
func probePass(args []string) map[string]string {
	dir := args[0]
	unix.Umask(0)
	file, err := unix.Open(dir+"/passed", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o777)
	must(err)
	in, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(err)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/s~", Net: "unix"})
	must(err)
	must(os.Rename(dir+"/s~", dir+"/s")) // now it listens
	c, err := l.AcceptUnix()
	must(err)
	_, _, err = c.WriteMsgUnix([]byte{0}, unix.UnixRights(file, in), nil)
	must(err)
	_, _ = c.Read(make([]byte, 1)) // until the other has done with them
	return map[string]string{}
}

// probeTake takes what probePass passes, and tries to set the bits by it.
func probeTake(args []string) map[string]string {
	unix.Umask(0)
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: args[0] + "/s", Net: "unix"})
	must(err)
	defer c.Close()
	fds := received(c)
	file, dir := fds[0], fds[1]
	_, err = unix.Write(file, []byte("x"))
	must(err) // it is a file that can be written
	got := map[string]string{}
	try := func(what string, err error) { got[what] = errName(err) }
	for _, mode := range []uint32{0o4755, 0o2755, 0o6755} {
		m := fmt.Sprintf(" %o", mode)
		try("fchmod"+m, unix.Fchmod(file, mode))
		try("chmod by /proc"+m, unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", file), mode))
		try("fchmodat"+m, unix.Fchmodat(dir, "passed", mode, 0))
		try("fchmod of the directory"+m, unix.Fchmod(dir, mode|0o777))
		_, err := unix.Openat(dir, "made"+m, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, mode)
		try("openat"+m, err)
		_, err = unix.Openat(dir, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, mode)
		try("O_TMPFILE"+m, err)
		try("mknodat"+m, unix.Mknodat(dir, "node"+m, unix.S_IFREG|mode, 0))
	}
	return got
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// probeFilters tries every way to put a filter into the kernel's memory.
func probeFilters([]string) map[string]string {
	got := map[string]string{}
	// A filter that is right: it allows everything.
	code := [1]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0x7FFF0000}}
	prog := unix.SockFprog{Len: 1, Filter: &code[0]}
	at := uintptr(unsafe.Pointer(&prog))
	for _, flags := range []uintptr{0, unix.SECCOMP_FILTER_FLAG_TSYNC, unix.SECCOMP_FILTER_FLAG_LOG, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, 1 << 32, 0xFFFFFFFF << 32} {
		got[fmt.Sprintf("seccomp with flags %#x", flags)] = call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, at)
		got[fmt.Sprintf("seccomp with flags %#x, high bits", flags)] = call(unix.SYS_SECCOMP, 0xFFFFFFFF<<32|unix.SECCOMP_SET_MODE_FILTER, flags, at)
	}
	action := uint32(0x7FFF0000)
	got["seccomp, an action"] = call(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	got["prctl"] = call(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, at)
	got["prctl, to ask"] = call(unix.SYS_PRCTL, unix.PR_GET_SECCOMP)
	for family, name := range map[int]string{unix.AF_UNIX: "unix", unix.AF_INET: "inet", unix.AF_NETLINK: "netlink"} {
		typ := unix.SOCK_DGRAM
		if family == unix.AF_NETLINK {
			typ = unix.SOCK_RAW
		}
		fd, err := unix.Socket(family, typ|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			panic(err)
		}
		for option, what := range map[uintptr]string{
			unix.SO_ATTACH_FILTER: "SO_ATTACH_FILTER", unix.SO_ATTACH_REUSEPORT_CBPF: "SO_ATTACH_REUSEPORT_CBPF",
			unix.SO_ATTACH_BPF: "SO_ATTACH_BPF", unix.SO_ATTACH_REUSEPORT_EBPF: "SO_ATTACH_REUSEPORT_EBPF",
		} {
			got[name+" "+what] = call(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, option, at, unsafe.Sizeof(prog))
			got[name+" "+what+", high bits"] = call(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET|1<<32, option|1<<63, at, unsafe.Sizeof(prog))
		}
	}
	return got
}

// harmless checks that no file of a directory of the host gives anybody rights.
func harmless(t *testing.T, dir string) {
	t.Helper()
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			t.Errorf("ESCAPE: %s has the mode %v on the host", path, info.Mode())
		}
		if n, err := unix.Lgetxattr(path, "security.capability", make([]byte, 64)); err == nil {
			t.Errorf("ESCAPE: %s has %d bytes of capabilities on the host", path, n)
		}
		seen++
		return nil
	})
	if err != nil || seen < 5 {
		t.Errorf("only %d files were made: this tries nothing (%v)", seen, err)
	}
}

// hostDir makes a directory that a sandbox's user may write to.
func hostDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err == nil {
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// asEachMade tries an attack as each user, in a sandbox that is made anew and in
// one that is made of a blank.
func asEachMade(t *testing.T, f func(t *testing.T, c sandpit.Client, user string)) {
	testkit.NeedWorkingHost(t)
	for how, pool := range map[string]engine.Pool{"fresh": {}, "blank": {Size: 1}} {
		e := engine.New(engine.Options{Driver: newDriver(), Images: images(), Policy: policy.Default(), Pool: pool})
		t.Cleanup(func() { e.Close() })
		e.Warm()
		for _, user := range users {
			t.Run(how+" "+user, func(t *testing.T) {
				eventually(t, "there is a blank", func() bool { return e.PoolStats().Ready == pool.Size })
				f(t, e, user)
				if made := e.PoolStats().Claimed > 0; made != (pool.Size > 0) && (os.Geteuid() == 0 || user == "") {
					t.Errorf("made of a blank: %v", made)
				}
			})
		}
	}
}

// A file with a set-id bit on the host would run with its owner's rights there.
func TestAttackL2SetIDFiles(t *testing.T) {
	asEachMade(t, func(t *testing.T, c sandpit.Client, user string) {
		dir := hostDir(t)
		sb := box(t, c, sandpit.Spec{User: user, Mounts: []sandpit.Mount{{Source: dir, Target: "/x"}}})
		got := tryOut(t, sb, sandpit.Command{}, "set-id", "/x")
		for what, is := range got {
			want := "EPERM"
			switch {
			case strings.HasPrefix(what, "openat2"):
				want = "ENOSYS"
			case strings.HasPrefix(what, "link of"), strings.HasPrefix(what, "rename of"):
				want = "EXDEV"
			}
			if is != want {
				t.Errorf("%s: the kernel says %q, want %q", what, is, want)
			}
		}
		// By the guest, for callers of the API.
		for what, err := range map[string]error{
			"Write": func() error {
				_, err := sb.Files().Write(t.Context(), "/x/written", strings.NewReader("x"), sandpit.WriteOptions{Mode: 0o755 | fs.ModeSetuid})
				return err
			}(),
			"Chmod":        sb.Files().Chmod(t.Context(), "/x/1", 0o755|fs.ModeSetgid),
			"Chmod of all": sb.Files().Chmod(t.Context(), "/x/1", 0o777|fs.ModeSetgid|fs.ModeSetuid),
		} {
			if !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%s with a set-id mode: got %v, want ErrPermission", what, err)
			}
			if hint := sandpit.Hint(err); !strings.Contains(hint, "use 0755") && !strings.Contains(hint, "use 0777") {
				t.Errorf("%s with a set-id mode has the hint %q", what, hint)
			}
		}
		// The kernel itself drops the bits of a directory that is made.
		if err := sb.Files().Mkdir(t.Context(), "/x/made", 0o755|fs.ModeSetgid, false); err != nil {
			t.Error(err)
		}
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for _, h := range []tar.Header{
			{Name: "up/", Typeflag: tar.TypeDir, Mode: 0o2755},
			{Name: "up/real/", Typeflag: tar.TypeDir, Mode: 0o755},
			{Name: "up/link", Typeflag: tar.TypeSymlink, Linkname: "real/../real"},
			{Name: "up/link/f", Typeflag: tar.TypeReg, Mode: 0o6755},
			{Name: "up/hard", Typeflag: tar.TypeLink, Linkname: "up/link/f"},
		} {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := sb.Files().Upload(t.Context(), "/x", &archive); err != nil {
			t.Errorf("Upload: %v", err)
		}
		if st, err := os.Stat(filepath.Join(dir, "up/real/f")); err != nil || st.Mode() != 0o755 {
			t.Errorf("the file that was uploaded: %v, %v", st, err)
		}
		harmless(t, dir)
		// Everything else goes on there.
		if out := sh(t, sb, "cd /x && touch f && chmod 1755 f && mkdir -p d/e && cp -a f d/e/g && mv d d2 && test -x d2/e/g && rm -r d2"); !out.Success() {
			t.Errorf("ordinary work in a mount fails: %s", out.Stderr)
		}
	})
}

// A read-only mount shows sockets, over which a sandbox that can write to the
// same directory passes a descriptor: what keeps the bits off is the filter.
func TestAttackL2PassedDescriptor(t *testing.T) {
	eachShowing(t, shownDir(t), func(t *testing.T, c sandpit.Client) {
		for _, user := range users {
			dir := hostDir(t)
			passer := box(t, c, sandpit.Spec{User: user, Mounts: []sandpit.Mount{{Source: dir, Target: "/x"}}})
			p, err := passer.Start(t.Context(), sandpit.Command{Argv: []string{"/probe", "probe:pass", "/x"}, Background: true})
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the passer listens", func() bool { _, err := os.Lstat(filepath.Join(dir, "s")); return err == nil })
			taker := box(t, c, sandpit.Spec{User: user, Mounts: []sandpit.Mount{{Source: dir, Target: "/x", ReadOnly: true}}})
			refused(t, tryOut(t, taker, sandpit.Command{}, "take", "/x"), "EPERM")
			if res, err := p.Wait(t.Context()); err != nil || !res.Success() {
				t.Errorf("the passer ended with %+v, %v", res, err)
			}
			if n := filters(t, taker); n != "2" {
				t.Errorf("as %q a read-only mount with sockets is there with %s filters, want 2", user, n)
			}
			if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if info, err := d.Info(); err != nil || info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
					t.Errorf("ESCAPE: %s has the mode %v on the host (%v)", path, info.Mode(), err)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
		}
	})
}

// filters is how many filters a program in a sandbox has.
func filters(t *testing.T, sb sandpit.Sandbox) string {
	t.Helper()
	return strings.TrimSpace(string(sh(t, sb, "sed -n 's/^Seccomp_filters:[[:space:]]*//p' /proc/self/status").Stdout))
}

// What is said of directories: their bit can't be set, nor copied, and one that
// the host has set goes on to what is made below.
func TestSetGroupIDDirectoriesInAMount(t *testing.T) {
	asEachMade(t, func(t *testing.T, c sandpit.Client, user string) {
		dir := hostDir(t)
		if err := os.Chmod(dir, 0o777|fs.ModeSetgid); err != nil {
			t.Fatal(err)
		}
		sb := box(t, c, sandpit.Spec{User: user, Mounts: []sandpit.Mount{{Source: dir, Target: "/x"}}})
		if out := sh(t, sb, "cd /x && mkdir -p a/b && touch a/b/f && chmod 755 a/b/f && cp -r a c && stat -c %A a c/b | cut -c7"); string(out.Stdout) != "s\ns\n" {
			t.Errorf("below a set-group-id directory: got %q, %s", out.Stdout, out.Stderr)
		}
		for _, script := range []string{"chmod g+s a", "cp -a a d"} {
			if out := sh(t, sb, "cd /x && mkdir -p a && chmod 2755 a 2>/dev/null; cd /x && "+script); out.Success() || !strings.Contains(string(out.Stderr), "not permitted") {
				t.Errorf("%s: %+v, %s", script, out.Result, out.Stderr)
			}
		}
	})
}

// A filter stays with a sandbox that another process takes over.
func TestAttackL2AfterRecover(t *testing.T) {
	dir := hostDir(t)
	d := persistentDriver(t, filepath.Join(t.TempDir(), "kept"))
	plan := persistentPlan(t, d)
	plan.Mounts = []sandpit.Mount{{Source: dir, Target: "/x"}}
	second, err := d.Recover(t.Context(), left(t, d, plan).Handle())
	if err != nil {
		t.Fatal(err)
	}
	removePersistent(t, d, second)
	if lacks := second.(driver.Lacking).Lacks(); len(lacks) > 0 {
		t.Errorf("it lacks %+v", lacks)
	}
	c := greet(t, second, persistentConfig())
	p, err := c.StartDetached(t.Context(), sandpit.Command{Script: "cd /x && for i in 1 2 3 4; do echo >$i; done; chmod 4755 1; chmod 2755 2; chmod ug+s 3"}, guest.Detach{})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := p.Wait(t.Context()); err != nil || res.Success() {
		t.Errorf("setting the bits: %+v, %v", res, err)
	}
	if err := c.Files().Chmod(t.Context(), "/x/4", 0o755|fs.ModeSetuid); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("setting the bit: %v, want ErrPermission", err)
	}
	harmless(t, dir)
}

// A sandbox of a version whose handles say nothing of the filter may be without.
func TestSandboxOfAnEarlierVersionLacksTheFilter(t *testing.T) {
	d := persistentDriver(t, t.TempDir())
	h := left(t, d, persistentPlan(t, d)).Handle()
	if h.State = bytes.Replace(h.State, []byte(`,"no_set_id":true`), nil, 1); bytes.Contains(h.State, []byte("no_set_id")) {
		t.Fatalf("the handle is %s", h.State)
	}
	for range 2 { // what it lacks it goes on to lack
		again, err := d.Recover(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		removePersistent(t, d, again)
		if lacks := again.(driver.Lacking).Lacks(); len(lacks) != 1 || lacks[0].What != feature.GapSetID || lacks[0].Fix == "" {
			t.Errorf("it lacks %+v", lacks)
		}
		again.(driver.Leaver).Leave()
		h = again.Handle()
	}
}

// The memory for filters is one for the whole machine.
func TestAttackL3Filters(t *testing.T) {
	asEachMade(t, func(t *testing.T, c sandpit.Client, user string) {
		for mounts, want := range map[int]string{0: "1", 1: "2"} {
			spec := sandpit.Spec{User: user}
			for range mounts {
				spec.Mounts = append(spec.Mounts, sandpit.Mount{Source: hostDir(t), Target: "/x"})
			}
			sb := box(t, c, spec)
			for what, is := range tryOut(t, sb, sandpit.Command{}, "filters") {
				want := "ENOSYS"
				switch {
				case strings.HasPrefix(what, "prctl"):
					want = "EINVAL"
				case strings.Contains(what, "SO_ATTACH"):
					want = "ENOPROTOOPT"
				}
				if is != want {
					t.Errorf("%s: the kernel says %q, want %q", what, is, want)
				}
			}
			// All that run have the same: those that the sandbox began with.
			if got := filters(t, sb); got != want {
				t.Errorf("with %d writable mounts a process has %q filters, want %s", mounts, got, want)
			}
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// Package managers set these bits in sandboxes that can't harm the host by it.
func TestSetIDBitsInside(t *testing.T) {
	asEachMade(t, func(t *testing.T, c sandpit.Client, user string) {
		sb := box(t, c, sandpit.Spec{User: user, Mounts: []sandpit.Mount{{Source: hostDir(t), Target: "/ro", ReadOnly: true, NoSockets: true}}})
		out := sh(t, sb, "umask 0; cd /tmp && touch u g && chmod 4755 u && chmod 2755 g && mkdir d && chmod 2755 d && stat -c %a u g d")
		if got := string(out.Stdout); !out.Success() || got != "4755\n2755\n2755\n" {
			t.Errorf("got %q, %s", got, out.Stderr)
		}
	})
}
