//go:build !linux

package cli

import (
	"errors"
	"time"
)

// keyHelper would tell the origin of signals, which only Linux can.
type keyHelper struct{ typed <-chan time.Time }

func startKeyHelper() (*keyHelper, error) { return nil, errors.ErrUnsupported }

func (*keyHelper) stop() {}
