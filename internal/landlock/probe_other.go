//go:build !linux

package landlock

import (
	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Probe returns an error that matches sandpit.ErrUnsupported.
func Probe() (abi int, err error) {
	return 0, fault.Errorf(sandpit.ErrUnsupported, "Landlock exists only on Linux")
}
