package linux_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// probeSearch looks through directories for sockets and files, and connects to
// or reads each. It returns what each said, by its path: the text, or the name
// of an error in brackets.
func probeSearch(dirs []string) map[string]string {
	got := map[string]string{}
	note := func(name string, text []byte, err error) {
		if err != nil {
			text = []byte("[" + errName(err) + "]")
		}
		got[name] = string(text)
	}
	for _, dir := range dirs {
		_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				note(name, nil, err)
			case d.Type() == fs.ModeSocket:
				conn, err := net.Dial("unix", name)
				if err != nil {
					note(name, nil, err)
					return nil
				}
				defer conn.Close()
				text, err := io.ReadAll(conn)
				note(name, text, err)
			case d.Type().IsRegular():
				text, err := os.ReadFile(name)
				note(name, text, err)
			}
			return nil
		})
	}
	return got
}

// probeMove tries to move, replace and remove each path, and what is above it up
// to the given number of levels. The first argument is where it moves things to.
func probeMove(args []string) map[string]string {
	got := map[string]string{}
	to := args[0]
	for _, name := range args[1:] {
		for dir := name; strings.Count(dir, "/") > 1; dir = filepath.Dir(dir) {
			got["move "+dir] = errName(os.Rename(dir, filepath.Join(to, "moved")))
			got["rename "+dir] = errName(os.Rename(dir, dir+"-moved"))
			other := filepath.Join(to, "other")
			_ = os.Mkdir(other, 0o755)
			got["exchange "+dir] = errName(unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE))
			got["remove "+dir] = errName(unix.Rmdir(dir))
			got["make in "+name] = errName(os.WriteFile(filepath.Join(name, "planted"), []byte("x"), 0o644))
		}
	}
	return got
}

// dataDir is a data directory in a home directory, with sockets that tell a flag
// to everyone who connects.
type dataDir struct {
	t             *testing.T
	home, private string
	project       string // a directory in the home directory
	flag          string
}

// reachable is what the socket beside the data directory tells.
const reachable = "reachable"

func newDataDir(t *testing.T) *dataDir {
	t.Helper()
	// A short path: a socket's holds 108 bytes.
	top, err := os.MkdirTemp("/tmp", "sp")
	if err == nil {
		top, err = filepath.EvalSymlinks(top)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	d := &dataDir{t: t, home: top + "/home", private: top + "/home/.local/share/sandpit", flag: "flag-" + rand.Text(), project: top + "/home/proj"}
	for _, dir := range []string{d.private + "/run", d.private + "/state", d.project} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(d.private+"/state/db", []byte(d.flag), 0o644); err != nil {
		t.Fatal(err)
	}
	tellFlag(t, d.private+"/server.sock", d.flag)
	tellFlag(t, d.private+"/run/x.sock", d.flag)
	tellFlag(t, d.home+"/agent.sock", reachable)
	return d
}

// tellFlag listens at a socket and tells everyone the flag.
func tellFlag(t *testing.T, name, flag string) {
	t.Helper()
	l, err := net.Listen("unix", name)
	if err == nil {
		err = os.Chmod(name, 0o777) // not the host's rights shall be what holds
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, flag)
			_ = conn.Close()
		}
	}()
}

// client makes sandboxes that must not see the data directory, made one by one
// or from a blank.
func (d *dataDir) client(pool int, private ...string) sandpit.Client {
	d.t.Helper()
	opt := options()
	opt.Private = append([]string{d.private}, private...)
	return engineOf(d.t, driverWith(opt), pool)
}

// hidden checks that nothing of what was found in a sandbox is of the data
// directory, and that the socket beside it was found if it is said to be there.
func (d *dataDir) hidden(got map[string]string, outside string) {
	d.t.Helper()
	for name, text := range got {
		if strings.Contains(text, d.flag) {
			d.t.Errorf("READ: the data directory is seen as %s", name)
		}
	}
	if outside != "" && got[outside] != reachable {
		d.t.Errorf("the socket %s, which is not hidden, was not reached: the probe finds nothing: %v", outside, got)
	}
}

