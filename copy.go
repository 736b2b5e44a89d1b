package sandpit

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// CopyOptions are the options of CopyIn and CopyOut.
type CopyOptions struct {
	// MaxBytes is the maximum size of all files together, and MaxFiles the maximum
	// number of files, directories and links. A copy that exceeds one of them stops
	// with ErrQuota. Default: Disk and Files of DefaultLimits. Negative: no maximum.
	MaxBytes, MaxFiles int64

	// Follow has CopyIn copy what links lead to in place of the links. Links that lead out of
	// the directory, or to a directory that they are in, are left out. CopyOut returns
	// ErrUnsupported: a link of a sandbox may lead anywhere.
	Follow bool
}

// A CopyError lists what CopyIn or CopyOut has left out or not copied as a whole. Everything else
// was copied.
// It matches the errors in it.
type CopyError struct {
	Skipped []Skipped // the first 1,000
	More    int       // the number of others
}

// Skipped is a file, directory or link that was not copied, or not as a whole.
type Skipped struct {
	Path string // relative to the directory that was copied
	Err  error  // why
}

// maxSkipped bounds the memory of a CopyError.
const maxSkipped = 1000

// Error says how many files were not copied, and why the first was not.
func (e *CopyError) Error() string {
	if len(e.Skipped) == 1 && e.More == 0 {
		return fmt.Sprintf("1 file was not copied: %q: %v", e.Skipped[0].Path, e.Skipped[0].Err)
	}
	return fmt.Sprintf("%d files were not copied; the first is %q: %v", len(e.Skipped)+e.More, e.Skipped[0].Path, e.Skipped[0].Err)
}

// Unwrap returns why files were not copied.
func (e *CopyError) Unwrap() []error {
	errs := make([]error, len(e.Skipped))
	for i, s := range e.Skipped {
		errs[i] = s.Err
	}
	return errs
}

// CopyIn copies what is in a directory of this machine to a directory of the sandbox, which is
// created if it is missing. Files that exist there are replaced. The copies belong to the
// sandbox's user and keep their permission bits, except set-id bits.
//
// Symbolic links stay links, wherever they lead, without Follow: no link in dir is followed out of
// it, even if a program changes dir meanwhile. What can't be read here or written there, and
// sockets, pipes and devices, are left out: the error is then a *CopyError, and everything else
// was copied.
func CopyIn(ctx context.Context, sb Sandbox, dir, to string, opt CopyOptions) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("copying: %w", err)
	}
	defer root.Close()
	info, err := root.Stat(".")
	if err != nil {
		return fmt.Errorf("copying: %w", err)
	}
	files := sb.Files()
	if err := files.Mkdir(ctx, to, info.Mode().Perm()|0o700, true); err != nil {
		return err
	}
	read, write := io.Pipe()
	p := packer{copying: copying{ctx: ctx, opt: opt}, root: root, tar: tar.NewWriter(write), within: []fs.FileInfo{info}}
	packed := make(chan error, 1)
	go func() {
		err := p.directory(".")
		if err == nil {
			err = p.tar.Close()
		}
		write.CloseWithError(err)
		packed <- err
	}()
	err = files.Upload(ctx, to, read)
	_ = read.Close()
	if failed := <-packed; err != nil && failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		err = failed // reading was the cause
	}
	if isOfAFile(err) { // one file has ended the stream: the others are copied without it
		p = packer{copying: copying{ctx: ctx, opt: opt}, root: root, files: files, to: to, within: []fs.FileInfo{info}}
		err = p.directory(".")
	}
	if err != nil {
		return err
	}
	return p.skipped()
}

