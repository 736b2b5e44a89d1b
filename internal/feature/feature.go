// Package feature defines what a driver may be able to enforce or do. Specs, policies and drivers
// share these names.
package feature

import (
	"path"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// A Feature is something that a driver can enforce or do on a machine. Its text is shown to
// users, also in [sandpit.Gap.What], which OtherGaps complete.
type Feature string

// The limits, in the order of the fields of [sandpit.Limits].
const (
	Memory Feature = "memory"
	CPUs   Feature = "cpus"
	Pids   Feature = "pids"
	Disk   Feature = "disk"
	Files  Feature = "files"
	NoFile Feature = "nofile"
	Output Feature = "output"
	Life   Feature = "life"
)

// Other features that a Spec can ask for.
const (
	Mounts       Feature = "mounts"        // Spec.Mounts
	NestedMounts Feature = "nested-mounts" // a read-only mount inside a writable one, which no sandbox can replace
	WritePaths   Feature = "write-paths"   // Spec.Write
	Pause        Feature = "pause"         // ExpiryPause, and Lifecycle.Pause
	Egress       Feature = "egress"        // Spec.Egress
	Ping         Feature = "ping"          // rules of Spec.Egress that allow ICMP echo
	Users        Feature = "users"         // Spec.RootInside: uid 0 inside, and other users beside it
)

// Features that no Spec asks for. A sandbox without them has fewer layers of isolation.
const (
	Seccomp  Feature = "seccomp"  // a filter of system calls
	Landlock Feature = "landlock" // a second layer behind mounts: for write paths, and for descriptors that other sandboxes pass
)

// Gaps that are not a missing feature: something because of which no sandbox can be made, or
// a weaker layer of isolation.
const (
	GapProc        = "proc"         // nothing is known of the machine without /proc
	GapNamespaces  = "namespaces"   // Linux namespaces can't be made
	GapOwnIDs      = "own-ids"      // a range of ids per sandbox
	GapOwnCounters = "own-counters" // counters of the kernel per sandbox
	GapHostImage   = "host-image"   // the host image shows a directory as it is
	GapSetID       = "set-id"       // the filter against set-user-id files
	GapSocketPeers = "socket-peers" // certain knowledge of who connects to a unix socket
	GapCoreHandler = "core-handler" // crashes that start no program of the host
	GapSwap        = "swap"         // swap within the limit of memory
	GapTCPBuffers  = "tcp-buffers"  // buffers of TCP sockets within the limit of memory
	GapGuestPids   = "guest-pids"   // a guest beside the limit of processes
	GapSecretEnv   = "secret-env"   // values of secrets that the sandbox itself has, because it was asked for
	GapSecretHosts = "secret-hosts" // hosts of secrets that the policy forbids
	GapImageRoots  = "image-roots"  // certificates that the image trusts, where TLS is intercepted
)

// OtherGaps returns the gaps that are not a missing feature.
func OtherGaps() []string {
	return []string{
		GapProc, GapNamespaces, GapOwnIDs, GapOwnCounters, GapHostImage, GapSetID, GapSocketPeers, GapCoreHandler,
		GapSwap, GapTCPBuffers, GapGuestPids, GapSecretEnv, GapSecretHosts, GapImageRoots,
	}
}

// Limits returns the features that are limits, in the order of the fields of
// [sandpit.Limits].
func Limits() []Feature {
	return []Feature{Memory, CPUs, Pids, Disk, Files, NoFile, Output, Life}
}

// All returns every feature.
func All() []Feature {
	return append(Limits(), Mounts, NestedMounts, WritePaths, Pause, Egress, Ping, Users, Seccomp, Landlock)
}

// Changeable returns the limits that a [sandpit.Change] can set.
func Changeable() []Feature { return []Feature{Memory, CPUs, Pids} }

// IsLimit reports whether f is a limit.
func (f Feature) IsLimit() bool { return slices.Contains(Limits(), f) }

// LimitsAmong returns the limits among gaps.
func LimitsAmong(gaps []sandpit.Gap) []string {
	var limits []string
	for _, g := range gaps {
		if Feature(g.What).IsLimit() {
			limits = append(limits, g.What)
		}
	}
	return limits
}

// A Set is a set of features: those that map to true.
type Set map[Feature]bool

// request is something that a Spec may ask of a driver.
type request struct {
	feature Feature
	doing   string // for "DOING: why it can't be done"
	made    bool
}

// requests returns all that a Spec could ask for.
func requests(s sandpit.Spec) []request {
	l := s.Limits
	return []request{
		{Memory, "limiting memory", l.Memory != 0},
		{CPUs, "limiting cpus", l.CPUs != 0},
		{Pids, "limiting pids", l.Pids != 0},
		{Disk, "limiting disk", l.Disk != 0},
		{Files, "limiting files", l.Files != 0},
		{NoFile, "limiting nofile", l.NoFile != 0},
		{Output, "limiting output", l.Output != 0},
		{Life, "limiting life", l.Life != 0},
		{Mounts, "mounting host directories", len(s.Mounts) > 0},
		{NestedMounts, "mounting read-only inside a writable mount", slices.ContainsFunc(s.Mounts, func(m sandpit.Mount) bool { return ProtectedIn(s.Mounts, m) != "" })},
		{WritePaths, "restricting writes", s.Write != nil},
		{Egress, "reaching the network", s.Egress.Asked() || slices.ContainsFunc(s.Secrets, func(u sandpit.Secret) bool { return !u.Env })},
		{Ping, "allowing ping", Pings(s.Egress)},
		{Users, "having root inside", s.RootInside},
		{Pause, "pausing at the end of the lifetime", s.OnExpiry == sandpit.ExpiryPause},
	}
}

// Required returns the features that a driver must have for a Spec: each limit that is set,
// and what its other fields need.
func Required(s sandpit.Spec) []Feature {
	var needed []Feature
	for _, r := range requests(s) {
		if r.made {
			needed = append(needed, r.feature)
		}
	}
	return needed
}

// Doing describes what a Spec that requires f asks for, such as "limiting memory".
func (f Feature) Doing() string {
	for _, r := range requests(sandpit.Spec{}) {
		if r.feature == f {
			return r.doing
		}
	}
	return "using " + string(f)
}

// Pings reports whether a rule allows ICMP echo. Those of sets and presets do not.
func Pings(e sandpit.Egress) bool {
	return slices.ContainsFunc(e.Allow, func(rule string) bool { return strings.HasPrefix(rule, "ping:") })
}

// ProtectedIn returns the target of the outermost of the writable mounts that a read-only
// mount lies in, with no read-only one between, or "" if m is not such a mount. What it
// shows is protected there only as long as no sandbox can put another directory in its
// place, or in that of a directory above it.
func ProtectedIn(mounts []sandpit.Mount, m sandpit.Mount) string {
	if !m.ReadOnly {
		return ""
	}
	found := ""
	for inner := m.Target; ; {
		var outer sandpit.Mount
		for _, o := range mounts {
			if below(inner, o.Target) && (outer.Target == "" || below(o.Target, outer.Target)) {
				outer = o
			}
		}
		if outer.Target == "" || outer.ReadOnly {
			return found
		}
		found, inner = path.Clean(outer.Target), outer.Target
	}
}

// below reports whether the path p is below dir.
func below(p, dir string) bool { return strings.HasPrefix(path.Clean(p), path.Clean(dir)+"/") }
