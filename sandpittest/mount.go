package sandpittest

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

var mountProperties = []property{
	{"a mount is the host's directory, and what is made in it belongs to its owner", testMount},
	{"a read-only mount can't be written by any way", testReadOnlyMount},
	{"a file can be mounted", testFileMount},
	{"a target in a mount, and one below a link of the image", testMountTargets},
	{"devices and set-user-id programs of a mount are dead", testMountRights},
	{"no set-user-id file is made in a mount", testMountSetID},
	{"a tmpfs has its size", testTmpfs},
	{"a directory is an image", testDirImage},
	{"removing a sandbox leaves a mount's files alone", testMountSurvives},
}

// shared makes a host directory that a sandbox's user may be given.
func shared(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	// t.TempDir may be under a link, which a mount's source must not be.
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("of the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func testMount(t *testing.T, e *env) {
	e.needLocal(t)
	for _, user := range []string{"", "root", "1234:2345"} {
		t.Run("as "+user, func(t *testing.T) {
			dir := shared(t)
			uid, gid := os.Geteuid(), os.Getegid()
			if os.Geteuid() == 0 {
				// Not the host's root, so that a wrong owner is noticed.
				uid, gid = 4321, 5432
				for _, f := range []string{dir, filepath.Join(dir, "f")} {
					if err := os.Chown(f, uid, gid); err != nil {
						t.Skipf("files can't be given away here: %v", err)
					}
				}
			}
			sb := e.sandbox(t, sandpit.Spec{User: user, Mounts: []sandpit.Mount{{Source: dir, Target: "/data/in"}}})
			if got := shell(t, sb, "cat /data/in/f; echo made >/data/in/made; mkdir /data/in/d; echo more >>/data/in/f; stat -c %u:%g /data/in/f /data/in/made; echo $(id -u):$(id -g)"); !strings.HasPrefix(got, "of the host\n") {
				t.Errorf("got %q", got)
			} else if f := strings.Fields(got)[3:]; len(f) != 3 || f[0] != f[2] || f[1] != f[2] {
				t.Errorf("inside the files belong to %q, the user is %s", f[:2], f[2])
			}
			put(t, sb, "/data/in/by-files", "x")
			for _, name := range []string{"made", "d", "f", "by-files"} {
				st, err := os.Stat(filepath.Join(dir, name))
				if err != nil {
					t.Error(err)
					continue
				}
				if sys := st.Sys().(*syscall.Stat_t); int(sys.Uid) != uid || int(sys.Gid) != gid {
					t.Errorf("%s belongs to %d:%d, want %d:%d", name, sys.Uid, sys.Gid, uid, gid)
				}
			}
			if data, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(data) != "of the host\nmore\n" {
				t.Errorf("got %q, %v", data, err)
			}
			if err := os.WriteFile(filepath.Join(dir, "later"), []byte("later"), 0o644); err != nil {
				t.Fatal(err)
			}
			if got := get(t, sb, "/data/in/later"); got != "later" {
				t.Errorf("got %q", got)
			}
		})
	}
}

func testReadOnlyMount(t *testing.T, e *env) {
	e.needLocal(t)
	dir := shared(t)
	for _, user := range []string{"", "root"} {
		sb := e.sandbox(t, sandpit.Spec{User: user, Mounts: []sandpit.Mount{{Source: dir, Target: "/data", ReadOnly: true}}})
		for _, script := range []string{
			`echo x >/data/x`, `echo x >>/data/f`, `rm /data/f`, `mv /data/f /data/g`, `chmod 777 /data/f`, `mkdir /data/d`, `touch /data/f`,
			`echo x >/proc/self/root/data/x`, `exec 7</data/f; echo x >/proc/self/fd/7`, `ln /data/f /tmp/f; echo x >/tmp/f && false`,
			`ln -s /data/f /tmp/l; echo x >/tmp/l`, `mount -o remount,bind,rw /data`, `truncate -s 0 /data/f`, `dd if=/dev/zero of=/data/f bs=1 count=1 conv=notrunc`,
		} {
			if out := run(t, sb, sandpit.Command{Script: "rm -f /tmp/f /tmp/l; " + script}); out.Success() {
				t.Errorf("as %q this works: %s", user, script)
			}
		}
		_, err := sb.Files().Write(t.Context(), "/data/x", strings.NewReader("x"), sandpit.WriteOptions{})
		if !refusedWrite(err) {
			t.Errorf("got %v", err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(data) != "of the host\n" {
		t.Errorf("got %q, %v", data, err)
	}
}

func testFileMount(t *testing.T, e *env) {
	e.needLocal(t)
	dir := shared(t)
	sb := e.sandbox(t, sandpit.Spec{Mounts: []sandpit.Mount{
		{Source: filepath.Join(dir, "f"), Target: "/etc/some.conf", ReadOnly: true},
		{Source: filepath.Join(dir, "f"), Target: "/tmp/f"},
	}})
	if got := shell(t, sb, "cat /etc/some.conf; echo more >>/tmp/f; ls -A /tmp"); got != "of the host\nf" {
		t.Errorf("got %q", got)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(data) != "of the host\nmore\n" {
		t.Errorf("got %q, %v", data, err)
	}
	if out := run(t, sb, sandpit.Command{Script: "echo x >/etc/some.conf"}); out.Success() {
		t.Error("the read-only one was written")
	}
}

func testMountTargets(t *testing.T, e *env) {
	e.needLocal(t)
	dir, inner := shared(t), shared(t)
	if err := os.Mkdir(filepath.Join(dir, "place"), 0o755); err != nil {
		t.Fatal(err)
	}
	sb := e.sandbox(t, sandpit.Spec{Mounts: []sandpit.Mount{
		{Source: dir, Target: "/data"}, {Source: inner, Target: "/data/place", ReadOnly: true}, {Source: inner, Target: "/data/../other/./x"},
	}})
	if got := shell(t, sb, "cat /data/place/f /other/x/f"); got != "of the host\nof the host" {
		t.Errorf("got %q", got)
	}
}

func testMountRights(t *testing.T, e *env) {
	e.needLocal(t)
	dir := shared(t)
	if err := syscall.Mknod(filepath.Join(dir, "null"), syscall.S_IFCHR|0o666, 1<<8|3); err != nil {
		t.Skipf("no device can be made here: %v", err)
	}
	if err := os.Chmod(filepath.Join(dir, "null"), 0o666); err != nil {
		t.Fatal(err)
	}
	id, err := os.ReadFile("/usr/bin/id")
	if err != nil {
		t.Skipf("this machine has no program to mount: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "id"), id, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "id"), 0o755|os.ModeSetuid|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	sb := e.sandbox(t, sandpit.Spec{Mounts: []sandpit.Mount{{Source: dir, Target: "/data"}}})
	if out := run(t, sb, sandpit.Command{Script: "cat /data/null"}); out.Success() {
		t.Error("a device of a mount can be opened")
	}
	if got, want := shell(t, sb, "/data/id -u || id -u"), shell(t, sb, "id -u"); got != want {
		t.Errorf("a set-user-id program is %s, the user %s", got, want)
	}
}

func testMountSetID(t *testing.T, e *env) {
	e.needLocal(t)
	for _, user := range []string{"", "root"} {
		dir := shared(t)
		sb := e.sandbox(t, sandpit.Spec{User: user, Mounts: []sandpit.Mount{{Source: dir, Target: "/data"}}})
		// Each makes its file, with the mode or without.
		shell(t, sb, `cd /data; for m in 4755 2755 6755; do echo x >chmod$m; chmod $m chmod$m; install -m $m /bin/sh install$m; mkdir -m $m dir$m; done; chmod u+s,g+s f; :`)
		isPathError(t, sb.Files().Chmod(guarded(t), "/data/chmod4755", 0o755|fs.ModeSetuid), fs.ErrPermission)
		_, err := sb.Files().Write(guarded(t), "/data/written", strings.NewReader("x"), sandpit.WriteOptions{Mode: 0o755 | fs.ModeSetuid})
		isPathError(t, err, fs.ErrPermission)
		files := 0
		err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
				t.Errorf("as %q: on the host %s has the mode %v", user, path, info.Mode())
			}
			files++
			return err
		})
		if err != nil || files < 5 {
			t.Errorf("%d files were made: %v", files, err)
		}
	}
}

func testTmpfs(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{Tmpfs: []sandpit.Tmpfs{{Target: "/scratch", Size: 1 << 20}, {Target: "/deep/er"}}})
	shell(t, sb, "head -c 500000 /dev/zero >/scratch/f; head -c 5000000 /dev/zero >/deep/er/f")
	out := run(t, sb, sandpit.Command{Script: "head -c 5000000 /dev/zero >/scratch/g"})
	if out.Success() || !strings.Contains(string(out.Stderr), "No space left") {
		t.Errorf("got %+v, %s", out.Result, brief(out.Stderr))
	}
	_, err := sb.Files().Write(guarded(t), "/scratch/h", &noiseReader{n: 5 << 20}, sandpit.WriteOptions{})
	isPathError(t, err, sandpit.ErrNoSpace)
	if got := shell(t, sb, `df -P -k /deep/er | awk 'NR==2 { print $2 }'`); got != "65536" { // 64 MiB, the default
		t.Errorf("got %q", got)
	}
}

func testDirImage(t *testing.T, e *env) {
	e.needLocal(t)
	dir := shared(t)
	for _, d := range []string{"etc", "bin"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte("root:x:0:0::/:/bin/sh\nsomeone:x:1500:1600::/:/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	sb := e.sandbox(t, sandpit.Spec{Image: "dir:" + dir, User: "someone"})
	if got := get(t, sb, "/f"); got != "of the host\n" {
		t.Errorf("got %q", got)
	}
	// There is no shell in it; the sandbox works all the same.
	if failed := notStarted(t, sb, sandpit.Command{Script: "true"}); failed.ExitCode != 127 || failed.Reason == "" {
		t.Errorf("got %+v", failed)
	}
	put(t, sb, "/tmp/x", "x")
	info, err := sb.Files().Stat(t.Context(), "/tmp/x")
	if err != nil || info.UID != 1500 || info.GID != 1600 {
		t.Errorf("got %+v, %v", info, err)
	}
	root := e.sandbox(t, sandpit.Spec{Image: "dir:" + dir, User: "root"})
	put(t, root, "/f", "changed")
	if data, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(data) != "of the host\n" {
		t.Errorf("the image now holds %q, %v", data, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 3 {
		t.Errorf("the image now has %v, %v", entries, err)
	}
}

func testMountSurvives(t *testing.T, e *env) {
	e.needLocal(t)
	dir := shared(t)
	sb := e.sandbox(t, sandpit.Spec{Mounts: []sandpit.Mount{{Source: dir, Target: "/tmp/data"}}})
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(data) != "of the host\n" {
		t.Errorf("got %q, %v", data, err)
	}
}
