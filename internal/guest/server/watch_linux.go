package server

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/fault"
	"github.com/sandpit-dev/sandpit/internal/guest/files"
	"github.com/sandpit-dev/sandpit/internal/guest/nonblock"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// maxWatchers is how many watches there may be at once. A user may have 128
// (inotify(7)).
const maxWatchers = 16

// watch tells the host what changes below path until it has heard enough, or
// what is watched is gone.
func (s *stream) watch(path string, recursive bool) {
	if s.c.g.watchers.Add(1) > maxWatchers {
		s.c.g.watchers.Add(-1)
		s.fail(fault.New(wire.CodeExhausted, "too many watches"))
		return
	}
	defer s.c.g.watchers.Add(-1)
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		s.fail(err)
		return
	}
	f, err := nonblock.NewFile(fd, "inotify")
	if err != nil {
		s.fail(err)
		return
	}
	defer f.Close()
	// Its number is used beside the file, so it is not closed until the end.
	s.whenGone(func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	if err := s.c.g.workers.apart(s, func() error { return files.Watch(s, f, path, recursive) }); err != nil {
		s.fail(fault.Of(err))
		return
	}
	s.end(wire.EOF, nothing{})
}
