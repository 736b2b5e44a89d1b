package notation

import (
	"fmt"
	"syscall"

	"github.com/sandpit-dev/sandpit"
)

// maxSignal is the last signal of Linux, SIGRTMAX (signal(7)).
const maxSignal = 64

// SignalNumber returns the number from 1 to 64 that a sandbox, which runs on
// Linux, knows a signal by. It is sandpit.ErrInvalid if Linux has no such signal.
func SignalNumber(sig syscall.Signal) (int, error) {
	n := linuxSignal(sig)
	if n < 1 || n > maxSignal {
		return 0, fmt.Errorf("sending signal %d: %w", int(sig), sandpit.ErrInvalid)
	}
	return n, nil
}
