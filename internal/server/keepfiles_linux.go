package server

import (
	"math"

	"golang.org/x/sys/unix"
)

// keepFiles has no program that this one starts inherit a file that is not given
// to it by name: a server in the background would hold on to what a script has
// open, a lock for instance, for as long as it lives. A kernel that can't do it can
// make no sandbox either.
func keepFiles() {
	const first = 3 // behind standard error
	_ = unix.CloseRange(first, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
}
