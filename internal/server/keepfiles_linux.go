package server

import (
	"math"

	"golang.org/x/sys/unix"
)

// keepFiles keeps programs that this one starts from inheriting files that they are not
// given explicitly: a background server would hold on to the open files of a script, such
// as a lock. A kernel without this can't make sandboxes either.
func keepFiles() {
	const first = 3 // behind standard error
	_ = unix.CloseRange(first, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
}
