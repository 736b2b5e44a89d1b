package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"golang.org/x/sys/unix"
)

// Group is a control group: one directory per hierarchy. Its methods are safe for
// concurrent use. After Remove, those that need the group return sandpit.ErrClosed.
type Group struct {
	l    *Layout
	id   string
	dirs []groupDir // the primary first; empty where nothing can be made

	shared  string // the directory "sandpit" to be removed with the last group, or ""
	leaf    string // where this process moved itself, or ""
	adopted bool   // taken over from another process: the layout does not count it
	limits  Limits // unless adopted; guarded by mu

	mu      sync.Mutex // held by Remove and FD
	fd      int        // of the primary, locked; -1 after Remove
	removed atomic.Bool
	kills   counter
	refused counter
}

type groupDir struct {
	path  string
	ctrls ctrls // in use here
	v2    bool
	work  bool // it has a child for all processes but the first: see work_linux.go
}

// tries bounds how often Create starts again because another sandpit removed,
// at that moment, what it needed.
const tries = 64

// Create makes an empty group with its limits set. The error matches fs.ErrExist if the id
// is taken on this machine, sandpit.ErrInvalid for an invalid id or limit,
// sandpit.ErrUnsupported for a limit that can't be enforced here, and sandpit.ErrExhausted
// if the kernel has no room for more groups. After an error nothing is left.
//
// If no group can be made and no limit is requested, the result is a group without effect:
// Paths is empty and all Stats are -1.
func (l *Layout) Create(id string, limits Limits) (*Group, error) {
	return l.CreateAnnounced(id, limits, nil)
}

// CreateAnnounced is Create, but first calls announce, unless it is nil, with a group
// that has the Paths, Shared and KillFile of the group to be made. So a watcher can be
// there before anything is made that could be left behind. If announce fails,
// CreateAnnounced fails with its error.
func (l *Layout) CreateAnnounced(id string, limits Limits, announce func(planned *Group) error) (*Group, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	if err := limits.check(); err != nil {
		return nil, err
	}
	for i, asked := range [len(limited)]bool{limits.Memory > 0, limits.CPUs > 0, limits.Pids > 0} {
		if asked && l.trouble[i].kind != troubleNone {
			return nil, l.refuse(limited[i].limit)
		}
	}
	if err := l.prepare(id); err != nil {
		return nil, fmt.Errorf("preparing cgroups: %w", err)
	}
	var err error
	if announce != nil {
		if err = announce(l.planned(id, limits)); err != nil {
			l.release()
			return nil, err
		}
	}
	for try := range tries {
		var g *Group
		g, err = l.create(id, limits, try > 0)
		if err == nil {
			return g, nil
		}
		if try > 0 && errors.Is(err, unix.EEXIST) {
			// Perhaps only by a sweep that is removing what the last try made.
			time.Sleep(100 * time.Microsecond)
		} else if !gone(err) {
			break
		}
	}
	l.release()
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		// ENOSPC: 65,535 memory groups; EAGAIN: cgroup.max.descendants of an ancestor.
		err = errors.Join(err, sandpit.ErrExhausted)
	}
	return nil, fmt.Errorf("creating cgroup %s: %w", id, err)
}

// planned returns a group that looks like the one that create makes.
func (l *Layout) planned(id string, limits Limits) *Group {
	g := &Group{l: l, id: id, fd: -1, leaf: l.leaf}
	need := l.needed(limits)
	for i := range l.places {
		p := &l.places[i]
		use := p.ctrls & need
		if i > 0 && use == 0 {
			continue
		}
		g.dirs = append(g.dirs, groupDir{path: p.dir + "/" + prefix + id, ctrls: use, v2: p.v2, work: l.splits(p, use)})
		if p.prep == prepShared {
			g.shared = p.dir
		}
	}
	return g
}

