package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// The versions of the peers that are built here.
const (
	runcVersion  = "v1.5.2"
	runscVersion = "v0.0.0-20260905035102-160fafc42237"
)

// peer is another program that runs a command in a sandbox.
type peer struct {
	name string
	goal goal  // of Sandpit's whole command against it
	err  error // why it can't be had here

	file   string                                 // the program, for its size; empty for Docker, whose program is but a client
	run    func(argv ...string) ([]string, error) // the command line that runs argv once
	hold   func(ctx context.Context) *holder      // a running sandbox to execute in; nil: it has none
	remove func()                                 // takes back what making the peer did; may be nil
}

// holder is a running sandbox of a peer.
type holder struct {
	exec   []string // the command line that runs `true` in it
	remove func()
	err    error
}

// allPeers finds or builds all that Sandpit is compared with, bwrap first. It
// does so once.
func (b *bench) allPeers(ctx context.Context) []*peer {
	if b.found == nil {
		b.found = b.findPeers(ctx)
	}
	return b.found
}

func (b *bench) findPeers(ctx context.Context) []*peer {
	all := []*peer{b.bwrap()}
	debian := &peer{name: "runc of this system", goal: goal{faster, 5, 10}}
	if file, err := realProgram("runc"); err != nil {
		debian.err = err
	} else {
		b.oci(debian, file)
		if v := versionOf(file, "--version"); v != "" {
			debian.name = "runc " + v + " (system)"
		}
	}
	runc := &peer{name: "runc " + strings.TrimPrefix(runcVersion, "v"), goal: goal{faster, 5, 10}}
	if file, err := b.goInstall(ctx, "runc", "github.com/opencontainers/runc", runcVersion); err != nil {
		runc.err = err
	} else {
		b.oci(runc, file)
	}
	runsc := &peer{name: "runsc " + runscDate(), goal: goal{faster, 20, 40}}
	if file, err := b.goInstall(ctx, "runsc", "gvisor.dev/gvisor/runsc", runscVersion, "CGO_ENABLED=0"); err != nil {
		runsc.err = err
	} else {
		b.runsc(ctx, runsc, file)
	}
	return append(all, runc, debian, runsc, b.docker(ctx))
}

// runscDate is the day of the pinned version: v0.0.0-YYYYMMDD….
func runscDate() string {
	_, date, _ := strings.Cut(runscVersion, "-")
	return date[:8]
}

// versionOf is the first word that begins with a digit in the first line of what a program says.
func versionOf(file, flag string) string {
	out, err := exec.Command(file, flag).Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	for _, w := range strings.Fields(line) {
		if w[0] >= '0' && w[0] <= '9' {
			v, _, _ := strings.Cut(w, "+")
			return strings.TrimSuffix(v, ",")
		}
	}
	return ""
}

