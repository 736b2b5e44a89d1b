// Package fdio reads and writes descriptors. Interrupted calls are repeated, and
// nothing waits for a file that is not a regular one unless it is asked to.
package fdio

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Retry calls f again while it is interrupted.
func Retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// Read reads once. It returns 0 bytes at the end of a file.
func Read(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// WriteAll writes all of b.
func WriteAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err != nil && err != unix.EINTR {
			return err
		}
		b = b[max(n, 0):]
	}
	return nil
}

// ReadSmall reads a file of at most limit bytes, and never blocks on what is
// not a regular file.
func ReadSmall(path string, limit int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, unix.EINVAL
	}
	return ReadAll(fd, st.Size, limit)
}

// ReadAll reads a file of at most limit bytes. size is what the file reports as its
// own.
func ReadAll(fd int, size int64, limit int) ([]byte, error) {
	if size > int64(limit) {
		return nil, unix.EFBIG
	}
	b := make([]byte, 0, max(int(size)+1, 512))
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := Read(fd, b[len(b):cap(b)])
		if err != nil {
			return nil, err
		}
		b = b[:len(b)+n]
		if n == 0 {
			return b, nil
		}
		if len(b) > limit {
			return nil, unix.EFBIG
		}
	}
}

// WaitingFile returns a file for a descriptor that is waited for. The runtime of Go waits
// for it with epoll(7). The kernel bounds how many descriptors a user may have watched
// (fs.epoll.max_user_watches); where there is no room each wait takes a thread, and
// deadlines are not kept.
func WaitingFile(fd int, name string) *os.File {
	_ = unix.SetNonblock(fd, true)
	f := os.NewFile(uintptr(fd), name)
	if !Watched(f) {
		_ = unix.SetNonblock(fd, false)
	}
	return f
}

// Watched reports whether the runtime watches the descriptor of a file.
func Watched(f *os.File) bool { return f.SetDeadline(time.Time{}) == nil }
