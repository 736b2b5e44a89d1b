package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandpit-dev/sandpit/internal/image"
)

// onImage calls f, which uses an image, for a task with a place among those that may get
// stuck. The task keeps that place while it reads from or writes to a disk. A registry is
// used with another kind of place, so that a slow one does not hold up creates of stored
// images. An image may be large, so the task is canceled only if it makes no progress for a
// long time.
func (t *task) onImage(ctx context.Context, opt image.AcquireOptions, giveBack func(), f func(image.AcquireOptions) error) error {
	e := t.engine
	t.enter("image")
	opt.Moves = func() { t.limit(e.opts.Patience.Image) }
	opt.Asking = func(ctx context.Context) (done func(), err error) {
		giveBack()
		t.limit(0) // others may take long
		done, err = e.place(ctx, t, t.namespace, true)
		t.enter("image")
		t.limit(e.opts.Patience.Image)
		return done, err
	}
	err := f(opt)
	var timeout *timeoutError
	if err != nil && errors.As(context.Cause(ctx), &timeout) {
		return fmt.Errorf("%s: %w", t.describe().What, timeout)
	}
	return err
}

// Pull fetches an image for the tenant. It has the same limits as creating a sandbox, and
// is canceled and given up in the same way.
func (t *Tenant) Pull(ctx context.Context, ref string, opt image.AcquireOptions) (image.Summary, error) {
	e := t.engine
	ctx, cancel := context.WithCancelCause(ctx)
	pulling := &task{what: "fetching", about: fmt.Sprintf("image %.100q", ref), namespace: t.namespace, cancel: cancel}
	var s image.Summary
	e.start(ctx, pulling, e.opts.Patience.Create, func(ctx context.Context) error {
		giveBack, err := e.try(ctx, pulling, t.namespace)
		if err != nil {
			return err
		}
		defer giveBack()
		return pulling.onImage(ctx, opt, giveBack, func(opt image.AcquireOptions) (err error) {
			s, err = e.opts.Images.Pull(ctx, ref, opt)
			return err
		})
	})
	if err := pulling.wait(context.Background()); err != nil {
		return image.Summary{}, err
	}
	return s, nil
}
