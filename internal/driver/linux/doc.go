// Package linux makes sandboxes out of this machine's own kernel: namespaces,
// cgroups, overlay mounts, seccomp and Landlock, with no daemon and no helper
// program.
//
// # How a sandbox is made
//
// The plan is compiled to a list of system calls (see package sysprog). One
// clone makes a child in new user, mount, pid, network, ipc and uts
// namespaces. This process writes the child's id maps, puts it in its cgroup,
// and sends it one message with the descriptors that only this process can
// make. The child then walks its list, which builds the root file system,
// gives up every capability that the guest does not need, loads the seccomp
// filter and ends by executing the guest as the first process.
//
//	this process                      child
//	cgroup, socket pair, program
//	clone ─────────────────────────▶  waits for the message
//	id maps, attach, idmapped trees
//	message ───────────────────────▶  mounts, pivot_root, capabilities, seccomp
//	wait ◀───────────────────── "ok"  exec guest
//	dial ─────────────── connection ▶ guest protocol
//
// # What dies when
//
// The guest is the first process of its pid namespace, so its death is the
// death of all. The socket pair tells it that its owner has gone. A watcher
// process removes the cgroup when the owner was killed and can't.
package linux
