package cgroup

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// killCount is the file that counts kills for want of memory. It is asked after
// every command, so it stays open: 1 system call instead of the 15 of Stats, of
// which cpu.stat has the kernel sum up all processors.
type killCount struct {
	mu     sync.Mutex
	opened bool
	closed bool
	fd     int // valid if opened
}

// OOMKills returns how many processes of the group the kernel has killed for
// want of memory, as Stats does, and at little cost. It is -1 where that can't
// be had.
func (g *Group) OOMKills() (int64, error) {
	k := &g.kills
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || g.removed.Load() {
		return -1, sandpit.ErrClosed
	}
	if !k.opened {
		name := g.killsFile()
		if name == "" {
			return -1, nil
		}
		fd, err := open(name, unix.O_RDONLY)
		if err != nil {
			return -1, fmt.Errorf("reading cgroup %s: %w", g.id, err)
		}
		k.fd, k.opened = fd, true
	}
	var buf [512]byte
	for {
		n, err := unix.Pread(k.fd, buf[:], 0)
		if err == nil {
			return field(buf[:n], "oom_kill"), nil
		}
		if err != unix.EINTR {
			return -1, fmt.Errorf("reading cgroup %s: %w", g.id, err)
		}
	}
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
	if k.opened && !k.closed {
		unix.Close(k.fd)
	}
	k.closed = true
}
