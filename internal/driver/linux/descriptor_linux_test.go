package linux_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/landlock"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// probePassOn is probePassDir, and stays until the sandbox ends.
func probePassOn(args []string) map[string]string {
	probePassDir(args)
	select {}
}

// probeTakeOver takes a descriptor of a directory that probePassOn passes, says so by a
// file beside the socket, and tries to change what is at a path below that directory.
// It does so again when its standard input has ended, and then connects to the sockets
// that the other arguments name.
func probeTakeOver(args []string) map[string]string {
	socket, name := args[0], args[1]
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	must(err)
	defer c.Close()
	fds := received(c)
	dir := fds[0]

	own, err := os.MkdirTemp(filepath.Dir(socket), "own")
	must(err)
	got := map[string]string{}
	try := func(when string) {
		note := func(what string, err error) { got[when+": "+what] = errName(err) }
		open := func(name string, flags int) error {
			fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0o666)
			if err == nil {
				_ = unix.Close(fd)
			}
			return err
		}
		by := fmt.Sprintf("/proc/self/fd/%d/", dir)
		mine := filepath.Join(own, when)
		must(os.WriteFile(mine, nil, 0o666))
		for at := name; at != "."; at = filepath.Dir(at) {
			note("exchange "+at, unix.Renameat2(dir, at, dir, "other", unix.RENAME_EXCHANGE))
			note("exchange by path "+at, unix.Renameat2(unix.AT_FDCWD, by+at, unix.AT_FDCWD, by+"other", unix.RENAME_EXCHANGE))
			note("rename "+at, unix.Renameat(dir, at, dir, "moved"))
			note("remove "+at, unix.Unlinkat(dir, at, unix.AT_REMOVEDIR))
			note("take "+at, unix.Renameat(dir, at, unix.AT_FDCWD, filepath.Join(own, "taken")))
		}
		note("write", open(name+"/file", unix.O_WRONLY))
		note("read", open(name+"/file", unix.O_RDONLY))
		note("list", open(name, unix.O_RDONLY|unix.O_DIRECTORY))
		note("truncate", unix.Truncate(by+name+"/file", 0))
		note("create", open(name+"/new", unix.O_WRONLY|unix.O_CREAT))
		note("create above", open("new", unix.O_WRONLY|unix.O_CREAT))
		note("unnamed file", open(name, unix.O_WRONLY|unix.O_TMPFILE))
		note("mkdir", unix.Mkdirat(dir, "d", 0o777))
		note("symlink", unix.Symlinkat("x", dir, "l"))
		note("socket", func() error {
			s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			must(err)
			defer unix.Close(s)
			return unix.Bind(s, &unix.SockaddrUnix{Name: by + "s"})
		}())
		note("unlink", unix.Unlinkat(dir, name+"/file", 0))
		for _, at := range []string{name, name + "/file"} {
			note("chmod "+at, unix.Fchmodat(dir, at, 0o700, 0))
			note("own "+at, unix.Fchownat(dir, at, os.Getuid(), os.Getgid(), 0))
			note("touch "+at, unix.UtimesNanoAt(dir, at, []unix.Timespec{{}, {}}, 0))
			note("attribute of "+at, unix.Setxattr(by+at, "user.x", []byte("x"), 0))
		}
		note("link into", unix.Linkat(unix.AT_FDCWD, mine, dir, "hard", 0))
		note("move into", unix.Renameat(unix.AT_FDCWD, mine, dir, "mine"))
	}
	try("while it runs")
	must(os.WriteFile(socket+".taken", nil, 0o666))
	_, err = io.Copy(io.Discard, os.Stdin)
	must(err)
	try("after its end")
	for _, name := range args[2:] {
		got["found "+name] = errName(fs.ErrNotExist)
		if conn, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir, name)); err == nil {
			text, err := io.ReadAll(conn)
			got["found "+name] = string(text) + errName(err)
		}
	}
	return got
}