func TestAttackL1DataDirectoryInAMount(t *testing.T) {
	for _, user := range users {
		for pool, from := range []string{"made at once", "from a blank"} {
			t.Run(map[string]string{"": "ordinary", "root": "root"}[user]+"/"+from, func(t *testing.T) {
				d := newDataDir(t)
				c := d.client(pool)
				sb := box(t, c, sandpit.Spec{User: user, Mounts: []sandpit.Mount{
					{Source: d.home, Target: "/h", ReadOnly: true}, {Source: d.project, Target: "/p"}, {Source: filepath.Dir(d.home), Target: "/up", ReadOnly: true},
				}})
				const inside = "/h/.local/share/sandpit"
				d.hidden(tryOut(t, sb, sandpit.Command{}, "search", "/h", "/p", "/up"), "/h/agent.sock")
				moved := tryOut(t, sb, sandpit.Command{}, "move", "/p", inside, "/up/home/.local/share/sandpit")
				for what, err := range moved {
					if !slices.Contains([]string{"EBUSY", "EROFS", "EXDEV", "EACCES", "EPERM"}, err) {
						t.Errorf("%s: %q", what, err)
					}
				}
				d.hidden(tryOut(t, sb, sandpit.Command{}, "search", "/h", "/p", "/up"), "/h/agent.sock")
				// What the host does to it changes nothing either.
				if err := os.Rename(d.home+"/.local", d.project+"/local"); err != nil {
					t.Fatal(err)
				}
				got := tryOut(t, sb, sandpit.Command{}, "search", "/h", "/up")
				d.hidden(got, "/h/agent.sock")
				if err := os.Rename(d.project+"/local", d.home+"/.local"); err != nil {
					t.Fatal(err)
				}
				if all, err := os.ReadDir(d.private); err != nil || len(all) != 3 {
					t.Errorf("WRITE: the data directory holds %v, %v", all, err)
				}
				for _, above := range []string{filepath.Dir(d.home), d.home, d.home + "/.local", d.home + "/.local/share"} {
					refusedWriting(t, c, user, above, d.private)
				}
			})
		}
	}
}

// refusedWriting checks that a writable mount is refused by name, for what is in it.
func refusedWriting(t *testing.T, c sandpit.Client, user, source, holds string) {
	t.Helper()
	sb, err := c.Create(t.Context(), sandpit.Spec{User: user, Mounts: []sandpit.Mount{{Source: source, Target: "/h"}}})
	if err == nil {
		_ = sb.Remove(context.WithoutCancel(t.Context()))
	}
	if !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), "mounting "+source+" for writing") || !strings.Contains(err.Error(), " "+holds) || !strings.Contains(sandpit.Hint(err), "read-only") {
		t.Errorf("mounting %s for writing: %v (hint: %s)", source, err, sandpit.Hint(err))
	}
}

// Over links on the way to a data directory, each of which a sandbox could replace, too.
func TestAttackL1mLinksToTheDataDirectory(t *testing.T) {
	d := newDataDir(t)
	top := filepath.Dir(d.home)
	for _, err := range []error{
		os.MkdirAll(top+"/a/b/beside", 0o755), os.MkdirAll(top+"/c/deep", 0o755), os.Mkdir(top+"/end", 0o755), os.Symlink("../../c/link", top+"/a/b/sandpit"), os.Symlink(top+"/c/deep/../../home/.local", top+"/c/link"),
		os.Symlink(top+"/home/proj/images", d.private+"/images"), os.Symlink("../../end", d.project+"/images"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	through := top + "/a/b/sandpit/share/sandpit"
	own, others := options(), options()
	own.Private, others.PrivateOfOthers = []string{through}, func() map[string][]int { return map[string][]int{through: {os.Geteuid()}} }
	for i, opt := range []linux.Options{own, others} {
		sources := []string{"", "/a", "/a/b", "/c", "/home", "/home/.local", "/home/.local/share"}
		if i == 1 {
			sources = sources[:3] // those of others are looked for near a mount
		}
		for pool := range 2 {
			c := engineOf(t, driverWith(opt), pool)
			for _, source := range sources {
				refusedWriting(t, c, "", top+source, through)
			}
			box(t, c, sandpit.Spec{Mounts: []sandpit.Mount{{Source: top + "/a/b/beside", Target: "/h"}}})
		}
	}
	refusedWriting(t, client(t, own), "", d.project, through) // over links in it, too
	// A file system in which another user's link leads on is not that user's to close.
	if os.Geteuid() == 0 {
		if err := errors.Join(os.MkdirAll(top+"/u/own/sandpit", 0o755), os.Symlink(top+"/c/deep/../../u/own", top+"/u/link"), os.Chown(top+"/u/own/sandpit", freeUID, freeUID)); err != nil {
			t.Fatal(err)
		}
		c := ofOthers(t, map[string][]int{top + "/u/link/sandpit": {freeUID}})
		box(t, c, sandpit.Spec{Mounts: []sandpit.Mount{{Source: top + "/c", Target: "/h"}}})
		refusedWriting(t, c, "", top+"/u", top+"/u/link/sandpit")
	}
}

// A sandbox could unmount what the host has mounted in a writable mount, by moving or
// removing the directory below it: at once where that mount is not shown inside, and else by
// a descriptor that it passes to another sandbox.
func TestAttackL1lMountsBelow(t *testing.T) {
	for pool := range 2 {
		opt := options()
		c := engineOf(t, driverWith(opt), pool)
		for _, user := range users {
			refusedWriting(t, c, user, "/dev", "/dev/") // where something is mounted on every machine
			if os.Geteuid() != 0 {
				t.Log("other mounts are for root to make: as root this tries them")
				continue
			}
			dir := hostDir(t)
			mountHere(t, "none", "tmpfs", dir+"/x/disk", 0, "")
			mountHere(t, dir+"/x", "", dir+"/again", unix.MS_BIND, "") // does not show the disk
			if err := errors.Join(os.Mkdir(dir+"/x/beside", 0o755), os.WriteFile(dir+"/x/disk/file", []byte("content"), 0o644)); err != nil {
				t.Fatal(err)
			}
			refusedWriting(t, c, user, dir, dir+"/again,")
			refusedWriting(t, c, user, dir+"/x", dir+"/x/disk,")
			refusedWriting(t, c, user, dir+"/again", dir+"/x/disk,")
			sb := box(t, c, sandpit.Spec{User: user, Mounts: []sandpit.Mount{
				{Source: dir, Target: "/h", ReadOnly: true}, {Source: dir + "/x/disk", Target: "/d"}, {Source: dir + "/x/beside", Target: "/b"},
			}})
			for what, err := range tryOut(t, sb, sandpit.Command{}, "move", "/b", "/h/x/disk") {
				if !slices.Contains([]string{"EBUSY", "EROFS", "EXDEV", "EACCES", "EPERM"}, err) {
					t.Errorf("%s: %q", what, err)
				}
			}
			if got, err := os.ReadFile(dir + "/x/disk/file"); string(got) != "content" {
				t.Errorf("ESCAPE: the host's mount is gone: %v", err)
			}
		}
	}
}

// probePassDir passes a descriptor of a directory to the first who connects to a socket.
func probePassDir(args []string) map[string]string {
	dir, err := os.Open(args[0])
	must(err)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: args[1] + "~", Net: "unix"})
	must(err)
	must(os.Rename(args[1]+"~", args[1])) // now it listens
	c, err := l.AcceptUnix()
	must(err)
	_, _, err = c.WriteMsgUnix([]byte{0}, unix.UnixRights(int(dir.Fd())), nil)
	must(err)
	return map[string]string{}
}

