package cgroup

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// counter is a file that counts events. It is read after every command, so it stays open:
// this takes 1 system call instead of the 15 of Stats, of which cpu.stat makes the kernel sum
// up all CPUs. The kernel may hold a read up: no lock is held meanwhile, and close does not
// wait.
type counter struct {
	mu     sync.Mutex
	file   *os.File // blocking, so that its Close waits for no read; nil: not opened
	closed bool
}

// OOMKills returns the number of out-of-memory kills in the group, as Stats does, at little
// cost. It is -1 if it is unknown.
func (g *Group) OOMKills() (int64, error) { return g.count(&g.kills, g.killsFile(), "oom_kill") }

// PidsRefused returns the number of processes and threads that the group was refused because of
// its limit, as Stats does, at little cost. It is -1 if it is unknown.
func (g *Group) PidsRefused() (int64, error) { return g.count(&g.refused, g.refusedFile(), "max") }

func (g *Group) count(k *counter, name, key string) (int64, error) {
	f, err := g.openCounter(k, name)
	if f == nil {
		return -1, err
	}
	var buf [256]byte
	n, err := preadOnce(f, buf[:])
	if err != nil {
		return -1, fmt.Errorf("reading cgroup %s: %w", g.id, err)
	}
	return field(buf[:n], key), nil
}

// preadOnce reads the start of a file. ReadAt would look for more, and the kernel would make
// the whole text again to find that there is none.
func preadOnce(f *os.File, buf []byte) (n int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	if outer := raw.Read(func(fd uintptr) bool {
		for n, err = unix.Pread(int(fd), buf, 0); err == unix.EINTR; {
			n, err = unix.Pread(int(fd), buf, 0)
		}
		return true
	}); outer != nil {
		return 0, outer
	}
	return n, err
}

// openCounter returns the file that has the count, or nil if there is none.
func (g *Group) openCounter(k *counter, name string) (*os.File, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed || g.removed.Load():
		return nil, sandpit.ErrClosed
	case k.file != nil || name == "":
		return k.file, nil
	}
	k.mu.Unlock()
	fd, err := open(name, unix.O_RDONLY)
	k.mu.Lock()
	switch {
	case errors.Is(err, unix.ENOENT) && !g.removed.Load():
		return nil, nil // an older kernel
	case err != nil:
		return nil, fmt.Errorf("reading cgroup %s: %w", g.id, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if k.closed || k.file != nil { // meanwhile
		f.Close()
		return k.file, nil
	}
	k.file = f
	return f, nil
}

// killsFile returns the file that has the count, or "".
func (g *Group) killsFile() string {
	for _, d := range g.dirs {
		switch {
		case d.ctrls&memory == 0:
		case d.v2:
			return d.path + "/memory.events"
		default:
			return d.path + "/memory.oom_control" // since 4.13
		}
	}
	return ""
}

// refusedFile returns the file that counts refused processes, or "".
func (g *Group) refusedFile() string {
	for _, d := range g.dirs {
		switch {
		case d.ctrls&pids == 0:
		case d.work:
			return d.path + work + "/pids.events"
		default:
			return d.path + "/pids.events"
		}
	}
	return ""
}

func (k *counter) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file != nil && !k.closed {
		k.file.Close()
	}
	k.closed = true
}