// takeOver has one sandbox pass a descriptor of a directory to another, and returns what
// that could do with it, while the first one runs and after it was removed.
func takeOver(t *testing.T, c sandpit.Client, passer, taker sandpit.Spec, dir, name string, sockets ...string) map[string]string {
	t.Helper()
	shared, err := os.MkdirTemp("/tmp", "sp") // a short path: a socket's holds 108 bytes
	if err == nil {
		err = os.Chmod(shared, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(shared) })
	meet := sandpit.Mount{Source: shared, Target: "/s"}
	for _, spec := range []*sandpit.Spec{&passer, &taker} {
		spec.Mounts = append(slices.Clone(spec.Mounts), meet)
		if spec.Write != nil {
			spec.Write = append(slices.Clone(spec.Write), meet.Target)
		}
	}
	a := box(t, c, passer)
	if _, err := a.Start(t.Context(), sandpit.Command{Argv: []string{"/probe", "probe:passon", dir, "/s/s"}, Background: true}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the passer listens", func() bool { _, err := os.Lstat(shared + "/s"); return err == nil })
	b := box(t, c, taker)
	var stdout, stderr bytes.Buffer
	p, err := b.Start(t.Context(), sandpit.Command{Argv: append([]string{"/probe", "probe:takeover", "/s/s", name}, sockets...), Stdin: true, Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the descriptor is taken", func() bool { _, err := os.Lstat(shared + "/s.taken"); return err == nil })
	if err := errors.Join(a.Remove(t.Context()), p.Stdin().Close()); err != nil {
		t.Fatal(err)
	}
	res, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil || !res.Success() {
		t.Fatalf("the probe ended with %+v, %v: %s", res, err, stderr.Bytes())
	}
	return got
}

// protectedTree makes a directory of the host with others in it, the innermost of
// which has a file.
func protectedTree(t *testing.T, name string) (dir string) {
	t.Helper()
	dir = hostDir(t)
	for _, d := range []string{"other", name} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, name, "file"), []byte("content"), 0o666); err != nil {
		t.Fatal(err)
	}
	for at := name; at != "."; at = filepath.Dir(at) {
		if err := os.Chmod(filepath.Join(dir, at), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(filepath.Join(dir, name, "file"), 0o666), os.Chmod(filepath.Join(dir, "other"), 0o777)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// contents lists the files below a directory of the host with what is in them.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			all[name] = d.Type().String()
			return err
		}
		text, err := os.ReadFile(name)
		all[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func needDomain(t *testing.T) {
	t.Helper()
	if _, err := landlock.Probe(); err != nil {
		testkit.Need(t, "a kernel with Landlock", err)
	}
}

// changed returns when something below a directory of the host was last changed, with
// its name: its contents, or what the kernel knows about it.
func changed(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	times := map[string]int64{}
	for name := range contents(t, dir) {
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			t.Fatal(err)
		}
		times[name] = st.Ctim.Nano()
	}
	return times
}

// Two sandboxes can't do together what one can't: change what is mounted for reading
// only inside a writable mount.
func TestAttackL1oReadOnlyInsideWritable(t *testing.T) {
	needDomain(t)
	asEachMade(t, func(t *testing.T, c sandpit.Client, user string) {
		const inner = "a/.git"
		dir := protectedTree(t, inner)
		mounts := []sandpit.Mount{{Source: filepath.Join(dir, inner), Target: "/w/" + inner, ReadOnly: true}, {Source: dir, Target: "/w"}}
		plain, mounting := sandpit.Spec{User: user}, sandpit.Spec{User: user, Mounts: mounts}
		writing := sandpit.Spec{User: user, Mounts: mounts, Write: []string{"/w"}}
		for how, specs := range map[string][2]sandpit.Spec{
			"to one without mounts":  {mounting, plain},
			"to one like it":         {mounting, mounting},
			"with write paths":       {writing, writing},
			"to one without, paths":  {writing, plain},
			"to one with only paths": {mounting, {User: user, Write: []string{}}},
		} {
			before, untouched := contents(t, dir), changed(t, filepath.Join(dir, inner))
			got := takeOver(t, c, specs[0], specs[1], "/w", inner)
			for what, err := range got {
				if !strings.HasPrefix(what, "found ") && !slices.Contains([]string{"EACCES", "EXDEV", "EROFS", "EPERM", "EOVERFLOW"}, err) {
					t.Errorf("%s: %s: %q", how, what, err)
				}
			}
			if diff := cmp.Diff(before, contents(t, dir)); diff != "" {
				t.Fatalf("ESCAPE: %s: the host's directory has changed (-before +after):\n%s", how, diff)
			}
			if diff := cmp.Diff(untouched, changed(t, filepath.Join(dir, inner))); diff != "" {
				t.Errorf("ESCAPE: %s: what the host knows about the directory has changed (-before +after):\n%s", how, diff)
			}
		}
	})
}

// Through a passed descriptor of /proc nothing can be opened, also when the masks in it
// have gone with the sandbox that passed it.
func TestAttackL1rMasksAfterTheEnd(t *testing.T) {
	needDomain(t)
	asEachMade(t, func(t *testing.T, c sandpit.Client, user string) {
		for _, write := range [][]string{nil, {}} {
			spec := sandpit.Spec{User: user, Write: write}
			got := takeOver(t, c, spec, spec, "/proc", "irq")
			for _, what := range []string{"while it runs: list", "after its end: list"} {
				if got[what] != "EACCES" {
					t.Errorf("with write paths %v: %s: %q", write != nil, what, got[what])
				}
			}
		}
	})
}

// A sandbox can't move a read-only mount away with the directories above it, in the
// order in which mounts are given or another, and goes on in the directories beside it.
func TestAttackL1pMovingWhatIsAbove(t *testing.T) {
	needDomain(t)
	asEachMade(t, func(t *testing.T, c sandpit.Client, user string) {
		const inner = "a/b/.git"
		dir := protectedTree(t, inner)
		if err := os.WriteFile(filepath.Join(dir, "a/file"), []byte("of the host"), 0o666); err != nil {
			t.Fatal(err)
		}
		before := contents(t, dir)
		sb := box(t, c, sandpit.Spec{User: user, Mounts: []sandpit.Mount{
			{Source: filepath.Join(dir, inner), Target: "/w/" + inner, ReadOnly: true},
			{Source: filepath.Join(dir, inner, "file"), Target: "/w/a/file", ReadOnly: true},
			{Source: dir, Target: "/w"},
		}})
		got := tryOut(t, sb, sandpit.Command{}, "move", "/w/other", "/w/"+inner, "/w/a/file")
		maps.DeleteFunc(got, func(what, _ string) bool { return what == "make in /w/a/file" || what == "remove /w/a/file" })
		refused(t, got, "EBUSY", "EROFS", "EXDEV")
		if out := sh(t, sb, "cat /w/a/file && mkdir /w/other/x && mv /w/other/x /w/a/x && mv /w/a/x /w/a/b/ && rmdir /w/a/b/x"); out.ExitCode != 0 || string(out.Stdout) != "content" {
			t.Errorf("work beside it: %+v: %s%s", out.Result, out.Stdout, out.Stderr)
		}
		after := contents(t, dir)
		delete(after, filepath.Join(dir, "other/other")) // with which others were to be exchanged
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("ESCAPE: the host's directory has changed (-before +after):\n%s", diff)
		}
	})
}

// A writable mount between the two leaves nothing that can be moved either, and the way to
// the mounts may lead through directories that nobody else may enter.
func TestAttackL1pMovingAMountBetween(t *testing.T) {
	needDomain(t)
	asEachMade(t, func(t *testing.T, c sandpit.Client, user string) {
		dir := protectedTree(t, "src/w/.git")
		mounts := func(at string) []sandpit.Mount {
			return []sandpit.Mount{
				{Source: dir, Target: at},
				{Source: filepath.Join(dir, "src/w"), Target: at + "/src/w"},
				{Source: filepath.Join(dir, "src/w/.git"), Target: at + "/src/w/.git", ReadOnly: true},
			}
		}
		before := contents(t, filepath.Join(dir, "src/w/.git"))
		sb := box(t, c, sandpit.Spec{User: user, Mounts: slices.Concat(mounts("/one"), mounts("/two"))})
		for _, at := range []string{"/one", "/two"} {
			for _, of := range []string{"/src", "/src/w", "/src/w/.git"} {
				if out := sh(t, sb, "mv "+at+of+" "+at+"/moved"); out.ExitCode == 0 {
					t.Errorf("ESCAPE: %s was moved", at+of)
				}
			}
			if out := sh(t, sb, "touch "+at+"/src/w/file"); out.ExitCode != 0 {
				t.Errorf("work beside it: %+v: %s", out.Result, out.Stderr)
			}
		}
		if diff := cmp.Diff(before, contents(t, filepath.Join(dir, "src/w/.git"))); diff != "" {
			t.Errorf("ESCAPE: the host's directory has changed (-before +after):\n%s", diff)
		}
	})
}

// Mounts in which others stay are found also where the way to them leads through a
// directory that is closed to all but its owner.
func TestMountsBelowAClosedDirectoryAreLocked(t *testing.T) {
	needDomain(t)
	asEachMade(t, func(t *testing.T, c sandpit.Client, user string) {
		dir := protectedTree(t, "w/.git")
		if os.Geteuid() == 0 {
			if err := os.Chown(dir, 1234, 1234); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		sb := box(t, c, sandpit.Spec{User: user, Mounts: []sandpit.Mount{
			{Source: dir, Target: "/a", ReadOnly: true},
			{Source: filepath.Join(dir, "w"), Target: "/a/w"},
			{Source: filepath.Join(dir, "w/.git"), Target: "/a/w/.git", ReadOnly: true},
		}})
		if out := sh(t, sb, "true"); out.ExitCode != 0 {
			t.Errorf("it ended with %+v", out.Result)
		}
	})
}

// probeWork does what programs do, and returns the error of each.
func probeWork(args []string) map[string]string {
	got := map[string]string{}
	note := func(what string, err error) { got[what] = errName(err) }
	reopen := func(fd int, err error) error {
		if err != nil {
			return err
		}
		again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(unix.Close(again), unix.Close(fd))
		}
		return err
	}
	for _, dir := range args {
		in := func(name string) string { return filepath.Join(dir, name) }
		for _, d := range []string{"d", "e"} {
			note("mkdir "+d, os.Mkdir(in(d), 0o777))
		}
		note("write", os.WriteFile(in("d/f.new"), []byte("x"), 0o666))
		note("link", os.Link(in("d/f.new"), in("d/f.old")))
		note("rename over", os.Rename(in("d/f.new"), in("d/f.old")))
		note("rename to another directory", os.Rename(in("d/f.old"), in("e/f")))
		note("link to another directory", os.Link(in("e/f"), in("d/g")))
		note("rename a directory", os.Rename(in("d"), in("e/d")))
		note("exchange", func() error {
			must(os.Mkdir(in("h"), 0o777))
			return unix.Renameat2(unix.AT_FDCWD, in("h"), unix.AT_FDCWD, in("e"), unix.RENAME_EXCHANGE)
		}())
		note("truncate", os.Truncate(in("h/f"), 0))
		note("symlink", os.Symlink("f", in("h/l")))
		note("pipe", unix.Mkfifo(in("h/p"), 0o666))
		note("whiteout", unix.Mknod(in("h/w"), unix.S_IFCHR, 0))
		note("unnamed file", reopen(unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o666)))
		note("unlinked file", func() error {
			fd, err := unix.Open(in("h/f"), unix.O_RDWR|unix.O_CLOEXEC, 0)
			must(err)
			must(os.Remove(in("h/f")))
			return reopen(fd, nil)
		}())
		note("socket", func() error {
			l, err := net.Listen("unix", in("h/s"))
			if err != nil {
				return err
			}
			c, err := net.Dial("unix", in("h/s"))
			if err == nil {
				err = c.Close()
			}
			return errors.Join(err, l.Close())
		}())
		note("remove", os.RemoveAll(in("h")))
		note("rmdir", os.Remove(in("e")))
	}
	note("memory file", reopen(unix.MemfdCreate("x", unix.MFD_CLOEXEC)))
	var p [2]int
	must(unix.Pipe2(p[:], unix.O_CLOEXEC))
	note("pipe by path", reopen(p[1], nil))
	for _, d := range []string{"/dev/null", "/dev/zero", "/dev/ptmx", "/dev/stdout", "/dev/stderr"} {
		fd, err := unix.Open(d, unix.O_WRONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		note(d, err)
		_ = unix.Close(fd)
	}
	queue, err := unix.BytePtrFromString("q")
	must(err)
	for range 2 { // made, and opened
		fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(queue)), unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600, 0, 0, 0)
		note("message queue", errno)
		_ = unix.Close(int(fd))
	}
	note("own score", os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0))
	cmd := exec.Command("/probe", "probe:self")
	cmd.SysProcAttr = &unix.SysProcAttr{Ptrace: true}
	note("tracing a child", func() error {
		if err := cmd.Start(); err != nil {
			return err
		}
		_ = cmd.Wait() // it has stopped
		return errors.Join(unix.PtraceDetach(cmd.Process.Pid), cmd.Process.Kill())
	}())

	// What another command of the sandbox has started.
	others, err := filepath.Glob("/proc/[0-9]*/comm")
	must(err)
	for _, name := range others {
		if comm, err := os.ReadFile(name); err != nil || strings.TrimSpace(string(comm)) != "sleep" {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(name, "/")[2])
		must(err)
		_, err = os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		note("program of another", err)
		_, err = os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		note("environment of another", err)
		note("tracing another", unix.PtraceSeize(pid))
	}
	return got
}

