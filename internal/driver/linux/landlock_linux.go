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

// landlockSteps adds the steps that make a ruleset under which only the given
// paths may be written, beside the devices that everything writes to.
func landlockSteps(p *sysprog.Program, abi int, writable []string) sysprog.Reg {
	attr := landlock.RulesetAttr(abi)
	ruleset := p.Call("creating a Landlock ruleset", unix.SYS_LANDLOCK_CREATE_RULESET, p.Bytes(attr), sysprog.Int(len(attr)), sysprog.Int(0)).Result()
	add := func(path string, missing bool) {
		what := "allowing to write " + path
		open := p.Call(what, unix.SYS_OPENAT, sysprog.Int(unix.AT_FDCWD), p.Str(path), sysprog.Int(unix.O_PATH|unix.O_CLOEXEC), sysprog.Int(0))
		fd := open.Result()
		if missing {
			open.Ignore(unix.ENOENT).SkipAfterIgnored(5)
		}
		for _, access := range []landlock.Access{landlock.FileAccess(abi), landlock.WriteAccess(abi)} {
			rule := landlock.PathBeneath(access)
			p.Store32(fd, rule, landlock.ParentFD)
			// EINVAL: rights of a directory for what is a file.
			p.Call(what, unix.SYS_LANDLOCK_ADD_RULE, sysprog.From(ruleset), sysprog.Int(landlock.RulePathBeneath), p.Bytes(rule), sysprog.Int(0)).Ignore(unix.EINVAL)
		}
		p.Call("closing "+path, unix.SYS_CLOSE, sysprog.From(fd))
		p.Free(fd)
	}
	for _, path := range landlock.Devices() {
		add(path, true)
	}
	for _, path := range writable {
		add(path, false)
	}
	return ruleset
}
