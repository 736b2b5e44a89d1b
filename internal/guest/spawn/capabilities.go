package spawn

// RootCapabilities are the capabilities of uid 0 inside a sandbox, a bit each, numbered as
// in linux/capability.h. Package managers need them to unpack files of several owners, to
// switch to a service user, and to signal its processes. Root has no others.
const RootCapabilities uint64 = 1<<0 | // CAP_CHOWN
	1<<1 | // CAP_DAC_OVERRIDE
	1<<3 | // CAP_FOWNER
	1<<4 | // CAP_FSETID
	1<<5 | // CAP_KILL
	1<<6 | // CAP_SETGID
	1<<7 // CAP_SETUID
