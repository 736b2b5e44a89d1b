package linux

import (
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/landlock"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// landlockABI returns the version of Landlock that is used, or 0.
func landlockABI() int {
	abi, _ := landlock.Probe()
	return abi
}

// writeSteps adds the steps that make a ruleset under which only the given paths
// may be written, beside the devices that everything writes to.
func writeSteps(p *sysprog.Program, abi int, writable []string) sysprog.Reg {
	ruleset := rulesetSteps(p, landlock.HandledAccess(abi))
	for _, path := range landlock.Devices() {
		allowSteps(p, ruleset, path, true, landlock.FileAccess(abi), landlock.WriteAccess(abi))
	}
	for _, path := range writable {
		allowSteps(p, ruleset, path, false, landlock.FileAccess(abi), landlock.WriteAccess(abi))
	}
	return ruleset
}

// ownRootSteps adds the steps that make a ruleset under which nothing may be opened
// or changed but what is in the sandbox's own root, and in what is mounted there.
//
// A directory of which another sandbox has passed a descriptor is in the root of
// that one. The kernel checks a path by walking up from it, over the mounts that it
// was reached by, and never comes to this root.
func ownRootSteps(p *sysprog.Program, abi int) sysprog.Reg {
	ruleset := rulesetSteps(p, landlock.OwnAccess(abi))
	allowSteps(p, ruleset, "/", false, landlock.OwnAccess(abi))
	// mq_open(2) goes by a mount of the kernel's own, which is in no root.
	allowSteps(p, ruleset, "/dev/mqueue", false, landlock.OwnAccess(abi))
	return ruleset
}

func rulesetSteps(p *sysprog.Program, handled landlock.Access) sysprog.Reg {
	attr := landlock.RulesetAttr(handled)
	return p.Call("creating a Landlock ruleset", unix.SYS_LANDLOCK_CREATE_RULESET, p.Bytes(attr), sysprog.Int(len(attr)), sysprog.Int(0)).Result()
}

// allowSteps adds the steps that put rules for a path into a ruleset, one for
// each access that the kernel takes for what is there. With missing there may be nothing.
func allowSteps(p *sysprog.Program, ruleset sysprog.Reg, path string, missing bool, accesses ...landlock.Access) {
	what := "allowing to use " + path
	open := p.Call(what, unix.SYS_OPENAT, sysprog.Int(unix.AT_FDCWD), p.Str(path), sysprog.Int(unix.O_PATH|unix.O_CLOEXEC), sysprog.Int(0))
	fd := open.Result()
	if missing {
		open.Ignore(unix.ENOENT).SkipAfterIgnored(2*len(accesses) + 1)
	}
	for _, access := range accesses {
		rule := landlock.PathBeneath(access)
		p.Store32(sysprog.From(fd), rule, landlock.ParentFD)
		// EINVAL: rights of a directory for what is a file.
		p.Call(what, unix.SYS_LANDLOCK_ADD_RULE, sysprog.From(ruleset), sysprog.Int(landlock.RulePathBeneath), p.Bytes(rule), sysprog.Int(0)).Ignore(unix.EINVAL)
	}
	p.Call("closing "+path, unix.SYS_CLOSE, sysprog.From(fd))
	p.Free(fd)
}
