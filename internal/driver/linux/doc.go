// Package linux makes sandboxes out of this machine's own kernel: namespaces,
// cgroups, overlay mounts, seccomp and Landlock, with no daemon and no helper
// program.
//
// # How a sandbox is made
//
// The plan is compiled to two lists of system calls (see package sysprog). One
// clone makes the first process in new user, mount, pid, ipc and uts
// namespaces, born in its v2 cgroup. It joins the v1 cgroups, makes its cgroup
// and network namespaces, and spawns the builder, which shares its namespaces.
// Side by side the builder makes the root file system, and the first process
// gives up every capability that the guest does not need, loads the seccomp
// filter and executes the guest. This process writes the id maps, and sends
// the descriptors that only it can make.
//
//	this process                  first process            builder
//	cgroup, watcher, programs
//	clone ──────────────────────▶ namespaces, spawn ─────▶ waits for the trees
//	id maps ────────────────────▶ capabilities, seccomp
//	idmapped trees ──────────────────────────────────────▶ mounts, pivot_root
//	wait ◀───────────────────────────────────────────────  "ready", ends
//	dial ─────────── connection ▶ guest protocol
//
// # What dies when
//
// The guest is the first process of its pid namespace, so its death is the
// death of all. The socket pair tells it that its owner has gone. A watcher
// process kills it and removes the cgroup when the owner was killed and can't.
package linux
