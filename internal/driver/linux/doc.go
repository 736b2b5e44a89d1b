// Package linux makes sandboxes with this machine's kernel: namespaces, cgroups, overlay mounts,
// seccomp and Landlock, without a daemon or helper program.
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
// The network namespace is not part of the clone because it takes the kernel longer than
// all others together; the child makes it while this process writes the id maps. The
// guest gets its connection only after the builder has ended. So nothing of the sandbox
// runs while the host can be seen, or beside a process with more rights than its own.
//
// A server with many sandboxes has a long table of descriptors, which a child would copy
// and close again. Children share the table instead, and copy some low numbers that are
// reserved for this (reservedfds_linux.go).
//
// # Blanks
//
// The builder's list has two parts. The first is the same for every sandbox (loopback,
// /dev, /proc, /sys) and ends where the builder waits for a message. The second is
// compiled from the plan meanwhile, and the builder, which shares this process's memory,
// continues with it. A blank is a builder that waits there, with its guest. It is bound
// once. Where ids are mapped, it has left the host's root by pivot_root and sees no file
// system of the host. Its own root is mounted over the little that is left when it is
// bound, because pivot_root looks at every thread of the machine. Limits are written again
// then. /dev/net/tun, which it has opened before, becomes the sandbox's interface if the plan
// has one, and is closed with the builder otherwise: the guest has no copy. The interface can be made
// by a list of its own before the plan's, so that its other end is made at the same time. A blank ends with
// its owner, as every sandbox does before its last step.
//
// # File systems
//
// Everything that the sandbox may write, /tmp and /dev/shm included, is in one tmpfs,
// whose size and inode count are the limits. A --tmpfs has a size of its own, and a mount
// has none. The root is an overlay of shared read-only layers over that tmpfs, mounted
// volatile. Layers are stored once: idmapped mounts show them in any range of ids. The
// host's /usr is a read-only overlay of its own, mounted by an id that owns nothing: an
// overlay reads with the rights of its mounter, and its inodes are not shared with any
// other mount, for locks and watches.
//
// A read-only mount may contain the data directory, with the sockets of the server and of
// guests. The builder then mounts an empty directory over it (cover_linux.go). A
// writable mount that contains the data directory, a directory on the way to it, or a
// mount of the host is refused, because the kernel lets directories be moved from under
// the mounts of other mount namespaces. private_linux.go finds data directories and
// refuses; exposed_linux.go looks for them in sandboxes that are adopted. With nosockets a
// mount is shown through an overlay, where a socket has another inode than the one that
// somebody listens on.
//
// # What dies when
//
// The guest is the first process of its pid namespace, so its death is the
// death of all. It does not die while a thread of it waits in the kernel for a lock that a
// program of the sandbox holds: who ends it kills the programs, too (killall_linux.go).
// Mounts and networks live in namespaces and go with them. The socket pair
// tells the guest that its owner has gone. Names, ranges of ids and image leases are file
// locks, which the kernel drops at any death. Only cgroup directories outlive a kill -9 of
// their maker, so a watcher process, made without an exec, waits for that death, kills
// what is left, and removes them.
package linux
