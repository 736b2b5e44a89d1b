package linux_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// The attacks of the threat model, by their ids. Each plants a flag outside
// and shows that it can't be had or changed: by the flag, not by a message.

// box makes a sandbox that has the test binary as /probe.
func box(t *testing.T, c sandpit.Client, spec sandpit.Spec) sandpit.Sandbox {
	t.Helper()
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil {
		t.Fatal(err)
	}
	spec.Mounts = append(slices.Clone(spec.Mounts), sandpit.Mount{Source: exe, Target: "/probe", ReadOnly: true})
	sb, err := c.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("creating: %v (hint: %s)", err, sandpit.Hint(err))
	}
	t.Cleanup(func() { _ = sb.Remove(t.Context()) })
	return sb
}

// tryOut runs a probe.
func tryOut(t *testing.T, sb sandpit.Sandbox, cmd sandpit.Command, name string, args ...string) map[string]string {
	t.Helper()
	cmd.Argv = append([]string{"/probe", "probe:" + name}, args...)
	out, err := sandpit.Run(t.Context(), sb, cmd)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	if err := json.Unmarshal(out.Stdout, &got); err != nil || !out.Success() {
		t.Fatalf("the probe ended with %+v, %v: %s%s", out.Result, err, out.Stdout, out.Stderr)
	}
	return got
}

func sh(t *testing.T, sb sandpit.Sandbox, script string) sandpit.Output {
	t.Helper()
	out, err := sandpit.Shell(t.Context(), sb, script)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// refused checks that each act was refused with one of the errors.
func refused(t *testing.T, got map[string]string, errs ...string) {
	t.Helper()
	for what, is := range got {
		if !slices.Contains(errs, is) {
			t.Errorf("%s: the kernel says %q, want one of %q", what, is, errs)
		}
	}
}

// users are those as which attacks are tried.
var users = []string{"", "root"}

func asEach(t *testing.T, f func(t *testing.T, c sandpit.Client, user string)) {
	testkit.NeedWorkingHost(t)
	c := client(t, options())
	for _, user := range users {
		name := user
		if name == "" {
			name = "ordinary"
		}
		t.Run(name, func(t *testing.T) { f(t, c, user) })
	}
}

// flag is a file outside with random content.
type flag struct {
	path, text string
}

func plant(t *testing.T) flag {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f := flag{filepath.Join(dir, "flag"), "flag-" + rand.Text()}
	if err := os.WriteFile(f.path, []byte(f.text), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(f.path, 0o666); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		_ = os.Chmod(d, 0o777) // not the host's rights shall be what holds
	}
	return f
}

// safe checks that the flag is as it was, and not in the output.
func (f flag) safe(t *testing.T, out ...[]byte) {
	t.Helper()
	if data, err := os.ReadFile(f.path); err != nil || string(data) != f.text {
		t.Errorf("WRITE: the file outside now holds %q, %v", data, err)
	}
	for _, o := range out {
		if strings.Contains(string(o), f.text) {
			t.Errorf("READ: what is outside was read: %s", o)
		}
	}
}

func TestAttackA1OverwriteThePrograms(t *testing.T) {
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		self, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		sb := box(t, c, sandpit.Spec{User: user})
		refused(t, tryOut(t, sb, sandpit.Command{}, "exe"), "EACCES", "EPERM", "ETXTBSY", "EROFS", "ENOENT")
		// As the interpreter of a script.
		out := sh(t, sb, `for i in /proc/self/exe /proc/1/exe; do printf '#!%s\n' $i >/tmp/s; chmod +x /tmp/s; /tmp/s bootstrap; done; echo x >/proc/1/exe; echo x >/proc/$PPID/exe; :`)
		if !out.Success() {
			t.Errorf("got %+v", out.Result)
		}
		if now, err := os.ReadFile("/proc/self/exe"); err != nil || string(now) != string(self) {
			t.Error("WRITE: the program that is the guest, or the test, was changed")
		}
		_, _ = sandpit.Run(t.Context(), sb, sandpit.Command{Argv: []string{"/proc/self/exe", "stdio"}, Timeout: time.Second})
		if out := sh(t, sb, "echo alive"); string(out.Stdout) != "alive\n" {
			t.Errorf("CRASH: %+v", out.Result)
		}
	})
}

