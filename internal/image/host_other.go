//go:build !linux

package image

import "context"

func (s *Store) acquireHost(context.Context) (*Lease, error) {
	return nil, unsupportedf("using the host image: only on Linux")
}

func (s *Store) pruneHost() int64 { return 0 }
