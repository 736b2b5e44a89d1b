package engine

import (
	"context"
	"io"
	"io/fs"
	"iter"

	"github.com/sandpit-dev/sandpit"
)

func (f files) Copy(ctx context.Context, from, to string, recursive bool) error {
	return f.do(ctx, "copy", from, func(g sandpit.Files) error { return g.Copy(ctx, from, to, recursive) })
}

func (f files) Find(ctx context.Context, root string, q sandpit.FindQuery) (list []sandpit.FileInfo, more bool, err error) {
	err = f.do(ctx, "find", root, func(g sandpit.Files) error { list, more, err = g.Find(ctx, root, q); return err })
	return list, more, err
}

func (f files) Grep(ctx context.Context, root string, q sandpit.GrepQuery) (res sandpit.GrepResult, err error) {
	err = f.do(ctx, "grep", root, func(g sandpit.Files) error { res, err = g.Grep(ctx, root, q); return err })
	return res, err
}

func (f files) Edit(ctx context.Context, path string, edits []sandpit.Edit) error {
	return f.do(ctx, "edit", path, func(g sandpit.Files) error { return g.Edit(ctx, path, edits) })
}

func (f files) Download(ctx context.Context, path string, w io.Writer) error {
	return f.do(ctx, "download", path, func(g sandpit.Files) error { return g.Download(ctx, path, w) })
}

func (f files) Upload(ctx context.Context, dir string, r io.Reader) error {
	return f.do(ctx, "upload", dir, func(g sandpit.Files) error { return g.Upload(ctx, dir, r) })
}

// Watch tells of changes. The sandbox is not idle meanwhile.
func (f files) Watch(ctx context.Context, path string, recursive bool) iter.Seq2[sandpit.FileEvent, error] {
	return func(yield func(sandpit.FileEvent, error) bool) {
		if err := f.s.enter(ctx); err != nil {
			yield(sandpit.FileEvent{}, &fs.PathError{Op: "watch", Path: path, Err: err})
			return
		}
		defer f.s.leave()
		for ev, err := range f.guest().Watch(ctx, path, recursive) {
			if err != nil {
				err = f.explain("watch", path, err)
			}
			if !yield(ev, err) {
				return
			}
		}
	}
}
