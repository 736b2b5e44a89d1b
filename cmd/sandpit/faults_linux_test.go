package main

import (
	"database/sql"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// commandLineAt is a command of sandpit on the server of a data directory.
func commandLineAt(t *testing.T, home string, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := commandLine(t, append([]string{"sandpit"}, argv...)...)
	cmd.Env = append(cmd.Env, "SANDPIT_HOME="+home)
	return cmd
}

// mounted returns a short data directory on a file system of its own. It takes
// the right to mount: CI has it, and root on the hosts of hosttest.
func mounted(t *testing.T, size string) string {
	t.Helper()
	home := shortHome(t)
	testkit.Tmpfs(t, home, 0, "mode=0700,size="+size)
	return home
}

// wellAfter has a server do everything that it could not do a moment ago, and
// checks what it has written.
func wellAfter(t *testing.T, s *service, box string) {
	t.Helper()
	c := s.client()
	sb, err := c.Get(t.Context(), box)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := sandpit.Exec(t.Context(), sb, "cat", "/tmp/file"); err != nil || string(out.Stdout) != "kept\n" {
		t.Errorf("what was there before: %q %v", out.Stdout, err)
	}
	after, err := c.Create(t.Context(), sandpit.Spec{Name: "after"})
	if err != nil {
		t.Fatalf("making a sandbox afterwards: %v", err)
	}
	if out, err := sandpit.Exec(t.Context(), after, "echo", "well"); err != nil || string(out.Stdout) != "well\n" {
		t.Errorf("%q %v", out.Stdout, err)
	}
	endServer(t, s.home)
	<-s.ended
	if got := s.cmd.ProcessState.ExitCode(); got != 0 {
		t.Errorf("exit code %d", got)
	}
	if out, err := commandLineAt(t, s.home, "audit", "verify").CombinedOutput(); err != nil {
		t.Errorf("the audit: %v %s", err, out)
	}
	db, err := sql.Open("sqlite", filepath.Join(s.home, "state", "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var verdict string
	if err := db.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Errorf("the state: %s %v", verdict, err)
	}
}

// isClear reports whether an error has one of the kinds of what can't be done for
// want of something.
func isClear(err error) bool {
	return errors.Is(err, sandpit.ErrExhausted) || errors.Is(err, sandpit.ErrUnavailable) || errors.Is(err, sandpit.ErrNoSpace)
}

// keptBox makes a sandbox with a file.
func keptBox(t *testing.T, s *service) sandpit.Sandbox {
	t.Helper()
	sb, err := s.client().Create(t.Context(), sandpit.Spec{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := sandpit.Shell(t.Context(), sb, "echo kept >/tmp/file"); err != nil || !out.Success() {
		t.Fatalf("%+v %v", out, err)
	}
	return sb
}

// TestDiskIsFull fills the disk of a server that runs, and frees it again.
func TestDiskIsFull(t *testing.T) {
	needSandboxes(t)
	home := mounted(t, "48m")
	t.Cleanup(func() { endServer(t, home) })
	s := startService(t, home, nil)
	sb := keptBox(t, s)
	ballast, err := os.Create(filepath.Join(home, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(ballast, neverending{})
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	_ = ballast.Close()
	c := s.client()
	var refused int
	for range 50 {
		made, err := c.Create(t.Context(), sandpit.Spec{})
		if err == nil {
			// There was room in a block that is begun already.
			if err := made.Remove(t.Context()); err != nil && !isClear(err) {
				t.Errorf("removing on a full disk: %v", err)
			}
			continue
		}
		refused++
		if !isClear(err) {
			t.Errorf("on a full disk: %v", err)
		}
	}
	if refused == 0 {
		t.Error("nothing was refused on a full disk")
	}
	if _, err := sb.Info(t.Context()); err != nil {
		t.Errorf("looking, on a full disk: %v", err)
	}
	if err := os.Remove(ballast.Name()); err != nil {
		t.Fatal(err)
	}
	wellAfter(t, s, "box")
}

// TestDiskIsReadOnly starts a server on a read-only disk, which says so, and
// again when the disk is writable. (That the state itself comes through a disk
// that becomes read-only under it is tried in package state.)
func TestDiskIsReadOnly(t *testing.T) {
	needSandboxes(t)
	home := mounted(t, "64m")
	t.Cleanup(func() { endServer(t, home) })
	s := startService(t, home, nil)
	keptBox(t, s)
	if got := s.end(); got != 0 {
		t.Errorf("exit code %d", got)
	}
	if err := unix.Mount("", home, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	out, err := commandLineAt(t, home, "serve").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "read-only file system") {
		t.Errorf("on a read-only disk: %v %s", err, out)
	}
	if err := unix.Mount("", home, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	wellAfter(t, startService(t, home, nil), "box")
}

// TestNothingCanBeExecuted has the data directory on a disk from which nothing can
// be executed: that is said, with what to do, alone and by a server.
func TestNothingCanBeExecuted(t *testing.T) {
	needSandboxes(t)
	home := mounted(t, "64m")
	if err := unix.Mount("", home, "", unix.MS_REMOUNT|unix.MS_NOEXEC, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endServer(t, home) })
	for _, argv := range [][]string{{"run", "true"}, {"create", "box"}} {
		out, err := commandLineAt(t, home, argv...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "it is mounted noexec") || !strings.Contains(string(out), "\nhint: set SANDPIT_HOME to ") {
			t.Errorf("%s: %v\n%s", argv[0], err, out)
		}
	}
}

// TestNoPlace has the data directory where none can be made.
func TestNoPlace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{{"run", "true"}, {"create", "box"}, {"rm", "box"}, {"serve"}, {"key", "ls"}} {
		out, err := commandLineAt(t, file, argv...).CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "sandpit: ") || !strings.Contains(string(out), "not a directory\nhint: ") || !strings.Contains(string(out), "SANDPIT_HOME") {
			t.Errorf("%s: %v\n%s", argv[0], err, out)
		}
	}
}

// TestNoDescriptors takes the descriptors of a server that runs, and gives them
// back.
func TestNoDescriptors(t *testing.T) {
	needSandboxes(t)
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	s := startService(t, home, nil)
	keptBox(t, s)
	c := s.client()
	if _, err := c.List(t.Context(), sandpit.ListQuery{}); err != nil { // which opens its connection
		t.Fatal(err)
	}
	pid := s.cmd.Process.Pid
	var before unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	open, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	few := before
	few.Cur = uint64(len(open) + 6)
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	// How many it had open a moment ago for something short is nobody's to know.
	var refused, made int
	for refused < 10 && made < 200 {
		if _, err := c.Create(t.Context(), sandpit.Spec{}); err == nil {
			made++
			continue
		} else if refused++; !isClear(err) {
			t.Errorf("without descriptors: %v", err)
		}
	}
	if refused == 0 {
		t.Errorf("nothing was refused without descriptors, and %d made", made)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil); err != nil {
		t.Fatal(err)
	}
	wellAfter(t, s, "box")
}
