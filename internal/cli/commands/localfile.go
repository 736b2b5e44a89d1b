package commands

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sandpit-dev/sandpit"
)

// writeLocal makes or replaces a file of this machine, which appears whole or
// not at all. A new one has the mode, less what the umask takes away. A symbolic
// link is replaced and not followed. What is neither a regular file nor a link,
// such as a device or a named pipe, is written to in place. Errors but those of
// write begin with what it is doing.
func writeLocal(doing, name string, mode fs.FileMode, write func(io.Writer) error) error {
	f, finish, err := openLocal(name, mode)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if err := write(f); err != nil {
		_ = finish(false)
		return err
	}
	if err := finish(true); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// openLocal opens what writeLocal writes to. To finish is to give it its name, if
// it is whole, or to remove it.
func openLocal(name string, mode fs.FileMode) (f *os.File, finish func(whole bool) error, err error) {
	if isStream(name) {
		return openStream(name)
	}
	if name == "" || strings.HasSuffix(name, "/") {
		return nil, nil, &fs.PathError{Op: "making", Path: name, Err: errors.New("the path does not name a file")}
	}
	base := filepath.Base(name)
	root, err := openDirectory(filepath.Dir(name), false)
	if errors.Is(err, fs.ErrNotExist) {
		err = sandpit.WithHint(err, "create the directory first")
	}
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = root.Close()
		}
	}()
	if info, err := root.Lstat(base); err == nil && !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeSymlink {
		return openInPlace(root, base, name)
	}
	// Not os.CreateTemp, whose files are their owner's alone whatever the umask.
	temp := ".sandpit-" + rand.Text()
	f, err = root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	var path *fs.PathError
	if errors.As(err, &path) {
		err = &fs.PathError{Op: "creating a file in", Path: filepath.Dir(name), Err: path.Err} // not the name of the temporary file
	}
	return f, func(whole bool) error {
		defer root.Close()
		err := f.Close()
		if err == nil && whole {
			if err = root.Rename(temp, base); err == nil {
				return nil
			}
		}
		return errors.Join(err, root.Remove(temp))
	}, err
}

// isStream reports whether a path leads to a device or to an open file, as
// /dev/stdout and /dev/mapper/NAME do. Links are followed there: whoever can
// change /dev has the whole machine. /dev/shm is a directory like any other.
func isStream(name string) bool {
	name, err := filepath.Abs(name)
	if err != nil {
		return false
	}
	if rest, ok := strings.CutPrefix(name, "/dev/"); ok {
		first, _, _ := strings.Cut(rest, "/")
		return first != "shm" && first != "mqueue"
	}
	return filepath.Dir(name) == "/proc/self/fd"
}

// openStream opens a device or an open file by its name.
func openStream(name string) (*os.File, func(bool) error, error) {
	flags := os.O_WRONLY
	if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
		flags |= os.O_APPEND // standard output, to which more may have gone
	}
	f, err := os.OpenFile(name, flags, 0)
	return f, func(bool) error { return f.Close() }, err
}

// openInPlace opens a file that is not regular.
func openInPlace(root *os.Root, base, name string) (*os.File, func(bool) error, error) {
	f, err := root.OpenFile(base, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	if err == nil {
		var info fs.FileInfo
		if info, err = f.Stat(); err == nil && info.Mode().IsRegular() {
			err = errors.New("it was replaced by a file meanwhile")
		}
		if err != nil {
			_ = f.Close()
		}
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	if err != nil {
		return nil, nil, &fs.PathError{Op: "opening", Path: name, Err: err}
	}
	return f, func(bool) error { return errors.Join(f.Close(), root.Close()) }, nil
}
