package engine_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image/imagetest"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// fileSystems are those that a store may stand on.
var fileSystems = []string{"ext4", "xfs", "btrfs", "tmpfs", "overlay"}

// inOwnMounts tells the test program that the mount namespace is its own.
const inOwnMounts = "SANDPIT_TEST_OWN_MOUNTS"

// Sandboxes of the host's image and of a stored one work, are apart from each
// other, and leave nothing, on whatever file system the store stands.
//
// Each file system is mounted by this test program in a mount namespace of its
// own: however it ends, the mount and its loop device end with it.
func TestStoreOnFileSystems(t *testing.T) {
	testkit.NeedFull(t, "it makes large file systems")
	if os.Getenv(inOwnMounts) != "" {
		for _, name := range fileSystems {
			t.Run(name, func(t *testing.T) { storeOn(t, name) })
		}
		return
	}
	testkit.NeedRoot(t, "to mount file systems")
	needGuest(t)
	imagetest.Debian(t) // made once, and skipped here where it can't be
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range fileSystems {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cmd := exec.CommandContext(t.Context(), exe, "-test.v", "-test.run=^TestStoreOnFileSystems$/^"+name+"$")
			cmd.Env = append(os.Environ(), inOwnMounts+"=1", "TMPDIR="+dir)
			cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
			out, err := cmd.CombinedOutput()
			switch {
			case err != nil && len(out) == 0:
				testkit.Need(t, "the right to mount", err)
			case err != nil:
				t.Errorf("%v\n%s", err, out)
			case bytes.Contains(out, []byte("--- SKIP")):
				testkit.Lacks(t, "what it says in a mount namespace of its own: "+string(out))
			}
			// A loop device ends with the last that holds its file system: a
			// process or a mount anywhere.
			testkit.Until(t, "no loop device is left", func() bool { return len(loopsOf(dir)) == 0 }, func() string { return fmt.Sprint(loopsOf(dir)) })
		})
	}
}

// loopsOf returns the loop devices with a file below dir.
func loopsOf(dir string) []string {
	var left []string
	names, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, name := range names {
		if file, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(file), dir) {
			left = append(left, name)
		}
	}
	return left
}

