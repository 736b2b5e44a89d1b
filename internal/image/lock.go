package image

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit/internal/fault"
)

// flock locks a descriptor, going on after signals.
func flock(fd, how int) error {
	for {
		if err := syscall.Flock(fd, how); err != syscall.EINTR {
			return err
		}
	}
}

// openShared opens a file or directory and takes a shared lock on it. It waits
// only for who is removing it, which takes no longer than the removal. The
// error is fs.ErrNotExist when there is nothing at the path.
//
// It returns a bare descriptor because it is on the path of every start: an
// os.File asks the kernel what it is and tries to poll it.
func openShared(path string) (int, error) {
	for {
		fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
		if err := flock(fd, syscall.LOCK_SH); err != nil {
			syscall.Close(fd)
			return -1, &os.PathError{Op: "lock", Path: path, Err: err}
		}
		if isAt(fd, path) {
			return fd, nil
		}
		syscall.Close(fd) // removed meanwhile, or even replaced
	}
}

// openExclusive opens a file or directory for removal: ok is false when
// somebody uses it, or it is gone already. Close the descriptor.
func openExclusive(path string) (fd int, ok bool) {
	// O_NONBLOCK: whatever lies there, opening it does not block.
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return -1, false
	}
	if flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) != nil || !isAt(fd, path) {
		syscall.Close(fd)
		return -1, false
	}
	return fd, true
}

func dupCloexec(fd int) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	n, err := syscall.Dup(fd)
	if err == nil {
		syscall.CloseOnExec(n)
	}
	return n, err
}

func closeFD(fd int) { _ = syscall.Close(fd) }

// isAt reports whether an open file is the one that a path names.
func isAt(fd int, path string) bool {
	var a, b syscall.Stat_t
	return syscall.Fstat(fd, &a) == nil && syscall.Lstat(path, &b) == nil &&
		a.Dev == b.Dev && a.Ino == b.Ino
}

// withLock runs f while no other holder of the named lock runs, in this process
// or another. Waiting ends with ctx.
func (s *Store) withLock(ctx context.Context, name string, f func() error) error {
	if err := s.ensure("locks"); err != nil {
		return err
	}
	path := s.path("locks", name)
	wait := time.Millisecond
	_ = fault.Move(ctx) // the holder is waited for as long as for any step
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return s.diskError(fmt.Errorf("locking image store: %w", err))
		}
		err = flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && isAt(int(file.Fd()), path) {
			defer file.Close()
			defer os.Remove(path) // while locked, so that nobody locks what has no name
			return f()
		}
		file.Close()
		if err != nil && err != syscall.EWOULDBLOCK {
			return fmt.Errorf("locking image store: %w", err)
		}
		if err == nil {
			continue // it was removed by its holder; take the new one
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
			wait = min(2*wait, 50*time.Millisecond)
		}
	}
}

// A temp is a file or directory under tmp, locked by its maker until closed.
type temp struct {
	*os.File        // of the directory or file
	path     string // empty once renamed into place
}

// tempDir makes a locked directory under tmp.
func (s *Store) tempDir() (*temp, error) {
	return s.makeTemp("", func(path string) (*os.File, error) {
		if err := os.Mkdir(path, 0o700); err != nil {
			return nil, err
		}
		return os.Open(path)
	})
}

// tempFile makes a locked file under tmp, open for reading and writing.
func (s *Store) tempFile() (*temp, error) {
	return s.makeTemp("", newFile)
}

func newFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

func (s *Store) makeTemp(suffix string, mk func(path string) (*os.File, error)) (*temp, error) {
	if err := s.ensure("tmp"); err != nil {
		return nil, err
	}
	for range 100 {
		var b [12]byte
		_, _ = rand.Read(b[:])
		path := s.path("tmp", hex.EncodeToString(b[:])+suffix)
		f, err := mk(path)
		if os.IsExist(err) || os.IsNotExist(err) {
			continue // swept between making and opening
		}
		if err != nil {
			return nil, s.diskError(fmt.Errorf("creating temporary file: %w", err))
		}
		// A sweep may have seen it before this lock; then it is gone.
		if flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil && isAt(int(f.Fd()), path) {
			return &temp{File: f, path: path}, nil
		}
		f.Close()
	}
	return nil, errors.New("creating temporary file: removed repeatedly")
}

// moveTo renames the temp into its place. It stays locked until Close.
func (t *temp) moveTo(path string) error {
	if err := os.Rename(t.path, path); err != nil {
		return err
	}
	t.path = ""
	return nil
}

// share turns the maker's lock into that of a user.
func (t *temp) share() error { return flock(int(t.Fd()), syscall.LOCK_SH) }

// discard removes the temp, if it has not been moved, and closes it.
func (t *temp) discard() {
	if t.path != "" {
		_ = removeAll(t.path)
	}
	_ = t.Close()
}

// Sweep removes what processes have left that were killed while they stored or saved images. It removes nothing
// that another process is making.
func (s *Store) Sweep() { s.sweep() }

// sweep removes what crashed makers left in tmp, with what it names, and returns the bytes freed.
func (s *Store) sweep() int64 {
	var freed int64
	entries, _ := os.ReadDir(s.path("tmp"))
	for _, e := range entries {
		path := s.path("tmp", e.Name())
		if f, ok := openExclusive(path); ok {
			freed += diskUsage(path)
			if strings.HasSuffix(path, savingSuffix) {
				if made, err := readFD(f); err == nil {
					freed += s.unsave(strings.Fields(string(made)))
				}
			}
			_ = removeAll(path)
			syscall.Close(f)
		}
	}
	return freed
}

// removeAll is os.RemoveAll, also for directories that lack write permission
// (those of the host skeleton may).
func removeAll(path string) error {
	err := os.RemoveAll(path)
	if err == nil || !os.IsPermission(err) {
		return err
	}
	_ = filepath.WalkDir(path, func(p string, d os.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(p, 0o700)
		}
		return nil
	})
	return os.RemoveAll(path)
}

// diskUsage returns the bytes that a file or tree takes on disk.
func diskUsage(path string) int64 {
	var n int64
	_ = filepath.WalkDir(path, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				n += st.Blocks * 512 / max(int64(st.Nlink), 1)
			}
		}
		return nil
	})
	return n
}
