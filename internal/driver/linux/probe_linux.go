package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/landlock"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// Probe finds out what this machine can enforce for this user. See driver.Driver.
//
// It does not try to make namespaces, because Create reports that soon enough and Probe
// delays it. Examine tries, and reads the list of mounts, which may be long.
func (d *Driver) Probe(context.Context) driver.Capabilities {
	caps := driver.Capabilities{Available: true, Features: feature.Set{feature.Mounts: true}, Changeable: feature.Set{}}
	gap := func(what feature.Feature, why, fix string) {
		caps.Gaps = append(caps.Gaps, sandpit.Gap{What: string(what), Why: why, Fix: fix})
	}
	h, err := d.host()
	if err != nil {
		caps.Available = false
		gap(feature.GapProc, err.Error(), "mount /proc")
		return caps
	}
	for _, f := range [...]feature.Feature{feature.Disk, feature.Files, feature.NoFile, feature.Output, feature.Life, feature.Seccomp, feature.WritePaths} {
		caps.Features[f] = true
	}

	if err := unix.Faccessat(unix.AT_FDCWD, tunPath, unix.R_OK|unix.W_OK, unix.AT_EACCESS); err != nil {
		gap(feature.Egress, tunPath+" can't be used: "+err.Error(), tunFix(err))
	} else {
		caps.Features[feature.Egress] = true
	}
	if g := withoutPing(caps.Features[feature.Egress]); g != nil {
		caps.Gaps = append(caps.Gaps, *g)
	} else {
		caps.Features[feature.Ping] = true
	}

	// Raising the hard limit takes a capability of the host, which the guest
	// has not.
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) == nil && lim.Max < 1<<62 {
		caps.MaxNoFile = int64(lim.Max)
	}

	layout, err := d.layout()
	for _, f := range [...]feature.Feature{feature.Memory, feature.CPUs, feature.Pids, feature.Pause} {
		switch {
		case err != nil:
			gap(f, err.Error(), "mount cgroups at /sys/fs/cgroup")
		case layout.Enforceable(f):
			caps.Features[f] = true
			if f != feature.Pause {
				caps.Changeable[f] = true
			}
		case f == feature.Pause:
			gap(f, "sandboxes have no cgroup freezer", "first fix memory, cpus or pids (below)")
		}
	}
	if err == nil {
		caps.Gaps = append(caps.Gaps, layout.Gaps()...)
	}

	_, err = landlock.Probe()
	caps.Features[feature.Landlock], caps.Features[feature.NestedMounts] = err == nil, err == nil
	if err != nil {
		caps.Gaps = append(caps.Gaps, withoutLandlock(err)...)
	}

	switch {
	case h.privileged && h.allIDs:
		caps.Features[feature.Users] = true
		for _, dir := range []string{existing(d.opts.Dir), "/usr"} {
			if !canMap(dir) {
				gap(feature.GapOwnIDs, "the file system of "+dir+" can't map ids: ids inside the sandbox are the same outside", "set SANDPIT_HOME to a directory on ext4, xfs, btrfs or tmpfs; the host image also needs /usr on one of these")
				break
			}
		}
	case h.privileged:
		caps.Features[feature.Users] = true
		gap(feature.GapOwnIDs, "this user namespace has too few ids for a separate range per sandbox: ids inside a sandbox are the same outside", "run outside of this container, or in a container without a user namespace")
	default:
		if err := h.subIDs(); err != nil {
			gap(feature.Users, "only one user exists in a sandbox: "+err.Error(), "install newuidmap and give this user a range in /etc/subuid and /etc/subgid, for example with `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 NAME`")
		} else {
			caps.Features[feature.Users] = true
		}
	}
	if !h.privileged || !h.allIDs {
		gap(feature.GapOwnCounters, "inotify instances, timers and message queues of all sandboxes count for this user, so each sandbox gets only a part of them", "run as root outside of containers")
	}
	if coreHandlerRuns(h) {
		gap(feature.GapCoreHandler, "the hard limit on core files is 0, so a crash in a sandbox starts the program to which this machine pipes core files", "raise the limit (ulimit -Hc unlimited); sandboxes still create no core files")
	}
	return caps
}

// withoutLandlock returns the gaps of a kernel without Landlock, for the reason err.
func withoutLandlock(err error) []sandpit.Gap {
	gap := func(f feature.Feature, why string) sandpit.Gap {
		return sandpit.Gap{What: string(f), Why: why + ": " + err.Error(), Fix: sandpit.Hint(err)}
	}
	return []sandpit.Gap{
		gap(feature.NestedMounts, "two sandboxes together could replace what is mounted read-only inside a writable mount"),
		gap(feature.Landlock, "write paths are enforced only by read-only mounts, and a sandbox can read masked files of /proc through a descriptor that another one passed to it over a shared mount before it ended; the network process of a server can read what its user can"),
	}
}

// mountBelow returns where something is mounted below a directory, or "".
func mountBelow(dir string) string {
	mounts, _ := readMounts("self")
	for _, m := range mounts {
		if rest, in := relative(m.point, dir); in && rest != "" {
			return m.point
		}
	}
	return ""
}

// shownAsIs is the gap of a directory of the host that is not shown through an overlay.
func shownAsIs(dir string) sandpit.Gap {
	why := "this kernel can't mount an overlay of " + dir + ", for example because it is itself an overlay of an overlay"
	fix := "use an image (--image), or run where the root file system is not a nested overlay"
	if below := mountBelow(dir); below != "" {
		why, fix = below+" is a separate mount", "use an image (--image), or unmount "+below
	}
	return sandpit.Gap{
		What: feature.GapHostImage,
		Why:  why + ", so the host image shows " + dir + " as it is: no file in it is hidden, and a sandbox can watch and lock its files, and read every file that its creator can read",
		Fix:  fix,
	}
}

