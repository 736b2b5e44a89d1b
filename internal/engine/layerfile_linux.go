package engine

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// readInLayer reads a regular file of a layer. A layer is made by others: no
// link is followed, nothing but a regular file is opened.
func readInLayer(dir, name string) ([]byte, error) {
	fd, err := openInLayer(dir, name)
	if err != nil {
		return nil, err
	}
	found := os.NewFile(uintptr(fd), name)
	defer found.Close()
	st, err := found.Stat()
	if err != nil {
		return nil, err
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		return nil, &fs.PathError{Op: "opening", Path: filepath.Join(dir, name), Err: unix.ELOOP}
	}
	if !st.Mode().IsRegular() || st.Size() > maxLayerFile {
		return nil, fault.Errorf(sandpit.ErrInvalid, "reading /%s of the image: it is too large or not a regular file", name)
	}
	opened, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) // whatever has its name now
	if err != nil {
		return nil, &fs.PathError{Op: "opening", Path: filepath.Join(dir, name), Err: err}
	}
	f := os.NewFile(uintptr(opened), name)
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxLayerFile))
}

// typeInLayer returns the type of a file of a layer, which may be a link.
func typeInLayer(dir, name string) (fs.FileMode, error) {
	fd, err := openInLayer(dir, name)
	if err != nil {
		return 0, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Mode().Type(), nil
}

// linkInLayer returns where a link of a layer leads to.
func linkInLayer(dir, name string) (target string, err error) {
	fd, err := openInLayer(dir, name)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", &fs.PathError{Op: "reading", Path: filepath.Join(dir, name), Err: err}
	}
	return string(buf[:n]), nil
}

// causedByLayer reports whether an error of the functions above is due to what the layer has or lacks, and
// so comes again. Others are due to this machine, which may be short of something for a moment.
func causedByLayer(err error) bool {
	causes := []error{fs.ErrNotExist, fs.ErrPermission, sandpit.ErrInvalid, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.ENAMETOOLONG, unix.ENXIO, unix.ENODEV}
	return slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(err, cause) })
}

// openInLayer finds a file of a layer, and does not open it: that may do something to a device.
func openInLayer(dir, name string) (int, error) {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "opening", Path: dir, Err: err}
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return -1, &fs.PathError{Op: "opening", Path: filepath.Join(dir, name), Err: err}
	}
	return fd, nil
}
