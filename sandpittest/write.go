package sandpittest

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

var writeProperties = []property{
	{"ReadOnly leaves /tmp, /dev/shm, Tmpfs and writable Mounts", testReadOnly},
	{"only the paths of Write may be written", testWritePaths},
	{"a path of Write that does not exist is made, for the user", testWritePathMade},
	{"a path of Write may be a file", testWritePathFile},
	{"B11: write paths hold by every way to a file", testWritePathsDetour},
	{"write paths hold for root, too", testWritePathsRoot},
}

// mayWrite tries to write a path by a program and by Files, and returns
// whether both could; one that can and one that can't is an error.
func mayWrite(t *testing.T, sb sandpit.Sandbox, path string) bool {
	t.Helper()
	out := run(t, sb, sandpit.Command{Argv: []string{"sh", "-c", `echo x >"$1"`, "sh", path + "/by-shell"}})
	inside := out.Success()
	if text := string(out.Stderr); !inside && !strings.Contains(text, "Read-only") && !strings.Contains(text, "denied") {
		t.Errorf("writing to %s is refused with %q", path, text)
	}
	_, err := sb.Files().Write(t.Context(), path+"/by-files", strings.NewReader("x"), sandpit.WriteOptions{})
	outside := err == nil
	if err != nil && !refusedWrite(err) {
		t.Errorf("writing to %s is refused with %v", path, err)
	}
	if inside != outside {
		t.Errorf("writing to %s: by a program %v, by Files %v (%v, %s)", path, inside, outside, err, out.Stderr)
	}
	return inside || outside
}

// refusedWrite reports EROFS, EACCES or EPERM.
func refusedWrite(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)
}

func testReadOnly(t *testing.T, e *env) {
	for _, user := range []string{"", "root"} {
		sb := e.sandbox(t, sandpit.Spec{User: user, ReadOnly: true, Tmpfs: []sandpit.Tmpfs{{Target: "/scratch"}}})
		for path, want := range map[string]bool{"/": false, "/etc": false, "/usr": false, "/var": false, "/tmp": true, "/dev/shm": true, "/scratch": true, "/sys": false} {
			if mayWrite(t, sb, path) != want {
				t.Errorf("user %q may write to %s: %v", user, path, !want)
			}
		}
	}
}

func testWritePaths(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{Write: []string{"/tmp/work", "/var/tmp"}})
	shell(t, sb, "mkdir /tmp/work/deep; mkfifo /tmp/work/p; ln -s x /tmp/work/l; mv /tmp/work/l /tmp/work/l2; rm /tmp/work/p")
	for path, want := range map[string]bool{
		"/tmp/work": true, "/tmp/work/deep": true, "/var/tmp": true,
		"/tmp": false, "/": false, "/etc": false, "/dev/shm": false, "/home": false, "/dev/mqueue": false, "/usr": false, "/var": false, "/run": false,
	} {
		if got := run(t, sb, sandpit.Command{Argv: []string{"test", "-d", path}}); !got.Success() {
			continue
		}
		if mayWrite(t, sb, path) != want {
			t.Errorf("%s may be written: %v", path, !want)
		}
	}
	// What everything needs still works.
	if got := command(t, sb, sandpit.Command{Script: "echo x >/dev/null; echo out >/dev/tty; sh -c 'cat <<E\nhere\nE\n' </dev/zero | cat", Terminal: normal, Env: []string{"TMPDIR=/tmp/work"}}); !strings.Contains(got, "out") {
		t.Errorf("got %q", got)
	}
}

func testWritePathMade(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{Write: []string{"/made/for/me"}})
	if !mayWrite(t, sb, "/made/for/me") {
		t.Error("it can't be written")
	}
	if mayWrite(t, sb, "/made/for") {
		t.Error("what is above it can be written")
	}
}

func testWritePathFile(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{User: "root", Write: []string{"/etc/hostname"}})
	shell(t, sb, "echo changed >/etc/hostname")
	if got := shell(t, sb, "cat /etc/hostname"); got != "changed" {
		t.Errorf("got %q", got)
	}
	if mayWrite(t, sb, "/etc") {
		t.Error("its directory may be written")
	}
}

