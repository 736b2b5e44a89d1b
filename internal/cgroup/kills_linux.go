package cgroup

import (
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// killCount is the file that counts out-of-memory kills. It is read after every command,
// so it stays open: this takes 1 system call instead of the 15 of Stats, of which cpu.stat
// makes the kernel sum up all CPUs. The kernel may hold a read up: no lock is held
// meanwhile, and close does not wait.
type killCount struct {
	mu     sync.Mutex
	file   *os.File // blocking, so that its Close waits for no read; nil: not opened
	closed bool
}

// OOMKills returns the number of out-of-memory kills in the group, as Stats does, at little
// cost. It is -1 if it is unknown.
func (g *Group) OOMKills() (int64, error) {
	f, err := g.openKills()
	if f == nil {
		return -1, err
	}
	var buf [512]byte
	n, err := f.ReadAt(buf[:], 0)
	if err != nil && err != io.EOF {
		return -1, fmt.Errorf("reading cgroup %s: %w", g.id, err)
	}
	return field(buf[:n], "oom_kill"), nil
}

// openKills returns the file that has the count, or nil if there is none.
func (g *Group) openKills() (*os.File, error) {
	k := &g.kills
	k.mu.Lock()
	defer k.mu.Unlock()
	name := g.killsFile()
	switch {
	case k.closed || g.removed.Load():
		return nil, sandpit.ErrClosed
	case k.file != nil || name == "":
		return k.file, nil
	}
	k.mu.Unlock()
	fd, err := open(name, unix.O_RDONLY)
	k.mu.Lock()
	if err != nil {
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

func (k *killCount) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file != nil && !k.closed {
		k.file.Close()
	}
	k.closed = true
}
