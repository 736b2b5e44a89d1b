package image_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// changedRoot is an overlay over the layers of an image, as a sandbox has one.
type changedRoot struct {
	t     *testing.T
	dir   string
	lease *image.Lease
	omit  []string
}

// overImage mounts one in a tmpfs of its own.
func overImage(t *testing.T, l *image.Lease) *changedRoot {
	t.Helper()
	top := t.TempDir()
	testkit.Tmpfs(t, top, 0, "size=64m,mode=0755")
	for _, d := range []string{"root", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(top, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(top, "root")
	opts := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work,userxattr", strings.Join(l.Rootfs().Layers, ":"), top, top)
	if err := syscall.Mount("overlay", dir, "overlay", 0, opts); err != nil {
		testkit.Need(t, "overlays with marks of users", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return &changedRoot{t: t, dir: dir, lease: l}
}

// script changes it.
func (c *changedRoot) script(text string) {
	c.t.Helper()
	if out, err := exec.CommandContext(c.t.Context(), "sh", "-ec", "cd '"+c.dir+"'\n"+text).CombinedOutput(); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
}

// save saves it with the ids that it has.
func (c *changedRoot) save(s *image.Store, opt image.SaveOptions) (image.Summary, []string, error) {
	c.t.Helper()
	root, err := os.OpenFile(c.dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	defer root.Close()
	if opt.Quota == 0 {
		opt.Quota = math.MaxInt64
	}
	same := image.ParseIDMap("         0          0 4294967295\n")
	return s.Save(c.t.Context(), c.lease, image.Tree{Root: root, UIDs: same, GIDs: same, Omit: c.omit}, opt)
}

func (c *changedRoot) mustSave(s *image.Store, opt image.SaveOptions) (image.Summary, []string) {
	c.t.Helper()
	sum, left, err := c.save(s, opt)
	if err != nil {
		c.t.Fatalf("%v (hint: %s)", err, sandpit.Hint(err))
	}
	return sum, left
}

// looks describes all files of a tree, except those of some names.
func looks(t *testing.T, dir string, without ...string) map[string]string {
	t.Helper()
	all, inodes := map[string]string{}, map[uint64]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(p, dir)
		if slices.Contains(without, name) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(p, &st); err != nil {
			return err
		}
		text := fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid)
		if !d.IsDir() { // the times of directories on the way to a change are those of the change
			text += fmt.Sprint(" ", st.Mtim.Sec)
		}
		switch d.Type() {
		case fs.ModeSymlink:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			text += " -> " + to
		case 0:
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %.40q %d", data, len(data))
			if st.Nlink > 1 {
				if inodes[st.Ino] == "" {
					inodes[st.Ino] = name
				}
				text += " = " + inodes[st.Ino]
			}
			value := make([]byte, 100)
			if n, err := unix.Getxattr(p, "user.x", value); err == nil {
				text += " x=" + string(value[:n])
			}
		}
		all[name] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	delete(all, "")
	return all
}

// baseImage imports an image of two layers: a directory, and what changes it.
func baseImage(t *testing.T, s *image.Store) *image.Lease {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"same/deep/file", "gone/a", "gone/b/c", "part/a", "part/b", "turned/file", "file", "attr/x", "linked/x", "moved/x"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Import(t.Context(), "dir:"+dir, "base:1", image.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	return mustAcquire(t, s, "base:1", image.AcquireOptions{})
}

// What a sandbox sees is what sandboxes of the saved image see, whatever was done to the files.
func TestSaveKeepsEveryChange(t *testing.T) {
	testkit.NeedRoot(t, "to mount an overlay")
	s := newStore(t, nil)
	c := overImage(t, baseImage(t, s))
	before := looks(t, c.dir)
	c.script(`
		rm -r gone; rm part/a; echo new > part/new
		rm -r turned; echo now a file > turned
		rm file; mkdir -p file/is/a; echo d > file/is/a/dir
		chmod 0700 attr; chown 7:8 attr/x
		echo l > linked/n; ln linked/n linked/y; ln linked/n "linked/z
		z"
		mv moved/x moved/y
		rm -r same/deep; mkdir same/deep; echo other > same/deep/other
		ln -s ../../../../etc/passwd out; ln -s / slash
		mkdir -m 1777 sticky; echo s > setuid; chmod 6755 setuid
		truncate -s 100000 sparse
		touch -d @1 old; printf 'x' > "$(printf 'bad\377name')"
		touch -r part/b stamp; echo part/x > part/b; touch -r stamp part/b`)
	if err := unix.Setxattr(filepath.Join(c.dir, "old"), "user.x", []byte("y"), 0); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		t.Fatal(err)
	}
	want := looks(t, c.dir)
	if cmp.Equal(before, want) {
		t.Fatal("nothing was changed")
	}
	sum, left := c.mustSave(s, image.SaveOptions{Owner: "team", Name: "app"})
	if len(left) > 0 || sum.Name != "saved:app" || !sum.Saved || sum.Owner != "team" {
		t.Errorf("got %+v, %q", sum, left)
	}
	next := overImage(t, mustAcquire(t, s, "saved:app", image.AcquireOptions{Owner: "team"}))
	if diff := cmp.Diff(want, looks(t, next.dir)); diff != "" {
		t.Error(diff)
	}
	// Nothing changed is an empty layer. A change that only the second layer hides is one of that.
	next.mustSave(s, image.SaveOptions{Owner: "team", Name: "same"})
	last := mustAcquire(t, s, "saved:same", image.AcquireOptions{Owner: "team"})
	if names, err := os.ReadDir(last.Rootfs().Layers[0]); err != nil || len(names) > 0 {
		t.Errorf("an unchanged root has a layer of %v, %v", names, err)
	}
	third := overImage(t, last)
	third.script(`rm -r part out; echo a > file/is/b`)
	want = looks(t, third.dir)
	third.mustSave(s, image.SaveOptions{Owner: "team", Name: "same"})
	if diff := cmp.Diff(want, looks(t, overImage(t, mustAcquire(t, s, "saved:same", image.AcquireOptions{Owner: "team"})).dir)); diff != "" {
		t.Error(diff)
	}
}

// Trees that mean harm are packed without what a layer can't have, or refused. Nothing outside of the
// root is read.
func TestSaveHostileTrees(t *testing.T) {
	testkit.NeedRoot(t, "to mount an overlay")
	s := newStore(t, nil)
	base := baseImage(t, s)
	c := overImage(t, base)
	c.omit = []string{"/secret", "/part/b"}
	c.script(`
		mkfifo pipe; mknod device c 1 3; mknod white c 0 0 || true
		echo x > .wh.file; mkdir -p .wh..wh.plnk/x; mkdir wh; touch wh/.wh..wh..opq
		ln -s /etc etc; ln -s . loop
		mkdir secret secrets mnt; echo s > secret/a; echo mine > secrets/a; echo s > part/b`)
	listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listener)
	if err := unix.Bind(listener, &unix.SockaddrUnix{Name: filepath.Join(c.dir, "s")}); err != nil {
		t.Fatal(err)
	}
	testkit.Tmpfs(t, filepath.Join(c.dir, "mnt"), 0, "size=1m")
	c.script(`echo mounted > mnt/file`)
	// Attributes that would speak to overlayfs. Before Linux 6.7 nobody inside can set one.
	hidden := []string{}
	for _, name := range []string{"user.overlay.redirect", "user.overlay.opaque", "user.overlayed"} {
		switch err := unix.Setxattr(filepath.Join(c.dir, "secrets/a"), name, []byte("y"), 0); {
		case err == nil && name != "user.overlayed":
			hidden = append(hidden, `"secrets/a": extended attribute "`+name+`"`)
		case err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EPERM):
			t.Fatal(err)
		}
	}
	_, left := c.mustSave(s, image.SaveOptions{Name: "app"})
	said := strings.Join(left, "\n")
	for _, want := range append(hidden, `"pipe": a FIFO`, `"device": a device`, `"s": a socket`, `".wh.file": it has`, `".wh..wh.plnk": it has`, `"wh/.wh..wh..opq": it has`) {
		if !strings.Contains(said, want) {
			t.Errorf("%s is not in %s", want, said)
		}
	}
	layer := mustAcquire(t, s, "saved:app", image.AcquireOptions{}).Rootfs().Layers[0]
	var attributes [1024]byte
	if n, err := unix.Llistxattr(filepath.Join(layer, "secrets/a"), attributes[:]); err != nil || string(attributes[:n]) != "user.overlayed\x00" {
		t.Errorf("the layer has the attributes %q, %v", attributes[:n], err)
	}
	got := slices.Sorted(maps.Keys(looks(t, layer)))
	if diff := cmp.Diff([]string{"/etc", "/loop", "/secrets", "/secrets/a", "/wh"}, got); diff != "" {
		t.Error(diff)
	}

	for name, script := range map[string]string{
		"holes":           `truncate -s 1000000000000 huge`,
		"many holes":      `for i in 1 2 3; do truncate -s 400000 h$i; done`,
		"depth":           `d=.; for i in $(seq 600); do d=$d/d; done; mkdir -p $d`,
		"a long whiteout": `rm part/*`,
	} {
		c := overImage(t, base)
		if name == "a long whiteout" {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, strings.Repeat("n", 254)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Import(t.Context(), "dir:"+dir, "long:1", image.ImportOptions{}); err != nil {
				t.Fatal(err)
			}
			c, script = overImage(t, mustAcquire(t, s, "long:1", image.AcquireOptions{})), "rm n*"
		}
		c.script(script)
		_, _, err := c.save(s, image.SaveOptions{Name: "bad", Bytes: 1 << 20})
		wantError(t, err, sandpit.ErrInvalid, false)
	}
	if _, err := s.Acquire(t.Context(), "saved:bad", image.AcquireOptions{}); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("what was refused is there: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Join(s.Dir(), "tmp")); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// A saved image is found, listed and removed by its namespace only, and a namespace saves no more than
// its quota.
func TestSavedImagesBelongToANamespace(t *testing.T) {
	testkit.NeedRoot(t, "to mount an overlay")
	s := newStore(t, nil)
	c := overImage(t, baseImage(t, s))
	c.script(`head -c 100000 /dev/urandom > mine`)
	mine, _ := c.mustSave(s, image.SaveOptions{Owner: "mine", Name: "app", Quota: 300_000})
	again, _ := c.mustSave(s, image.SaveOptions{Owner: "other", Name: "app", Quota: 300_000})
	if mine.Digest == again.Digest {
		t.Error("a digest can be guessed")
	}
	for _, ref := range []string{mine.Digest, "base@" + mine.Digest, "saved:mine/app", "saved:none", "saved:", "saved:../app", "saved:app@" + mine.Digest, "saved:app@sha256:0", "saved:other/mine/app", "saved:other/other/app"} {
		if _, err := s.Acquire(t.Context(), ref, image.AcquireOptions{Owner: "other", Pull: sandpit.PullNever}); !errors.Is(err, sandpit.ErrNotFound) && !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%s: got %v", ref, err)
		}
	}
	for ref, owner := range map[string]string{
		mine.Digest: "mine", "saved:mine/app": "", "saved:app@" + mine.Digest: "mine", "saved:mine/app@" + mine.Digest: "",
		"saved:other/app": "other", "saved:other/app@" + again.Digest: "other",
	} {
		mustAcquire(t, s, ref, image.AcquireOptions{Owner: owner}).Release()
	}
	if _, err := s.RemoveSaved(t.Context(), "saved:app@"+again.Digest, "mine"); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("removing another image than was named: %v", err)
	}
	// The layer of 100 KB is charged twice.
	_, _, err := c.save(s, image.SaveOptions{Owner: "mine", Name: "two", Quota: 300_000})
	wantError(t, err, sandpit.ErrQuota, true)
	c.mustSave(s, image.SaveOptions{Owner: "mine", Name: "two", Quota: 500_000}) // the same layer is stored once
	for _, ref := range []string{"saved:app", mine.Digest} {
		if _, err := s.RemoveSaved(t.Context(), ref, "third"); !errors.Is(err, sandpit.ErrNotFound) {
			t.Errorf("%s: got %v", ref, err)
		}
	}
	if _, err := s.Prune(t.Context(), image.PruneOptions{All: true}); err != nil {
		t.Fatal(err)
	}
	list, err := s.List(t.Context())
	if err != nil || len(list) != 4 {
		t.Errorf("got %+v, %v", list, err)
	}
	// It is exported with what lies below it, and is the same elsewhere.
	var archive bytes.Buffer
	if err := s.Export(t.Context(), "saved:mine/app", &archive); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "app.tar")
	if err := os.WriteFile(file, archive.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	elsewhere := mustAcquire(t, newStore(t, nil), "oci-archive:"+file, image.AcquireOptions{}).Rootfs()
	if elsewhere.Digest != mine.Digest || len(elsewhere.Layers) != 2 {
		t.Errorf("got %+v", elsewhere)
	}
	for _, name := range []string{"app", "two"} {
		if _, err := s.RemoveSaved(t.Context(), "saved:"+name, "mine"); err != nil {
			t.Error(err)
		}
	}
	mustAcquire(t, s, "saved:app", image.AcquireOptions{Owner: "other"})
}

// stored returns the files of a store that images take room with.
func stored(t *testing.T, s *image.Store) []string {
	t.Helper()
	var all []string
	for _, dir := range []string{"blobs", "images", "layers", "refs", "tmp"} {
		entries, err := os.ReadDir(filepath.Join(s.Dir(), dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			all = append(all, dir+"/"+e.Name())
		}
	}
	return all
}

// A file without content takes a block and an inode, in the quota as on disk: while it is packed, and once it is stored.
func TestEmptyFilesCount(t *testing.T) {
	testkit.NeedRoot(t, "to mount an overlay")
	s := newStore(t, nil)
	c := overImage(t, baseImage(t, s))
	c.script(`mkdir many; cd many; seq 2000 | xargs mkdir`)
	before := stored(t, s)
	_, _, err := c.save(s, image.SaveOptions{Owner: "mine", Name: "app", Quota: 8 << 20}) // content and names are 3 MiB
	wantError(t, err, sandpit.ErrQuota, true)
	if diff := cmp.Diff(before, stored(t, s)); diff != "" {
		t.Error(diff)
	}
	c.mustSave(s, image.SaveOptions{Owner: "mine", Name: "app", Quota: 12 << 20})
	c.script(`echo 1 > small`)
	_, _, err = c.save(s, image.SaveOptions{Owner: "mine", Name: "two", Quota: 16 << 20})
	wantError(t, err, sandpit.ErrQuota, true)
	c.mustSave(s, image.SaveOptions{Owner: "mine", Name: "two", Quota: 24 << 20})
}

// What is noted of files while they are packed is bounded in memory, however short their names are.
func TestSaveIsBoundedInMemory(t *testing.T) {
	testkit.NeedRoot(t, "to mount an overlay")
	base := newStore(t, nil)
	lease := baseImage(t, base)
	s := image.Open(base.Dir(), image.Options{NoSync: true, Limits: image.Limits{Names: 100 << 10}})
	for _, script := range []string{`seq 400 | xargs mkdir`, `mkdir d; for i in $(seq 600); do echo > f$i; ln f$i d/f$i; done`} {
		c := overImage(t, lease)
		c.script(script)
		_, _, err := c.save(s, image.SaveOptions{Name: "app"})
		wantError(t, err, sandpit.ErrInvalid, false)
		if err != nil && !strings.Contains(err.Error(), "memory") {
			t.Error(err)
		}
	}
}

// A save that its caller leaves, or that can't be named, leaves nothing that no quota counts.
func TestFailedSaveLeavesNothing(t *testing.T) {
	testkit.NeedRoot(t, "to mount an overlay")
	s := newStore(t, nil)
	c := overImage(t, baseImage(t, s))
	c.script(`head -c 100000 /dev/urandom > mine`)
	before := stored(t, s)
	root, err := os.OpenFile(c.dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	ctx, cancel := context.WithCancel(t.Context())
	_, _, err = s.Save(ctx, c.lease, image.Tree{Root: root}, image.SaveOptions{Name: "app", Quota: math.MaxInt64, Read: cancel})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(before, stored(t, s)); diff != "" {
		t.Error(diff)
	}
	refs := filepath.Join(s.Dir(), "refs")
	if err := errors.Join(os.Rename(refs, refs+".away"), os.WriteFile(refs, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.save(s, image.SaveOptions{Name: "app"}); err == nil {
		t.Error("an image without a name was saved")
	}
	if err := errors.Join(os.Remove(refs), os.Rename(refs+".away", refs)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, stored(t, s)); diff != "" {
		t.Error(diff)
	}
}

// Whenever a process is killed that saves an image, nothing is left when the next one opens the store, while
// unfinished files of processes that live stay.
func TestKilledSaveLeavesNothing(t *testing.T) {
	if dir := os.Getenv("SANDPIT_TEST_SAVE"); dir != "" {
		saveAndDie(t, dir)
		return
	}
	testkit.NeedRoot(t, "to mount an overlay")
	s := newStore(t, nil)
	c := overImage(t, baseImage(t, s))
	c.script(`head -c 300000 /dev/urandom > mine; mkdir dir`)
	lives := filepath.Join(s.Dir(), "tmp", "lives.saving")
	if err := os.WriteFile(lives, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(lives)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	before := stored(t, s)
	left := map[string]bool{}
	for n, killed := 1, true; killed; n++ {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledSaveLeavesNothing$", "-test.count=1")
		cmd.Env = append(os.Environ(), "SANDPIT_TEST_SAVE="+s.Dir(), "SANDPIT_TEST_ROOT="+c.dir, fmt.Sprint("SANDPIT_TEST_STEP=", n))
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		killed = errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
		if err != nil && !killed {
			t.Fatalf("%v: %s", err, out)
		}
		after := stored(t, s)
		if !killed {
			if len(after) <= len(before) {
				t.Errorf("nothing was saved: %q", after)
			}
			break
		}
		for _, name := range after {
			if !slices.Contains(before, name) {
				left[filepath.Dir(name)] = true
			}
		}
		s.Sweep()
		if diff := cmp.Diff(before, stored(t, s)); diff != "" {
			t.Errorf("killed at step %d: %s", n, diff)
		}
	}
	for _, dir := range []string{"tmp", "blobs"} {
		if !left[dir] {
			t.Errorf("no kill left anything in %s", dir)
		}
	}
}

// saveAndDie saves an image and kills itself at a step.
func saveAndDie(t *testing.T, dir string) {
	var step int
	if _, err := fmt.Sscan(os.Getenv("SANDPIT_TEST_STEP"), &step); err != nil {
		t.Fatal(err)
	}
	s := image.Open(dir, image.Options{NoSync: true})
	c := &changedRoot{t: t, dir: os.Getenv("SANDPIT_TEST_ROOT"), lease: mustAcquire(t, s, "base:1", image.AcquireOptions{})}
	c.mustSave(s, image.SaveOptions{Name: "app", Moves: func() {
		if step--; step == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}})
}

// A saved image may have several names in its namespace, whose number is bounded. One that loses its last name is removed.
func TestTagSaved(t *testing.T) {
	testkit.NeedRoot(t, "to mount an overlay")
	s := newStore(t, nil)
	c := overImage(t, baseImage(t, s))
	digest := func(name string) string {
		t.Helper()
		l, err := s.Acquire(t.Context(), "saved:"+name, image.AcquireOptions{Owner: "mine"})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		return l.Rootfs().Digest
	}
	c.script("echo 1 > file")
	first, _ := c.mustSave(s, image.SaveOptions{Owner: "mine", Name: "app:v1"})
	c.script("echo 2 > file")
	second, _ := c.mustSave(s, image.SaveOptions{Owner: "mine", Name: "app"})
	if first.Name != "saved:app:v1" || first.Digest == second.Digest {
		t.Errorf("got %+v and %+v", first, second)
	}
	got, err := s.TagSaved(t.Context(), "mine", "app:v1", []string{"app:stable", "app:v1", "other"})
	if err != nil || got != first.Digest {
		t.Errorf("got %s, %v", got, err)
	}
	for name, want := range map[string]string{"app": second.Digest, "app:v1": first.Digest, "app:stable": first.Digest, "other": first.Digest} {
		if got := digest(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	for owner, name := range map[string]string{"theirs": "app:v1", "": "app", "mine": "app:none"} {
		if _, err := s.TagSaved(t.Context(), owner, name, []string{"mine"}); !errors.Is(err, sandpit.ErrNotFound) {
			t.Errorf("%s of %s: got %v", name, owner, err)
		}
	}
	for _, name := range []string{"", "app:", ":a", "app:a:b", "app:../a", "theirs/app", "app@" + first.Digest} {
		if _, err := s.TagSaved(t.Context(), "mine", "app", []string{"good", name}); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%q: got %v", name, err)
		}
	}
	pinned := "app@" + first.Digest // which the name has no longer, or has in another namespace
	for owner, name := range map[string]string{"mine": pinned, "theirs": "app@" + second.Digest} {
		if _, err := s.TagSaved(t.Context(), owner, name, []string{"mine"}); !errors.Is(err, sandpit.ErrNotFound) {
			t.Errorf("%s of %s: got %v", name, owner, err)
		}
	}
	many := make([]string, 997)
	for i := range many {
		many[i] = fmt.Sprint("app:n", i)
	}
	_, err = s.TagSaved(t.Context(), "mine", "app", many)
	wantError(t, err, sandpit.ErrQuota, true)
	if _, err := s.TagSaved(t.Context(), "mine", "app", many[:996]); err != nil {
		t.Error(err)
	}
	// The second image takes all names of the first one.
	if _, err := s.TagSaved(t.Context(), "mine", "app", []string{"app:v1", "app:stable", "other"}); err != nil {
		t.Fatal(err)
	}
	if digest("app:v1") != second.Digest {
		t.Error("a name was not taken")
	}
	if _, err := s.Acquire(t.Context(), first.Digest, image.AcquireOptions{Owner: "mine"}); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("an image without a name is there: %v", err)
	}
}

// A saved image is found by a label in its own namespace, by its newest name, and no longer when it is removed.
func TestSavedWith(t *testing.T) {
	testkit.NeedRoot(t, "to mount an overlay")
	s := newStore(t, nil)
	c := overImage(t, baseImage(t, s))
	labeled := func(owner, name, value string) string {
		t.Helper()
		sum, _ := c.mustSave(s, image.SaveOptions{Owner: owner, Name: name, Configure: func(config *image.Config) {
			config.Labels = map[string]string{"label": value}
		}})
		return name + "@" + sum.Digest
	}
	labeled("mine", "first", "v")
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // names have seconds
	second := labeled("mine", "second", "v")
	other := labeled("mine", "third", "other")
	theirs := labeled("theirs", "app", "theirs")
	c.mustSave(s, image.SaveOptions{Owner: "mine", Name: "plain"})
	find := func(owner, value, want string) {
		t.Helper()
		got, err := s.SavedWith(owner, "label", value)
		if got != want || (want == "") != errors.Is(err, sandpit.ErrNotFound) {
			t.Errorf("%s of %s: got %q, %v, want %q", value, owner, got, err, want)
		}
	}
	find("mine", "v", second)
	find("mine", "other", other)
	find("mine", "theirs", "")
	find("mine", "none", "")
	find("theirs", "v", "")
	find("theirs", "theirs", theirs)
	if digest, err := s.TagSaved(t.Context(), "mine", second, []string{"tagged"}); err != nil || !strings.HasSuffix(second, digest) {
		t.Errorf("naming %s: %s, %v", second, digest, err)
	}
	for _, name := range []string{"second", "tagged"} {
		if _, err := s.RemoveSaved(t.Context(), "saved:"+name, "mine"); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.SavedWith("mine", "label", "v"); err != nil || !strings.HasPrefix(got, "first@") {
		t.Errorf("without the newest: got %q, %v", got, err)
	}
}