// bwrap does its nearest equal: all namespaces, the toolchain read-only, fresh
// /proc, /dev and /tmp, another user. It has no cgroup, no writable root, no
// seccomp filter here, and no agent inside.
func (b *bench) bwrap() *peer {
	p := &peer{name: "bwrap", goal: goal{atMost, 2, 1}}
	if p.file, p.err = realProgram("bwrap"); p.err != nil {
		return p
	}
	if v := versionOf(p.file, "--version"); v != "" {
		p.name += " " + v
	}
	args := []string{
		p.file, "--unshare-all", "--die-with-parent", "--new-session", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox",
		"--clearenv", "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin",
	}
	for _, l := range b.root.links {
		args = append(args, "--symlink", l[1], l[0])
	}
	for _, d := range b.root.binds {
		args = append(args, "--ro-bind", d, d)
	}
	args = append(args, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/", "--")
	p.run = func(argv ...string) ([]string, error) { return append(args[:len(args):len(args)], argv...), nil }
	return p
}

// containerPrefix begins the name of every container that is made here.
const containerPrefix = "sandpit-bench-"

// container returns a new name.
func (b *bench) container() string {
	b.count++
	return containerPrefix + strconv.Itoa(os.Getpid()) + "-" + strconv.Itoa(b.count)
}

// oci sets up a runtime with the command line of runc.
func (b *bench) oci(p *peer, file string, flags ...string) {
	p.file = file
	state := filepath.Join(b.dir, filepath.Base(filepath.Dir(file))+"-state")
	p.remove = func() {
		// Containers of runs that were cut short.
		cmd := exec.Command(file, "--root", state, "list", "--quiet")
		cmd.Env = b.env
		names, _ := cmd.Output()
		for _, name := range strings.Fields(string(names)) {
			_, _ = b.spawn(context.Background(), file, "--root", state, "delete", "--force", name)
		}
		// runsc keeps a network namespace mounted there.
		_ = unix.Unmount(filepath.Join(state, "null-netns"), unix.MNT_DETACH)
	}
	base := append([]string{file, "--root", state}, flags...)
	with := func(args ...string) []string { return append(base[:len(base):len(base)], args...) }
	p.run = func(argv ...string) ([]string, error) {
		bundle, err := b.bundle(argv)
		if err != nil {
			return nil, fmt.Errorf("making a bundle: %w", err)
		}
		return with("run", "--bundle", bundle, b.container()), nil
	}
	p.hold = func(ctx context.Context) *holder {
		bundle, err := b.bundle([]string{"/usr/bin/sleep", "1000"})
		if err != nil {
			return &holder{err: fmt.Errorf("making a bundle: %w", err)}
		}
		name := b.container()
		h := &holder{exec: with("exec", name, b.true), remove: func() {
			_, _ = b.spawn(context.WithoutCancel(ctx), with("delete", "--force", name)...)
		}}
		if _, h.err = b.spawn(ctx, with("run", "--detach", "--bundle", bundle, name)...); h.err != nil {
			h.remove()
		}
		return h
	}
}

// runsc sets up gVisor: with everything it can do here, or else with less.
func (b *bench) runsc(ctx context.Context, p *peer, file string) {
	for _, flags := range [][]string{
		{"--network=none"},
		{"--network=none", "--ignore-cgroups"},
		{"--network=none", "--ignore-cgroups", "--rootless"},
	} {
		b.oci(p, file, flags...)
		var line []string
		if line, p.err = p.run(b.true); p.err == nil {
			_, p.err = b.spawn(ctx, line...)
		}
		if p.err == nil {
			return
		}
	}
}

// bundle makes an OCI bundle that runs argv, once per argv.
func (b *bench) bundle(argv []string) (string, error) {
	dir := filepath.Join(b.dir, "bundle-"+fmt.Sprintf("%x", strings.Join(argv, "\x00")))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := b.root.skeleton(filepath.Join(dir, "rootfs")); err != nil {
		return "", err
	}
	data, err := json.Marshal(b.ociConfig(argv))
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644)
}

