package process

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// source is the guest's end of a pipe or terminal that a process writes to.
type source struct {
	f   *os.File
	raw syscall.RawConn
	fd  int
	tty bool

	woken chan struct{} // closed by wake
	calls atomic.Uint32 // system calls begun and ended: odd while in one

	grown, busy bool
	recent      int // bytes since round
	round       time.Time
}

// newSource takes over fd, which does not block.
func newSource(fd int, tty bool) (*source, error) {
	f := os.NewFile(uintptr(fd), "output")
	raw, err := f.SyscallConn()
	if err == nil && !fdio.Watched(f) {
		err = errUnwatched
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &source{f: f, raw: raw, fd: fd, tty: tty, woken: make(chan struct{})}, nil
}

// errUnwatched says that a process can't be started, since nobody would hear from it.
var errUnwatched = errors.New("this user has no more descriptors watched (fs.epoll.max_user_watches)")

// errWoken says that wake has been called.
var errWoken = os.ErrDeadlineExceeded

// reopenMost is the longest that the output of a process waits that has closed its
// terminal and opened it again.
const reopenMost = 100 * time.Millisecond

// read waits for output, and reads it to a buffer that get returns only when
// there is some: most processes wait most of the time. The error is io.EOF when
// nobody holds the other end any more, and errWoken after wake.
//
// A terminal that nobody holds any more does not end before wake: a process may
// open its own again, and to close this end would be to hang up on one that is just
// about to exit, as cat does that closes its files first.
func (s *source) read(get func() []byte) (n int, err error) {
	for pause := time.Millisecond; ; pause = min(2*pause, reopenMost) {
		n, err = s.readEnd(get)
		if err != io.EOF || !s.tty {
			return n, err
		}
		select {
		case <-s.woken:
			return 0, errWoken // what it has written last may be there
		case <-time.After(pause):
		}
	}
}

// readEnd is read, but that it takes the end of a terminal for one.
func (s *source) readEnd(get func() []byte) (n int, err error) {
	var rerr error
	err = s.raw.Read(func(uintptr) bool {
		n, rerr = s.call(get())
		return rerr != unix.EAGAIN
	})
	if err != nil {
		return 0, err
	}
	return n, s.ended(n, rerr)
}

// call reads what is there, without waiting for more. It takes as long as a program
// holds the lock of the pipe, for which the kernel waits.
func (s *source) call(b []byte) (int, error) {
	s.calls.Add(1)
	defer s.calls.Add(1)
	return fdio.Read(s.fd, b)
}

func (s *source) ended(n int, err error) error {
	// A terminal whose other end is closed by all gives EIO.
	if err == nil && n == 0 || s.tty && err == unix.EIO {
		return io.EOF
	}
	return err
}

// readNow reads available data, and returns io.EOF if there is none.
func (s *source) readNow(b []byte) (int, error) {
	n, err := s.call(b)
	if err == unix.EAGAIN {
		err = io.EOF
	}
	return n, s.ended(n, err)
}

// readOn reads what else is there to the blocks of a buffer, the first of which
// holds n bytes, as long as each is filled.
func (s *source) readOn(buf []byte, n int) (more int) {
	for i := 1; i < len(buf)/conn.BlockSize && n+more == i*wire.MaxData; i++ {
		k, err := s.call(conn.Payload(buf, i))
		if err != nil || k <= 0 {
			break // read meets it again
		}
		more += k
	}
	return more
}

// wake makes read return errWoken, at once if it is waiting.
func (s *source) wake() {
	close(s.woken)
	_ = s.f.SetReadDeadline(time.Unix(1, 0))
}

// unwake makes read wait again.
func (s *source) unwake() { _ = s.f.SetReadDeadline(time.Time{}) }

// terminalBuffer is more than a terminal holds (N_TTY_BUF_SIZE, and the flip
// buffers' 64 KiB).
const terminalBuffer = 128 << 10

// held is the number of bytes that may wait to be read.
func (s *source) held() int {
	if s.tty {
		return terminalBuffer
	}
	s.calls.Add(1)
	n, err := unix.IoctlGetInt(s.fd, unix.TIOCINQ)
	s.calls.Add(1)
	if err != nil {
		return 0
	}
	return n
}

// Pacing. A reader that is woken for each write of a busy process sends frames
// of a few KiB, and every one costs the host and the guest several switches
// between threads. So a source that gives much gets a larger pipe, and is left
// alone for a moment when little was in it: what it then has goes into full
// frames.
const (
	largePipe = 512 << 10 // bytes; what one user's pipes may have in all is limited (pipe(7))
	busyBytes = 256 << 10 // in one round, to count as busy
	round     = 10 * time.Millisecond
	pause     = 200 * time.Microsecond // a process at 2 GB/s fills a large pipe in this time
)

// pace is called after a read of n bytes.
func (s *source) pace(n int) {
	if s.tty {
		return
	}
	s.recent += n
	now := time.Now()
	if now.Sub(s.round) > round {
		s.busy = s.recent > busyBytes
		s.round, s.recent = now, 0
		if s.busy && !s.grown {
			s.grown = true
			_, _ = unix.FcntlInt(uintptr(s.fd), unix.F_SETPIPE_SZ, largePipe)
		}
	}
	if s.busy && n < wire.MaxData {
		time.Sleep(pause)
	}
}

func (s *source) close() { s.f.Close() }