// received returns the descriptors, at most two, that come by a connection.
func received(c *net.UnixConn) []int {
	oob := make([]byte, unix.CmsgSpace(8))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), oob)
	must(err)
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	must(err)
	fds, err := unix.ParseUnixRights(&messages[0])
	must(err)
	return fds
}

// probeTakeDir takes what probePassDir passes, tries to move and remove what is at a path
// below it, looks at it and tries to list it.
func probeTakeDir(args []string) map[string]string {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: args[0], Net: "unix"})
	must(err)
	defer c.Close()
	fds := received(c)
	got := map[string]string{}
	for name := args[1]; name != "."; name = filepath.Dir(name) {
		got["rename "+name] = errName(unix.Renameat(fds[0], name, fds[0], "moved"))
		got["remove "+name] = errName(unix.Unlinkat(fds[0], name, unix.AT_REMOVEDIR))
	}
	var st unix.Stat_t
	must(unix.Fstatat(fds[0], args[1], &st, 0))
	got["mode"] = fmt.Sprintf("%o", st.Mode&0o777)
	_, err = unix.Openat(fds[0], args[1], unix.O_RDONLY|unix.O_DIRECTORY, 0)
	got["list"] = errName(err)
	return got
}

// A cover holds for those, too, who get a descriptor of the mount from another sandbox:
// it is on the mount, which is read-only for everybody.
func TestAttackL1nPassedDescriptor(t *testing.T) {
	for _, user := range users {
		d := newDataDir(t)
		c := d.client(0)
		passer := box(t, c, sandpit.Spec{User: user, Mounts: []sandpit.Mount{{Source: d.home, Target: "/h", ReadOnly: true}, {Source: d.project, Target: "/p"}}})
		p, err := passer.Start(t.Context(), sandpit.Command{Argv: []string{"/probe", "probe:passdir", "/h", "/p/s"}, Background: true})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the passer listens", func() bool { _, err := os.Lstat(d.project + "/s"); return err == nil })
		taker := box(t, c, sandpit.Spec{User: user, Mounts: []sandpit.Mount{{Source: d.project, Target: "/q"}}})
		got := tryOut(t, taker, sandpit.Command{}, "takedir", "/q/s", ".local/share/sandpit")
		if got["mode"] != "555" {
			t.Errorf("ESCAPE: a passed descriptor shows the data directory: %v", got)
		}
		for what, err := range got {
			if what != "mode" && !slices.Contains([]string{"EROFS", "EACCES", "EPERM"}, err) {
				t.Errorf("%s: %q", what, err)
			}
		}
		if res, err := p.Wait(t.Context()); err != nil || !res.Success() {
			t.Errorf("the passer ended with %+v, %v", res, err)
		}
	}
}

// A cover stays on its directory when the sandbox has ended: another one may have been
// passed a descriptor of the mount.
func TestAttackL1qCoverAfterTheEnd(t *testing.T) {
	for pool := range 2 {
		for _, user := range users {
			for _, write := range [][]string{nil, {}} {
				d := newDataDir(t)
				spec := sandpit.Spec{User: user, Write: write}
				passer := spec
				passer.Mounts = []sandpit.Mount{
					{Source: d.home, Target: "/h", ReadOnly: true}, {Source: d.home + "/.local", Target: "/h/proj", ReadOnly: true},
				}
				got := takeOver(t, d.client(pool), passer, spec, "/h", ".local/share/sandpit", "agent.sock", ".local/share/sandpit/server.sock", ".local/share/sandpit/run/x.sock")
				for what, text := range got {
					if strings.Contains(text, d.flag) {
						t.Errorf("READ: a data directory is reached: %s", what)
					}
				}
				if got["found agent.sock"] != reachable {
					t.Errorf("the socket beside it was not reached: the probe finds nothing: %v", got)
				}
			}
		}
	}
}

