package cli

import "golang.org/x/sys/unix"

// machineMemory returns the memory and swap of this machine in bytes, or 0.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(uint64(info.Totalram)+uint64(info.Totalswap)) * int64(info.Unit) //nolint:unconvert // the types differ between machines
}
