//go:build !linux

package local

import (
	"fmt"

	"github.com/sandpit-dev/sandpit"
)

// beGuest does nothing: guests are on Linux.
func beGuest([]string) {}

// open says that sandboxes are made on Linux only.
func open(Options) (sandpit.Client, error) {
	return nil, sandpit.WithHint(fmt.Errorf("creating sandboxes: %w", sandpit.ErrUnsupported), "use package client with a server on Linux")
}
