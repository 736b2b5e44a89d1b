package seccomp

// foreign: a 64-bit program of arm64 has no way to make a 32-bit call.
var foreign = map[string]func(){}

func callsOfArch() []call { return nil }

func mountCallsOfArch() []call { return nil }