func TestAttackA2WorkingDirectories(t *testing.T) {
	f := plant(t)
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		sb := box(t, c, sandpit.Spec{User: user})
		var dirs []string
		for i := range 32 {
			dirs = append(dirs, fmt.Sprintf("/proc/self/fd/%d", i), fmt.Sprintf("/proc/1/fd/%d", i), fmt.Sprintf("/dev/fd/%d", i))
		}
		dirs = append(dirs, "/proc/1/cwd", "/proc/1/root", "/proc/self/cwd", "/proc/self/root", "/proc/thread-self/root", "../../../../..", "/..", "/proc/1/task/1/cwd")
		for _, dir := range dirs {
			out, err := sandpit.Run(t.Context(), sb, sandpit.Command{Script: "pwd; cat ." + f.path + " ../../../../../../.." + f.path + "; ls -a", Dir: dir})
			if err != nil {
				continue // refused
			}
			f.safe(t, out.Stdout)
		}
		f.safe(t)
	})
}

func TestAttackA4LinksInTheImage(t *testing.T) {
	testkit.NeedWorkingHost(t)
	if why, ok := skipped()["Mounts/a directory is an image"]; ok {
		testkit.Lacks(t, "a directory as an image: "+why)
	}
	c := client(t, options())
	for _, name := range []string{"dev", "proc", "sys", "tmp"} {
		for _, to := range []string{"outside", "/etc", ".", "dangling"} {
			t.Run(name+" to "+to, func(t *testing.T) {
				f := plant(t)
				root := filepath.Join(filepath.Dir(f.path), "image")
				if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
					t.Fatal(err)
				}
				if to == "outside" {
					to = filepath.Dir(f.path)
				}
				if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
					t.Fatal(err)
				}
				if name == "tmp" { // a directory of the sandbox's own covers it where the root can be written
					sb, err := c.Create(t.Context(), sandpit.Spec{Image: "dir:" + root})
					if err != nil {
						t.Fatal(err)
					}
					if info, err := sb.Files().Lstat(t.Context(), "/tmp"); err != nil || !info.Mode.IsDir() {
						t.Errorf("/tmp is %+v, %v", info, err)
					}
					if err := sandpit.WriteFile(t.Context(), sb, "/tmp/planted", []byte("x"), 0); err != nil {
						t.Error(err)
					}
					if err := sb.Remove(t.Context()); err != nil {
						t.Error(err)
					}
					f.safe(t)
				}
				sb, err := c.Create(t.Context(), sandpit.Spec{Image: "dir:" + root, ReadOnly: name == "tmp"})
				if err == nil {
					_ = sb.Remove(t.Context())
					t.Error("a sandbox was made of it")
				} else if !errors.Is(err, sandpit.ErrInvalid) {
					t.Errorf("the error is %v", err)
				}
				f.safe(t)
				for _, dir := range []string{filepath.Dir(f.path), filepath.Join(root, "etc")} {
					entries, _ := os.ReadDir(dir)
					if len(entries) > 2 {
						t.Errorf("WRITE: something was made outside: %v", entries)
					}
				}
			})
		}
	}
	// What is inside of those is covered, whatever it is.
	t.Run("below", func(t *testing.T) {
		f := plant(t)
		root := filepath.Join(filepath.Dir(f.path), "image")
		for _, d := range []string{"dev", "proc", "sys", "tmp", "etc"} {
			if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, l := range []string{"dev/null", "dev/pts", "dev/shm", "dev/console", "dev/ptmx", "proc/sys", "sys/fs", "etc/hosts", "etc/hostname", "etc/resolv.conf"} {
			if err := os.Symlink(f.path, filepath.Join(root, l)); err != nil {
				t.Fatal(err)
			}
		}
		sb, err := c.Create(t.Context(), sandpit.Spec{Image: "dir:" + root, User: "0:0"})
		if err != nil {
			t.Fatal(err)
		}
		defer sb.Remove(t.Context())
		if info, err := sb.Files().Lstat(t.Context(), "/dev/null"); err != nil || info.Mode&os.ModeCharDevice == 0 {
			t.Errorf("/dev/null is %v, %v", info.Mode, err)
		}
		if info, err := sb.Files().Lstat(t.Context(), "/etc/hosts"); err != nil || !info.Mode.IsRegular() {
			t.Errorf("/etc/hosts is %v, %v", info.Mode, err)
		}
		f.safe(t)
	})
}