// An image that shows a directory of the host, as the host image shows /usr,
// does not show a data directory in it, also where nobody inside may go there.
func TestAttackL1DataDirectoryInAnImage(t *testing.T) {
	d := newDataDir(t)
	opt := options()
	opt.Private = []string{d.private}
	e := engineOf(t, &showing{driverWith(opt), d.home}, 0)
	for _, mode := range []os.FileMode{0o755, 0o700} {
		if err := os.Chmod(d.home+"/.local", mode); err != nil {
			t.Fatal(err)
		}
		sb := box(t, e, sandpit.Spec{})
		if err := os.Chmod(d.home+"/.local", 0o755); err != nil {
			t.Fatal(err)
		}
		if out := sh(t, sb, "cd "+shownAt+" && ls -A .local/share/sandpit; cat .local/share/sandpit/state/db; ls"); out.ExitCode != 0 || string(out.Stdout) != "agent.sock\nproj\n" {
			t.Errorf("mode %o: %+v: %s%s", mode, out.Result, out.Stdout, out.Stderr)
		}
	}
}

// refusedMount checks that a mount is refused by name.
func (d *dataDir) refusedMount(c sandpit.Client, source string) {
	d.t.Helper()
	sb, err := c.Create(d.t.Context(), sandpit.Spec{Mounts: []sandpit.Mount{{Source: source, Target: "/h", ReadOnly: true}}})
	if err == nil {
		_ = sb.Remove(context.WithoutCancel(d.t.Context()))
	}
	if !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), d.private) || sandpit.Hint(err) == "" {
		d.t.Errorf("mounting %s: %v (hint: %s)", source, err, sandpit.Hint(err))
	}
}

func TestAttackL1MountsOfTheDataDirectory(t *testing.T) {
	d := newDataDir(t)
	for pool := range 2 {
		c := d.client(pool)
		for _, source := range []string{d.private, d.private + "/", d.private + "/run", d.private + "/state/db", d.home + "/../home/.local/share/sandpit"} {
			d.refusedMount(c, source)
		}
	}
}

// A data directory that does not exist when the sandbox is made is covered, too.
func TestAttackL1DataDirectoryMadeLater(t *testing.T) {
	d := newDataDir(t)
	later := d.project + "/elsewhere/data"
	c := d.client(0, later, "/nowhere/in/a/mount", "/root/not/to/be/reached/by/others", "/dev/null/sandpit")
	refusedWriting(t, c, "", d.project, later)
	if _, err := os.Stat(d.project + "/elsewhere"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a data directory was made for a mount that was refused: %v", err)
	}
	sb := box(t, c, sandpit.Spec{Mounts: []sandpit.Mount{{Source: d.home, Target: "/h", ReadOnly: true}}})
	if err := os.MkdirAll(later+"/run", 0o755); err != nil {
		t.Fatal(err)
	}
	tellFlag(t, later+"/server.sock", d.flag)
	tellFlag(t, later+"/run/y.sock", d.flag)
	d.hidden(tryOut(t, sb, sandpit.Command{}, "search", "/h"), "/h/agent.sock")
	if _, err := os.Stat("/nowhere"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a data directory that no mount shows was made: %v", err)
	}
}

// A sandbox that takes away the way to the data directory while another is made
// does not have it shown there without a cover.
func TestAttackL1DataDirectoryOutOfReach(t *testing.T) {
	d := newDataDir(t)
	c := d.client(0)
	share := d.home + "/.local/share"
	if err := os.Chmod(share, 0); err != nil {
		t.Fatal(err)
	}
	refusedWriting(t, c, "", share, d.private)
	sb, err := c.Create(t.Context(), sandpit.Spec{Mounts: []sandpit.Mount{{Source: d.home, Target: "/h", ReadOnly: true}}})
	if cerr := os.Chmod(share, 0o755); cerr != nil {
		t.Fatal(cerr)
	}
	if err != nil {
		if os.Geteuid() == 0 || !strings.Contains(err.Error(), "looking for data directories") || sandpit.Hint(err) == "" {
			t.Errorf("%v (hint: %s)", err, sandpit.Hint(err))
		}
		return // it was not made
	}
	defer sb.Remove(context.WithoutCancel(t.Context())) //nolint:errcheck // closing the engine tells
	if out := sh(t, sb, "ls -A /h/.local/share/sandpit"); out.ExitCode != 0 || len(out.Stdout) > 0 {
		t.Errorf("%+v: %s%s", out.Result, out.Stdout, out.Stderr)
	}
}

