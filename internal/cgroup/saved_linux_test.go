package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// ownLayout is where groups are made for one test, in directories of its own
// where that can be: other programs look for what has no owner meanwhile.
func ownLayout(t *testing.T) *Layout {
	t.Helper()
	base := layout(t)
	l := &Layout{places: slices.Clone(base.places), trouble: base.trouble, kernel: base.kernel, mode: base.mode, pid: base.pid}
	for i := range l.places {
		p := &l.places[i]
		switch {
		case p.prep == prepShared:
			p.dir = filepath.Dir(p.dir) + "/test-" + newID()
		case p.prep == prepNone && (!p.v2 || p.ctrls == 0):
			p.dir += "/test-" + newID()
			if err := os.Mkdir(p.dir, 0o755); err != nil {
				t.Fatal(err)
			}
		default:
			return base
		}
		t.Cleanup(func() {
			if err := unix.Rmdir(p.dir); err != nil && err != unix.ENOENT {
				t.Errorf("removing %s: %v", p.dir, err)
			}
		})
	}
	return l
}

// orphan makes a group as an owner leaves it that was killed.
func orphan(t *testing.T, l *Layout) *Group {
	t.Helper()
	g := newGroup(t, l, testLimits)
	unix.Close(g.fd)
	g.fd = -1
	return g
}

// occupied starts a process in a group.
func occupied(t *testing.T, g *Group) child {
	t.Helper()
	c := startIn(t, g, exec.Command("/bin/cat"))
	fmt.Fprintln(c.in, "joined")
	if got := c.line(t); got != "joined" {
		t.Fatal(got)
	}
	return c
}

func isDir(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestDiscard(t *testing.T) {
	l := ownLayout(t)
	t.Run("none", func(t *testing.T) {
		id := newID()
		if err := l.Discard(id); err != nil {
			t.Error(err)
		}
		for _, p := range l.places {
			if isDir(p.dir + "/" + prefix + id) {
				t.Errorf("%s was made and is left", p.dir)
			}
		}
	})
	t.Run("its owner lives", func(t *testing.T) {
		g := newGroup(t, l, testLimits)
		if err := l.Discard(g.id); !errors.Is(err, sandpit.ErrExists) {
			t.Errorf("got %v, want ErrExists", err)
		}
		for _, d := range g.dirs {
			if !isDir(d.path) {
				t.Errorf("%s is gone", d.path)
			}
		}
	})
	t.Run("its owner is dead", func(t *testing.T) {
		g := orphan(t, l)
		c := occupied(t, g)
		if err := l.Discard(g.id); err != nil {
			t.Fatal(err)
		}
		for _, d := range g.dirs {
			if isDir(d.path) {
				t.Errorf("%s is left", d.path)
			}
		}
		if ws, err := c.Process.Wait(); err != nil || ws.Sys() == nil || ws.Success() {
			t.Errorf("what was in it ended with %v, %v", ws, err)
		}
	})
	t.Run("in one hierarchy only", func(t *testing.T) {
		g := newGroup(t, l, testLimits) // so that the directory of all groups is there
		last := l.places[len(l.places)-1]
		id := newID()
		left := last.dir + "/" + prefix + id
		if err := os.Mkdir(left, 0o755); err != nil {
			t.Fatal(err)
		}
		defer unix.Rmdir(left)
		if err := l.Discard(id); err != nil {
			t.Error(err)
		}
		for _, p := range l.places {
			if isDir(p.dir + "/" + prefix + id) {
				t.Errorf("it is left in %s", p.dir)
			}
		}
		if !isDir(g.dirs[0].path) {
			t.Error("another group is gone")
		}
	})
	t.Run("no id", func(t *testing.T) {
		for _, id := range []string{"", "..", "a/b", "../sandpit"} {
			if err := l.Discard(id); !errors.Is(err, sandpit.ErrInvalid) {
				t.Errorf("%q: got %v, want ErrInvalid", id, err)
			}
		}
	})
}

// A group is given up, and taken over by what was written down of it.
func TestReopen(t *testing.T) {
	l := ownLayout(t)
	g := newGroup(t, l, testLimits)
	s := g.Save()
	if _, err := l.Reopen(s); !errors.Is(err, sandpit.ErrExists) {
		t.Errorf("while its owner lives: got %v, want ErrExists", err)
	}
	c := occupied(t, g)
	g.Leave()
	if _, err := g.Stats(); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("of one that was left: got %v, want ErrClosed", err)
	}
	again, err := l.Reopen(s)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := again.Stats(); err != nil || m.Pids < 0 || m.CPU < 0 {
		t.Errorf("got %+v, %v", m, err)
	}
	if err := again.Remove(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	for _, d := range s.Dirs {
		if isDir(d.Path) {
			t.Errorf("%s is left", d.Path)
		}
	}
	if _, err := l.Reopen(s); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("when it is gone: got %v, want ErrNotFound", err)
	}
}