func TestAttackA5A6B7KernelFiles(t *testing.T) {
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		pattern, _ := os.ReadFile("/proc/sys/kernel/core_pattern")
		got := tryOut(t, box(t, c, sandpit.Spec{User: user}), sandpit.Command{}, "kernel-files")
		for what, is := range got {
			// EINVAL: the write reached a file about the process itself, which says no.
			if is == "" && !strings.HasSuffix(what, "/self/loginuid") {
				t.Errorf("%s: it succeeds", what)
			}
		}
		if now, _ := os.ReadFile("/proc/sys/kernel/core_pattern"); string(now) != string(pattern) {
			t.Errorf("WRITE: core_pattern is now %q", now)
		}
	})
}

func TestAttackA7MountSources(t *testing.T) {
	testkit.NeedWorkingHost(t)
	f := plant(t)
	c := client(t, options())
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	real, link, swap := filepath.Join(dir, "real"), filepath.Join(dir, "link"), filepath.Join(dir, "swap")
	if err := os.MkdirAll(filepath.Join(real, "src"), 0o755); err != nil {
		t.Fatal(err)
	}
	// A directory of the flag's that looks like the source.
	if err := os.MkdirAll(filepath.Join(filepath.Dir(f.path), "src"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(f.path), "src", "flag"), []byte(f.text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(f.path), link); err != nil {
		t.Fatal(err)
	}
	if sb, err := c.Create(t.Context(), sandpit.Spec{Mounts: []sandpit.Mount{{Source: filepath.Join(link, "src"), Target: "/m"}}}); err == nil {
		_ = sb.Remove(t.Context())
		t.Error("a source below a link is mounted")
	}
	// One that is a directory when it is looked at, and a link when it is mounted.
	if err := os.Rename(real, swap); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, swap, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	mounted := 0
	for range 40 {
		sb, err := c.Create(t.Context(), sandpit.Spec{Mounts: []sandpit.Mount{{Source: filepath.Join(swap, "src"), Target: "/m"}}})
		if err != nil {
			continue
		}
		mounted++
		f.safe(t, sh(t, sb, "cat /m/flag").Stdout)
		_ = sb.Remove(t.Context())
	}
	close(stop)
	<-done
	t.Logf("%d of 40 were mounted", mounted)
	f.safe(t)
}

func TestAttackA9LinksUnderFileCalls(t *testing.T) {
	f := plant(t)
	testkit.NeedWorkingHost(t)
	c := client(t, options())
	sb := box(t, c, sandpit.Spec{User: "root"})
	out := sh(t, sb, `mkdir -p /tmp/a/b "$(dirname `+f.path+`)"; ln -s / /tmp/l; (while :; do mv -T /tmp/a /tmp/c; ln -sfn /proc/1/root /tmp/a; rm /tmp/a; mv -T /tmp/c /tmp/a; done) >/dev/null 2>&1 & echo`)
	if !out.Success() {
		t.Fatalf("%+v", out)
	}
	files := sb.Files()
	for range 200 {
		for _, path := range []string{"/tmp/a" + f.path, "/tmp/l" + f.path, "/proc/1/root" + f.path, "/tmp/a/../../../../../.." + f.path} {
			if r, err := files.Open(t.Context(), path, 0, -1); err == nil {
				var b [256]byte
				n, _ := r.Read(b[:])
				r.Close()
				f.safe(t, b[:n])
			}
			_, _ = files.Write(t.Context(), path, strings.NewReader("OWNED"), sandpit.WriteOptions{})
		}
	}
	f.safe(t)
}

func TestAttackA10AbstractSockets(t *testing.T) {
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		name := "sandpit-test-" + rand.Text()
		l, err := net.Listen("unix", "@"+name)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		refused(t, tryOut(t, box(t, c, sandpit.Spec{User: user}), sandpit.Command{}, "abstract", name), "ECONNREFUSED")
		// An address of its own: others on this machine may try a port of 127.0.0.1.
		tcp, err := net.Listen("tcp", "127.86.86.86:0")
		if err != nil {
			t.Fatal(err)
		}
		defer tcp.Close()
		go func() {
			for {
				conn, err := tcp.Accept()
				if err != nil {
					return
				}
				t.Error("ESCAPE: a connection came from inside")
				conn.Close()
			}
		}()
		_, port, _ := net.SplitHostPort(tcp.Addr().String())
		out := sh(t, box(t, c, sandpit.Spec{User: user}), "bash -c 'exec 3<>/dev/tcp/127.86.86.86/"+port+"' && echo CONNECTED")
		if strings.Contains(string(out.Stdout), "CONNECTED") {
			t.Error("ESCAPE: the host's loopback is reached")
		}
	})
}