// create is one try. An error of gone means that it is worth another.
func (l *Layout) create(id string, limits Limits, again bool) (_ *Group, err error) {
	g := &Group{l: l, id: id, fd: -1, leaf: l.leaf, limits: limits}
	defer func() {
		if err != nil {
			_ = g.removeDirs(false)
			g.close()
		}
	}()
	need := l.needed(limits)
	for i := range l.places {
		p := &l.places[i]
		use := p.ctrls & need
		if i > 0 && use == 0 {
			continue
		}
		d := groupDir{path: p.dir + "/" + prefix + id, ctrls: use, v2: p.v2}
		if p.prep == prepShared {
			g.shared = p.dir
			if again {
				if err := p.makeShared(); err != nil {
					return nil, err
				}
			}
		}
		err := mkdir(d.path)
		if i > 0 && errors.Is(err, unix.EEXIST) {
			// We hold the primary, so this is what a dead owner left. A process
			// in it makes it somebody's.
			if rmdir(d.path) == nil {
				err = mkdir(d.path)
			}
		}
		if err != nil {
			return nil, err
		}
		if i == 0 {
			fd, err := lock(d.path)
			if err != nil {
				// When it is gone, it is another one's by now.
				if !gone(err) {
					_ = rmdir(d.path)
				}
				return nil, err
			}
			g.fd = fd
		}
		d.work = l.splits(p, use)
		g.dirs = append(g.dirs, d)
		if err := g.dirs[len(g.dirs)-1].makeWork(); err != nil {
			return nil, err
		}
		if err := g.dirs[len(g.dirs)-1].limit(p, limits); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// needed returns the controllers that limits and a group's own methods need.
func (l *Layout) needed(limits Limits) ctrls {
	var need ctrls
	if limits.Memory > 0 {
		need |= memory
	}
	if limits.CPUs > 0 {
		need |= cpu
	}
	if limits.Pids > 0 {
		need |= pids
	}
	if limits.Devices {
		need |= devices
	}
	if len(l.places) == 0 || !l.places[0].v2 {
		need |= cpuacct | freezer
	} else if l.kernel < hasFreeze {
		need |= freezer
	}
	return need
}

// lock opens a directory just made and takes the owner's lock on it. When
// somebody, a sweep, was faster, the error is one of gone.
func lock(dir string) (int, error) {
	fd, err := open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	for {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EINTR {
			break
		}
	}
	switch err {
	case nil:
		// It may have been removed before it was locked.
		err = unix.Faccessat(fd, "cgroup.procs", unix.F_OK, 0)
	case unix.EWOULDBLOCK:
		err = unix.ENOENT
	}
	if err != nil {
		unix.Close(fd)
		return -1, &fs.PathError{Op: "lock", Path: dir, Err: err}
	}
	return fd, nil
}

// cpuPeriod is the length of a scheduling period in microseconds, and the
// kernel's default. The quota per period may not be less than 1 ms.
const cpuPeriod = 100_000

// allowedDevices are what every program may expect (Documentation/admin-guide/
// devices.txt): null, zero, full, random, urandom, tty, ptmx, pseudo-terminals.
// 0:0 is overlayfs's whiteout, which kernels before 5.8 also ask about.
var allowedDevices = [...]string{
	"c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 1:8 rwm", "c 1:9 rwm",
	"c 5:0 rwm", "c 5:2 rwm", "c 136:* rwm", "c 0:0 m",
}

// tcpLimit is the file with the limit for buffers of TCP sockets on v1.
const tcpLimit = "/memory.kmem.tcp.limit_in_bytes"

// tcpShare says how much buffers of TCP sockets may take on v1, in addition to the
// memory limit: the limit divided by tcpShare. On v2 they are within the limit.
const tcpShare = 8

// limit writes the limits of one directory.
func (d *groupDir) limit(p *place, limits Limits) error {
	if d.ctrls&memory != 0 {
		n := strconv.FormatInt(limits.Memory, 10)
		if d.v2 {
			if err := writeFile(d.path+"/memory.max", n); err != nil {
				return err
			}
			// Not there in kernels without swap.
			if err := writeFile(d.path+"/memory.swap.max", "0"); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		} else {
			err := writeFile(d.path+"/memory.limit_in_bytes", n)
			if p.memsw {
				if err == nil || errors.Is(err, unix.EINVAL) {
					// Without swap may not be more than with swap: of a larger
					// limit than before the latter comes first.
					if swap := writeFile(d.path+"/memory.memsw.limit_in_bytes", n); swap != nil {
						return swap
					}
				}
				if errors.Is(err, unix.EINVAL) {
					err = writeFile(d.path+"/memory.limit_in_bytes", n)
				}
			}
			if err != nil {
				return err
			}
			if p.tcp {
				// Counted apart, and only once there is a limit.
				if err := writeFile(d.path+tcpLimit, strconv.FormatInt(limits.Memory/tcpShare, 10)); err != nil {
					return err
				}
			}
		}
	}
	if d.ctrls&cpu != 0 {
		quota := strconv.FormatInt(int64(limits.CPUs*cpuPeriod+0.5), 10)
		if d.v2 {
			if err := writeFile(d.path+"/cpu.max", quota+" "+strconv.Itoa(cpuPeriod)); err != nil {
				return err
			}
		} else if err := writeFile(d.path+"/cpu.cfs_quota_us", quota); err != nil {
			// v1 refuses more than the parent has; then the parent's holds.
			if !errors.Is(err, unix.EINVAL) || !stricter(p.dir, limits.CPUs) {
				return err
			}
		}
	}
	if d.ctrls&pids != 0 {
		if err := d.limitPids(limits.Pids); err != nil {
			return err
		}
	}
	if d.ctrls&devices != 0 {
		return d.limitDevices()
	}
	return nil
}

func (d *groupDir) limitDevices() error {
	err := writeFile(d.path+"/devices.deny", "a")
	if errors.Is(err, unix.EPERM) {
		return nil // without CAP_SYS_ADMIN, as in a container; see Limits.Devices
	}
	if err != nil {
		return err
	}
	fd, err := open(d.path+"/devices.allow", unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, rule := range allowedDevices {
		// EPERM: the parent has not got it either, as in a container.
		if err := writeFD(fd, rule); err != nil && err != unix.EPERM {
			return fmt.Errorf("allowing device %q in %s: %w", rule, d.path, err)
		}
	}
	return nil
}

// stricter reports whether a v1 cpu group has at most so many processors.
func stricter(dir string, cpus float64) bool {
	var buf [32]byte
	read := func(name string) int64 {
		data, err := readSmall(dir+name, buf[:])
		if err != nil {
			return -1
		}
		return number(data)
	}
	quota, period := read("/cpu.cfs_quota_us"), read("/cpu.cfs_period_us")
	return quota > 0 && period > 0 && float64(quota)/float64(period) <= cpus
}

// FD returns a descriptor of the v2 directory for clone3 with CLONE_INTO_CGROUP, on hybrid
// machines too, or false if the kernel or the layout has none. It belongs to the group, and
// Remove closes it.
func (g *Group) FD() (int, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fd < 0 || !g.dirs[0].v2 || g.l.kernel < hasCloneInto {
		return -1, false
	}
	return g.fd, true
}

// OpenJoin opens what a new process must write "0" to, while it has one
// thread, to join the v1 hierarchies, and the v2 one if FD returns false. With
// clone3 into FD and these writes a process is in the whole group without a
// wait: see the package's comment. The caller closes the descriptors, which are
// close-on-exec, also in an error's case: there are none then.
//
// They may be written to from inside of new namespaces: the kernel judges by
// who opened them (since 5.16; earlier by the writer's ids on the machine).
func (g *Group) OpenJoin() ([]int, error) {
	if g.removed.Load() {
		return nil, sandpit.ErrClosed
	}
	_, into := g.FD()
	fds := make([]int, 0, len(g.dirs))
	for i, d := range g.dirs {
		name := d.path + "/tasks"
		if d.v2 {
			if i == 0 && into {
				continue
			}
			name = d.path + "/cgroup.procs"
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

// LimitsDevices returns the index among what OpenJoin opens of the file by which a process
// becomes subject to the limit of devices, or -1.
func (g *Group) LimitsDevices() int {
	_, into := g.FD()
	for i, d := range g.dirs {
		if d.ctrls&devices != 0 {
			if into && g.dirs[0].v2 {
				i--
			}
			return i
		}
	}
	return -1
}

// Name returns the name of the group's directories.
func (g *Group) Name() string { return prefix + g.id }

// Paths returns every directory of the group in the order in which they must be removed,
// for a process that cleans up after the owner's death.
func (g *Group) Paths() []string {
	paths := make([]string, 0, len(g.dirs))
	for i := len(g.dirs) - 1; i >= 0; i-- {
		if g.dirs[i].work {
			paths = append(paths, g.dirs[i].path+work)
		}
		paths = append(paths, g.dirs[i].path)
	}
	return paths
}

// Shared returns the directories that others may also use: the parent of all groups, and
// the one into which the owner moved itself and its children. A cleanup removes them after
// Paths, with one try: the last user removes them.
func (g *Group) Shared() []string {
	var paths []string
	if g.leaf != "" {
		paths = append(paths, g.leaf)
	}
	if g.shared != "" {
		paths = append(paths, g.shared)
	}
	return paths
}

// KillFile returns the path of the file to which "1" is written to kill every process of
// the group, or "" if the kernel has none (before 5.14, and without v2).
func (g *Group) KillFile() string {
	if len(g.dirs) == 0 || !g.dirs[0].v2 || g.l.kernel < hasKill {
		return ""
	}
	return g.dirs[0].path + "/cgroup.kill"
}

// Remove kills everything in the group and removes it. It returns when every directory is
// gone, or with an error if no process has ended for half a minute, for example because one
// waits for a dead disk. It can then be called again. A second Remove returns nil.
func (g *Group) Remove() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed.Load() {
		return nil
	}
	if err := g.removeDirs(true); err != nil {
		return fmt.Errorf("removing cgroup %s: %w", g.id, err)
	}
	g.close()
	g.removed.Store(true)
	if !g.adopted {
		g.l.release()
	}
	return nil
}

// removeDirs removes the directories, the primary last. With force it kills,
// and waits for, what is in the way.
func (g *Group) removeDirs(force bool) error {
	for i := len(g.dirs) - 1; i >= 0; i-- {
		if g.dirs[i].work {
			_ = rmdir(g.dirs[i].path + work) // if it can't be removed, nor can what it is in
		}
		err := rmdir(g.dirs[i].path)
		if force && errors.Is(err, unix.EBUSY) {
			err = g.empty(g.dirs[i])
		}
		if err != nil {
			return err
		}
	}
	if g.shared != "" && len(g.dirs) > 0 {
		// Refused while another group is in it.
		_ = rmdir(g.shared)
	}
	return nil
}

func (g *Group) close() {
	g.kills.close()
	g.refused.close()
	if g.fd >= 0 {
		unix.Close(g.fd)
		g.fd = -1
	}
}
