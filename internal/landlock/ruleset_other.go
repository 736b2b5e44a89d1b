//go:build !linux

package landlock

import (
	"fmt"

	"github.com/sandpit-dev/sandpit"
)

var errNone = fmt.Errorf("landlock is of Linux: %w", sandpit.ErrUnsupported)

// ABI returns 0: there is no Landlock.
func ABI() int { return 0 }

// Probe returns an error that matches sandpit.ErrUnsupported.
func Probe() (abi int, err error) { return 0, errNone }

// NewRuleset returns an error that matches sandpit.ErrUnsupported.
func NewRuleset(writable []string) (fd int, err error) { return -1, errNone }

// RestrictSelf returns an error that matches sandpit.ErrUnsupported.
func RestrictSelf(fd int) error { return errNone }