// What was written down decides what is killed and removed.
func TestReopenRefuses(t *testing.T) {
	l := ownLayout(t)
	for _, s := range []Saved{
		{ID: "../x", Dirs: []SavedDir{{Path: "/sys/fs/cgroup/sandpit-../x"}}},
		{ID: "x", Dirs: []SavedDir{{Path: "/"}}},
		{ID: "x", Dirs: []SavedDir{{Path: "sandpit-x"}}},
		{ID: "x", Dirs: []SavedDir{{Path: "/sys/fs/cgroup/other"}}},
		{ID: "x", Dirs: []SavedDir{{Path: "/sys/fs/cgroup/../cgroup/sandpit-x"}}},
		{ID: "x", Dirs: []SavedDir{{Path: "/sys/fs/cgroup/sandpit-x"}, {Path: "/sys/fs/cgroup/sandpit-y"}}},
	} {
		if g, err := l.Reopen(s); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%+v: got %v, %v, want ErrInvalid", s, g, err)
		}
	}
}

// The sweep removes what bears our name, has no owner and no process, with the
// groups inside, and nothing else.
func TestSweep(t *testing.T) {
	l := ownLayout(t)
	live := newGroup(t, l, testLimits) // so that the directory of all groups is there
	dir := l.places[0].dir
	if dir == "" {
		testkit.Lacks(t, "groups outside of a scope of systemd")
	}
	deep := orphan(t, l)
	if err := os.MkdirAll(deep.dirs[0].path+"/a/b", 0o755); err != nil {
		t.Fatal(err)
	}
	busy := orphan(t, l)
	if err := os.Mkdir(busy.dirs[0].path+"/a", 0o755); err != nil {
		t.Fatal(err)
	}
	occupied(t, busy)
	mkdir := func(name string) string {
		t.Helper()
		path := dir + "/" + name
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		} else if err == nil {
			t.Cleanup(func() { _ = unix.Rmdir(path) })
		}
		return path
	}
	foreign := mkdir("test-" + newID())
	// Where processes like this one sit; no pid is as large (pid_max).
	self, gone := mkdir(prefix+"self-"+strconv.Itoa(os.Getpid())), mkdir(prefix+"self-4194305")

	if n := l.Sweep(); n < 1 {
		t.Errorf("swept %d groups, want 1", n)
	}
	for _, path := range []string{live.dirs[0].path, busy.dirs[0].path, foreign, self} {
		if !isDir(path) {
			t.Errorf("%s is gone", path)
		}
	}
	for _, path := range []string{deep.dirs[0].path, gone} {
		if isDir(path) {
			t.Errorf("%s is left", path)
		}
	}
}

// The bits of SavedDir.Controllers are written down by one program and read by
// another: they stay what they were.
func TestSavedControllers(t *testing.T) {
	got := []ctrls{memory, cpu, cpuacct, pids, devices, freezer}
	if want := []ctrls{1, 2, 4, 8, 16, 32}; !slices.Equal(got, want) {
		t.Errorf("they are %v, and were %v", got, want)
	}
}
