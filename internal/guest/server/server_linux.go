// Package server is the guest: the first process of a sandbox. It starts and
// tracks processes, carries their streams, does all file work, and reaps what
// nobody else does. It serves the guest protocol (docs/guest-protocol.md) on
// connections that are handed to it.
//
// The guest trusts the host. It does not trust what runs beside it in the
// sandbox: that must not reach the guest's memory or descriptors, nor stop it.
package server

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// Name is the base name of argv[0] that makes a program that holds this
// package act as a guest.
const Name = "sandpit-guest"

// bootstrapFD is the descriptor of the bootstrap socket.
const bootstrapFD = 3

// What a message on the bootstrap socket says about the descriptor with it.
const (
	bootstrapConn     = 'c' // a connection to serve
	bootstrapLandlock = 'l' // a Landlock ruleset for processes and file work
	bootstrapFilter   = 'f' // a socket with a filter of system calls to load, filter_linux.go
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
//     system calls, or 's' and a listening stream socket. When it ends, its owner is
//     dead: the guest kills everything and exits, unless it was given a socket to
//     listen on and can still do so.
//   - "stdio": one connection on standard input and output. The guest kills
//     everything and exits when it ends.
func Main(args []string) int {
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

// guest is the state of the one guest of a process.
type guest struct {
	started  time.Time
	single   func() bool // only one uid exists here; asked when the root is made, and /proc with it
	landlock int         // ruleset, or -1; written before the first connection that needs it

	reaper  reaper
	workers workers

	mu    sync.Mutex
	conf  config
	procs map[uint64]*process // by ref
	ended [2]ended            // foreground, detached
	ref   uint64

	life      life
	listeners sync.WaitGroup // bootstrap sockets that are listened on
	accepted  chan struct{}  // a token for each connection that was accepted

	watchers atomic.Int64

	streams atomic.Int64
	moved   atomic.Int64 // bytes of content since memory was given back last
	idle    *time.Timer  // gives memory back

	// handle does what an OPEN asks for: the method open of stream, except
	// in fuzz tests, which must not start programs nor remove files.
	handle func(s *stream, op wire.Op, msg []byte) error
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
		single:   sync.OnceValue(singleUser),
		landlock: -1,
		procs:    make(map[uint64]*process),
		accepted: make(chan struct{}, maxAccepted),
		handle:   (*stream).open,
	}
	g.workers.init(g)
	g.idle = time.AfterFunc(time.Hour, g.giveMemoryBack)
	g.idle.Stop()
	ignoreSignals()
	g.reaper.start()
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

// singleUser reports whether this process can't become another user.
func singleUser() bool {
	if os.Geteuid() != 0 {
		return true
	}
	if permitted()&(1<<unix.CAP_SETUID) == 0 {
		return true
	}
	b, err := readSmall("/proc/self/uid_map", 4<<10)
	if err != nil {
		return false
	}
	f := strings.Fields(string(b))
	return len(f) == 3 && f[2] == "1"
}

// permitted returns the capabilities of the calling thread.
func permitted() uint64 {
	var data [2]unix.CapUserData
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return 0
	}
	return uint64(data[1].Permitted)<<32 | uint64(data[0].Permitted)
}

// setLandlock makes fd the ruleset of all processes and file work.
func (g *guest) setLandlock(fd int) {
	g.mu.Lock()
	old := g.landlock
	g.landlock = fd
	g.mu.Unlock()
	if old >= 0 {
		unix.Close(old)
	}
	g.workers.renew()
}

// stop kills everything below the guest. It is a formality for pid 1, whose
// end is the end of all.
func (g *guest) stop() {
	if os.Getpid() == 1 {
		return
	}
	g.killAll()
}

// stdio serves one connection on standard input and output.
func (g *guest) stdio() int {
	c := newConn(g, waitingFile(0, "stdin"), waitingFile(1, "stdout"))
	if err := c.serve(); err != nil {
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

// waitingFile returns a file for a descriptor that is waited for. The runtime of Go waits
// for it with epoll(7). The kernel bounds how many descriptors a user may have watched
// (fs.epoll.max_user_watches); where there is no room each wait takes a thread, and
// deadlines are not kept.
func waitingFile(fd int, name string) *os.File {
	_ = unix.SetNonblock(fd, true)
	f := os.NewFile(uintptr(fd), name)
	if !watched(f) {
		_ = unix.SetNonblock(fd, false)
	}
	return f
}

// watched reports whether the runtime watches the descriptor of a file.
func watched(f *os.File) bool { return f.SetDeadline(time.Time{}) == nil }

// bootstrap receives connections and serves them until the socket ends.
func (g *guest) bootstrap() int {
	unix.CloseOnExec(bootstrapFD)
	boot := waitingFile(bootstrapFD, "bootstrap")
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
			f := waitingFile(fd, "connection")
			go func() { _ = newConn(g, f, f).serve() }()
		case kind == bootstrapLandlock:
			g.setLandlock(fd)
		case kind == bootstrapFilter:
			if !loadFilter(fd) {
				return lastWords("it could not load the filter of system calls")
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

// readSmall reads a file of at most limit bytes, and never blocks on what is
// not a regular file.
func readSmall(path string, limit int) ([]byte, error) {
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
	return readAll(fd, st.Size, limit)
}

// readAll reads a file of at most limit bytes, which says that it has size.
func readAll(fd int, size int64, limit int) ([]byte, error) {
	if size > int64(limit) {
		return nil, unix.EFBIG
	}
	b := make([]byte, 0, max(int(size)+1, 512))
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := readOnce(fd, b[len(b):cap(b)])
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

// memoryWorthGivingBack is how many bytes of content leave so much behind in
// the heap that collecting it pays.
const memoryWorthGivingBack = 1 << 20

// streamEnded is called after each stream.
func (g *guest) streamEnded(s *stream) {
	if s.active.Load() {
		g.life.busy.Add(-1)
		g.life.touch(g)
	}
	if g.streams.Add(-1) == 0 && g.moved.Load() > memoryWorthGivingBack {
		g.idle.Reset(time.Second)
	}
}

func (g *guest) giveMemoryBack() {
	if g.streams.Load() == 0 {
		g.moved.Store(0)
		debug.FreeOSMemory()
	}
}