// overlays reports whether a user namespace can show a directory of the host
// through an overlay, as showBinds does where it maps no ids.
func overlays(dir string) bool {
	var p sysprog.Program
	empty := p.Str("/dev") // whatever is there: it is covered
	p.Call("mounting an empty directory", unix.SYS_MOUNT, p.Str("tmpfs"), empty, p.Str("tmpfs"), sysprog.Int(0), sysprog.Int(0))
	p.Call("mounting an overlay", unix.SYS_MOUNT, p.Str("overlay"), empty, p.Str("overlay"), sysprog.Int(unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV), p.Str("lowerdir="+dir+":/dev"))
	child, err := p.Fork(sysprog.ForkOptions{Flags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, Cgroup: -1, Report: -1})
	if err != nil {
		return false
	}
	defer child.Release()
	return reap(child.PID) == 0
}

var _ driver.Examiner = (*Driver)(nil)

// Examine does what Probe does, examines the mounts of the host, tries to make namespaces,
// and removes cgroups that a crash has left. See driver.Examiner.
func (d *Driver) Examine(ctx context.Context) driver.Capabilities {
	caps := d.Probe(ctx)
	fact := func(name, value string) { caps.Facts = append(caps.Facts, driver.Fact{Name: name, Value: value}) }

	var uts unix.Utsname
	_ = unix.Uname(&uts)
	fact("kernel", unix.ByteSliceToString(uts.Release[:])+" "+unix.ByteSliceToString(uts.Machine[:]))
	if h, err := d.host(); err == nil {
		who := fmt.Sprintf("uid %d", h.euid)
		switch {
		case h.privileged && h.allIDs:
			who += ", separate ids for each sandbox"
		case h.privileged:
			who += ", the same ids inside and outside"
		case h.subErr == nil && h.subuid.count > 0:
			who += fmt.Sprintf(", %d subordinate ids", h.subuid.count)
		default:
			who += ", one user inside"
		}
		fact("user", who)
	}
	if l, err := d.layout(); err == nil {
		fact("cgroups", l.String())
		if n := l.Sweep(); n > 0 {
			fact("cleaned up", fmt.Sprintf("%d cgroups whose owner was killed", n))
		}
	}
	if v := landlockABI(); v > 0 {
		fact("landlock", fmt.Sprintf("ABI %d", v))
	} else {
		fact("landlock", "absent")
	}
	if lsm, err := os.ReadFile("/sys/kernel/security/lsm"); err == nil {
		fact("security modules", strings.TrimSpace(string(lsm)))
	}
	if caps.MaxNoFile > 0 && caps.Features[feature.Egress] {
		fact("open files", fmt.Sprintf("%d, which connections of all sandboxes with egress share (LimitNOFILE of the service)", caps.MaxNoFile))
	}
	guest := "embedded"
	if d.opts.Guest == nil {
		guest = "this program itself (built without an embedded guest, so it starts more slowly)"
	}
	fact("guest", guest)

	if !tellsPeers() {
		caps.Gaps = append(caps.Gaps, sandpit.Gap{
			What: feature.GapSocketPeers, Why: "this kernel identifies a client of the unix socket only by its pid, which another process may have by the time it is checked",
			Fix: "use Linux 6.5 or later",
		})
	}
	if h, err := d.host(); err == nil && h.privileged && h.allIDs {
		if fd, err := openClaims(); err != nil {
			caps.Available = false
			caps.Gaps = append(caps.Gaps, sandpit.Gap{What: feature.GapOwnIDs, Why: err.Error(), Fix: sandpit.Hint(err)})
		} else {
			unix.Close(fd)
		}
	}
	if err := tryNamespaces(); err != nil {
		caps.Available = false
		why, fix := whyNoNamespaces(err)
		caps.Gaps = append([]sandpit.Gap{{What: feature.GapNamespaces, Why: why, Fix: fix}}, caps.Gaps...)
		fact("namespaces", "refused")
	} else {
		fact("namespaces", "user, mount, pid, network, ipc, uts, cgroup")
		if h, err := d.host(); err == nil && !(h.privileged && h.allIDs && canMap(existing(d.opts.Dir)) && canMap("/usr")) && !overlays("/usr") {
			caps.Gaps = append(caps.Gaps, shownAsIs("/usr"))
		}
	}
	return caps
}

// tellsPeers reports whether the kernel gives a descriptor of the process at the
// other end of a unix socket.
func tellsPeers() bool {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return true // that says nothing about it
	}
	defer closeAll(ends[:])
	fd, err := unix.GetsockoptInt(ends[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err == nil {
		unix.Close(fd)
	}
	return err != unix.ENOPROTOOPT
}

// tryNamespaces makes all namespaces, for a process that ends at once.
func tryNamespaces() error {
	var p sysprog.Program
	p.Call("trying", unix.SYS_GETPID)
	child, err := p.Fork(sysprog.ForkOptions{Flags: namespaces | unix.CLONE_NEWNET, Cgroup: -1, Report: -1})
	if err != nil {
		var errno unix.Errno
		if errors.As(err, &errno) {
			return errno
		}
		return err
	}
	reap(child.PID)
	child.Release()
	return nil
}

// existing returns the nearest directory above a path that exists, or itself.
func existing(path string) string {
	for path = filepath.Clean(path); ; path = filepath.Dir(path) {
		if _, err := os.Stat(path); err == nil || path == "/" || path == "." {
			return path
		}
	}
}
