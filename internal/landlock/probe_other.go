//go:build !linux

package landlock

import (
	"fmt"

	"github.com/sandpit-dev/sandpit"
)

// Probe returns an error that matches sandpit.ErrUnsupported.
func Probe() (abi int, err error) {
	return 0, fmt.Errorf("Landlock exists only on Linux: %w", sandpit.ErrUnsupported)
}
