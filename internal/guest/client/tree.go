package client

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// A TreeEntry is a file of a tree that is uploaded or downloaded.
type TreeEntry struct {
	Path    string      // relative to the root of the tree, elements separated by slashes; empty: the root itself
	Mode    fs.FileMode // type (regular, directory, symbolic link) and permission bits
	ModTime time.Time
	Size    int64  // of a regular file
	Target  string // of a symbolic link; or, of a regular file, the path of an earlier one that it is another name of
}

// readTree passes a file or directory of the sandbox with everything in it to visit, a
// directory before its content. It does not follow links, and leaves out sockets, pipes and
// devices. content is a file's, exactly Size bytes, even if the file changes meanwhile;
// visit need not read it. An error of visit ends it.
func (f files) readTree(ctx context.Context, root string, visit func(e TreeEntry, content io.Reader) error) error {
	s, err := f.open(ctx, wire.OpPack, &wire.Path{Path: root}, true, 0)
	if err != nil {
		return pathError("download", root, err)
	}
	defer s.abortWith(ctx)()
	if _, err := s.wait(ctx); err != nil {
		return pathError("download", root, err)
	}
	r := newRecordReader(s)
	for {
		var m wire.TreeEntry
		err := r.next(&m)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return pathError("download", root, err)
		}
		if m.Kind == wire.TreeSkipped {
			continue
		}
		if m.Path != "" && !fs.ValidPath(strings.ToValidUTF8(m.Path, "?")) || strings.IndexByte(m.Path, 0) >= 0 ||
			m.Kind == wire.TreeHardlink || m.Size > 0 && m.Kind != wire.TreeFile {
			err := violation("a tree with an impossible entry")
			f.c.fail(err)
			return pathError("download", root, err)
		}
		e := TreeEntry{Path: m.Path, Mode: fileMode(m.Mode &^ modeFormat), ModTime: time.Unix(0, m.ModTime), Size: m.Size, Target: m.Target}
		e.Mode &^= fs.ModeIrregular
		switch m.Kind {
		case wire.TreeDir:
			e.Mode |= fs.ModeDir
		case wire.TreeSymlink:
			e.Mode |= fs.ModeSymlink
		}
		content := &io.LimitedReader{R: r.r, N: m.Size}
		if err := visit(e, content); err != nil {
			return pathError("download", root, err)
		}
		if _, err := io.Copy(io.Discard, content); err != nil {
			return pathError("download", root, err)
		}
		if content.N > 0 {
			err := violation("a tree that ends within a file")
			f.c.fail(err)
			return pathError("download", root, err)
		}
	}
}

// WriteTree makes a tree below an existing directory of the sandbox. next returns entries
// until io.EOF; a file's content must have Size bytes. Nothing is made outside of the
// directory, whatever the entries say. Files and links in the way are replaced, directories
// kept. Everything belongs to the sandbox's user; set-id bits are dropped.
func (c *Client) WriteTree(ctx context.Context, dir string, next func() (TreeEntry, io.Reader, error)) error {
	return files{c: c}.writeTree(ctx, dir, next)
}

func (f files) writeTree(ctx context.Context, dir string, next func() (TreeEntry, io.Reader, error)) error {
	s, err := f.open(ctx, wire.OpUnpack, &wire.Path{Path: dir}, false, 0)
	if err != nil {
		return pathError("upload", dir, err)
	}
	stop := context.AfterFunc(ctx, func() { s.out.Fail(ctx.Err()) })
	defer stop()
	if err := s.sendTree(ctx, next); err != nil {
		return pathError("upload", dir, s.broken(ctx, err))
	}
	_, err = s.wait(ctx)
	return pathError("upload", dir, err)
}

