// Package landlock builds Landlock rulesets that confine writing to some paths.
//
// For a sandbox that others can pass descriptors to, the path is its own root: what
// it reaches by a descriptor of somebody else's mount has another one.
//
// For write paths, Landlock is the second layer. The first is the mounts, which are read-only
// elsewhere; this one holds if a mount is wrong. Nothing inside can remove it, and each program may
// add stricter rulesets of its own.
//
// # What it means
//
// For write paths reading and executing are not handled, so they stay as they are
// everywhere. Everything that Landlock can tell to be writing is refused except beneath
// the paths that rules name: opening for writing, truncating, creating,
// removing, renaming, linking. The error is EACCES, or EXDEV for a rename or
// link between directories with different rules. Devices may be created
// nowhere, and ioctl on devices is not handled. A rule belongs to the directory
// or file itself, not to a name of it: a path is checked by walking up from the
// file, through the mounts that it was reached by, until a directory with a
// rule is found. So the rule of a directory holds for what is mounted in it
// and for the directory mounted elsewhere, not for a part of it mounted
// elsewhere; /proc/self/root does not bypass it. Mounts can't be changed any more
// (EPERM), so a ruleset comes last.
//
// What Landlock does not see is left to the mounts: chmod, chown, utime and
// extended attributes; descriptors opened before; with version 2 also truncating.
//
// # System calls
//
// A ruleset is made by a program of system calls:
//
//	ruleset = landlock_create_ruleset(RulesetAttr(HandledAccess(abi)), len, 0)
//	for each path:
//		fd = openat(AT_FDCWD, path, O_PATH|O_CLOEXEC)
//		store fd as 32 bits at rule[ParentFD], where rule = PathBeneath(WriteAccess(abi))
//		landlock_add_rule(ruleset, RulePathBeneath, rule, 0)
//	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
//	landlock_restrict_self(ruleset, 0)
//
// The kernel refuses rights of a directory in a rule for a file (EINVAL). Where
// it is not known beforehand which a path is, add a rule with WriteAccess and
// go on after EINVAL, then one with FileAccess: rules for one path add up.
package landlock

import "encoding/binary"

// An Access is a set of LANDLOCK_ACCESS_FS_* rights (include/uapi/linux/landlock.h).
type Access uint64

// The rights to write, to read files and list directories, and to execute.
const (
	Execute    Access = 1 << 0
	WriteFile  Access = 1 << 1
	ReadFile   Access = 1 << 2
	ReadDir    Access = 1 << 3
	RemoveDir  Access = 1 << 4
	RemoveFile Access = 1 << 5
	MakeChar   Access = 1 << 6
	MakeDir    Access = 1 << 7
	MakeReg    Access = 1 << 8
	MakeSock   Access = 1 << 9
	MakeFIFO   Access = 1 << 10
	MakeBlock  Access = 1 << 11
	MakeSym    Access = 1 << 12
	Refer      Access = 1 << 13 // rename and link between directories; version 2
	Truncate   Access = 1 << 14 // version 3
)

// MinABI is the first usable version. Version 1 (Linux 5.13 to 5.18) refuses every rename
// and link between directories with EXDEV, which breaks more than it protects.
const MinABI = 2

// RulePathBeneath is LANDLOCK_RULE_PATH_BENEATH, the type of all rules here.
const RulePathBeneath = 1

// ParentFD is the offset of parent_fd, an int32, in what PathBeneath returns.
const ParentFD = 8

// HandledAccess returns the rights that a ruleset refuses unless a rule grants
// them, as far as the version of the kernel's Landlock knows them.
func HandledAccess(abi int) Access {
	return WriteAccess(abi) | MakeChar | MakeBlock
}

// OwnAccess returns the rights over what is a sandbox's own: those of HandledAccess,
// and those to read.
func OwnAccess(abi int) Access {
	return HandledAccess(abi) | ReadFile | ReadDir
}

// WriteAccess returns the rights that a rule grants beneath a writable directory.
func WriteAccess(abi int) Access {
	return FileAccess(abi) | RemoveDir | RemoveFile | MakeDir | MakeReg | MakeSock | MakeFIFO | MakeSym | since(2, abi, Refer)
}

// FileAccess returns the rights that a rule grants to a single file, such as a device.
func FileAccess(abi int) Access {
	return WriteFile | since(3, abi, Truncate)
}

func since(first, abi int, a Access) Access {
	if abi < first {
		return 0
	}
	return a
}

// RulesetAttr returns the struct landlock_ruleset_attr for the rights that a ruleset
// refuses unless a rule grants them. It is the struct as of version 1, which every
// kernel takes.
func RulesetAttr(handled Access) []byte {
	return binary.NativeEndian.AppendUint64(nil, uint64(handled))
}

// PathBeneath returns the struct landlock_path_beneath_attr for a rule that grants the
// access. Its parent_fd, at ParentFD, is -1; fill it in.
func PathBeneath(access Access) []byte {
	b := binary.NativeEndian.AppendUint64(nil, uint64(access))
	return binary.NativeEndian.AppendUint32(b, ^uint32(0))
}

// Devices returns the paths in /dev that programs write to even if they may write nothing
// else. Add rules for those that exist. Terminals are the sandbox's own.
func Devices() []string {
	return []string{
		"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
		"/dev/tty", "/dev/console", "/dev/ptmx", "/dev/pts",
	}
}