// isOfAFile reports whether an error is about one file of a sandbox, so that others may be copied.
func isOfAFile(err error) bool {
	for _, kind := range []error{fs.ErrPermission, fs.ErrExist, fs.ErrNotExist, ErrNotDirectory, ErrIsDirectory} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// CopyOut copies what is in a directory of the sandbox to a directory of this machine, which is
// created if it is missing. Files and links that exist there are replaced. The copies belong to
// the caller and have the permission bits of the originals, before the umask.
//
// Whatever the sandbox contains, nothing outside of dir is written: links in dir that lead to
// the outside are not followed. Symbolic links stay links, wherever they lead: a program that
// follows a link in dir later may leave it. Sockets, pipes, devices and
// what can't be read there or written here are left out: the error is then a *CopyError, and
// everything else was copied. If from itself can't be read, nothing is made.
func CopyOut(ctx context.Context, sb Sandbox, from, dir string, opt CopyOptions) error {
	if opt.Follow {
		return fmt.Errorf("copying %s: %w: links of a sandbox are not followed", from, ErrUnsupported)
	}
	files := sb.Files()
	info, err := files.Stat(ctx, from)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "download", Path: from, Err: ErrNotDirectory}
	}
	if err != nil {
		return err
	}
	if _, _, err := files.ReadDir(ctx, from, "", 1); err != nil { // nothing is made here then
		return fmt.Errorf("copying %s: %w", from, err)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("copying: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("copying: %w", err)
	}
	defer root.Close()
	read, write := io.Pipe()
	downloaded := make(chan error, 1)
	downloading, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		err := files.Download(downloading, from, write)
		write.CloseWithError(err)
		downloaded <- err
	}()
	u := unpacker{copying: copying{ctx: ctx, opt: opt}, root: root, tar: tar.NewReader(read)}
	if err = u.unpack(); err != nil {
		cancel() // the sandbox may have no end
	}
	read.CloseWithError(io.ErrClosedPipe)
	failed := <-downloaded
	if errors.Is(err, failed) {
		err = nil
	}
	switch {
	// One file may have ended the stream: the others are copied without it. A server can only
	// break off the stream then. If it is gone, the next call says so.
	case err == nil && (isOfAFile(failed) || errors.Is(failed, ErrUnavailable) || errors.Is(failed, io.ErrUnexpectedEOF)):
		u = unpacker{copying: copying{ctx: ctx, opt: opt}, root: root}
		if err := u.take(files, from, "."); err != nil {
			return fmt.Errorf("copying %s: %w", from, err)
		}
		return u.skipped()
	case err == nil && failed != nil:
		return failed
	case err != nil:
		return fmt.Errorf("copying %s: %w", from, err)
	}
	if err := u.special(files, from); err != nil {
		return err
	}
	return u.skipped()
}

// special skips the sockets, pipes and devices of the sandbox, which Files.Download leaves out.
func (u *unpacker) special(files Files, from string) error {
	for after := ""; ; {
		entries, more, err := files.Find(u.ctx, from, FindQuery{After: after, Limit: 10_000})
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !e.Mode.IsRegular() && !e.IsDir() && e.Mode.Type() != fs.ModeSymlink {
				u.skip(e.Name, specialError{e.Mode})
			}
		}
		if !more || len(entries) == 0 {
			return nil
		}
		after = entries[len(entries)-1].Name
	}
}

// copying is a copy of a tree.
type copying struct {
	ctx          context.Context
	opt          CopyOptions
	left         CopyError
	bytes, files int64
}

// skip notes that a file is left out.
func (c *copying) skip(name string, err error) {
	if len(c.left.Skipped) == maxSkipped {
		c.left.More++
		return
	}
	if about, ok := errors.AsType[*fs.PathError](err); ok {
		err = about.Err // the path is said beside it
	} else if about, ok := errors.AsType[*os.LinkError](err); ok {
		err = about.Err
	}
	c.left.Skipped = append(c.left.Skipped, Skipped{name, err})
}

// refused skips a file if err is about it alone, and returns other errors.
func (c *copying) refused(name string, err error) error {
	if isOfAFile(err) {
		c.skip(name, err)
		return nil
	}
	return err
}

func (c *copying) skipped() error {
	if len(c.left.Skipped) == 0 {
		return nil
	}
	return &c.left
}

// count adds an entry of a size, and returns an error if there are too many.
func (c *copying) count(size int64) error {
	maxBytes, maxFiles := c.opt.MaxBytes, c.opt.MaxFiles
	if maxBytes == 0 {
		maxBytes = DefaultLimits().Disk
	}
	if maxFiles == 0 {
		maxFiles = DefaultLimits().Files
	}
	c.files++
	switch {
	case c.ctx.Err() != nil:
		return c.ctx.Err()
	case maxFiles > 0 && c.files > maxFiles:
		return &limitError{fmt.Sprintf("there are more than %d files", maxFiles)}
	case maxBytes > 0 && size > maxBytes-c.bytes:
		return &limitError{fmt.Sprintf("the files have more than %d bytes", maxBytes)}
	}
	c.bytes += size
	return nil
}

// limitError is an ErrQuota.
type limitError struct{ text string }

func (e *limitError) Error() string        { return e.text }
func (e *limitError) Is(target error) bool { return target == ErrQuota || target == ErrExhausted }

// specialError is what a socket, pipe or device is left out with.
type specialError struct{ mode fs.FileMode }

