package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// files is the file system of a sandbox.
type files struct {
	c    *Client
	user string // empty: the sandbox's
	root bool   // with the capabilities of root, too
}

// Files returns the file system of the sandbox.
func (c *Client) Files() sandpit.Files { return files{c: c} }

// As returns the file system with the rights of another user.
func (f files) As(user string) sandpit.Files { return files{f.c, user, false} }

// RootFiles returns the file system with the rights of root. What is created, or replaced by Write, belongs to owner,
// in whose home directory relative paths begin as with Files.As. A guest of an older version uses the rights of owner alone.
func (c *Client) RootFiles(owner string) sandpit.Files {
	return files{c, owner, c.features&wire.FeatureAsRoot != 0}
}

// open opens the stream of an operation on files.
func (f files) open(ctx context.Context, op wire.Op, m message, content bool, limit int64) (*stream, error) {
	if f.user != "" && f.c.features&wire.FeatureAs == 0 {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "this sandbox is older than file operations as another user"), "stop and start the sandbox")
	}
	return f.c.openAs(ctx, &wire.As{User: f.user, Root: f.root}, op, m, content, limit)
}

// call makes a request about files.
func (f files) call(ctx context.Context, op wire.Op, m message, to decoder) error {
	s, err := f.open(ctx, op, m, false, 0)
	if err != nil {
		return err
	}
	return s.result(ctx, to)
}

// Stat follows symbolic links.
func (f files) Stat(ctx context.Context, path string) (sandpit.FileInfo, error) {
	return f.stat(ctx, "stat", path, true)
}

// Lstat does not follow the last symbolic link.
func (f files) Lstat(ctx context.Context, path string) (sandpit.FileInfo, error) {
	return f.stat(ctx, "lstat", path, false)
}

func (f files) stat(ctx context.Context, op, path string, follow bool) (sandpit.FileInfo, error) {
	var m wire.Described
	if err := f.call(ctx, wire.OpStat, &wire.Stat{Path: path, Follow: follow, Attrs: true}, &m); err != nil {
		return sandpit.FileInfo{}, pathError(op, path, err)
	}
	return fileInfo(&m.File), nil
}

// ReadDir returns a page of a directory.
func (f files) ReadDir(ctx context.Context, path, after string, limit int) ([]sandpit.FileInfo, bool, error) {
	switch {
	case limit < 0:
		return nil, false, pathError("readdir", path, fmt.Errorf("%w: a negative limit", sandpit.ErrInvalid))
	case limit == 0:
		limit = 1000
	}
	limit = min(limit, wire.MaxEntries)
	var out []sandpit.FileInfo
	for size := 0; ; {
		var m wire.Entries
		err := f.call(ctx, wire.OpReadDir, &wire.ReadDir{Path: path, After: after, Limit: uint64(limit - len(out))}, &m)
		if err != nil {
			return nil, false, pathError("readdir", path, err)
		}
		for i := range m.List {
			if len(out) == limit || m.List[i].Name <= after {
				err := violation("a directory that is out of order")
				f.c.fail(err)
				return nil, false, pathError("readdir", path, err)
			}
			after = m.List[i].Name
			out = append(out, fileInfo(&m.List[i]))
			size += len(after) + len(m.List[i].Target)
		}
		// A reply holds only so many bytes, so it may take several, but no more
		// than names that are names can need.
		if !m.More || len(out) == limit || len(m.List) == 0 || size > maxNames {
			return out, m.More, nil
		}
	}
}

// maxNames bounds the bytes of names that ReadDir and Find collect.
const maxNames = 8 << 20