// detours are ways to write somewhere else than to $W, the only place. Each
// prints WROTE if it did.
var detours = map[string]string{
	"plain":                  `echo x >/tmp/x && echo WROTE`,
	"/proc/self/root":        `echo x >/proc/self/root/tmp/x && echo WROTE`,
	"/proc/1/root":           `echo x >/proc/1/root/tmp/x && echo WROTE`,
	"/proc/self/cwd":         `cd /tmp && echo x >/proc/self/cwd/x && echo WROTE`,
	"/proc/self/fd of a dir": `exec 7</tmp && echo x >/proc/self/fd/7/x && echo WROTE`,
	"reopened descriptor":    `exec 7</etc/hostname && echo x >/proc/self/fd/7 && echo WROTE`,
	"dots":                   `echo x >$W/../x && echo WROTE`,
	"symbolic link":          `ln -s /tmp $W/l && echo x >$W/l/x && echo WROTE`,
	"link to a file":         `ln -s /etc/hostname $W/f && echo x >$W/f && echo WROTE`,
	"hard link in":           `ln /etc/hostname $W/hard && echo x >$W/hard && echo WROTE`,
	"hard link out":          `echo x >$W/y; ln $W/y /tmp/y && echo WROTE`,
	"rename out":             `echo x >$W/z; mv -n $W/z /tmp/z && [ -e /tmp/z ] && echo WROTE`,
	"rename a directory out": `mkdir $W/d; mv -n $W/d /tmp/d && [ -e /tmp/d ] && echo WROTE`,
	"rename in":              `mv -n /etc/hostname $W/h && [ ! -e /etc/hostname ] && echo WROTE`,
	"replace the directory":  `mv $W $W.old && echo WROTE`,
	"remove":                 `rm -f /etc/hostname; [ -e /etc/hostname ] || echo WROTE`,
	"make a directory":       `mkdir /tmp/d && echo WROTE`,
	"make a pipe":            `mkfifo /tmp/p && echo WROTE`,
	"make a link":            `ln -s x /tmp/s && echo WROTE`,
	"truncate":               `truncate -s 0 /etc/hostname && [ ! -s /etc/hostname ] && echo WROTE`,
	"append":                 `echo x >>/etc/hostname && echo WROTE`,
	"permissions":            `chmod 777 /tmp && echo WROTE`,
	"times":                  `touch -d 2001-01-01 /etc/hostname && echo WROTE`,
	"owner":                  `chown 0:0 /etc/hostname && echo WROTE`,
	"shared memory":          `echo x >/dev/shm/x && echo WROTE`,
	"a new device":           `mknod /tmp/n c 1 3 && echo WROTE`,
	"dd without truncating":  `dd if=/dev/zero of=/etc/hostname bs=1 count=1 conv=notrunc 2>/dev/null && echo WROTE`,
	"mount":                  `mount -t tmpfs x $W 2>/dev/null && echo WROTE`,
	"remount":                `mount -o remount,rw / 2>/dev/null && echo WROTE`,
	"remount by bind":        `mount -o remount,bind,rw /tmp 2>/dev/null && echo WROTE`,
	"new user namespace":     `unshare -rm sh -c 'mount -o remount,bind,rw /; echo x >/tmp/x' 2>/dev/null && echo WROTE`,
}

func testWritePathsDetour(t *testing.T, e *env) {
	for _, user := range []string{"", "root"} {
		for name, script := range detours {
			t.Run(name+" as "+user, func(t *testing.T) {
				sb := e.sandbox(t, sandpit.Spec{User: user, Write: []string{"/work"}, Env: []string{"W=/work"}})
				before := shell(t, sb, "ls -lAR --time-style=full-iso /tmp /dev/shm /etc/hostname; cksum /etc/hostname; stat -c '%a %u' /tmp; ls -d /work")
				out := run(t, sb, sandpit.Command{Script: script})
				if strings.Contains(string(out.Stdout), "WROTE") {
					t.Errorf("it was written: %s", out.Stderr)
				}
				if after := shell(t, sb, "ls -lAR --time-style=full-iso /tmp /dev/shm /etc/hostname; cksum /etc/hostname; stat -c '%a %u' /tmp; ls -d /work"); after != before {
					t.Errorf("before:\n%s\nafter:\n%s", before, after)
				}
			})
		}
	}
}

func testWritePathsRoot(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{User: "root", Write: []string{"/work"}})
	for path, want := range map[string]bool{"/work": true, "/": false, "/etc": false, "/tmp": false, "/usr": false, "/dev/shm": false, "/root": false} {
		if mayWrite(t, sb, path) != want {
			t.Errorf("%s may be written: %v", path, !want)
		}
	}
}
