//go:build !linux

package engine

import (
	"io/fs"

	"github.com/sandpit-dev/sandpit"
)

// readInLayer has no meaning where images can't be mounted.
func readInLayer(string, string) ([]byte, error) { return nil, sandpit.ErrUnsupported }

// typeInLayer has none either.
func typeInLayer(string, string) (fs.FileMode, bool) { return 0, false }

// linkInLayer has none either.
func linkInLayer(string, string) (string, bool) { return "", false }
