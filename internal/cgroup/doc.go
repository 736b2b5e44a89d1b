// Package cgroup puts sandboxes into control groups: limits on memory, CPU time and processes,
// killing everything inside, and accounting. It works with cgroup v2, v1 and hybrid (limits in v1,
// kill in v2), as root and as an ordinary user. Commands wait for it, so it is written to be fast.
//
// # Use
//
//	l, err := cgroup.Detect()                 // reads /proc, writes nothing
//	if !l.Enforceable(feature.Memory) { … }   // l.Gaps() says why, and what to do
//	g, err := l.Create(id, cgroup.Limits{…})  // fs.ErrExist: the id is taken
//	… start the first process in it (see below) …
//	s, err := g.Stats()
//	err = g.Remove()                          // kills what is left, then removes
//
// # Getting a process in
//
// Writing a pid to cgroup.procs takes the write side of the kernel's
// cgroup_threadgroup_rwsem, which waits for an RCU grace period unless another
// such write was made a moment ago. In a tight loop that costs 30 µs; in a
// command run once it was measured at 7 to 15 ms on the development machine,
// more than everything else together. Two ways avoid it, and this package has only these:
//
//   - [Group.FD] for clone3 with CLONE_INTO_CGROUP: the cgroup v2 part, on
//     hybrid machines too.
//   - [Group.OpenJoin] for each v1 hierarchy: the new process, while it has
//     one thread, writes "0" to each descriptor. The kernel moves a single
//     thread that moves itself without that lock (since Linux 5.6).
//
// # Names, owners and cleanup
//
// A group is a directory "sandpit-ID" in every hierarchy that it needs. One
// hierarchy is the primary: v2 where there is one, else the freezer. The
// primary's directory is made first and removed last, and its maker holds an
// exclusive flock on it. So an id is taken by one mkdir, a lock that the
// kernel drops at any death says whether the owner lives, whatever process id
// namespace it is in, and [Layout.Sweep] removes what has no living owner and
// no process, never anything else.
//
// On the root of a v2 tree the groups are in a directory "sandpit", so that
// systemd, which owns the root, can't switch their controllers off again: the
// kernel refuses to take away a controller that a child passes on. The
// directory is made for the first group and removed with the last. The
// controllers that were switched on in the root's cgroup.subtree_control for
// it stay on: another program may have begun to use them.
//
// When the owner is killed with -9, a watcher process writes "1" to
// [Group.KillFile], removes [Group.Paths] in that order, waiting for what is
// still in them to end, and then tries [Group.Shared] once.
//
// # An ordinary user
//
// On v2 the groups are made, in this order of preference,
//
//   - below our own cgroup, when it is ours to write and holds no process but
//     this one, as in a service with Delegate=yes. A v2 group can't hold
//     processes and pass on controllers, so this process moves itself into a
//     child "sandpit-self-PID", and back when the last group is removed;
//   - beside our own cgroup, when its parent is ours to write and holds no
//     process, as where a container's first program made a leaf for itself;
//   - in a scope that systemd's user manager is asked for over D-Bus. It is
//     called sandpit-ID.scope, has Delegate=yes and CollectMode=inactive-or-failed,
//     and this process is moved into it. systemd removes a scope, with every
//     group below, as soon as no process is in it: when this process and the
//     sandbox are dead, by kill -9 or otherwise, nothing is left.
//
// Otherwise nothing is enforced, and Gaps says what would help.
package cgroup