func TestAttackA11G1OtherProcesses(t *testing.T) {
	secret := "secret-" + rand.Text()
	t.Setenv("SANDPIT_TEST_SECRET", secret)
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		sb := box(t, c, sandpit.Spec{User: user})
		for what, is := range tryOut(t, sb, sandpit.Command{}, "processes") {
			switch {
			case strings.HasSuffix(what, " root/.."), strings.HasSuffix(what, " root"), strings.HasSuffix(what, " cwd"):
				continue // the same root, which is its own parent
			case user == "root" && (strings.HasSuffix(what, "fd") || strings.HasSuffix(what, " oom_score_adj")):
				continue // numbers of descriptors; and it may break its own sandbox, but no more
			case is == "" || is == "empty":
				t.Errorf("%s: it succeeds", what)
			}
		}
		out := sh(t, sb, `cat /proc/*/environ /proc/*/cmdline /proc/*/task/*/environ 2>/dev/null | tr '\0' '\n'; env; :`)
		if strings.Contains(string(out.Stdout), secret) {
			t.Error("READ: the owner's environment is seen")
		}
		args := sh(t, sb, `tr '\0' ' ' </proc/1/cmdline`)
		if got := strings.TrimSpace(string(args.Stdout)); got != "sandpit-guest bootstrap" && got != "" {
			t.Errorf("the first process's arguments are %q", got)
		}
	})
}

func TestAttackB1SocketFamilies(t *testing.T) {
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		got := tryOut(t, box(t, c, sandpit.Spec{User: user}), sandpit.Command{}, "sockets")
		for _, family := range []string{"UNIX", "INET", "INET6", "NETLINK"} {
			if got[family] != "" && got[family] != "EAFNOSUPPORT" {
				t.Errorf("%s: %s", family, got[family])
			}
			for _, form := range []string{"", " pair", " high bits"} {
				delete(got, family+form)
			}
		}
		refused(t, got, "EAFNOSUPPORT", "EPERM", "EACCES", "EINVAL", "ESOCKTNOSUPPORT", "EPROTONOSUPPORT")
	})
}

func TestAttackB2ForeignCalls(t *testing.T) {
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		sb := box(t, c, sandpit.Spec{User: user})
		out, err := sandpit.Run(t.Context(), sb, sandpit.Command{Argv: []string{"/probe", "probe:int80"}})
		if err != nil {
			t.Fatal(err)
		}
		// Killed by the filter, or by a kernel that has no such calls.
		if strings.Contains(string(out.Stdout), `"int80":""`) {
			t.Errorf("ESCAPE: a 32-bit call came back: %+v", out.Result)
		}
	})
}

// allowedCalls are those of the probe that may succeed, by user.
var allowedCalls = map[string]bool{"setgid root as root": true, "setuid root as root": true, "setgroups as root": true, "ptrace traceme as ": true, "ptrace traceme as root": true, "ioprio as ": true, "ioprio as root": true}

func TestAttackB3B10Calls(t *testing.T) {
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		sb := box(t, c, sandpit.Spec{User: user})
		for what, is := range tryOut(t, sb, sandpit.Command{}, "calls") {
			if is == "" && !allowedCalls[what+" as "+user] {
				t.Errorf("%s: it succeeds", what)
			}
			if what == "clone3" && is != "ENOSYS" {
				t.Errorf("clone3: %s, and not ENOSYS, on which programs fall back to clone", is)
			}
			if strings.HasPrefix(what, "unshare") && is != "EPERM" && is != "" {
				t.Errorf("%s: %s", what, is)
			}
		}
	})
}