func (e specialError) Error() string {
	switch {
	case e.mode&fs.ModeSocket != 0:
		return "it is a socket"
	case e.mode&fs.ModeNamedPipe != 0:
		return "it is a named pipe"
	case e.mode&fs.ModeDevice != 0:
		return "it is a device"
	}
	return "it is not a file, directory or link"
}

func (specialError) Is(target error) bool { return target == ErrUnsupported }

// packer writes a directory as a tar stream, or, with files, one file after the other to the
// directory to of a sandbox, which takes longer.
type packer struct {
	copying
	root  *os.Root
	tar   *tar.Writer
	files Files
	to    string

	within []fs.FileInfo // with Follow, the directories in which the present one is
}

// directory writes what is in a directory. Only an error of the stream ends it.
func (p *packer) directory(name string) error {
	f, err := p.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		p.skip(name, err)
		return nil
	}
	entries, err := f.ReadDir(-1)
	_ = f.Close()
	if err != nil {
		p.skip(name, err)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		if err := p.entry(path.Join(name, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) entry(name string) error {
	info, err := p.root.Lstat(name)
	if err != nil {
		p.skip(name, err)
		return nil
	}
	switch {
	case info.Mode().IsRegular():
		return p.file(name)
	case info.IsDir():
		return p.subdirectory(name, info)
	case info.Mode().Type() == fs.ModeSymlink && p.opt.Follow:
		return p.followed(name)
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := p.root.Readlink(name)
		if err != nil {
			p.skip(name, err)
			return nil
		}
		return p.header(name, target, info)
	}
	p.skip(name, specialError{info.Mode()})
	return nil
}

// subdirectory writes a directory with what is in it.
func (p *packer) subdirectory(name string, info fs.FileInfo) error {
	if p.opt.Follow {
		p.within = append(p.within, info)
		defer func() { p.within = p.within[:len(p.within)-1] }()
	}
	if p.files == nil {
		if err := p.header(name+"/", "", info); err != nil {
			return err
		}
		return p.directory(name)
	}
	if err := p.count(0); err != nil {
		return err
	}
	there, mode := path.Join(p.to, name), info.Mode().Perm()
	if err := p.files.Mkdir(p.ctx, there, mode|0o700, true); err != nil {
		return p.refused(name, err)
	}
	if err := p.directory(name); err != nil || mode == mode|0o700 {
		return err
	}
	return p.refused(name, p.files.Chmod(p.ctx, there, mode))
}

// followed writes what a link leads to, if that is in the directory.
func (p *packer) followed(name string) error {
	info, err := p.root.Stat(name)
	switch {
	case err != nil:
		if _, ofKernel := errors.AsType[syscall.Errno](err); !ofKernel { // os.Root's own
			target, _ := p.root.Readlink(name)
			err = fmt.Errorf("it is a link that leads out of the directory, by way of %s", target)
		}
		p.skip(name, err)
	case info.Mode().IsRegular():
		return p.file(name)
	case !info.IsDir():
		p.skip(name, specialError{info.Mode()})
	case slices.ContainsFunc(p.within, func(dir fs.FileInfo) bool { return os.SameFile(dir, info) }):
		p.skip(name, errors.New("the link leads to a directory that contains it"))
	default:
		return p.subdirectory(name, info)
	}
	return nil
}

// place writes a file, or a link to target, to the sandbox.
func (p *packer) place(name, target string, info fs.FileInfo, content io.Reader) error {
	if err := p.count(info.Size()); err != nil {
		return err
	}
	there := path.Join(p.to, name)
	if content == nil {
		_ = p.files.Remove(p.ctx, there, false)
		return p.refused(name, p.files.Symlink(p.ctx, target, there))
	}
	_, err := p.files.Write(p.ctx, there, content, WriteOptions{Mode: info.Mode().Perm()})
	if err == nil {
		err = p.files.Chmod(p.ctx, there, info.Mode().Perm())
	}
	return p.refused(name, err)
}

func (p *packer) header(name, target string, info fs.FileInfo) error {
	if p.files != nil {
		return p.place(name, target, info, nil)
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	if err := p.count(h.Size); err != nil {
		return err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, 0, 0, "", ""
	return p.tar.WriteHeader(h)
}

func (p *packer) file(name string) error {
	f, err := p.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may have become a pipe
	if err != nil {
		p.skip(name, err)
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = specialError{info.Mode()}
	}
	if err != nil {
		p.skip(name, err)
		return nil
	}
	if p.files != nil {
		return p.place(name, "", info, io.LimitReader(f, info.Size()))
	}
	if err := p.header(name, "", info); err != nil {
		return err
	}
	// A file that grows meanwhile is copied as long as it was.
	r := &source{r: io.LimitReader(f, info.Size())}
	n, err := io.Copy(p.tar, r)
	if r.err == nil && err != nil {
		return err
	}
	if n < info.Size() {
		if err = r.err; err == nil {
			err = errShorter
		}
		p.skip(name, err)
		_, err = io.CopyN(p.tar, zeros{}, info.Size()-n) // its size was sent
		return err
	}
	return nil
}

var errShorter = errors.New("the file became shorter while it was read; zeros replace the missing bytes")

// source is a reader that keeps its error, to tell it from that of a writer.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// zeros has no end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// unpacker unpacks a tar stream of a sandbox into a directory of this machine. Whatever the
// stream contains, nothing outside of the directory is touched: every path is resolved inside.
type unpacker struct {
	copying
	root *os.Root
	tar  *tar.Reader
}

// unpack continues after files that can't be made. Only an error of the stream, a limit or a
// full disk ends it.
func (u *unpacker) unpack() error {
	for {
		h, err := u.tar.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading from the sandbox: %w", err)
		}
		// The first part is the name of the directory itself.
		_, name, _ := strings.Cut(strings.TrimPrefix(path.Clean("/"+h.Name), "/"), "/")
		if name == "" {
			continue
		}
		if err := u.count(h.Size); err != nil {
			return err
		}
		r := &source{r: u.tar}
		err = u.entry(name, h, r)
		switch {
		case r.err != nil:
			return fmt.Errorf("reading from the sandbox: %w", r.err)
		case err != nil:
			if err := u.skipFailed(name, err); err != nil {
				return err
			}
		}
	}
}

// take copies what is in a directory of the sandbox, one file after the other, which takes longer
// than a stream.
func (u *unpacker) take(files Files, from, name string) error {
	for after := ""; ; {
		entries, more, err := files.ReadDir(u.ctx, path.Join(from, name), after, 1000)
		if err != nil {
			return u.refused(name, err)
		}
		for _, e := range entries {
			if err := u.takeEntry(files, from, path.Join(name, e.Name), e); err != nil {
				return err
			}
		}
		if !more || len(entries) == 0 {
			return nil
		}
		after = entries[len(entries)-1].Name
	}
}

func (u *unpacker) takeEntry(files Files, from, name string, e FileInfo) error {
	if err := u.count(e.Size); err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: int64(e.Mode.Perm()), Linkname: e.Target, Typeflag: tar.TypeFifo}
	r := io.Reader(strings.NewReader(""))
	switch {
	case e.IsDir():
		h.Typeflag = tar.TypeDir
	case e.Mode.Type() == fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
	case e.Mode.IsRegular():
		content, err := files.Open(u.ctx, path.Join(from, name), 0, -1)
		if err != nil {
			return u.refused(name, err)
		}
		defer content.Close()
		h.Typeflag, r = tar.TypeReg, io.LimitReader(content, e.Size)
	default:
		u.skip(name, specialError{e.Mode})
		return nil
	}
	content := &source{r: r}
	err := u.entry(name, h, content)
	switch {
	case content.err != nil:
		return u.refused(name, content.err)
	case err != nil:
		return u.skipFailed(name, err)
	case e.IsDir():
		return u.take(files, from, name)
	}
	return nil
}

// skipFailed skips a file that can't be made here, unless no other can be made either.
func (u *unpacker) skipFailed(name string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS) {
		return err
	}
	u.skip(name, err)
	return nil
}

// clear removes the file or link that a new one replaces. As with cp, a directory is not replaced.
func (u *unpacker) clear(name string) error {
	if info, err := u.root.Lstat(name); err == nil && info.IsDir() {
		return fmt.Errorf("%w: a directory is in the place of the file or link", fs.ErrExist)
	}
	_ = u.root.Remove(name)
	return nil
}

func (u *unpacker) entry(name string, h *tar.Header, r io.Reader) error {
	if err := u.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode) & 0o777
	switch h.Typeflag {
	case tar.TypeDir:
		err := u.root.Mkdir(name, mode|0o700)
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		if info, err := u.root.Lstat(name); err != nil || !info.IsDir() {
			return errors.Join(err, fmt.Errorf("%w: a file or link is in the place of the directory", fs.ErrExist))
		}
		return nil
	case tar.TypeReg:
		if err := u.clear(name); err != nil {
			return err
		}
		f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink:
		if err := u.clear(name); err != nil {
			return err
		}
		return u.root.Symlink(h.Linkname, name)
	}
	return specialError{h.FileInfo().Mode()}
}
