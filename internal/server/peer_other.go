//go:build !linux

package server

import (
	"fmt"
	"net"

	"github.com/sandpit-dev/sandpit"
)

func peerUID(*net.UnixConn) (uint32, error) {
	return 0, fmt.Errorf("identifying the peer: %w", sandpit.ErrUnsupported)
}
