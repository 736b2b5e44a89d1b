package server

import "golang.org/x/sys/unix"

// totalMemory returns the machine's memory in bytes, or 0.
func totalMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(uint64(info.Totalram) * uint64(info.Unit))
}