// ociConfig is what `runc spec` writes (runtime-spec v1.0, config.md), with the
// toolchain in it, no capability, and the limits that Sandpit has by default.
func (b *bench) ociConfig(argv []string) map[string]any {
	type obj = map[string]any
	opts := func(s string) []string { return strings.Split(s, ",") }
	mounts := []obj{
		{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": opts("nosuid,strictatime,mode=755,size=65536k")},
		{"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": opts("nosuid,noexec,newinstance,ptmxmode=0666,mode=0620")},
		{"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": opts("nosuid,noexec,nodev,mode=1777,size=65536k")},
		{"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": opts("nosuid,noexec,nodev")},
		{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": opts("nosuid,nodev,mode=1777")},
	}
	for _, d := range b.root.binds {
		mounts = append(mounts, obj{"destination": d, "type": "bind", "source": d, "options": opts("rbind,ro,nosuid,nodev")})
	}
	spaces := []obj{{"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "cgroup"}}
	linux := obj{
		"maskedPaths":   []string{"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi"},
		"readonlyPaths": []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
	}
	uid := 1000
	if os.Geteuid() == 0 {
		l := sandpit.DefaultLimits()
		linux["resources"] = obj{
			"memory": obj{"limit": l.Memory},
			"pids":   obj{"limit": l.Pids},
			"cpu":    obj{"quota": int64(l.CPUs * 100_000), "period": 100_000},
		}
	} else {
		// Without root there is one user, and no cgroup to set limits in.
		uid = 0
		spaces = append(spaces, obj{"type": "user"})
		linux["uidMappings"] = []obj{{"containerID": 0, "hostID": os.Geteuid(), "size": 1}}
		linux["gidMappings"] = []obj{{"containerID": 0, "hostID": os.Getegid(), "size": 1}}
	}
	linux["namespaces"] = spaces
	return obj{
		"ociVersion": "1.0.2",
		"process": obj{
			"user": obj{"uid": uid, "gid": uid}, "args": argv, "env": []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, "cwd": "/",
			"capabilities": obj{}, "noNewPrivileges": true,
		},
		"root": obj{"path": "rootfs"}, "hostname": "sandbox", "mounts": mounts, "linux": linux,
	}
}

// dockerImage is the image that Docker is measured with, removed at the end.
const dockerImage = "sandpit-bench:local"

// docker sets up Docker, if its daemon answers.
func (b *bench) docker(ctx context.Context) *peer {
	p := &peer{name: "docker", goal: goal{faster, 50, 100}}
	var file string
	if file, p.err = realProgram("docker"); p.err != nil {
		return p
	}
	quick, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(quick, file, "version", "--format", "{{.Server.Version}}").CombinedOutput()
	if err != nil {
		p.err = fmt.Errorf("no daemon answers: %s", lastLine(out))
		return p
	}
	p.name += " " + strings.TrimSpace(string(out))
	image, err := b.rootArchive()
	if err == nil {
		cmd := exec.CommandContext(ctx, file, "import", "-", dockerImage)
		cmd.Stdin = bytes.NewReader(image)
		if out, ierr := cmd.CombinedOutput(); ierr != nil {
			err = fmt.Errorf("importing an image: %w: %s", ierr, lastLine(out))
		}
	}
	if p.err = err; err != nil {
		return p
	}
	p.remove = func() { _, _ = b.spawn(context.WithoutCancel(ctx), file, "rmi", "--force", dockerImage) }
	l := sandpit.DefaultLimits()
	flags := []string{
		"--network=none", "--user", "1000:1000", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--tmpfs", "/tmp",
		"--memory", strconv.FormatInt(l.Memory, 10), "--pids-limit", strconv.FormatInt(l.Pids, 10), "--cpus", strconv.FormatFloat(l.CPUs, 'f', -1, 64),
	}
	for _, d := range b.root.binds {
		flags = append(flags, "--volume", d+":"+d+":ro")
	}
	line := func(verb ...string) []string { return append(append([]string{file}, verb...), flags...) }
	once := append(line("run", "--rm"), dockerImage)
	p.run = func(argv ...string) ([]string, error) { return append(once[:len(once):len(once)], argv...), nil }
	p.hold = func(ctx context.Context) *holder {
		name := b.container()
		h := &holder{exec: []string{file, "exec", name, b.true}, remove: func() {
			_, _ = b.spawn(context.WithoutCancel(ctx), file, "rm", "--force", name)
		}}
		if _, h.err = b.spawn(ctx, append(line("run", "--detach", "--name", name), dockerImage, "/usr/bin/sleep", "1000")...); h.err != nil {
			h.remove()
		}
		return h
	}
	return p
}

// rootArchive is the skeleton of the root file system as a tar.
func (b *bench) rootArchive() ([]byte, error) {
	dir := filepath.Join(b.dir, "docker-root")
	if err := b.root.skeleton(dir); err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(name); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		if h.Name, err = filepath.Rel(dir, name); err != nil {
			return err
		}
		h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
		return w.WriteHeader(h) // files are empty
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("making an image for docker: %w", err)
	}
	return buf.Bytes(), nil
}
