//go:build !linux

package fastrun

import (
	"fmt"

	"github.com/sandpit-dev/sandpit"
)

// Place is known on Linux alone.
func Place() (string, error) {
	return "", fmt.Errorf("finding the namespaces of this program: %w", sandpit.ErrUnsupported)
}
