//go:build !linux

package cli

// machineMemory is not known.
func machineMemory() int64 { return 0 }