// mountNew mounts a new file system of that type and returns where.
func mountNew(t *testing.T, fstype string) string {
	t.Helper()
	dir := t.TempDir()
	at := filepath.Join(dir, "store")
	do := func(name string, args ...string) {
		t.Helper()
		if name = lookPath(name); name == "" {
			testkit.Lacks(t, "a program that makes or mounts "+fstype)
		}
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
			testkit.Need(t, "a kernel with "+fstype, fmt.Errorf("%w: %s", err, out))
		}
	}
	mount := func(fstype, options, what, at string) {
		t.Helper()
		do("mount", "-t", fstype, "-o", options, what, at)
		t.Cleanup(func() {
			// Not with MNT_DETACH: what still holds it shall be told. The kernel
			// may let go of what has ended a moment later.
			err := unix.Unmount(at, 0)
			for end := time.Now().Add(testkit.Patience); err == unix.EBUSY && time.Now().Before(end); err = unix.Unmount(at, 0) {
				time.Sleep(10 * time.Millisecond)
			}
			if err != nil {
				t.Errorf("unmounting %s: %v", at, err)
			}
		})
	}
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	switch fstype {
	case "tmpfs":
		mount("tmpfs", "size=1g", "store", at)
	case "overlay":
		// What a container has as its root. The layers stand on a tmpfs, as
		// dir may be of such a root itself.
		layers := filepath.Join(dir, "layers")
		if err := os.Mkdir(layers, 0o755); err != nil {
			t.Fatal(err)
		}
		mount("tmpfs", "size=1g", "layers", layers)
		for _, name := range []string{"lower", "upper", "work"} {
			if err := os.Mkdir(filepath.Join(layers, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		mount("overlay", "lowerdir="+layers+"/lower,upperdir="+layers+"/upper,workdir="+layers+"/work", "store", at)
	default:
		file := filepath.Join(dir, "disk")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(file, 1<<30); err != nil {
			t.Fatal(err)
		}
		do("mkfs."+fstype, "-q", file)
		mount(fstype, "loop", file, at)
	}
	return at
}

func lookPath(name string) string {
	for _, dir := range []string{"", "/usr/sbin/", "/sbin/"} {
		if path, err := exec.LookPath(dir + name); err == nil {
			return path
		}
	}
	return ""
}

// change is what a program does to an image: every way to change a file of a
// layer that is below, and at the end what has come of it.
const change = `set -e
cd /etc
echo more >>debconf.conf
chmod 600 shells
chown 1:2 shells
rm issue
mv profile profile.old
ln profile.old profile.link
rm -r skel; mkdir skel; echo new >skel/file
mv /etc/apt/apt.conf.d /etc/apt/moved
touch -d @1 /etc/hostname
ln -s /etc/passwd /etc/link
echo hidden >/opt/own
dd if=/dev/urandom of=/var/tmp/big bs=64k count=64 2>/dev/null
tail -n 1 debconf.conf; stat -c '%a %u %g %n' shells; test ! -e issue
ls -A skel; cat skel/file; test -d apt/moved; test ! -e apt/apt.conf.d
echo linked >>profile.old; tail -n 1 profile.link; readlink link; cat /opt/own
`

const changed = "more\n600 1 2 shells\nfile\nnew\nlinked\n/etc/passwd\nhidden\n"

// look tells the state of what change changes.
const look = `cd /etc
cksum debconf.conf issue profile shells
stat -c '%a %u %g %n' shells skel
ls -A skel apt . | cksum
ls -d /opt/own /var/tmp/big 2>&1
`

// changeHost is the same for the host's image, whose /usr can't be changed and
// whose files differ from host to host.
const changeHost = `set -e
echo 'new:x:4000:4000::/:/bin/sh' >>/etc/passwd
id -u new
chmod 600 /etc/group; stat -c %a /etc/group
rm /etc/nsswitch.conf; test ! -e /etc/nsswitch.conf
mkdir /opt/own; echo hidden >/opt/own/file; cat /opt/own/file
if touch /usr/own 2>/dev/null; then echo /usr can be written; fi
`

const changedHost = "4000\n600\nhidden\n"

const lookHost = `cksum /etc/passwd /etc/group /etc/nsswitch.conf; stat -c %a /etc/group; ls -A /opt`

func storeOn(t *testing.T, fstype string) {
	archive := imagetest.Debian(t)
	home := mountNew(t, fstype)
	t.Setenv("TMPDIR", home) // where newEngine has its store
	for _, c := range []struct{ name, image, change, changed, look string }{
		{"host", "host", changeHost, changedHost, lookHost},
		{"stored", "oci-archive:" + archive, change, changed, look},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t)
			// What is made once and kept is made by the first.
			first := create(t, e, sandpit.Spec{Image: c.image, User: "root"})
			untouched, _ := shell(t, first, c.look)
			if err := first.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			files, mounts := filesOf(t, home), mountsOf(t)

			before := create(t, e, sandpit.Spec{Image: c.image, User: "root"})
			during := create(t, e, sandpit.Spec{Image: c.image, User: "root"})
			if out, res := shell(t, during, c.change); out != c.changed || !res.Success() {
				t.Errorf("%+v, wrote:\n%s\nwant:\n%s", res, out, c.changed)
			}
			after := create(t, e, sandpit.Spec{Image: c.image, User: "root"})
			for name, other := range map[string]sandpit.Sandbox{"made before": before, "made after": after} {
				if out, _ := shell(t, other, c.look); out != untouched {
					t.Errorf("a sandbox %s sees changes of another (-untouched +seen):\n%s", name, cmp.Diff(untouched, out))
				}
			}
			ordinary := create(t, e, sandpit.Spec{Image: c.image})
			if out, res := shell(t, ordinary, "echo x >/tmp/x && cat /tmp/x && ! touch /etc/x 2>/dev/null"); out != "x\n" || !res.Success() {
				t.Errorf("as an ordinary user: %+v, wrote %q", res, out)
			}
			for _, sb := range []sandpit.Sandbox{before, during, after, ordinary} {
				if err := sb.Remove(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if diff := cmp.Diff(files, filesOf(t, home)); diff != "" {
				t.Errorf("files of the store (-before +after):\n%s", diff)
			}
			if diff := cmp.Diff(mounts, mountsOf(t)); diff != "" {
				t.Errorf("mounts (-before +after):\n%s", diff)
			}
		})
	}
}

// filesOf lists what is below dir.
func filesOf(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		files = append(files, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// mountsOf lists the mounts of this namespace.
func mountsOf(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(strings.Lines(string(data)))
}
