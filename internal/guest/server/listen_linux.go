package server

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
)

const (
	// maxAccepted is how many connections that were accepted are served at
	// once. Those beyond wait in the socket's backlog.
	maxAccepted = 64
	// greetPatience is the time in which a new connection must send its greeting.
	greetPatience = 3 * time.Second
	// acceptPause is how long is waited after an accept that has failed, for
	// example because no descriptor was free.
	acceptPause = 100 * time.Millisecond
)

// listen takes over fd, a listening socket, and serves who connects to it. It
// is called by the reader of the bootstrap socket.
func (g *guest) listen(fd int) {
	v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || v == 0 {
		unix.Close(fd)
		return
	}
	f := fdio.WaitingFile(fd, "listener")
	g.listeners.Add(1)
	go func() {
		defer g.listeners.Done()
		defer f.Close()
		g.accept(f)
	}()
}

// accept serves connections until the socket can't be listened on any more.
func (g *guest) accept(f *os.File) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	for {
		g.accepted <- struct{}{}
		fd := -1
		var aerr error
		err := raw.Read(func(s uintptr) bool {
			fd, _, aerr = unix.Accept4(int(s), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return aerr != unix.EAGAIN
		})
		switch {
		case err != nil:
			<-g.accepted
			return
		case aerr == unix.EINVAL || aerr == unix.EBADF || aerr == unix.ENOTSOCK || aerr == unix.EOPNOTSUPP:
			<-g.accepted
			return // it was shut down
		case aerr != nil:
			<-g.accepted
			time.Sleep(acceptPause)
			continue
		}
		file := fdio.WaitingFile(fd, "connection")
		c := conn.New(g, file, file)
		c.Patience = greetPatience
		go func() {
			defer func() { <-g.accepted }()
			_ = c.Serve()
		}()
	}
}
