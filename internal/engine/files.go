package engine

import (
	"context"
	"io"
	"io/fs"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// files is the file system of a sandbox: that of its guest. Each use keeps the sandbox from
// being idle, or resumes it.
type files struct {
	s    *Sandbox
	user string // whose rights are used; empty: those of the sandbox's
	root bool   // see Box.RootFiles
}

// Files returns the file system.
func (s *Sandbox) Files() sandpit.Files { return files{s: s} }

// As returns the file system with the rights of another user.
func (f files) As(user string) sandpit.Files { return files{s: f.s, user: user} }

// RootFiles returns the file system with the rights of root. See Box.
func (s *Sandbox) RootFiles(owner string) sandpit.Files { return files{s, owner, true} }

// guest returns the files of the guest.
func (f files) guest() sandpit.Files {
	switch root := f.root && f.s.hasRoot(); {
	case root && f.user != "":
		return f.s.guest.RootFiles(f.user)
	case root:
		return f.s.guest.Files().As("root")
	}
	return f.s.guest.Files().As(f.user)
}

// hasRoot reports whether the sandbox has root beside its user.
func (s *Sandbox) hasRoot() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rootInside
}

// do calls f while the guest can be used.
func (f files) do(ctx context.Context, op, path string, work func(sandpit.Files) error) error {
	if err := f.s.enter(ctx); err != nil {
		return &fs.PathError{Op: op, Path: path, Err: err}
	}
	defer f.s.leave()
	err := work(f.guest())
	if err != nil {
		return f.explain(op, path, err)
	}
	return nil
}

// explain is Sandbox.explain for an error of a file.
func (f files) explain(op, path string, err error) error {
	if better := f.s.explain(err); better != err { //nolint:errorlint // whether it is the same
		return &fs.PathError{Op: op, Path: path, Err: better}
	}
	return err
}

func (f files) Stat(ctx context.Context, path string) (info sandpit.FileInfo, err error) {
	err = f.do(ctx, "stat", path, func(g sandpit.Files) error { info, err = g.Stat(ctx, path); return err })
	return info, err
}

func (f files) Lstat(ctx context.Context, path string) (info sandpit.FileInfo, err error) {
	err = f.do(ctx, "lstat", path, func(g sandpit.Files) error { info, err = g.Lstat(ctx, path); return err })
	return info, err
}

func (f files) ReadDir(ctx context.Context, path, after string, limit int) (list []sandpit.FileInfo, more bool, err error) {
	err = f.do(ctx, "readdir", path, func(g sandpit.Files) error {
		list, more, err = g.ReadDir(ctx, path, after, limit)
		return err
	})
	return list, more, err
}

// Open reads a file. The sandbox is not idle until it is closed.
func (f files) Open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error) {
	if err := f.s.enter(ctx); err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	r, err := f.guest().Open(ctx, path, offset, length)
	if err != nil {
		f.s.leave()
		return nil, f.explain("open", path, err)
	}
	return &openFile{ReadCloser: r, s: f.s}, nil
}

// openFile is a file that is being read.
type openFile struct {
	io.ReadCloser
	s    *Sandbox
	once sync.Once
}

// WriteTo passes the content on without a copy, if the guest's reader can.
func (r *openFile) WriteTo(w io.Writer) (int64, error) {
	if to, ok := r.ReadCloser.(io.WriterTo); ok {
		return to.WriteTo(w)
	}
	return io.Copy(w, struct{ io.Reader }{r.ReadCloser})
}

// Size returns the size of the file when it was opened, or -1.
func (r *openFile) Size() int64 {
	if sized, ok := r.ReadCloser.(interface{ Size() int64 }); ok {
		return sized.Size()
	}
	return -1
}

// Close ends the use.
func (r *openFile) Close() error {
	r.once.Do(r.s.leave)
	return r.ReadCloser.Close()
}

func (f files) Write(ctx context.Context, path string, r io.Reader, opt sandpit.WriteOptions) (n int64, err error) {
	err = f.do(ctx, "write", path, func(g sandpit.Files) error { n, err = g.Write(ctx, path, r, opt); return err })
	return n, err
}

func (f files) Mkdir(ctx context.Context, path string, mode fs.FileMode, parents bool) error {
	return f.do(ctx, "mkdir", path, func(g sandpit.Files) error { return g.Mkdir(ctx, path, mode, parents) })
}

func (f files) Remove(ctx context.Context, path string, recursive bool) error {
	return f.do(ctx, "remove", path, func(g sandpit.Files) error { return g.Remove(ctx, path, recursive) })
}

func (f files) Rename(ctx context.Context, oldpath, newpath string) error {
	return f.do(ctx, "rename", oldpath, func(g sandpit.Files) error { return g.Rename(ctx, oldpath, newpath) })
}

func (f files) Symlink(ctx context.Context, target, path string) error {
	return f.do(ctx, "symlink", path, func(g sandpit.Files) error { return g.Symlink(ctx, target, path) })
}

func (f files) Readlink(ctx context.Context, path string) (target string, err error) {
	err = f.do(ctx, "readlink", path, func(g sandpit.Files) error { target, err = g.Readlink(ctx, path); return err })
	return target, err
}

func (f files) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	return f.do(ctx, "chmod", path, func(g sandpit.Files) error { return g.Chmod(ctx, path, mode) })
}

func (f files) SetAttr(ctx context.Context, path string, a sandpit.FileAttr) error {
	return f.do(ctx, "setattr", path, func(g sandpit.Files) error { return g.SetAttr(ctx, path, a) })
}
