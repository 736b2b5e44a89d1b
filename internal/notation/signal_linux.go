package notation

import "syscall"

// linuxSignal returns the number that a sandbox knows a signal by.
func linuxSignal(sig syscall.Signal) int { return int(sig) }
