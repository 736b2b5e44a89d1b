package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// Files returns the file system of the sandbox. See sandpit.Files.
func (s *sandbox) Files() sandpit.Files { return files{sb: s} }

// files is the file system of a sandbox of a server.
type files struct {
	sb   *sandbox
	user string // whose rights are used; empty: those of the sandbox's
}

var _ sandpit.Files = files{}

// As returns the file system with the rights of another user.
func (f files) As(user string) sandpit.Files { return files{f.sb, user} }

// query returns the query of a request, of names and values, with the user.
func (f files) query(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	if f.user != "" {
		q.Set("user", f.user)
	}
	return q
}

// call makes a request about a path.
func (f files) call(ctx context.Context, op, path, method, what string, query url.Values, out any) error {
	return f.do(ctx, op, path, request{method: method, path: what, query: query}, out)
}

// do makes a request about a path that takes no time to answer.
func (f files) do(ctx context.Context, op, path string, r request, out any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errSilent)
	defer cancel()
	return f.work(ctx, op, path, r, out)
}

// work makes a request about a path that takes as long as it takes.
func (f files) work(ctx context.Context, op, path string, r request, out any) error {
	if err := f.sb.open(); err != nil {
		return pathError(op, path, err)
	}
	r.path = f.sb.path + "/files" + r.path
	if err := f.sb.c.call(ctx, r, out); err != nil {
		return pathError(op, path, f.sb.explain(ctx, err))
	}
	return nil
}

// Stat describes a file. It follows symbolic links.
func (f files) Stat(ctx context.Context, path string) (sandpit.FileInfo, error) {
	return f.stat(ctx, "stat", path, true)
}

// Lstat describes a file or a symbolic link.
func (f files) Lstat(ctx context.Context, path string) (sandpit.FileInfo, error) {
	return f.stat(ctx, "lstat", path, false)
}

func (f files) stat(ctx context.Context, op, path string, follow bool) (sandpit.FileInfo, error) {
	var v v1.FileInfo
	query := f.query("path", path, "follow", strconv.FormatBool(follow))
	if err := f.call(ctx, op, path, http.MethodGet, "/stat", query, &v); err != nil {
		return sandpit.FileInfo{}, err
	}
	info, err := v.Sandpit()
	if err != nil {
		return sandpit.FileInfo{}, pathError(op, path, badAnswer(err.Error()))
	}
	return info, nil
}

// ReadDir returns a page of a directory.
func (f files) ReadDir(ctx context.Context, path, after string, limit int) ([]sandpit.FileInfo, bool, error) {
	if limit < 0 {
		return nil, false, pathError("readdir", path, fmt.Errorf("%w: a negative limit", sandpit.ErrInvalid))
	}
	return f.list(ctx, "readdir", path, "/list", f.query("path", path), after, limit)
}

// Bounds of ReadDir and Find, and of a page of the server.
const (
	defaultEntries = 1000
	maxEntries     = 10_000
	pageEntries    = 1000
)

// list collects pages of files until there are enough.
func (f files) list(ctx context.Context, op, path, what string, query url.Values, after string, limit int) ([]sandpit.FileInfo, bool, error) {
	limit = min(cmp.Or(limit, defaultEntries), maxEntries)
	if after != "" {
		query.Set("after", v1.FilePosition(after))
	}
	all := []sandpit.FileInfo{}
	for {
		var v v1.FileList
		query.Set("limit", strconv.Itoa(min(limit-len(all), pageEntries)))
		if err := f.call(ctx, op, path, http.MethodGet, what, query, &v); err != nil {
			return nil, false, err
		}
		for _, e := range v.Entries {
			info, err := e.Sandpit()
			if err != nil {
				return nil, false, pathError(op, path, badAnswer(err.Error()))
			}
			all = append(all, info)
		}
		if v.Next == "" || len(v.Entries) == 0 || len(all) >= limit {
			return all, v.Next != "", nil
		}
		query.Set("after", v.Next)
	}
}

// Open opens a file for reading. When ctx ends, reading fails with its error.
func (f files) Open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error) {
	if offset < 0 || length < -1 {
		return nil, pathError("open", path, fmt.Errorf("%w: a negative offset or length", sandpit.ErrInvalid))
	}
	if err := f.sb.open(); err != nil {
		return nil, pathError("open", path, err)
	}
	r := request{method: http.MethodGet, path: f.sb.path + "/files", query: f.query("path", path), accept: "*/*"}
	switch {
	case length == -1 && offset == 0:
	case length == -1 || length > math.MaxInt64-offset:
		r.header = http.Header{"Range": {fmt.Sprintf("bytes=%d-", offset)}}
	default:
		// A range can't be empty: of none the first byte is asked for.
		r.header = http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", offset, offset+max(length, 1)-1)}}
	}
	ctx, cancel := f.sb.c.under(ctx)
	resp, err := f.sb.c.send(ctx, r)
	if isBeyond(err) {
		cancel()
		return io.NopCloser(strings.NewReader("")), nil
	}
	if err != nil {
		cancel()
		return nil, pathError("open", path, f.sb.explain(ctx, err))
	}
	left := int64(math.MaxInt64)
	if length >= 0 {
		left = length
	}
	return &reader{f: f, path: path, ctx: ctx, cancel: cancel, body: resp.Body, left: left}, nil
}

// isBeyond reports whether a file ends before the range that was asked for.
func isBeyond(err error) bool {
	var r *remoteError
	return errors.As(err, &r) && r.status == http.StatusRequestedRangeNotSatisfiable
}