// Open reads a file. When ctx ends, reading fails with its error.
func (f files) Open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error) {
	if offset < 0 || length < -1 {
		return nil, pathError("open", path, fmt.Errorf("%w: a negative offset or length", sandpit.ErrInvalid))
	}
	s, err := f.open(ctx, wire.OpRead, &wire.Read{Path: path, Offset: offset, Length: length}, true, max(0, length))
	if err != nil {
		return nil, pathError("open", path, err)
	}
	b, err := s.wait(ctx)
	if err != nil {
		return nil, hintOpen(path, pathError("open", path, err))
	}
	var m wire.File
	if err := m.Decode(b); err != nil {
		err = violation("%s", err)
		f.c.fail(err)
		return nil, pathError("open", path, err)
	}
	size := int64(-1)
	if m.Size > 0 {
		size = max(0, m.Size-offset)
		if length >= 0 {
			size = min(size, length)
		}
	}
	return &reader{s: s, path: path, size: size, end: s.abortWith(ctx)}, nil
}

// hintOpen adds to the refusal of what is not an ordinary file what to do instead.
func hintOpen(path string, err error) error {
	quoted := "'" + strings.ReplaceAll(printable(path), "'", `'\''`) + "'"
	switch {
	case strings.HasSuffix(err.Error(), "invalid argument"): // EINVAL
		return sandpit.WithHint(err, "only regular files can be read as files: run a command for devices, pipes and sockets, such as: head -c 1024 "+quoted)
	case errors.Is(err, fs.ErrPermission) && strings.HasPrefix(path, "/proc/"):
		return sandpit.WithHint(err, "what /proc says about the programs that serve the sandbox can't be read, and 'self' would be one of them: run a command, such as: cat "+quoted)
	}
	return err
}

// reader is the content of an open file.
type reader struct {
	closed atomic.Bool
	s      *stream
	path   string
	size   int64  // bytes to come when it was opened; -1: not known
	end    func() // gives the stream up

	mu   sync.Mutex
	rest []byte // of what Next has returned
	err  error
}

// Size returns how many bytes the file had to give when it was opened, or -1 when
// that is not told, as of files in /proc. There are fewer when it has become
// shorter meanwhile, and a guest may lie.
func (r *reader) Size() int64 { return r.size }

// Read reads content.
func (r *reader) Read(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.more(); err != nil || len(b) == 0 {
		return 0, err
	}
	n := copy(b, r.rest)
	r.took(n)
	return n, nil
}

// WriteTo writes all content to w, without copying it.
func (r *reader) WriteTo(w io.Writer) (n int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if err := r.more(); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
		k, err := w.Write(r.rest)
		n += int64(k)
		r.took(k)
		if err != nil {
			return n, err
		}
	}
}

// more waits until there is something in rest.
func (r *reader) more() error {
	if r.closed.Load() {
		return pathError("read", r.path, fs.ErrClosed)
	}
	if len(r.rest) == 0 && r.err == nil {
		_, b, err := r.s.in.Next()
		if err != nil && err != io.EOF {
			err = pathError("read", r.path, err)
		}
		r.rest, r.err = b, err
	}
	if len(r.rest) > 0 {
		return nil
	}
	return r.err
}

func (r *reader) took(n int) {
	r.rest = r.rest[n:]
	if len(r.rest) == 0 {
		r.s.credit(r.s.in.Done())
	}
}

// Close ends the reading. A Read that waits fails.
func (r *reader) Close() error {
	r.closed.Store(true)
	r.s.in.Abort(fs.ErrClosed)
	r.end()
	return nil
}

