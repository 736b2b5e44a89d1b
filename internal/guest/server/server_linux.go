// Package server is the guest: the first process of a sandbox. It serves the guest
// protocol (docs/guest-protocol.md) on connections that are handed to it, connects to
// what listens in the sandbox, and ends when its time is over. Package process has what
// it does with processes, package files what it does with files, and package conn the
// connections and their streams.
//
// The guest trusts the host. It does not trust what runs beside it in the
// sandbox: that must not reach the guest's memory or descriptors, nor stop it.
package server

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/files"
	"github.com/sandpit-dev/sandpit/internal/guest/process"
	"github.com/sandpit-dev/sandpit/internal/guest/settings"
	"github.com/sandpit-dev/sandpit/internal/guest/workers"
)

// Name is the base name of argv[0] that makes a program with this package act as a guest.
const Name = "sandpit-guest"

// bootstrapFD is the descriptor of the bootstrap socket.
const bootstrapFD = 3

// What a message on the bootstrap socket says about the descriptor with it.
const (
	bootstrapConn     = 'c' // a connection to serve
	bootstrapLandlock = 'l' // a Landlock ruleset for processes and file work, beside those before
	bootstrapFilter   = 'f' // a socket with a filter of system calls to load, filter_linux.go
	bootstrapForker   = 'p' // a cgroup's file of threads: processes that are started count there
	bootstrapListen   = 's' // a listening socket, whose connections are served, and which the guest outlives its owner for
)

// usage says what Main takes.
const usage = `usage: sandpit-guest bootstrap   serve connections received on descriptor 3
       sandpit-guest stdio       serve one connection on standard input and output
`

// Main runs the guest and returns its exit code. args[1] is the mode:
//
//   - "bootstrap": descriptor 3 is a unix socket, of type SEQPACKET or STREAM.
//     Each message on it is one byte and one descriptor (SCM_RIGHTS): 'c' and a
//     connection, 'l' and a Landlock ruleset, 'f' and a socket with a filter of
//     system calls, 'p' and a cgroup's file of threads, or 's' and a listening
//     stream socket. When it ends, its owner is dead: the guest kills everything and
//     exits, unless it was given a socket to listen on and can still do so.
//   - "stdio": one connection on standard input and output. The guest kills
//     everything and exits when it ends.
//
// Under the name sudo it is that program: see sudo.
func Main(args []string) int {
	if isSudo(args) {
		return sudo(args)
	}
	var serve func(*guest) int
	if len(args) == 2 {
		switch args[1] {
		case "bootstrap":
			serve = (*guest).bootstrap
		case "stdio":
			serve = (*guest).stdio
		}
	}
	if serve == nil {
		os.Stderr.WriteString(usage)
		return 2
	}
	g := newGuest()
	defer g.stop()
	return serve(g)
}

// guest is the state of the one guest of a process. It handles what happens on its
// connections.
type guest struct {
	started   time.Time
	settings  *settings.Settings
	workers   *workers.Pool
	files     *files.Files
	processes *process.Table

	life      life
	listeners sync.WaitGroup // bootstrap sockets that are listened on
	accepted  chan struct{}  // a token for each connection that was accepted

	streams atomic.Int64
	moved   atomic.Int64 // bytes of content since memory was given back last
	idle    *time.Timer  // gives memory back
}

func newGuest() *guest {
	// Little memory matters more than little collecting: a guest at rest has a
	// heap of a few hundred KiB.
	debug.SetGCPercent(50)
	// What a guest does is short, and mostly copying: with one processor a
	// frame costs fewer wake-ups of threads, and streams are a third faster.
	runtime.GOMAXPROCS(1)
	fillStandardDescriptors()
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // pid 1 is one anyway
	unix.Umask(0o022)
	g := &guest{
		started:  time.Now(),
		settings: settings.New(),
		accepted: make(chan struct{}, maxAccepted),
	}
	g.workers = workers.New(g.settings)
	g.files = files.New(g.settings, g.workers)
	g.idle = time.AfterFunc(time.Hour, g.giveMemoryBack)
	g.idle.Stop()
	ignoreSignals()
	g.processes = process.NewTable(g.settings, func() { g.life.touch(g) })
	return g
}

// fillStandardDescriptors makes sure that descriptors 0 to 2 are taken, so that
// no other is mistaken for them.
func fillStandardDescriptors() {
	for {
		fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return
		}
		if fd > 2 {
			unix.Close(fd)
			return
		}
	}
}

// stop kills everything below the guest. The kernel does that when pid 1 is dead, which
// it is not while a thread of it waits in the kernel for something that a program holds.
func (g *guest) stop() {
	if os.Getpid() == 1 {
		_ = unix.Kill(-1, unix.SIGKILL)
		return
	}
	g.processes.KillAll()
}