// reader is the content of an open file.
type reader struct {
	f      files
	path   string
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	body   io.ReadCloser // nil when closed
	left   int64         // bytes that may still be given
	err    error         // the last
	closed bool
}

func (r *reader) Read(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return 0, pathError("read", r.path, fs.ErrClosed)
	case r.err != nil:
		return 0, r.err
	case r.left == 0:
		return 0, io.EOF
	}
	n, err := r.body.Read(b[:min(int64(len(b)), r.left)])
	r.left -= int64(n)
	if err != nil && err != io.EOF {
		err = pathError("read", r.path, r.f.sb.c.failed(r.ctx, err))
	}
	r.err = err
	return n, err
}

// readers are buffers for WriteTo.
var readers = sync.Pool{New: func() any { b := make([]byte, sourcePiece); return &b }}

// WriteTo writes all content to w, with larger reads than those of io.Copy.
func (r *reader) WriteTo(w io.Writer) (int64, error) {
	buf := readers.Get().(*[]byte)
	defer readers.Put(buf)
	var sent int64
	for {
		n, err := r.Read(*buf)
		if n > 0 {
			k, werr := w.Write((*buf)[:n])
			sent += int64(k)
			if werr != nil {
				return sent, werr
			}
		}
		switch err {
		case nil:
		case io.EOF:
			return sent, nil
		default:
			return sent, err
		}
	}
}

// Close closes the reader. A Read in progress fails.
func (r *reader) Close() error {
	r.cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return r.body.Close()
}

// Write creates or replaces a file.
func (f files) Write(ctx context.Context, path string, r io.Reader, opt sandpit.WriteOptions) (int64, error) {
	query := f.query("path", path)
	if opt.Mode != 0 {
		query.Set("mode", v1.ModeText(opt.Mode))
	}
	if opt.Append {
		query.Set("append", "true")
	}
	if opt.Parents {
		query.Set("parents", "true")
	}
	if opt.InPlace {
		query.Set("offset", strconv.FormatInt(opt.Offset, 10))
	} else if opt.Offset != 0 {
		return 0, pathError("write", path, fmt.Errorf("%w: an offset without InPlace", sandpit.ErrInvalid))
	}
	for name, value := range opt.Xattrs {
		if name == "" || strings.Contains(name, "=") {
			return 0, pathError("write", path, fmt.Errorf("%w: the attribute %.100q has no name, or = in it", sandpit.ErrInvalid, name))
		}
		query.Add("xattr", name+"="+value)
	}
	var v v1.Written
	src := newSource(r)
	err := f.work(ctx, "write", path, request{method: http.MethodPut, query: query, stream: src}, &v)
	if failed := src.stop(); failed != nil && err != nil && ctx.Err() == nil {
		return 0, pathError("write", path, failed)
	}
	return v.Bytes, err
}

// Mkdir creates a directory.
func (f files) Mkdir(ctx context.Context, path string, mode fs.FileMode, parents bool) error {
	query := f.query("path", path, "mode", v1.ModeText(mode))
	if parents {
		query.Set("parents", "true")
	}
	return f.call(ctx, "mkdir", path, http.MethodPost, "/mkdir", query, nil)
}

// Remove removes a file, a link or a directory.
func (f files) Remove(ctx context.Context, path string, recursive bool) error {
	query := f.query("path", path)
	if recursive {
		query.Set("recursive", "true")
	}
	return f.work(ctx, "remove", path, request{method: http.MethodDelete, query: query}, nil)
}

// Rename renames a file.
func (f files) Rename(ctx context.Context, oldpath, newpath string) error {
	return f.work(ctx, "rename", oldpath, request{method: http.MethodPost, path: "/rename", query: f.query("from", oldpath, "to", newpath)}, nil)
}

// Symlink creates a symbolic link.
func (f files) Symlink(ctx context.Context, target, path string) error {
	return f.call(ctx, "symlink", path, http.MethodPost, "/symlink", f.query("target", target, "path", path), nil)
}

// Readlink returns the target of a symbolic link.
func (f files) Readlink(ctx context.Context, path string) (string, error) {
	var v v1.Link
	if err := f.call(ctx, "readlink", path, http.MethodGet, "/readlink", f.query("path", path), &v); err != nil {
		return "", err
	}
	target, err := v.Sandpit()
	if err != nil {
		return "", pathError("readlink", path, badAnswer(err.Error()))
	}
	return target, nil
}

// Chmod changes permission bits.
func (f files) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	return f.call(ctx, "chmod", path, http.MethodPatch, "", f.query("path", path, "mode", v1.ModeText(mode)), nil)
}

// SetAttr changes attributes of a file.
func (f files) SetAttr(ctx context.Context, path string, a sandpit.FileAttr) error {
	query := f.query("path", path)
	if a.NoFollow {
		query.Set("follow", "false")
	}
	if a.Size != nil {
		query.Set("size", strconv.FormatInt(*a.Size, 10))
	}
	if a.UID != nil {
		query.Set("uid", strconv.FormatUint(uint64(*a.UID), 10))
	}
	if a.GID != nil {
		query.Set("gid", strconv.FormatUint(uint64(*a.GID), 10))
	}
	if a.Mode != nil {
		query.Set("mode", v1.ModeText(*a.Mode))
	}
	if !a.ModTime.IsZero() {
		query.Set("mod_time", a.ModTime.Format(time.RFC3339Nano))
	}
	if !a.AccessTime.IsZero() {
		query.Set("access_time", a.AccessTime.Format(time.RFC3339Nano))
	}
	return f.call(ctx, "setattr", path, http.MethodPatch, "", query, nil)
}