// Write writes a file.
func (f files) Write(ctx context.Context, path string, from io.Reader, opt sandpit.WriteOptions) (int64, error) {
	mode := opt.Mode
	if mode == 0 {
		mode = 0o644
	}
	m := &wire.Write{Path: path, Mode: notation.ModeBits(mode), AtEnd: opt.Append, Parents: opt.Parents, InPlace: opt.InPlace, Offset: opt.Offset}
	if opt.InPlace {
		if err := f.inPlace(); err != nil {
			return 0, pathError("write", path, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(opt.Xattrs)) {
		m.Attrs = append(m.Attrs, wire.Attr{Name: name, Value: opt.Xattrs[name]})
	}
	switch {
	case len(m.Attrs) == 0:
	case len(m.Attrs) > wire.MaxAttrs || wire.AttrBytes(m.Attrs) > wire.MaxAttrBytes:
		return 0, pathError("write", path, fault.Errorf(sandpit.ErrInvalid, "a file has at most %d attributes, of %d bytes with their names", wire.MaxAttrs, wire.MaxAttrBytes))
	case f.c.features&wire.FeatureAttrs == 0:
		return 0, pathError("write", path, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "this sandbox is older than attributes of files"), "stop and start the sandbox"))
	}
	// The content that comes back is none: the answer is the last frame.
	s, err := f.open(ctx, wire.OpWrite, m, false, 0)
	if err != nil {
		return 0, pathError("write", path, err)
	}
	stop := context.AfterFunc(ctx, func() { s.out.Fail(ctx.Err()) })
	defer stop()
	if err := s.upload(ctx, from); err != nil {
		return 0, hintMode(mode, pathError("write", path, s.broken(ctx, err)))
	}
	b, err := s.wait(ctx)
	var written wire.Written
	if err == nil {
		if err = written.Decode(b); err != nil {
			err = violation("%s", err)
			f.c.fail(err)
		}
	}
	if err != nil {
		return 0, hintMode(mode, pathError("write", path, err))
	}
	return written.Bytes, nil
}

// uploadFrames is how many frames of content are sent at once, if there is so
// much at once.
const uploadFrames = 4

// uploads are buffers for content.
var uploads = sync.Pool{New: func() any {
	b := make([]byte, uploadFrames*wire.MaxData)
	return &b
}}

// upload sends all of from, and its end.
func (s *stream) upload(ctx context.Context, from io.Reader) error {
	buf := uploads.Get().(*[]byte)
	defer uploads.Put(buf)
	for {
		n, rerr := from.Read(*buf)
		if _, err := s.send(ctx, (*buf)[:n]); err != nil {
			return err
		}
		if errors.Is(rerr, io.EOF) {
			_, err := s.c.write(ctx, wire.AppendFrame(nil, wire.EOF, s.id, nil))
			return err
		}
		if rerr != nil {
			return rerr
		}
	}
}

// Mkdir makes a directory.
func (f files) Mkdir(ctx context.Context, path string, mode fs.FileMode, parents bool) error {
	if mode == 0 {
		mode = 0o755
	}
	err := f.call(ctx, wire.OpMkdir, &wire.Path{Path: path, Mode: notation.ModeBits(mode), Flag: parents}, nil)
	return pathError("mkdir", path, err)
}

// Remove removes a file or directory.
func (f files) Remove(ctx context.Context, path string, recursive bool) error {
	err := f.call(ctx, wire.OpRemove, &wire.Path{Path: path, Flag: recursive}, nil)
	return pathError("remove", path, err)
}

// Rename moves a file.
func (f files) Rename(ctx context.Context, oldpath, newpath string) error {
	err := f.call(ctx, wire.OpRename, &wire.Path{Path: oldpath, Other: newpath}, nil)
	return pathError("rename", oldpath, err)
}

// Symlink makes a symbolic link.
func (f files) Symlink(ctx context.Context, target, path string) error {
	err := f.call(ctx, wire.OpSymlink, &wire.Path{Path: path, Other: target}, nil)
	return pathError("symlink", path, err)
}

// Readlink reads a symbolic link.
func (f files) Readlink(ctx context.Context, path string) (string, error) {
	var m wire.Path
	if err := f.call(ctx, wire.OpReadlink, &wire.Path{Path: path}, &m); err != nil {
		return "", pathError("readlink", path, err)
	}
	return m.Path, nil
}

// Chmod changes permission bits.
func (f files) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	err := f.call(ctx, wire.OpChmod, &wire.Path{Path: path, Mode: notation.ModeBits(mode)}, nil)
	return hintMode(mode, pathError("chmod", path, err))
}