// stdio serves one connection on standard input and output.
func (g *guest) stdio() int {
	c := conn.New(g, fdio.WaitingFile(0, "stdin"), fdio.WaitingFile(1, "stdout"))
	if err := c.Serve(); err != nil {
		return lastWords(err.Error())
	}
	return 0
}

// lastWords says why the guest ends by itself, which it does only where it can't do
// its work. Its standard error is read by the owner, in a sandbox as on a terminal; so
// are the last words of the Go runtime. It returns the exit code.
func lastWords(why string) int {
	os.Stderr.WriteString(Name + ": " + why + "\n")
	return 1
}

// bootstrap receives connections and serves them until the socket ends.
func (g *guest) bootstrap() int {
	unix.CloseOnExec(bootstrapFD)
	boot := fdio.WaitingFile(bootstrapFD, "bootstrap")
	raw, err := boot.SyscallConn()
	if err != nil {
		return lastWords("reading descriptor 3: " + err.Error())
	}
	for {
		var kind byte
		fd, n := -1, 0
		var rerr error
		err := raw.Read(func(s uintptr) bool {
			kind, fd, n, rerr = receive(int(s))
			return rerr != unix.EAGAIN
		})
		if err == nil {
			err = rerr
		}
		switch {
		case err == unix.ENOMEM || err == unix.ENOBUFS: // of the machine, and it may pass
			time.Sleep(acceptPause)
		case err != nil || n == 0:
			code := 0
			if err != nil && err != unix.ECONNRESET {
				code = lastWords("hearing from its owner: " + err.Error())
			}
			boot.Close()
			g.listeners.Wait()
			return code // the owner is gone, and nobody can come in its place
		case fd < 0:
			_ = lastWords("a connection was lost: it has no descriptor free")
		case kind == bootstrapConn:
			f := fdio.WaitingFile(fd, "connection")
			go func() { _ = conn.New(g, f, f).Serve() }()
		case kind == bootstrapLandlock:
			if err := g.processes.Restrict(fd); err != nil {
				return lastWords("entering a Landlock domain: " + err.Error())
			}
			g.settings.AddLandlock(fd)
			g.workers.Renew()
		case kind == bootstrapFilter:
			if !loadFilter(fd) {
				return lastWords("it could not load the filter of system calls")
			}
		case kind == bootstrapForker:
			if err := g.processes.CountIn(fd); err != nil {
				return lastWords("joining the cgroup of processes: " + err.Error())
			}
		case kind == bootstrapListen:
			g.listen(fd)
		default:
			unix.Close(fd)
		}
	}
}

// receive takes one message off the bootstrap socket.
func receive(s int) (kind byte, fd, n int, err error) {
	b := make([]byte, 1)
	oob := make([]byte, unix.CmsgSpace(4))
	for {
		var oobn int
		n, oobn, _, _, err = unix.Recvmsg(s, b, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, -1, 0, err
		}
		fd = -1
		if msgs, perr := unix.ParseSocketControlMessage(oob[:oobn]); perr == nil {
			for i := range msgs {
				fds, perr := unix.ParseUnixRights(&msgs[i])
				if perr != nil {
					continue
				}
				for _, f := range fds {
					if fd >= 0 {
						unix.Close(fd)
					}
					fd = f
				}
			}
		}
		return b[0], fd, n, nil
	}
}

// memoryWorthGivingBack is how many bytes of content leave so much behind in
// the heap that collecting it pays.
const memoryWorthGivingBack = 1 << 20

// Greeted notes that a host is there.
func (g *guest) Greeted(c *conn.Conn) { g.life.arrived(c) }

// Closed notes that a host has left.
func (g *guest) Closed(c *conn.Conn) { g.life.left(c) }

// StreamBegun counts a stream.
func (g *guest) StreamBegun() { g.streams.Add(1) }

// StreamActive counts a stream as activity.
func (g *guest) StreamActive() {
	g.life.busy.Add(1)
	g.life.touch(g)
}

// StreamEnded gives memory back soon after the last stream.
func (g *guest) StreamEnded(active bool) {
	if active {
		g.life.busy.Add(-1)
		g.life.touch(g)
	}
	if g.streams.Add(-1) == 0 && g.moved.Load() > memoryWorthGivingBack {
		g.idle.Reset(time.Second)
	}
}

// Moved counts content.
func (g *guest) Moved(n int) { g.moved.Add(int64(n)) }

func (g *guest) giveMemoryBack() {
	if g.streams.Load() == 0 {
		g.moved.Store(0)
		debug.FreeOSMemory()
	}
}