// ofOthers makes sandboxes of a driver that knows the data directories of others.
func ofOthers(t *testing.T, dirs map[string][]int) sandpit.Client {
	t.Helper()
	opt := options()
	opt.PrivateOfOthers = func() map[string][]int { return dirs }
	return client(t, opt)
}

// Root's sandboxes don't see the data directories of other users either; such as
// do not exist are not made.
func TestAttackL1DataDirectoryOfAnotherUser(t *testing.T) {
	d := newDataDir(t)
	c := ofOthers(t, map[string][]int{d.private: {freeUID}, d.home + "/other/.local/share/sandpit": {freeUID}, "/nowhere": {freeUID}})
	sb := box(t, c, sandpit.Spec{Mounts: []sandpit.Mount{{Source: d.home, Target: "/h", ReadOnly: true}}})
	d.hidden(tryOut(t, sb, sandpit.Command{}, "search", "/h"), "/h/agent.sock")
	refusedWriting(t, c, "", d.home, d.private)
	d.refusedMount(c, d.private+"/run")
	if _, err := os.Stat(d.home + "/other"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a data directory of another user was made: %v", err)
	}
}

// A user has root's mounts cover what belongs to that user and nothing else, and has none
// refused, by what is in the place of the data directory or on the way to it.
func TestAttackL1kInPlaceOfTheDataDirectory(t *testing.T) {
	const other = freeUID + 1
	uid := os.Geteuid()
	if uid == 0 {
		uid = freeUID
	}
	for _, tt := range []struct {
		name, script string // in the home directory
		owner        int    // for whom that is looked at; all of it belongs to uid
		covered      bool
		others       []int // who have the same home
	}{
		{"a directory", "mkdir -p .local/share/sandpit && mv true/* .local/share/sandpit", uid, true, nil},
		{"a link to its own", "mkdir -p .local/share && ln -s $PWD/true .local/share/sandpit", uid, true, nil},
		{"a link to its own of one with the same home", "mkdir -p .local/share && ln -s $PWD/true .local/share/sandpit", other, true, []int{uid}},
		{"links above to its own", "mkdir up && mv true up/sandpit && ln -s up share && mkdir .local && ln -s ../share .local/share", uid, true, nil},
		{"a link to another's", "mkdir -p .local/share && ln -s $PWD/true .local/share/sandpit", other, false, nil},
		{"a link above to another's", "mkdir .local up && mv true up/sandpit && ln -s ../up .local/share", other, false, nil},
		{"a link above of an unknown user", "mkdir .local up && mv true up/sandpit && ln -s ../up .local/share", -1, false, nil},
		{"a link to itself", "ln -s .local .local", uid, false, nil},
		{"a long link", "ln -s $(printf %4000d) .local", uid, false, nil},
		{"a file", "mkdir -p .local/share && touch .local/share/sandpit", uid, false, nil},
		{"a file above", "touch .local", uid, false, nil},
		{"a named pipe", "mkdir -p .local/share && mkfifo .local/share/sandpit", uid, false, nil},
		{"a broken file system", "mkdir -p .local/share/sandpit", uid, false, nil},
		{"a broken file system above", "mkdir -p .local", uid, false, nil},
		{"a broken file system below", "mkdir -p .local/share/sandpit/below && mv true/* .local/share/sandpit", uid, true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			broken := map[string]string{"a broken file system": "/.local/share/sandpit", "a broken file system above": "/.local", "a broken file system below": "/.local/share/sandpit/below"}[tt.name]
			if broken != "" {
				testkit.NeedRoot(t, "to mount without a helper that is set-user-id")
			}
			d := newDataDir(t)
			home := d.home + "/user"
			if err := errors.Join(os.MkdirAll(home+"/true", 0o755), os.WriteFile(home+"/true/file", []byte(d.flag), 0o644)); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("sh", "-ec", tt.script)
			cmd.Dir = home
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if os.Geteuid() == 0 {
				if out, err := exec.Command("chown", "-hR", strconv.Itoa(uid), home).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			if broken != "" {
				f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
				testkit.Need(t, "FUSE", err)
				mountHere(t, "none", "fuse", home+broken, 0, fmt.Sprintf("fd=%d,allow_other,rootmode=40000,user_id=%d,group_id=%[2]d", f.Fd(), uid))
				f.Close() // nobody answers for it any more
			}
			c := ofOthers(t, map[string][]int{home + "/.local/share/sandpit": append(tt.others, tt.owner)})
			got := tryOut(t, box(t, c, sandpit.Spec{Mounts: []sandpit.Mount{{Source: d.home, Target: "/h", ReadOnly: true}}}), sandpit.Command{}, "search", "/h/user")
			seen := false
			for _, text := range got {
				seen = seen || text == d.flag
			}
			if seen == tt.covered {
				t.Errorf("covered is %v, want %v: %v", !seen, tt.covered, got)
			}
			if tt.covered || broken != "" {
				refusedWriting(t, c, "", d.home, home)
			} else {
				box(t, c, sandpit.Spec{Mounts: []sandpit.Mount{{Source: d.home, Target: "/h"}}})
			}
		})
	}
}

