//go:build !linux

package image

import (
	"context"

	"github.com/sandpit-dev/sandpit/internal/fault"
)

func (s *Store) acquireHost(context.Context) (*Lease, error) {
	return nil, fault.Unsupportedf("using the host image: it exists only on Linux")
}

func (s *Store) hostBinds() []Bind { return nil }

func (s *Store) pruneHost() int64 { return 0 }