// sendTree sends entries, and their end.
func (s *stream) sendTree(ctx context.Context, next func() (TreeEntry, io.Reader, error)) error {
	w := bufio.NewWriterSize(&contentWriter{ctx, s}, wire.MaxData)
	for {
		e, content, err := next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		m, err := treeEntry(&e)
		if err != nil {
			return err
		}
		b := wire.AppendRecord(nil, m)
		if len(b) > wire.MaxRecord {
			return fmt.Errorf("%w: the path of an entry is too long", sandpit.ErrInvalid)
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
		if m.Size > 0 {
			if _, err := io.CopyN(w, content, m.Size); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return fmt.Errorf("%w: the content of %q ends early", sandpit.ErrInvalid, e.Path)
			} else if err != nil {
				return err
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := s.c.write(ctx, wire.AppendFrame(nil, wire.EOF, s.id, nil))
	return err
}

// contentWriter sends content.
type contentWriter struct {
	ctx context.Context
	s   *stream
}

func (w *contentWriter) Write(b []byte) (int, error) { return w.s.send(w.ctx, b) }

func treeEntry(e *TreeEntry) (*wire.TreeEntry, error) {
	m := &wire.TreeEntry{Path: e.Path, Mode: uint64(e.Mode.Perm()), Target: e.Target}
	if !e.ModTime.IsZero() {
		m.ModTime = e.ModTime.UnixNano()
	}
	switch e.Mode.Type() {
	case fs.ModeDir:
		m.Kind = wire.TreeDir
	case fs.ModeSymlink:
		m.Kind = wire.TreeSymlink
	case 0:
		if m.Kind = wire.TreeFile; e.Target != "" {
			m.Kind = wire.TreeHardlink
			break
		}
		if m.Size = e.Size; m.Size < 0 {
			return nil, fmt.Errorf("%w: %q has a negative size", sandpit.ErrInvalid, e.Path)
		}
	default:
		return nil, fmt.Errorf("%w: %q is not a file, a directory or a link", sandpit.ErrInvalid, e.Path)
	}
	return m, nil
}

// Download writes a tar stream.
func (f files) Download(ctx context.Context, root string, w io.Writer) error {
	base := path.Base(path.Clean(root))
	if base == "/" || base == ".." {
		base = "."
	}
	t := tar.NewWriter(w)
	err := f.readTree(ctx, root, func(e TreeEntry, content io.Reader) error {
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: base, Mode: int64(notation.ModeBits(e.Mode)), ModTime: e.ModTime.Truncate(time.Second), Size: e.Size, Linkname: e.Target,
		}
		if e.Path != "" {
			h.Name = base + "/" + e.Path
		}
		switch {
		case e.Mode.IsDir():
			h.Typeflag = tar.TypeDir
			h.Name += "/"
		case e.Mode.Type() == fs.ModeSymlink:
			h.Typeflag = tar.TypeSymlink
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.Copy(t, content)
		return err
	})
	if err != nil {
		return err
	}
	return pathError("download", root, t.Close())
}

// Upload unpacks a tar stream.
func (f files) Upload(ctx context.Context, dir string, r io.Reader) error {
	t := tar.NewReader(r)
	return f.writeTree(ctx, dir, func() (TreeEntry, io.Reader, error) {
		for {
			h, err := t.Next()
			if err == io.EOF {
				return TreeEntry{}, nil, io.EOF
			}
			if err != nil {
				return TreeEntry{}, nil, fmt.Errorf("reading the archive: %w: %w", sandpit.ErrInvalid, err)
			}
			e := TreeEntry{Mode: fs.FileMode(h.Mode) & fs.ModePerm, ModTime: h.ModTime}
			switch h.Typeflag {
			case tar.TypeReg:
				e.Size = h.Size
			case tar.TypeDir:
				e.Mode |= fs.ModeDir
			case tar.TypeSymlink:
				e.Mode |= fs.ModeSymlink
				e.Target = h.Linkname
			case tar.TypeLink:
				if e.Target, err = beneath(h.Linkname); err != nil {
					return TreeEntry{}, nil, err
				}
			case tar.TypeXGlobalHeader:
				continue
			default:
				return TreeEntry{}, nil, fmt.Errorf("%w: %q in the archive is not a file, a directory or a link", sandpit.ErrInvalid, h.Name)
			}
			if e.Path, err = beneath(h.Name); err != nil {
				return TreeEntry{}, nil, err
			}
			return e, archived{t}, nil
		}
	})
}

// archived is the content of a file in an archive. One that breaks off is no
// archive.
type archived struct{ r io.Reader }

func (a archived) Read(b []byte) (int, error) {
	n, err := a.r.Read(b)
	if err == io.ErrUnexpectedEOF {
		err = fmt.Errorf("reading the archive: %w: it is truncated", sandpit.ErrInvalid)
	}
	return n, err
}

// beneath makes a path of an archive relative, and refuses one that leads out.
// The guest does not rely on it.
func beneath(name string) (string, error) {
	clean := path.Clean("/" + name)
	for element := range strings.SplitSeq(name, "/") {
		if element == ".." {
			return "", fmt.Errorf("%w: %q in the archive leads outside of the directory", sandpit.ErrInvalid, name)
		}
	}
	return clean[1:], nil
}
