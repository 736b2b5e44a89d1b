package engine

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// readInLayer reads a regular file of a layer. A layer is made by others: no
// link is followed, nothing but a regular file is opened.
func readInLayer(dir, name string) ([]byte, error) {
	fd, err := openInLayer(dir, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxLayerFile {
		return nil, fault.Errorf(sandpit.ErrInvalid, "reading /%s of the image: it is too large or not a regular file", name)
	}
	return io.ReadAll(io.LimitReader(f, maxLayerFile))
}

// typeInLayer returns the type of a file of a layer, which may be a link, and whether there is one.
func typeInLayer(dir, name string) (fs.FileMode, bool) {
	fd, err := openInLayer(dir, name, unix.O_PATH)
	if err != nil {
		return 0, false
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	st, err := f.Stat()
	return st.Mode().Type(), err == nil
}

// linkInLayer returns where a link of a layer leads to. It reports false if it is not a link.
func linkInLayer(dir, name string) (target string, ok bool) {
	fd, err := openInLayer(dir, name, unix.O_PATH)
	if err != nil {
		return "", false
	}
	defer unix.Close(fd)
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", false
	}
	return string(buf[:n]), true
}

func openInLayer(dir, name string, flags uint64) (int, error) {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "opening", Path: dir, Err: err}
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, name, &unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return -1, &fs.PathError{Op: "opening", Path: filepath.Join(dir, name), Err: err}
	}
	return fd, nil
}
