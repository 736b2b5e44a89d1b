package cgroup

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// The first process of a sandbox serves it and must not count against its limit of
// processes: programs that use up the limit would leave it without the threads that
// it needs. So where the number of processes is limited, the group has a child, work,
// which has the limit. The first process stays in the group itself. One thread of it
// makes all other processes, and joins the child by the descriptor of OpenWork: the kernel
// counts a new process where the thread is that makes it.
//
// It must not wait behind the programs for a processor either: those may be as many as their
// limit, and what ends them at their timeout is the first process. So where the processor
// time is limited, it is passed on to the child, too, which gets as much as one thread of the first
// process. The limit itself is the group's.
//
// On v1 each thread has a group of its own in each hierarchy. On v2 the child is
// threaded, and of the controllers only these two are passed on to it: memory is still
// counted and limited in the group.

// work is the name of the child, behind that of a group's directory.
const work = "/work"

const (
	// forker is the thread that makes processes: it is in the child, in addition to
	// the limit.
	forker = 1
	// Allowance is how many threads the first process may have beside those that
	// wait for a program: workers.MaxThreads and files.MaxThreads of the guest, and
	// the runtime's.
	Allowance = 64
	// mostPids is PID_MAX_LIMIT of linux/threads.h.
	mostPids = 4 << 20
)

// splits reports whether a group made in p with these controllers has the child. A
// hierarchy of v1 with more controllers than those of processes and processor time has none: a child would
// have them, too.
func (l *Layout) splits(p *place, use ctrls) bool {
	return use&(pids|cpu) != 0 && l.kernel >= hasWork && (p.v2 && use&pids != 0 || !p.v2 && p.ctrls&^(pids|cpu|cpuacct) == 0)
}

// makeWork makes the child, unless the group is in a place where it can't be.
func (d *groupDir) makeWork() error {
	if !d.work {
		return nil
	}
	if d.v2 {
		if err := writeFile(d.path+"/cgroup.subtree_control", d.passedOn("+")); err != nil {
			return err
		}
	}
	if err := mkdir(d.path + work); err != nil || !d.v2 {
		return err
	}
	err := writeFile(d.path+work+"/cgroup.type", "threaded")
	if errors.Is(err, unix.EOPNOTSUPP) {
		// The group itself is within a threaded one, and can be no domain.
		d.work = false
		if err = rmdir(d.path + work); err == nil {
			err = writeFile(d.path+"/cgroup.subtree_control", d.passedOn("-"))
		}
	}
	return err
}

// passedOn returns the controllers that are passed on to the child, each after a sign.
func (d *groupDir) passedOn(sign string) string {
	if d.ctrls&cpu == 0 {
		return sign + "pids"
	}
	return sign + "pids " + sign + "cpu"
}

// limitPids writes the limit of processes. The group's own bounds what the first
// process takes of the machine: each thread of it beyond Allowance waits for one
// of a program, such as one that holds the lock of a pipe between the two, and of
// those there are no more than the limit.
func (d *groupDir) limitPids(limit int64) error {
	set := func(dir string, n int64) error {
		return writeFile(dir+"/pids.max", strconv.FormatInt(n, 10))
	}
	if !d.work {
		return set(d.path, limit)
	}
	limit = min(limit, mostPids)
	if err := set(d.path+work, min(limit+forker, mostPids)); err != nil {
		return err
	}
	return set(d.path, min(2*limit+forker+Allowance, mostPids))
}

// OpenWork opens the files to which the thread that makes processes must write "0", so
// that what it makes counts against the limit of processes, and shares the processors with the first
// process as a whole. There are none where no group has the child. The caller closes them.
func (g *Group) OpenWork() ([]int, error) {
	if g.removed.Load() {
		return nil, sandpit.ErrClosed
	}
	var fds []int
	for _, d := range g.dirs {
		if !d.work {
			continue
		}
		name := d.path + work + "/tasks"
		if d.v2 {
			name = d.path + work + "/cgroup.threads"
		}
		fd, err := open(name, unix.O_WRONLY)
		if err != nil {
			for _, fd := range fds {
				unix.Close(fd)
			}
			return nil, fmt.Errorf("opening cgroup %s: %w", g.id, err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}
