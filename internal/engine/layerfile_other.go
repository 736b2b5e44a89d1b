//go:build !linux

package engine

import "github.com/sandpit-dev/sandpit"

// readInLayer has no meaning where images can't be mounted.
func readInLayer(string, string) ([]byte, error) { return nil, sandpit.ErrUnsupported }
