package server

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// keepFiles has no program that this one starts inherit a file that is not given
// to it by name: a server in the background would hold on to what a script has
// open, a lock for instance, for as long as it lives.
func keepFiles() error {
	const first = 3 // behind standard error
	if err := unix.CloseRange(first, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("keeping open files from it: %w", err)
	}
	return nil
}
