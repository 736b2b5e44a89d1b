package server

import (
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// source is the guest's end of a pipe or terminal that a process writes to.
type source struct {
	f   *os.File
	raw syscall.RawConn
	fd  int
	tty bool

	grown bool
}

// newSource takes over fd, which does not block.
func newSource(fd int, tty bool) (*source, error) {
	f := os.NewFile(uintptr(fd), "output")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &source{f: f, raw: raw, fd: fd, tty: tty}, nil
}

// errWoken says that wake has been called.
var errWoken = os.ErrDeadlineExceeded

// read waits for output, and reads it to a buffer that get returns only when
// there is some: most processes wait most of the time. The error is io.EOF when
// nobody holds the other end any more, and errWoken after wake.
func (s *source) read(get func() []byte) (n int, err error) {
	var rerr error
	err = s.raw.Read(func(fd uintptr) bool {
		n, rerr = readOnce(int(fd), get())
		return rerr != unix.EAGAIN
	})
	if err != nil {
		return 0, err
	}
	return n, s.ended(n, rerr)
}

func readOnce(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

func (s *source) ended(n int, err error) error {
	// A terminal whose other end is closed by all gives EIO.
	if err == nil && n == 0 || s.tty && err == unix.EIO {
		return io.EOF
	}
	return err
}

// readNow reads what is there, and returns io.EOF when there is nothing.
func (s *source) readNow(b []byte) (int, error) {
	n, err := readOnce(s.fd, b)
	if err == unix.EAGAIN {
		err = io.EOF
	}
	return n, s.ended(n, err)
}

// wake makes read return errWoken, at once if it is waiting.
func (s *source) wake() { _ = s.f.SetReadDeadline(time.Unix(1, 0)) }

// unwake makes read wait again.
func (s *source) unwake() { _ = s.f.SetReadDeadline(time.Time{}) }

// terminalBuffer is more than a terminal holds (N_TTY_BUF_SIZE, and the flip
// buffers' 64 KiB).
const terminalBuffer = 128 << 10

// held is how many bytes may be waiting to be read.
func (s *source) held() int {
	if s.tty {
		return terminalBuffer
	}
	n, err := unix.IoctlGetInt(s.fd, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// largePipe is the capacity that a pipe gets once it was found full: a process
// that writes much is then woken less often.
const largePipe = 256 << 10

// grow is called when a read was as long as it could be.
func (s *source) grow() {
	if !s.grown && !s.tty {
		s.grown = true
		_, _ = unix.FcntlInt(uintptr(s.fd), unix.F_SETPIPE_SZ, largePipe)
	}
}

func (s *source) close() { s.f.Close() }
