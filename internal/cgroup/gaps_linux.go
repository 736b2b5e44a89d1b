package cgroup

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

// Enforceable reports whether Create can enforce a limit on memory, CPUs or pids, and
// whether a group that it makes can be frozen (feature.Pause). It is false for other
// features.
func (l *Layout) Enforceable(f feature.Feature) bool {
	any := false
	for i, c := range limited {
		can := l.trouble[i].kind == troubleNone
		if c.limit == f {
			return can
		}
		any = any || can
	}
	return f == feature.Pause && any && slices.ContainsFunc(l.places, func(p place) bool {
		return p.v2 && l.kernel >= hasFreeze || p.ctrls&freezer != 0
	})
}

// swapEscapes reports whether v1 counts memory without the swap that there is.
func (l *Layout) swapEscapes() bool {
	for _, p := range l.places {
		if p.ctrls&memory != 0 {
			return !p.v2 && !p.memsw && swapping()
		}
	}
	return false
}

// swapping reports whether the machine has swap: /proc/swaps has a heading and
// a line for each area.
func swapping() bool {
	data, err := readFile("/proc/swaps")
	return err == nil && bytes.Count(data, []byte{'\n'}) > 1
}

// Gaps returns what can't be enforced, why, and what to do. It is empty if everything can.
func (l *Layout) Gaps() []sandpit.Gap {
	var gaps []sandpit.Gap
	for i, c := range limited {
		if t := l.trouble[i]; t.kind != troubleNone {
			why, fix := t.explain(c.ctrl)
			gaps = append(gaps, sandpit.Gap{What: string(c.limit), Why: why, Fix: fix})
		}
	}
	if l.swapEscapes() {
		gaps = append(gaps, sandpit.Gap{
			What: feature.GapSwap,
			Why:  "the kernel does not account swap per cgroup, so a sandbox may use swap beyond its memory limit",
			Fix:  "boot with swapaccount=1, or disable swap with 'swapoff -a'",
		})
	}
	if l.tcpEscapes() {
		gaps = append(gaps, sandpit.Gap{
			What: feature.GapTCPBuffers,
			Why:  "cgroup v1 does not account buffers of TCP sockets, so a sandbox may use memory for them beyond its limit",
			Fix:  "boot with systemd.unified_cgroup_hierarchy=1 for cgroup v2",
		})
	}
	if l.countsGuest() {
		gaps = append(gaps, sandpit.Gap{
			What: feature.GapGuestPids,
			Why:  "this kernel counts the guest of a sandbox against its process limit, so a sandbox whose programs use up the limit may fail",
			Fix:  "use Linux 6.0 or later, or higher process limits",
		})
	}
	return gaps
}

// countsGuest reports whether the first process counts against a limit of processes.
func (l *Layout) countsGuest() bool {
	return slices.ContainsFunc(l.places, func(p place) bool { return p.ctrls&pids != 0 && !l.splits(&p, pids) })
}

// tcpEscapes reports whether v1 counts memory without the buffers of TCP sockets.
func (l *Layout) tcpEscapes() bool {
	return slices.ContainsFunc(l.places, func(p place) bool { return p.ctrls&memory != 0 && !p.v2 && !p.tcp })
}

// explain tells why a controller can't be used, and what helps.
func (t trouble) explain(c ctrls) (why, fix string) {
	switch t.kind {
	case troubleReadOnly:
		return t.dir + " is mounted read-only, as in an unprivileged container",
			"start the container with --privileged --cgroupns=private, or set limits on the container itself"
	case troubleV1User:
		return "cgroup v1 (" + t.dir + ") can't be delegated to an unprivileged user",
			"run as root, or boot with systemd.unified_cgroup_hierarchy=1 for cgroup v2"
	case troubleForeign:
		return "the cgroup " + t.dir + " belongs to another user, and no systemd user manager responds",
			"log in through systemd (loginctl enable-linger $USER, then log in again), or run as root"
	case troubleBusy:
		return "the cgroup " + t.dir + " contains other processes too, so it can't limit groups below it",
			fmt.Sprintf("move them to a group of their own: mkdir %[1]s/init && xargs -rn1 <%[1]s/cgroup.procs >%[1]s/init/cgroup.procs", t.dir)
	case troubleUndelegated:
		return fmt.Sprintf("the %s controller is not available in %s", c, t.dir),
			fmt.Sprintf("delegate it: systemctl edit user@.service, with [Service] Delegate=cpu memory pids, then log in again; if it is disabled in the kernel, boot with cgroup_enable=%s", c)
	case troubleHidden:
		return "the cgroup of this process is not visible in the mounted cgroup file system",
			"mount the cgroup file system of this cgroup namespace at /sys/fs/cgroup"
	default:
		return fmt.Sprintf("the kernel has no %s controller, or no cgroup file system with that controller is mounted", c),
			fmt.Sprintf("mount cgroup2 at /sys/fs/cgroup, or boot with cgroup_enable=%s", c)
	}
}

// refuse is the error for a limit that was asked for and can't be had.
func (l *Layout) refuse(limit feature.Feature) error {
	for _, g := range l.Gaps() {
		if g.What == string(limit) {
			return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "limiting %s: %s", limit, g.Why), g.Fix)
		}
	}
	return fmt.Errorf("limiting %s: %w", limit, sandpit.ErrUnsupported)
}
