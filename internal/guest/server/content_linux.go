package server

import (
	"io"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/fault"
	"github.com/sandpit-dev/sandpit/internal/guest/files"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// read sends content of a file.
func (s *stream) read(m *wire.Read, path string) {
	var fd int
	var st unix.Stat_t
	err := s.c.g.workers.do(func() (err error) {
		fd, st, err = files.OpenRegular(path, unix.O_RDONLY, 0)
		return err
	})
	if err != nil {
		s.fail(fault.Of(err))
		return
	}
	defer unix.Close(fd)
	f := files.Describe(files.BaseName(path), &st)
	s.reply(&f)

	// The end is where it was when the file was opened: one that grows as fast
	// as it is read must come to an end as well.
	left := st.Size - m.Offset
	if st.Size == 0 {
		left = files.MaxUnsized
	}
	if m.Length >= 0 {
		left = min(left, m.Length)
	}
	buf := blocks(left > wire.MaxData)
	defer giveBack(buf)
	most := int64(len(*buf) / blockSize * wire.MaxData)
	for at := m.Offset; left > 0; {
		n := 0
		err := s.c.g.content.do(func() error {
			return files.Retry(func() (err error) {
				n, err = unix.Preadv(fd, payloads(*buf, int(min(left, most))), at)
				return err
			})
		})
		if err != nil {
			s.fail(fault.Of(err))
			return
		}
		if n == 0 {
			break
		}
		if s.sendBlocks(wire.Data, *buf, n) != nil {
			s.c.forget(s)
			return
		}
		at += int64(n)
		left -= int64(n)
	}
	s.end(wire.EOF, nothing{})
}

// write makes, replaces or extends a file.
func (s *stream) write(m *wire.Write, path string) {
	var t *files.Target
	err := s.c.g.workers.do(func() (err error) {
		t, err = files.OpenTarget(m, path)
		return err
	})
	if err != nil {
		s.in.Close()
		s.fail(fault.Of(err))
		return
	}
	var total int64
	wide := false
	err = s.content(func(b []byte) error {
		if total += int64(len(b)); total >= wire.GuestWindow/2 && !wide {
			wide = true
			s.giveCredit(s.in.Widen(wire.UploadWindow))
		}
		return s.c.g.content.do(func() error { return files.WriteAll(t.FD, b) })
	})
	good := err == io.EOF
	// The end of the stream is checked once more: an abort must not replace the file.
	if good && s.Gone() {
		good, err = false, fault.ErrGone
	}
	done := s.c.g.workers.do(func() error { return t.Finish(good) })
	if good {
		err = done
	}
	s.in.Close()
	s.answer(&wire.Written{Bytes: total}, fault.Of(err))
}
