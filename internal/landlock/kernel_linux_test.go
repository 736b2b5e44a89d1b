package landlock

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// The tests against the kernel run in children of the test binary, which
// restrict themselves. childEnv holds how: "restricted" or "not".
const childEnv = "SANDPIT_LANDLOCK_TEST"

func TestMain(m *testing.M) {
	if how := os.Getenv(childEnv); how != "" {
		runtime.LockOSThread() // for good: only this thread is restricted
		got, err := child(how, os.Args[1], os.Args[2] == "mounts")
		if err == nil {
			err = json.NewEncoder(os.Stdout).Encode(got)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(99)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// world is what the children find in their directory.
func world(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"in", "in/sub", "in/other", "out", "out/sub", "out/bound", "in2", "bound", "boundsub", "in/bound"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"in/f", "in/sub/f", "in/exchange", "in/replace", "in2/f", "out/f", "out/sub/f", "out/linked", "out/move", "out/exchange", "out/replace", "out/truncate", "file", "script"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// A hard link inside to a file outside, made before: the file itself is
	// then reachable as one inside, and so must be an act of whoever made the
	// directory. The name outside stays closed.
	if err := os.Link(filepath.Join(dir, "out/linked"), filepath.Join(dir, "in/linked")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../out/f", filepath.Join(dir, "in/symlink")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newRuleset makes a ruleset as the package's comment says, by a program of
// system calls that does not know what the paths are.
func newRuleset(paths []string) (int, error) {
	abi, err := Probe()
	if err != nil {
		return -1, err
	}
	attr := RulesetAttr(HandledAccess(abi))
	ruleset, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr)), 0)
	if errno != 0 {
		return -1, errno
	}
	for _, path := range paths {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		for i, access := range []Access{WriteAccess(abi), FileAccess(abi)} {
			rule := PathBeneath(access)
			*(*int32)(unsafe.Pointer(&rule[ParentFD])) = int32(fd)
			_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, ruleset, RulePathBeneath, uintptr(unsafe.Pointer(&rule[0])), 0, 0, 0)
			if errno != 0 && (i > 0 || errno != unix.EINVAL) {
				return -1, errno
			}
		}
		unix.Close(fd)
	}
	return int(ruleset), nil
}

// restrictSelf puts a ruleset on this thread.
func restrictSelf(fd int) error {
	_, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// child restricts itself and returns the error of each thing that it tries.
func child(how, dir string, mounts bool) (map[string]string, error) {
	if err := os.Chdir(dir); err != nil {
		return nil, err
	}
	if mounts {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return nil, err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return nil, err
		}
		for from, to := range map[string]string{"out/sub": "out/bound", "in2": "bound", "in/sub": "boundsub", "out": "in/bound"} {
			if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
				return nil, err
			}
		}
	}
	// The descriptor of the outside, opened before: reading only.
	outside, err := unix.Open("out", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	readable, err := unix.Open("out/f", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if how != "not" {
		writable := []string{"in", "in2", "file"}
		for _, d := range Devices() {
			if _, err := os.Stat(d); err == nil {
				writable = append(writable, d)
			}
		}
		fd, err := newRuleset(writable)
		if err != nil {
			return nil, err
		}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return nil, err
		}
		if err := restrictSelf(fd); err != nil {
			return nil, err
		}
		unix.Close(fd)
	}

	got := map[string]string{}
	try := func(what string, err error) {
		got[what] = "ok"
		var errno syscall.Errno
		if errors.As(err, &errno) {
			got[what] = unix.ErrnoName(errno)
		} else if err != nil {
			got[what] = err.Error()
		}
	}
	open := func(at int, path string, flags int) error {
		fd, err := unix.Openat(at, path, flags|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0o600)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	const here = unix.AT_FDCWD
	root := "/proc/self/root" + dir

	// Reading and executing everywhere.
	try("read outside", open(here, "out/f", unix.O_RDONLY))
	_, err = os.ReadDir("out")
	try("list outside", err)
	err = exec.Command("./script").Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 3 {
		err = nil
	}
	try("execute outside", err)

	// Writing outside.
	try("write outside", open(here, "out/f", unix.O_WRONLY))
	try("append outside", open(here, "out/f", unix.O_RDWR|unix.O_APPEND))
	try("truncate outside by opening", open(here, "out/truncate", unix.O_RDONLY|unix.O_TRUNC))
	try("truncate outside", unix.Truncate("out/truncate", 0))
	try("create outside", open(here, "out/new", unix.O_WRONLY|unix.O_CREAT))
	try("unnamed file outside", open(here, "out", unix.O_WRONLY|unix.O_TMPFILE))
	try("mkdir outside", unix.Mkdir("out/d", 0o755))
	try("symlink outside", unix.Symlink("f", "out/s"))
	try("pipe outside", unix.Mkfifo("out/p", 0o600))
	try("remove outside", unix.Unlink("out/sub/f"))
	try("rmdir outside", unix.Rmdir("out/sub"))
	try("rename outside", unix.Rename("out/f", "out/g"))
	try("write next to it", open(here, "new", unix.O_WRONLY|unix.O_CREAT))
	try("rename the writable directory", unix.Rename("in2", "in3"))

	// The same by other ways (B11).
	try("write by /proc/self/root", open(here, root+"/out/f", unix.O_WRONLY))
	try("write by /proc/self/cwd", open(here, "/proc/self/cwd/out/f", unix.O_WRONLY))
	try("write by ..", open(here, "in/sub/../../out/f", unix.O_WRONLY))
	try("write by a symlink", open(here, "in/symlink", unix.O_WRONLY))
	try("write by a descriptor's path", open(here, fmt.Sprintf("/proc/self/fd/%d/f", outside), unix.O_WRONLY))
	try("write by reopening a descriptor", open(here, fmt.Sprintf("/proc/self/fd/%d", readable), unix.O_WRONLY))
	try("write by a descriptor", open(outside, "f", unix.O_WRONLY))
	try("create by a descriptor", open(outside, "new", unix.O_WRONLY|unix.O_CREAT))
	try("write from a chdir", func() error {
		if err := unix.Fchdir(outside); err != nil {
			return err
		}
		defer unix.Chdir(dir)
		return open(here, "f", unix.O_WRONLY)
	}())
	try("link from outside", unix.Link("out/f", "in/hard"))
	try("link from outside by descriptor", unix.Linkat(here, fmt.Sprintf("/proc/self/fd/%d", readable), here, "in/hard", unix.AT_SYMLINK_FOLLOW))
	try("link to outside", unix.Link("in/f", "out/hard"))
	try("rename from outside", unix.Rename("out/move", "in/move"))
	try("rename directory from outside", unix.Rename("out/sub", "in/outsub"))
	try("rename to outside", unix.Rename("in/f", "out/moved"))
	try("rename over a file outside", unix.Rename("in/replace", "out/replace"))
	try("exchange with outside", unix.Renameat2(here, "in/exchange", here, "out/exchange", unix.RENAME_EXCHANGE))
	try("write outside where a link is inside", open(here, "out/linked", unix.O_WRONLY))
	try("mapping shared for writing", func() error {
		_, err := unix.Mmap(readable, 0, 1, unix.PROT_WRITE, unix.MAP_SHARED)
		return err
	}())

	// Writing inside.
	try("write inside", open(here, "in/f", unix.O_WRONLY|unix.O_TRUNC))
	try("write inside by /proc/self/root", open(here, root+"/in/f", unix.O_WRONLY))
	try("write a file by rule", open(here, "file", unix.O_WRONLY|unix.O_TRUNC))
	try("remove a file by rule", unix.Unlink("file"))
	try("create inside", open(here, "in/new", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL))
	try("unnamed file inside", open(here, "in", unix.O_WRONLY|unix.O_TMPFILE))
	try("link inside", unix.Link("in/new", "in/sub/new2"))
	try("rename inside", unix.Rename("in/new", "in/other/new"))
	try("rename directory inside", unix.Rename("in/other", "in/sub/other"))
	try("rename between writable directories", unix.Rename("in2/f", "in/f2"))
	try("mkdir inside", unix.Mkdir("in/d", 0o755))
	try("rmdir inside", unix.Rmdir("in/d"))
	try("symlink inside", unix.Symlink("f", "in/s"))
	try("pipe inside", unix.Mkfifo("in/p", 0o600))
	try("remove inside", unix.Unlink("in/s"))

	// Devices, and what has no path.
	try("/dev/null", open(here, "/dev/null", unix.O_WRONLY|unix.O_TRUNC))
	try("terminal", func() error {
		ptmx, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(ptmx)
		if err := unix.IoctlSetPointerInt(ptmx, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		n, err := unix.IoctlGetInt(ptmx, unix.TIOCGPTN)
		if err != nil {
			return err
		}
		return open(here, fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR)
	}())
	try("pipe by path", func() error {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		return open(here, fmt.Sprintf("/proc/self/fd/%d", p[1]), unix.O_WRONLY)
	}())
	try("memory file by path", func() error {
		fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		return open(here, fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_TRUNC)
	}())

	if mounts {
		try("device inside", unix.Mknod("in/device", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
		try("mount", unix.Mount("out", "in/sub", "", unix.MS_BIND, ""))
		try("remount", unix.Mount("", "out/bound", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
		try("write outside by a bind mount", open(here, "out/bound/f", unix.O_WRONLY))
		try("write in the writable directory by a bind mount", open(here, "bound/f2", unix.O_WRONLY|unix.O_CREAT))
		try("write in a part of it by a bind mount", open(here, "boundsub/f", unix.O_WRONLY))
		try("write in what is mounted inside", open(here, "in/bound/f", unix.O_WRONLY))
	}

	// A child inherits it, and can't take it off by a ruleset of its own.
	if how != "not" {
		free, err := newRuleset([]string{"/"})
		if err != nil {
			return nil, err
		}
		try("restrict again", restrictSelf(free))
		try("write outside after restricting again", open(here, "out/f", unix.O_WRONLY))
	}
	out, err := exec.Command("sh", "-c", "echo x >in/child && (echo x >out/f) 2>/dev/null; echo $?").Output()
	if err != nil {
		return nil, err
	}
	got["write outside by a child"] = string(bytes.TrimSpace(out))
	return got, nil
}

func run(t *testing.T, how string, mounts bool) map[string]string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, world(t), map[bool]string{true: "mounts", false: "none"}[mounts])
	cmd.Env = append(os.Environ(), childEnv+"="+how)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	var got map[string]string
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	return got
}

func needLandlock(t *testing.T) (abi int) {
	t.Helper()
	abi, err := Probe()
	if err != nil {
		if !errors.Is(err, sandpit.ErrUnsupported) || sandpit.Hint(err) == "" {
			t.Errorf("error without kind or hint: %v", err)
		}
		testkit.Need(t, "a kernel with Landlock", err)
	}
	return abi
}

// canMount says whether this process has CAP_SYS_ADMIN, number 21.
func canMount(t *testing.T) bool {
	t.Helper()
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		t.Fatal(err)
	}
	return d[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

func TestRuleset(t *testing.T) {
	abi := needLandlock(t)
	mounts := canMount(t)
	t.Logf("version %d; with mounts: %v", abi, mounts)

	want := map[string]string{
		"read outside": "ok", "list outside": "ok", "execute outside": "ok",

		"write outside": "EACCES", "append outside": "EACCES", "create outside": "EACCES",
		"truncate outside by opening": "EACCES", "truncate outside": "EACCES", "unnamed file outside": "EACCES",
		"mkdir outside": "EACCES", "symlink outside": "EACCES", "pipe outside": "EACCES",
		"remove outside": "EACCES", "rmdir outside": "EACCES", "rename outside": "EACCES",
		"write next to it": "EACCES", "rename the writable directory": "EACCES",

		"write by /proc/self/root": "EACCES", "write by /proc/self/cwd": "EACCES", "write by ..": "EACCES",
		"write by a symlink": "EACCES", "write by a descriptor's path": "EACCES", "write by reopening a descriptor": "EACCES",
		"write by a descriptor": "EACCES", "create by a descriptor": "EACCES", "write from a chdir": "EACCES",
		"link from outside": "EXDEV", "link from outside by descriptor": "EXDEV", "link to outside": "EACCES",
		"rename from outside": "EACCES", "rename directory from outside": "EACCES", "rename to outside": "EACCES",
		"rename over a file outside": "EACCES", "exchange with outside": "EACCES",
		"write outside where a link is inside": "EACCES", "mapping shared for writing": "EACCES",

		"write inside": "ok", "write inside by /proc/self/root": "ok", "write a file by rule": "ok", "remove a file by rule": "EACCES",
		"create inside": "ok", "unnamed file inside": "ok", "link inside": "ok", "rename inside": "ok",
		"rename directory inside": "ok", "rename between writable directories": "ok", "mkdir inside": "ok", "rmdir inside": "ok",
		"symlink inside": "ok", "pipe inside": "ok", "remove inside": "ok",

		"/dev/null": "ok", "terminal": "ok", "pipe by path": "ok", "memory file by path": "ok",

		"restrict again": "ok", "write outside after restricting again": "EACCES", "write outside by a child": "2",
	}
	if abi < 3 { // no say in truncating
		want["truncate outside"] = "ok"
		want["truncate outside by opening"] = "ok"
	}
	if mounts {
		want["device inside"] = "EACCES"
		want["mount"], want["remount"] = "EPERM", "EPERM"
		want["write outside by a bind mount"] = "EACCES"
		want["write in the writable directory by a bind mount"] = "ok"
		want["write in a part of it by a bind mount"] = "EACCES"
		want["write in what is mounted inside"] = "ok"
	}
	t.Run("restricted", func(t *testing.T) {
		if diff := cmp.Diff(want, run(t, "restricted", mounts)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	// Without it nothing of this is refused but the mapping, which is of a
	// descriptor for reading: else the test would prove nothing.
	t.Run("not", func(t *testing.T) {
		for what, got := range run(t, "not", mounts) {
			if want[what] == "EACCES" && got == "EACCES" && what != "mapping shared for writing" {
				t.Errorf("%s is refused without Landlock, too", what)
			}
		}
	})
}