// inPlace returns an error if the guest does not know writes in place, which it would take
// for others, and SetAttr.
func (f files) inPlace() error {
	if f.c.features&wire.FeatureInPlace != 0 {
		return nil
	}
	return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "this sandbox is older than writes in place and changes of attributes"), "stop and start the sandbox")
}

// SetAttr changes attributes of a file.
func (f files) SetAttr(ctx context.Context, path string, a sandpit.FileAttr) error {
	m := &wire.SetAttr{Path: path, Follow: !a.NoFollow}
	if a.Size != nil {
		m.Attrs, m.Size = m.Attrs|wire.AttrSize, *a.Size
	}
	if a.Mode != nil {
		m.Attrs, m.Mode = m.Attrs|wire.AttrMode, notation.ModeBits(*a.Mode)
	}
	if a.UID != nil {
		m.Attrs, m.UID = m.Attrs|wire.AttrUID, uint64(*a.UID)
	}
	if a.GID != nil {
		m.Attrs, m.GID = m.Attrs|wire.AttrGID, uint64(*a.GID)
	}
	for _, t := range []struct {
		time time.Time
		bit  uint64
		to   *int64
	}{{a.ModTime, wire.AttrModTime, &m.ModTime}, {a.AccessTime, wire.AttrAccessTime, &m.AccessTime}} {
		if t.time.IsZero() {
			continue
		}
		m.Attrs, *t.to = m.Attrs|t.bit, t.time.UnixNano()
		if !time.Unix(0, *t.to).Equal(t.time) {
			return pathError("setattr", path, fmt.Errorf("%w: a time before the year 1678 or after 2261", sandpit.ErrInvalid))
		}
	}
	err := f.inPlace()
	if err == nil {
		err = f.call(ctx, wire.OpSetAttr, m, nil)
	}
	err = pathError("setattr", path, err)
	if a.Mode != nil {
		return hintMode(*a.Mode, err)
	}
	return err
}

// hintMode adds to the refusal of a mode with a set-id bit what refuses it.
func hintMode(mode fs.FileMode, err error) error {
	if mode&(fs.ModeSetuid|fs.ModeSetgid) == 0 || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return sandpit.WithHint(err, fmt.Sprintf("a sandbox with a mount that is writable or shows sockets refuses set-user-id and set-group-id bits: use %04o", mode.Perm()))
}

// The types in st_mode (inode(7)).
const (
	modeFormat = 0o170000
	modeSocket = 0o140000
	modeLink   = 0o120000
	modeBlock  = 0o060000
	modeDir    = 0o040000
	modeChar   = 0o020000
	modePipe   = 0o010000
	modeFile   = 0o100000
)

// fileMode makes a FileMode of st_mode.
func fileMode(u uint64) fs.FileMode {
	m := notation.ParseModeBits(u)
	switch u & modeFormat {
	case modeFile:
	case modeDir:
		m |= fs.ModeDir
	case modeLink:
		m |= fs.ModeSymlink
	case modePipe:
		m |= fs.ModeNamedPipe
	case modeSocket:
		m |= fs.ModeSocket
	case modeChar:
		m |= fs.ModeDevice | fs.ModeCharDevice
	case modeBlock:
		m |= fs.ModeDevice
	default:
		m |= fs.ModeIrregular
	}
	return m
}

func fileInfo(m *wire.File) sandpit.FileInfo {
	var attrs map[string]string
	for _, a := range m.Attrs {
		if attrs == nil {
			attrs = map[string]string{}
		}
		attrs[a.Name] = a.Value
	}
	return sandpit.FileInfo{
		Name: m.Name, Size: m.Size, Mode: fileMode(m.Mode), ModTime: time.Unix(0, m.ModTime),
		UID: uint32(m.UID), GID: uint32(m.GID), Target: m.Target, Xattrs: attrs,
	}
}