// Other ways on the host to the same directory: links and bind mounts.
func TestAttackL1OtherWaysToTheDataDirectory(t *testing.T) {
	d := newDataDir(t)
	link := filepath.Dir(d.home) + "/link"
	if err := os.Symlink(d.home, link); err != nil {
		t.Fatal(err)
	}
	real := d.private
	d.private = link + "/.local/share/sandpit"
	c := d.client(0)
	d.private = real
	sb := box(t, c, sandpit.Spec{Mounts: []sandpit.Mount{{Source: d.home, Target: "/h", ReadOnly: true}}})
	d.hidden(tryOut(t, sb, sandpit.Command{}, "search", "/h"), "/h/agent.sock")
	d.refusedMount(c, d.private)

	if os.Geteuid() != 0 {
		t.Log("bind mounts are for root to make: TestAttackL1* as root tries them")
		return
	}
	bind := func(from, to string) { mountHere(t, from, "", to, unix.MS_BIND, "") }
	top := filepath.Dir(d.home)
	bind(d.home, top+"/again")
	bind(d.home+"/.local", d.project+"/local")
	bind(d.private+"/run", top+"/part/run")
	for _, source := range []string{top + "/again", top + "/again/.local", d.project, d.home, d.project + "/local"} {
		refusedWriting(t, c, "", source, top)
		sb := box(t, c, sandpit.Spec{Mounts: []sandpit.Mount{{Source: source, Target: "/h", ReadOnly: true}}})
		d.hidden(tryOut(t, sb, sandpit.Command{}, "search", "/h"), "")
		if err := sb.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
	d.refusedMount(c, top+"/again/.local/share/sandpit/state")
	d.refusedMount(c, d.project+"/local/share/sandpit")
	d.refusedMount(c, top+"/part/run")
}

// What is mounted in a data directory is data, too, and so is where links in it lead.
func TestAttackL1PartsOfTheDataDirectory(t *testing.T) {
	for what, part := range map[string]func(t *testing.T, disk, images string){
		"link": func(t *testing.T, disk, images string) {
			if err := os.Symlink(disk+"/images", images); err != nil {
				t.Fatal(err)
			}
		},
		"bind mount": func(t *testing.T, disk, images string) { mountHere(t, disk+"/images", "", images, unix.MS_BIND, "") },
		"disk":       func(t *testing.T, _, images string) { mountHere(t, "none", "tmpfs", images, 0, "") },
		"link to disk": func(t *testing.T, disk, images string) {
			mountHere(t, "none", "tmpfs", disk+"/images/more", 0, "")
			if err := os.Symlink(disk+"/images", images); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			if what != "link" {
				testkit.NeedRoot(t, "to mount")
			}
			d := newDataDir(t)
			disk, images := d.project+"/disk", d.private+"/images"
			if err := os.MkdirAll(disk+"/images", 0o755); err != nil {
				t.Fatal(err)
			}
			part(t, disk, images)
			inside := images
			if what == "link to disk" {
				inside += "/more"
			}
			if err := os.WriteFile(inside+"/layer", []byte(d.flag), 0o644); err != nil {
				t.Fatal(err)
			}
			c := d.client(0)
			for _, source := range []string{d.home, d.project, disk} {
				sb := box(t, c, sandpit.Spec{Mounts: []sandpit.Mount{{Source: source, Target: "/h", ReadOnly: true}}})
				d.hidden(tryOut(t, sb, sandpit.Command{}, "search", "/h"), "")
				if err := sb.Remove(t.Context()); err != nil {
					t.Error(err)
				}
				if what == "disk" && source != d.home { // which no path to it goes through
					box(t, c, sandpit.Spec{Mounts: []sandpit.Mount{{Source: source, Target: "/h"}}})
				} else {
					refusedWriting(t, c, "", source, d.home)
				}
			}
			real, err := filepath.EvalSymlinks(inside)
			if err != nil {
				t.Fatal(err)
			}
			for _, source := range []string{real, real + "/layer"} {
				sb, err := c.Create(t.Context(), sandpit.Spec{Mounts: []sandpit.Mount{{Source: source, Target: "/h"}}})
				if err == nil {
					_ = sb.Remove(context.WithoutCancel(t.Context()))
				}
				if !errors.Is(err, sandpit.ErrForbidden) || sandpit.Hint(err) == "" {
					t.Errorf("mounting %s: %v", source, err)
				}
			}
		})
	}
}

// A data directory costs one mount, however deep it lies.
func TestAttackL1DeepDataDirectory(t *testing.T) {
	d := newDataDir(t)
	deep := d.home + strings.Repeat("/d", 40) + "/data"
	if err := errors.Join(os.MkdirAll(deep, 0o755), os.WriteFile(deep+"/file", []byte(d.flag), 0o644)); err != nil {
		t.Fatal(err)
	}
	mounts := func(private ...string) int {
		t.Helper()
		sb := box(t, d.client(0, private...), sandpit.Spec{Mounts: []sandpit.Mount{{Source: d.home, Target: "/h", ReadOnly: true}}})
		if len(private) > 0 {
			d.hidden(tryOut(t, sb, sandpit.Command{}, "search", "/h"), "/h/agent.sock")
		}
		return strings.Count(string(sh(t, sb, "cat /proc/self/mountinfo").Stdout), "\n")
	}
	if before, after := mounts(), mounts(deep); after-before != 1 {
		t.Errorf("%d mounts, and %d with a deep data directory", before, after)
	}
}

