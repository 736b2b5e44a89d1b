package commands

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// writeLocal makes or replaces a file of this machine, which appears whole or
// not at all. A new one has the mode, less what the umask takes away. What is not
// a regular file, such as a device or a named pipe, is written to in place. Errors
// but those of write begin with what it is doing.
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
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		return f, func(bool) error { return f.Close() }, err
	}
	// What a link leads to is replaced, not the link.
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target
	}
	dir := filepath.Dir(name)
	// Not os.CreateTemp, whose files are their owner's alone whatever the umask.
	f, err = os.OpenFile(filepath.Join(dir, ".sandpit-"+rand.Text()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	var path *fs.PathError
	if errors.As(err, &path) {
		err = &fs.PathError{Op: "making a file in", Path: dir, Err: path.Err} // the name of a moment tells nobody anything
	}
	return f, func(whole bool) error {
		err := f.Close()
		if err == nil && whole {
			return os.Rename(f.Name(), name)
		}
		return errors.Join(err, os.Remove(f.Name()))
	}, err
}
