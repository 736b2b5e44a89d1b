//go:build !linux

package image

import "context"

func (s *Store) acquireHost(context.Context) (*Lease, error) {
	return nil, unsupportedf("using the host image: only on Linux")
}