// There may be more data directories in a mount than one message takes
// descriptors, such as those of all users in root's mount of /home.
func TestAttackL1ManyDataDirectories(t *testing.T) {
	for pool := range 2 {
		d := newDataDir(t)
		var private []string
		for i := range 140 {
			dir := fmt.Sprintf("%s/u%d/.local/share/sandpit", d.home, i)
			if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/file", []byte(d.flag), 0o644)); err != nil {
				t.Fatal(err)
			}
			private = append(private, dir)
		}
		sb := box(t, d.client(pool, private...), sandpit.Spec{Mounts: []sandpit.Mount{{Source: d.home, Target: "/h", ReadOnly: true}, {Source: d.home, Target: "/r", ReadOnly: true}}})
		d.hidden(tryOut(t, sb, sandpit.Command{}, "search", "/h", "/r"), "/h/agent.sock")
	}
}

// The data directory of a user whose home is closed to others is covered, too,
// and does not keep root from mounting the directory of all homes; nor is it seen when the
// home is opened later.
func TestAttackL1ClosedHomes(t *testing.T) {
	testkit.NeedRoot(t, "to enter the closed home of another user")
	for pool := range 2 {
		d := newDataDir(t)
		home := d.home + "/u"
		var dirs []string
		for _, above := range []string{"/.local/share", "/.local/other", "/open"} {
			dir := home + above + "/sandpit"
			if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/file", []byte(d.flag), 0o644)); err != nil {
				t.Fatal(err)
			}
			dirs = append(dirs, dir)
		}
		if out, err := exec.Command("chown", "-R", strconv.Itoa(freeUID), home).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := os.Chmod(home+"/.local", 0o700); err != nil {
			t.Fatal(err)
		}
		for _, closed := range []bool{true, false} {
			if closed {
				if err := os.Chmod(home, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			sb := box(t, d.client(pool, dirs...), sandpit.Spec{User: "root", Mounts: []sandpit.Mount{
				{Source: d.home, Target: "/h", ReadOnly: true}, {Source: d.home, Target: "/n", ReadOnly: true, NoSockets: true},
			}})
			if err := errors.Join(os.Chmod(home, 0o755), os.Chmod(home+"/.local", 0o755)); err != nil {
				t.Fatal(err)
			}
			d.hidden(tryOut(t, sb, sandpit.Command{}, "search", "/h", "/n"), "/h/agent.sock")
			if out := sh(t, sb, "ls -A /n/u"); closed == (len(out.Stdout) > 0) {
				t.Errorf("closed=%v: in a home of which the cover is as deep as can be: %s%s", closed, out.Stdout, out.Stderr)
			}
			if err := os.Chmod(home+"/.local", 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Where root's sandboxes claim their ids is as good as a data directory: a lock
// for reading would hold all ranges.
func TestAttackL1ClaimsOfIDs(t *testing.T) {
	testkit.NeedRoot(t, "to have claims for the whole machine")
	d := newDataDir(t)
	c := d.client(0)
	sb := box(t, c, sandpit.Spec{User: "root", Mounts: []sandpit.Mount{{Source: "/run", Target: "/h", ReadOnly: true}}})
	if out := sh(t, sb, "ls -A /h/sandpit && ls -d /h/sandpit"); string(out.Stdout) != "/h/sandpit\n" {
		t.Errorf("%+v: %s%s", out.Result, out.Stdout, out.Stderr)
	}
	d.private = "/run/sandpit"
	d.refusedMount(c, "/run/sandpit")
	d.refusedMount(c, "/run/sandpit/ids.lock")
}

// A sandbox that an older version has made, without covers, is told from others
// when it is taken over. No name of a mount counts as a cover.
func TestAttackL1jExposed(t *testing.T) {
	testkit.NeedWorkingHost(t)
	d := newDataDir(t)
	named := filepath.Dir(d.home) + "/disk/cover" // and of root's the root of a mount
	if os.Geteuid() == 0 {
		mountHere(t, "none", "tmpfs", filepath.Dir(named), 0, "")
	}
	if err := os.MkdirAll(named+"/x", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, known := range []bool{false, true} {
		for name, m := range map[string]sandpit.Mount{
			"writable":   {Source: d.home},
			"read-only":  {Source: d.home, ReadOnly: true},
			"no sockets": {Source: d.home, ReadOnly: true, NoSockets: true},
			"a part":     {Source: d.home + "/.local/share", ReadOnly: true, NoSockets: true},
		} {
			if known && !m.ReadOnly {
				continue // it is refused
			}
			opt := options()
			opt.KeepDir, opt.Private = filepath.Join(t.TempDir(), "keep"), []string{d.private}
			maker := driverWith(opt)
			if !known {
				opt.Private = nil
				maker = driverWith(opt)
				opt.Private = []string{d.private}
			}
			plan := persistentPlan(t, maker)
			m.Target = "/h/x"
			plan.Mounts = []sandpit.Mount{{Source: named, Target: "/h"}, m}
			first, err := maker.Create(t.Context(), plan)
			if err != nil {
				t.Fatal(err)
			}
			removePersistent(t, maker, first)
			greet(t, first, persistentConfig()).Close()
			first.(driver.Leaver).Leave()
			again, err := driverWith(opt).Recover(t.Context(), first.Handle())
			if err != nil {
				t.Fatal(err)
			}
			want := d.private
			if known {
				want = ""
			}
			if got := again.(driver.Exposer).Exposed(); got != want {
				t.Errorf("%s, made by one that knows of the data directory: %v: it shows %q", name, known, got)
			}
			if err := again.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}

// The sockets of a tree that is mounted without them are those of nobody, now
// and later; the data directory in it is covered as ever.
func TestAttackL1MountWithoutSockets(t *testing.T) {
	for _, user := range users {
		for pool, from := range []string{"made at once", "from a blank"} {
			t.Run(map[string]string{"": "ordinary", "root": "root"}[user]+"/"+from, func(t *testing.T) {
				d := newDataDir(t)
				tellFlag(t, d.project+"/docker.sock", reachable)
				if err := errors.Join(os.WriteFile(d.project+"/file", []byte("content"), 0o644), unix.Mkfifo(d.project+"/pipe", 0o666)); err != nil {
					t.Fatal(err)
				}
				// The marks of an overlay say nothing about the host's files.
				if err := errors.Join(os.Mkdir(d.project+"/marked", 0o755), os.WriteFile(d.project+"/marked/file", nil, 0o644)); err != nil {
					t.Fatal(err)
				}
				err := unix.Setxattr(d.project+"/marked/file", "user.overlay.whiteout", []byte("y"), 0)
				for _, dir := range []string{d.home, d.project, d.project + "/marked"} {
					err = errors.Join(err, unix.Setxattr(dir, "user.overlay.opaque", []byte("x"), 0))
				}
				if err != nil && !errors.Is(err, unix.ENOTSUP) { // as on tmpfs of older kernels
					t.Fatal(err)
				}
				c := d.client(pool)
				sb := box(t, c, sandpit.Spec{User: user, Mounts: []sandpit.Mount{
					{Source: d.home, Target: "/h", ReadOnly: true, NoSockets: true},
					{Source: d.project + "/file", Target: "/etc/file", ReadOnly: true, NoSockets: true},
					{Source: d.home, Target: "/with", ReadOnly: true},
				}})
				tellFlag(t, d.home+"/later.sock", reachable)
				tellFlag(t, d.project+"/later.sock", reachable)
				got := tryOut(t, sb, sandpit.Command{}, "search", "/h", "/with", "/etc/file")
				d.hidden(got, "/with/agent.sock")
				sockets := 0
				for name, text := range got {
					if strings.HasPrefix(name, "/h/") && strings.HasSuffix(name, ".sock") {
						if sockets++; text != "[ECONNREFUSED]" {
							t.Errorf("%s: %s", name, text)
						}
					}
				}
				if sockets < 2 || got["/with/later.sock"] != reachable || got["/h/proj/file"] != "content" || got["/etc/file"] != "content" {
					t.Errorf("%v", got)
				}
				if out := sh(t, sb, "test -f /h/proj/marked/file"); !out.Success() {
					t.Errorf("a mark hides a file: %+v", out)
				}
				// Its content is the host's own, and can't be written.
				if err := os.WriteFile(d.project+"/file", []byte("changed"), 0o644); err != nil {
					t.Fatal(err)
				}
				if out := sh(t, sb, "cat /h/proj/file; echo x >/h/proj/file || echo x >/h/new || chmod 777 /h/proj || rm /h/proj/file || exit 3"); string(out.Stdout) != "changed" || out.ExitCode != 3 {
					t.Errorf("%+v: %s", out.Result, out.Stdout)
				}
			})
		}
	}
}

// BenchmarkMountWithCover compares a mount that contains a data directory with
// one that does not.
func BenchmarkMountWithCover(b *testing.B) {
	for _, covered := range []bool{false, true} {
		b.Run(fmt.Sprintf("covered=%v", covered), func(b *testing.B) {
			home := b.TempDir()
			private := filepath.Join(home, ".local/share/sandpit")
			opt := options()
			if covered {
				opt.Private = []string{private}
			}
			e := engine.New(engine.Options{Driver: linux.New(opt), Images: images(), Policy: policy.Default()})
			defer e.Close()
			for b.Loop() {
				sb, err := e.Create(b.Context(), sandpit.Spec{Mounts: []sandpit.Mount{{Source: home, Target: "/h", ReadOnly: true}}})
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
