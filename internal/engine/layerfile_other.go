//go:build !linux

package engine

import (
	"io/fs"

	"github.com/sandpit-dev/sandpit"
)

// readInLayer has no meaning where images can't be mounted.
func readInLayer(string, string) ([]byte, error) { return nil, sandpit.ErrUnsupported }

// typeInLayer has none either.
func typeInLayer(string, string) (fs.FileMode, error) { return 0, sandpit.ErrUnsupported }

// linkInLayer has none either.
func linkInLayer(string, string) (string, error) { return "", sandpit.ErrUnsupported }

// causedByLayer has none either.
func causedByLayer(error) bool { return false }
