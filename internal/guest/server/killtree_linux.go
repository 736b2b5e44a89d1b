package server

import (
	"bytes"
	"encoding/binary"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// killPatience is how long a kill waits for what it has killed to be gone.
// Only a process that hangs inside the kernel takes long.
const killPatience = 5 * time.Second

// killTree kills everything below a helper, and reports whether all was gone
// within killPatience. It goes on trying in either case.
//
// The helper is the subreaper of all that its program has started, so nothing
// can leave its tree. First everything is stopped, until nothing new is seen:
// what is stopped can't fork. Then it is killed. The helper ends when nothing is
// left below it.
func (g *guest) killTree(helper int) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
			if !g.reaper.running(helper, func() { stopAndKill([]int{helper}, nil) }) {
				return
			}
			// The helper itself may have been stopped, by a program of its own uid.
			_ = unix.Kill(helper, unix.SIGCONT)
			time.Sleep(pause)
		}
	}()
	select {
	case <-done:
		return true
	case <-time.After(killPatience):
		return false
	}
}

// killOrphans kills what has become the guest's own child although it is no
// helper: that happens only when somebody has killed a helper.
func (g *guest) killOrphans() {
	for range 100 {
		g.reaper.mu.Lock()
		n := 0
		if g.reaper.starting == 0 {
			n = stopAndKill([]int{os.Getpid()}, func(pid int) bool { return g.reaper.helpers[pid] != nil })
		} else {
			n = 1 // a helper may be about to be entered: look again
		}
		g.reaper.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// killAll kills everything below the guest.
func (g *guest) killAll() {
	for deadline := time.Now().Add(killPatience); time.Now().Before(deadline); {
		g.reaper.mu.Lock()
		n := stopAndKill([]int{os.Getpid()}, nil)
		g.reaper.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// stopAndKill stops and then kills all descendants of roots, but not those for
// which spare is true nor what is below them. It returns how many it has seen.
func stopAndKill(roots []int, spare func(pid int) bool) int {
	stopped := make(map[int]bool)
	var scan scanner
	for {
		fresh := 0
		for _, p := range scan.below(roots, spare) {
			if stopped[p.pid] {
				continue
			}
			stopped[p.pid] = true
			if p.state != 'Z' && p.state != 'X' {
				fresh++
				_ = unix.Kill(p.pid, unix.SIGSTOP)
			}
		}
		if fresh == 0 {
			break
		}
	}
	for pid := range stopped {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return len(stopped)
}

// proc is a line of the process table.
type proc struct {
	pid, ppid int
	state     byte
}

// scanner reads the process table. Its buffers are used again, because a tree
// is scanned several times over.
type scanner struct {
	dir  [8 << 10]byte
	stat [512]byte
	all  []proc
}

// below returns the descendants of roots.
func (s *scanner) below(roots []int, spare func(pid int) bool) []proc {
	s.read()
	in := make(map[int]bool, len(roots))
	for _, r := range roots {
		in[r] = true
	}
	var out []proc
	// A child mostly has a greater pid than its parent, and comes after it.
	for grown := true; grown; {
		grown = false
		for _, p := range s.all {
			if in[p.ppid] && !in[p.pid] && (spare == nil || !spare(p.pid)) {
				in[p.pid] = true
				out = append(out, p)
				grown = true
			}
		}
	}
	return out
}

// read reads all of /proc. A process that ends meanwhile may be missing, and
// so may one that starts: the caller looks again.
func (s *scanner) read() {
	s.all = s.all[:0]
	fd, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Getdents(fd, s.dir[:])
		if err != nil || n <= 0 {
			return
		}
		for b := s.dir[:n]; len(b) >= direntName; {
			size := int(binary.NativeEndian.Uint16(b[16:]))
			if size < direntName || size > len(b) {
				return
			}
			name := b[direntName:size]
			if i := bytes.IndexByte(name, 0); i >= 0 {
				name = name[:i]
			}
			b = b[size:]
			if len(name) > 0 && name[0] >= '1' && name[0] <= '9' {
				s.add(fd, string(name))
			}
		}
	}
}

// direntName is the offset of the name in struct linux_dirent64 (getdents(2)):
// 8 bytes inode, 8 offset, 2 record length, 1 type.
const direntName = 19

// parentOf returns the parent of a process, or 0.
func parentOf(pid int) int {
	fd, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var s scanner
	s.add(fd, strconv.Itoa(pid))
	if len(s.all) == 0 {
		return 0
	}
	return s.all[0].ppid
}

func (s *scanner) add(dir int, name string) {
	fd, err := unix.Openat(dir, name+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	n, err := unix.Read(fd, s.stat[:])
	unix.Close(fd)
	if err != nil {
		return
	}
	// pid (name, which may hold anything) state ppid … (proc_pid_stat(5))
	b := s.stat[:n]
	i := bytes.LastIndexByte(b, ')')
	if i < 0 || len(b) < i+5 {
		return
	}
	state := b[i+2]
	rest, _, _ := bytes.Cut(b[i+4:], []byte{' '})
	ppid, err1 := strconv.Atoi(string(rest))
	pid, err2 := strconv.Atoi(name)
	if err1 == nil && err2 == nil {
		s.all = append(s.all, proc{pid, ppid, state})
	}
}
