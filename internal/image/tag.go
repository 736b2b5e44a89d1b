package image

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Tag gives an image of the store another name, which may have been that of another image.
// ref is a name, or the digest of an image. The error matches sandpit.ErrNotFound if there
// is none, and sandpit.ErrInvalid if name can't be one. InUse is not told.
func (s *Store) Tag(ctx context.Context, ref, name string) (Summary, error) {
	var out Summary
	err := s.withLock(ctx, "refs", func() (err error) {
		out, err = s.tag(ref, name)
		return err
	})
	if err != nil {
		return out, fmt.Errorf("naming image %q: %w", fault.Clip(ref), err)
	}
	return out, nil
}

func (s *Store) tag(ref, name string) (Summary, error) {
	if ref == "host" || ref == "" {
		return Summary{}, fault.Invalidf("it is this machine itself, not a stored image")
	}
	entries, err := s.find(ref)
	if err != nil {
		return Summary{}, err
	}
	to, err := importName(name)
	if err != nil {
		return Summary{}, err
	}
	e := entries[0]
	lease, ok := s.open(e.image, ref) // a held image is not removed before it has the name
	if !ok {
		return Summary{}, sandpit.WithHint(fault.NotFoundf("it is incomplete in the store"), "run 'sandpit images pull' to fetch it again")
	}
	defer lease.Release()
	rec := s.records()[e.image]
	if rec == nil {
		return Summary{}, fault.NotFoundf("it is incomplete in the store")
	}
	out := refEntry{name: to.String(), platform: cmp.Or(e.platform, rec.platform), image: e.image, at: time.Now()}
	if err := s.writeRef(out); err != nil {
		return Summary{}, err
	}
	sum := s.summary(out, rec)
	sum.InUse = false // by this lease
	return sum, nil
}