func TestAttackB4TerminalInjection(t *testing.T) {
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		cmd := sandpit.Command{Terminal: &sandpit.TerminalSize{Rows: 24, Cols: 80}}
		got := tryOut(t, box(t, c, sandpit.Spec{User: user}), cmd, "terminal")
		if got["TCGETS"] != "" {
			t.Errorf("a terminal can't be asked: %s", got["TCGETS"])
		}
		delete(got, "TCGETS")
		if is := got["TIOCSETD"]; is == "" {
			t.Error("a line discipline can be loaded")
		}
		delete(got, "TIOCSETD")
		refused(t, got, "EPERM", "EACCES", "ENOTTY", "EIO")
		for what, is := range got {
			if strings.HasPrefix(what, "TIOCSTI") && is != "EPERM" {
				t.Errorf("%s: %s", what, is)
			}
		}
	})
}

func TestAttackB5FilterStays(t *testing.T) {
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		sb := box(t, c, sandpit.Spec{User: user})
		got := tryOut(t, sb, sandpit.Command{}, "self")
		if got["Seccomp"] != "2" || got["NoNewPrivs"] != "1" {
			t.Errorf("in a new thread Seccomp is %s, NoNewPrivs %s", got["Seccomp"], got["NoNewPrivs"])
		}
	})
}

func TestAttackB8Devices(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		sb := box(t, c, sandpit.Spec{User: user, Mounts: []sandpit.Mount{{Source: dir, Target: "/rw"}}})
		for what, is := range tryOut(t, sb, sandpit.Command{}, "devices") {
			if is == "" {
				t.Errorf("%s: it succeeds", what)
			}
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("WRITE: the host's directory has %v, %v", entries, err)
		}
	})
}

func TestAttackB9WhatIsSeen(t *testing.T) {
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		sb := box(t, c, sandpit.Spec{User: user})
		out := sh(t, sb, `ls -d /proc/[0-9]* | wc -l; dmesg 2>&1 | head -3; ls /dev /home /root /mnt /media /srv /boot /var/lib 2>/dev/null`)
		if n, _, _ := strings.Cut(string(out.Stdout), "\n"); len(n) > 2 || n > "20" && len(n) == 2 {
			t.Errorf("%s processes are seen", n)
		}
		// The host's own secrets, by the paths at which they would be.
		for _, path := range []string{"/etc/shadow", "/etc/gshadow", "/etc/ssh/ssh_host_ed25519_key", "/etc/sudoers", "/root/.ssh", "/root/.bash_history", "/var/run/docker.sock", "/run/docker.sock", "/run/systemd", "/var/log/syslog", "/etc/machine-id", "/etc/subuid", home} {
			host, herr := os.ReadFile(path)
			_, err := sb.Files().Stat(t.Context(), path)
			if err != nil {
				continue
			}
			r, err := sb.Files().Open(t.Context(), path, 0, -1)
			if err != nil {
				continue
			}
			var b [64]byte
			n, _ := r.Read(b[:])
			r.Close()
			if herr == nil && n > 0 && strings.HasPrefix(string(host), string(b[:n])) {
				t.Errorf("READ: %s is the host's", path)
			}
		}
	})
}

