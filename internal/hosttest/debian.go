package hosttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// debian is a recipe for a whole Debian machine.
type debian struct {
	Release  string   // "trixie"
	Packages []string // beside the minimal base
}

// A unit of the test machine runs the suites from its second disk and turns the
// machine off. Both serial lines are the host's files: the first is the
// console, the second carries results.
//
//go:embed hosttest.service
var unitFile string

// common are the packages of every test machine.
var common = []string{
	"systemd", "systemd-sysv", "dbus", "dbus-user-session", "libpam-systemd", "uidmap",
	"python3-minimal", "iproute2", "procps", "login", "linux-image-cloud-amd64",
}

// customize runs in the new root file system, before it is packed.
var customize = []string{
	// The account of the suites: subordinate ids are given by useradd.
	`chroot "$1" useradd --create-home --shell /bin/sh tester`,
	`mkdir -p "$1/suites"`,
	`chroot "$1" systemctl enable hosttest.service`,
	// The serial lines are not for logging in, and nothing waits for a network
	// or keeps Debian up to date.
	`chroot "$1" systemctl mask getty@tty1.service serial-getty@ttyS0.service serial-getty@ttyS1.service ` +
		`apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer man-db.timer ` +
		`systemd-networkd-wait-online.service`,
	`printf 'hosttest\n' >"$1/etc/hostname"`,
	`printf '127.0.0.1 localhost hosttest\n' >"$1/etc/hosts"`,
}

// image is a made machine in the cache.
type image struct{ dir string }

func (m image) path(name string) string { return filepath.Join(m.dir, name) }

// cached returns the machine that a recipe makes, from the cache when it is
// there. The maker fills an empty folder.
func cached(name, recipe string, maker func(work string) error) (image, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return image{}, &Unavailable{"no cache folder: " + err.Error()}
	}
	cache = filepath.Join(cache, "sandpit-test")
	key := fmt.Sprintf("%s-%.6x", name, sha256.Sum256([]byte(recipe)))
	made := image{filepath.Join(cache, key)}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return image{}, err
	}
	unlock, err := lock(filepath.Join(cache, key+".lock"))
	if err != nil {
		return image{}, err
	}
	defer unlock()
	if _, err := os.Stat(made.dir); err == nil {
		return made, nil
	}
	work, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		return image{}, err
	}
	defer os.RemoveAll(work)
	if err := maker(work); err != nil {
		return image{}, fmt.Errorf("making the machine %s: %w", name, err)
	}
	if err := os.Rename(work, made.dir); err != nil {
		return image{}, err
	}
	return made, nil
}

// make returns the machine of the recipe.
func (d debian) make(ctx context.Context) (image, error) {
	recipe := fmt.Sprintf("%+v\n%v\n%v\n%s\nlayout 2", d, common, customize, unitFile)
	return cached("debian-"+d.Release, recipe, func(work string) error { return d.build(ctx, work) })
}

func (d debian) build(ctx context.Context, work string) error {
	mirror, err := debianMirror(ctx)
	if err != nil {
		return err
	}
	tree := filepath.Join(work, "tree")
	unit := filepath.Join(work, "hosttest.service")
	if err := os.WriteFile(unit, []byte(unitFile), 0o644); err != nil {
		return err
	}
	args := []string{
		"--variant=minbase",
		"--include=" + strings.Join(append(append([]string(nil), common...), d.Packages...), ","),
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
		"--customize-hook=copy-in " + unit + " /etc/systemd/system",
	}
	for _, hook := range customize {
		args = append(args, "--customize-hook="+hook)
	}
	args = append(args, d.Release, filepath.Join(work, "root.tar"), mirror)
	// Downloads fail for reasons of the network; that is not the suites' doing.
	if err := run(ctx, "mmdebstrap", args...); err != nil {
		return &Unavailable{fmt.Sprintf("making a Debian %s root file system: %v", d.Release, err)}
	}

	for _, step := range [][]string{
		{"mkdir", tree},
		{"tar", "-C", tree, "-xf", filepath.Join(work, "root.tar"), "--numeric-owner", "--exclude=./dev/*"},
		{"sh", "-c", `cp -L "$1"/vmlinuz "$2"/vmlinuz && cp -L "$1"/initrd.img "$2"/initrd.img`, "sh", tree, work},
		{"mke2fs", "-q", "-t", "ext4", "-d", tree, filepath.Join(work, "disk.img"), "6G"},
		{"rm", "-rf", tree, unit, filepath.Join(work, "root.tar")},
	} {
		if err := run(ctx, step[0], step[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// debianMirror is where this machine's own apt takes Debian from.
func debianMirror(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format",
		"$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)", "Created-By: Packages").Output()
	if err != nil {
		return "", &Unavailable{"asking apt for its mirror: " + err.Error()}
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Split(strings.TrimSpace(line), "|"); len(f) == 4 && f[0] == "Debian" && f[1] == "Debian" && f[2] == "main" {
			return f[3], nil
		}
	}
	return "", &Unavailable{"apt knows no Debian mirror here: run apt-get update first"}
}

// run runs a program and returns its last words with its error.
func run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute // mmdebstrap unmounts what it mounted
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if out = bytes.TrimSpace(out); len(out) > 2000 {
		out = out[len(out)-2000:]
	}
	return fmt.Errorf("running %s: %w\n%s", name, err, out)
}

// lock holds a file's lock until unlock: two runs at once make a machine once.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// missingPrograms says which of the programs are not installed, or "".
func missingPrograms(names ...string) string {
	for _, name := range names {
		if lookPath(name) == "" {
			return "no " + name + " here"
		}
	}
	return ""
}

// lookPath is exec.LookPath, and also where ordinary users don't look.
func lookPath(name string) string {
	for _, candidate := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path
		}
	}
	return ""
}