// What is confined to its own root works as before.
func TestWorkInItsOwnRoot(t *testing.T) {
	needDomain(t)
	asEachMade(t, func(t *testing.T, c sandpit.Client, user string) {
		work := func(spec sandpit.Spec) map[string]string {
			spec.User = user
			sb := box(t, c, spec)
			if _, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"sleep", "1000"}, Background: true}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it sleeps", func() bool { return sh(t, sb, "grep -x sleep /proc/[0-9]*/comm").ExitCode == 0 })
			return tryOut(t, sb, sandpit.Command{}, "work", "/tmp", "/dev/shm")
		}
		dir := protectedTree(t, ".git")
		without := work(sandpit.Spec{})
		with := work(sandpit.Spec{Mounts: []sandpit.Mount{{Source: dir, Target: "/w"}, {Source: filepath.Join(dir, ".git"), Target: "/w/.git", ReadOnly: true}}})
		if diff := cmp.Diff(without, with); diff != "" {
			t.Errorf("(-without +with a mount):\n%s", diff)
		}
		for _, what := range []string{"program of another", "rename a directory", "memory file", "message queue"} {
			if err, ok := with[what]; !ok || err != "" {
				t.Errorf("%s: %q", what, err)
			}
		}
	})
}

// BenchmarkMount compares mounts that are confined to the sandbox's own root, and a
// read-only one inside a writable one, with a mount that is not.
func BenchmarkMount(b *testing.B) {
	dir := b.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a/.git"), 0o755); err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		b.Fatal(err)
	}
	for name, mounts := range map[string][]sandpit.Mount{
		"file":   {{Source: file, Target: "/w"}},
		"dir":    {{Source: dir, Target: "/w"}},
		"inside": {{Source: dir, Target: "/w"}, {Source: filepath.Join(dir, "a/.git"), Target: "/w/a/.git", ReadOnly: true}},
	} {
		b.Run(name, func(b *testing.B) {
			e := engine.New(engine.Options{Driver: newDriver(), Images: images(), Policy: policy.Default()})
			defer e.Close()
			for b.Loop() {
				sb, err := e.Create(b.Context(), sandpit.Spec{Mounts: mounts})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := sb.Remove(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