func TestAttackC1ForkBombRemove(t *testing.T) {
	testkit.NeedWorkingHost(t)
	if !newDriver().Probe(t.Context()).Features[feature.Pids] {
		testkit.Lacks(t, "a limit of processes")
	}
	c := client(t, options())
	sb, err := c.Create(t.Context(), sandpit.Spec{Limits: sandpit.Limits{Pids: 500}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(t.Context(), sandpit.Command{Script: "f() { f | f & }; f; while :; do f; done"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is many processes", func() bool { m, err := sb.Metrics(t.Context()); return err == nil && m.Pids >= 400 })
	began := time.Now()
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("removed in %v", time.Since(began))
	// A neighbour is not held up.
	other, err := c.Create(t.Context(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if out := sh(t, other, "echo alive"); string(out.Stdout) != "alive\n" {
		t.Errorf("got %+v", out.Result)
	}
}

// A fork bomb ends at its timeout, and the guest has the time to end it: it does not wait behind the bomb for a processor.
func TestAttackC1ForkBombTimeout(t *testing.T) {
	testkit.NeedWorkingHost(t)
	if !newDriver().Probe(t.Context()).Features[feature.Pids] {
		testkit.Lacks(t, "a limit of processes")
	}
	testkit.NeedProgram(t, "perl") // and so in the host image
	sb, err := client(t, options()).Create(t.Context(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := sandpit.Run(t.Context(), sb, sandpit.Command{Argv: []string{"perl", "-e", "fork while 1"}, Timeout: 2 * time.Second})
	if err != nil || !out.Result.TimedOut {
		t.Fatalf("got %+v, %v", out.Result, err)
	}
	t.Logf("ended in %v", out.Result.Wall)
	if out := sh(t, sb, "echo alive"); string(out.Stdout) != "alive\n" {
		t.Errorf("got %+v", out.Result)
	}
}

// Whoever wakes what a timeout has stopped, so that it forks on, delays the end of nothing.
func TestAttackC1WokenForks(t *testing.T) {
	testkit.NeedWorkingHost(t)
	testkit.NeedProgram(t, "perl") // and so in the host image
	sb, err := client(t, options()).Create(t.Context(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	waker := `use POSIX; for (;;) { POSIX::kill(-1, SIGCONT); select undef, undef, undef, 0.0002 }`
	if _, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"perl", "-e", waker}, Background: true}); err != nil {
		t.Fatal(err)
	}
	chains := `for (1..60) { next if fork; for (;;) { select undef, undef, undef, 0.003; if (fork) { select undef, undef, undef, 0.003; exit } } } sleep 1000`
	out, err := sandpit.Run(t.Context(), sb, sandpit.Command{Argv: []string{"perl", "-e", chains}, Timeout: time.Second})
	if err != nil || !out.Result.TimedOut {
		t.Fatalf("got %+v, %v", out.Result, err)
	}
	if out := sh(t, sb, "echo alive"); string(out.Stdout) != "alive\n" {
		t.Errorf("got %+v", out.Result)
	}
}

// Processes that ignore SIGTERM, and wake each other while they are being stopped and fork on, end with a stop soon after its
// grace period, and nothing of them lives then.
func TestAttackC1StopOfWokenForks(t *testing.T) {
	testkit.NeedWorkingHost(t)
	testkit.NeedProgram(t, "perl")                                                                // and so in the host image
	if has := newDriver().Probe(t.Context()).Features; !has[feature.CPUs] || !has[feature.Pids] { // it counts them
		testkit.Lacks(t, "limits of CPUs and processes")
	}
	sb, err := client(t, options()).Create(t.Context(), sandpit.Spec{Limits: sandpit.Limits{CPUs: 1}})
	if err != nil {
		t.Fatal(err)
	}
	chains := `use POSIX; $SIG{TERM} = 'IGNORE'; sub rest { select undef, undef, undef, 0.001; POSIX::kill(-1, SIGCONT) }
for (1..160) { next if fork; for (;;) { rest(); if (fork) { rest(); rest(); POSIX::_exit(0) } } } print "ready\n"; $| = 1; sleep 1 while 1`
	p, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"perl", "-e", chains}, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is many processes", func() bool { m, err := sb.Metrics(t.Context()); return err == nil && m.Pids >= 160 })
	began := time.Now()
	if err := sb.(sandpit.Lifecycle).Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	t.Logf("stopped in %v", time.Since(began))
	if res, err := p.Wait(t.Context()); err != nil || res.Signal != 9 {
		t.Errorf("got %+v, %v", res, err)
	}
	if err := sb.(sandpit.Lifecycle).Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := sh(t, sb, "cat /proc/[0-9]*/comm"); strings.Contains(string(out.Stdout), "perl") {
		t.Errorf("still alive: %q", out.Stdout)
	}
}

// Many commands whose timeouts pass at once in a sandbox with little CPU, of which their processes take all, end by their timeouts
// and do not cost the sandbox: its guest has no more CPU than they.
func TestAttackC1TimeoutsOfAThrottledSandbox(t *testing.T) {
	testkit.NeedLong(t, "it takes about a minute")
	testkit.NeedWorkingHost(t)
	if !newDriver().Probe(t.Context()).Features[feature.CPUs] {
		testkit.Lacks(t, "a limit of CPUs")
	}
	sb, err := client(t, options()).Create(t.Context(), sandpit.Spec{Limits: sandpit.Limits{CPUs: 0.1}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			script := "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do while :; do :; done & done; while :; do :; done"
			out, err := sandpit.Run(t.Context(), sb, sandpit.Command{Script: script, Timeout: 2 * time.Second})
			if err != nil || !out.Result.TimedOut {
				t.Errorf("got %+v, %v", out.Result, err)
			}
		})
	}
	wg.Wait()
	if out := sh(t, sb, "echo alive"); string(out.Stdout) != "alive\n" {
		t.Errorf("got %+v", out.Result)
	}
}

func TestAttackC2MemoryByOtherMeans(t *testing.T) {
	testkit.NeedWorkingHost(t)
	if !newDriver().Probe(t.Context()).Features[feature.Memory] {
		testkit.Lacks(t, "a limit of memory")
	}
	c := client(t, options())
	for name, script := range map[string]string{
		"shared memory file": `head -c 500M /dev/zero >/dev/shm/x`,
		"page cache":         `head -c 500M /dev/zero >/tmp/x; cat /tmp/x >/dev/null`,
		"SysV":               `ipcmk -M 500M; exec sleep 0.1`,
		"many processes":     `for i in 1 2 3 4 5 6 7 8 9 10; do dd if=/dev/zero of=/dev/null bs=50M count=1 2>/dev/null & done; wait`,
	} {
		t.Run(name, func(t *testing.T) {
			sb, err := c.Create(t.Context(), sandpit.Spec{Limits: sandpit.Limits{Memory: 128 << 20}})
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Remove(t.Context())
			out, err := sandpit.Run(t.Context(), sb, sandpit.Command{Script: script, Timeout: 30 * time.Second})
			m, merr := sb.Metrics(t.Context())
			if merr != nil || m.MemoryPeak > 129<<20 {
				t.Errorf("STARVE: %+v, %v, after %+v, %v", m, merr, out.Result, err)
			}
			// What the script has left may still be at it, and whatever is
			// started beside that may be the kernel's choice: it says so.
			alive := sh(t, sb, "echo alive")
			for until := time.Now().Add(time.Minute); alive.Result.OOMKilled && time.Now().Before(until); {
				alive = sh(t, sb, "echo alive")
			}
			if string(alive.Stdout) != "alive\n" {
				t.Errorf("CRASH: %+v", alive.Result)
			}
		})
	}
}

func TestAttackC6ManyOfEverything(t *testing.T) {
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		sb := box(t, c, sandpit.Spec{User: user, Limits: sandpit.Limits{NoFile: 256}})
		sh(t, sb, `for i in $(seq 1 50); do mkfifo /tmp/p$i; done; ipcmk -Q; ipcmk -S 10; i=0; while [ $i -lt 100 ]; do sleep 100 & i=$((i+1)); done; kill -9 -1`)
		if out := sh(t, sb, "echo alive"); string(out.Stdout) != "alive\n" {
			t.Errorf("CRASH: %+v", out.Result)
		}
	})
}

func TestAttackD3GuestIsStopped(t *testing.T) {
	testkit.NeedFull(t, "it waits for five seconds")
	asEach(t, func(t *testing.T, c sandpit.Client, user string) {
		sb := box(t, c, sandpit.Spec{User: user})
		// The helper above a process is that user's: it can be killed and
		// stopped, and must not take more with it.
		for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
			out, err := sandpit.Run(t.Context(), sb, sandpit.Command{Script: fmt.Sprintf("sleep 0.1; kill -%d $PPID; kill -%d 1; exit 5", sig, sig), Timeout: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%v: %+v", sig, out.Result)
			if out := sh(t, sb, "echo alive"); string(out.Stdout) != "alive\n" {
				t.Errorf("CRASH: %+v", out.Result)
			}
		}
	})
}
