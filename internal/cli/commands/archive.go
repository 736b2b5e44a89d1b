package commands

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// packDirectory writes what is in a directory of this machine, which messages
// call dir, as a tar stream. Links stay links; what is neither file, directory
// nor link is left out, as it means nothing elsewhere.
func packDirectory(ctx context.Context, root *os.Root, dir string, w io.Writer) error {
	t := tar.NewWriter(w)
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case name == ".":
			return nil
		}
		return packEntry(root, name, d, t)
	})
	if err != nil {
		return fmt.Errorf("reading %s: %w", dir, err)
	}
	return t.Close()
}

func packEntry(root *os.Root, name string, d fs.DirEntry, t *tar.Writer) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	var target string
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		if target, err = root.Readlink(name); err != nil {
			return err
		}
	case !info.Mode().IsRegular() && !info.IsDir():
		return nil
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, 0, 0, "", ""
	if info.IsDir() {
		h.Name += "/"
	}
	if !info.Mode().IsRegular() {
		return t.WriteHeader(h)
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may have become a pipe
	if err != nil {
		return err
	}
	defer f.Close()
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	// A file that grows meanwhile is copied as long as it was.
	if _, err := io.CopyN(t, f, h.Size); err != nil {
		return fmt.Errorf("%s has become shorter while it was read: %w", name, err)
	}
	return nil
}

// unpackDirectory unpacks a tar stream of a sandbox into a directory of this
// machine. Whatever the stream says, nothing outside of it is touched: every
// path is resolved inside (os.Root), and links are only made when they point
// to the inside.
func unpackDirectory(r io.Reader, root *os.Root) error {
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading what the sandbox sends: %w", err)
		}
		// The first part is the name of the directory itself.
		_, name, _ := strings.Cut(strings.TrimPrefix(path.Clean("/"+h.Name), "/"), "/")
		if name == "" {
			continue
		}
		if err := unpackEntry(root, name, h, t); err != nil {
			return fmt.Errorf("copying %s: %w", name, err)
		}
	}
}

func unpackEntry(root *os.Root, name string, h *tar.Header, r io.Reader) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode) & 0o777
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.Mkdir(name, mode|0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	case tar.TypeReg:
		_ = root.Remove(name)
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink:
		if !filepath.IsLocal(filepath.Join(filepath.Dir(name), h.Linkname)) || path.IsAbs(h.Linkname) {
			return sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "it is a link to %q, outside of what is copied", h.Linkname),
				"copy it as an archive: sandpit cp NAME:PATH - >copy.tar")
		}
		_ = root.Remove(name)
		return root.Symlink(h.Linkname, name)
	}
	return nil // what is left has no meaning on this machine
}
