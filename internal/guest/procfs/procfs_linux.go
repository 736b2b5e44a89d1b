// Package procfs reads the kernel's process table in /proc.
package procfs

import (
	"bytes"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
)

// Process is a line of the process table.
type Process struct {
	PID, Parent int
	State       byte // as in proc_pid_stat(5)
}

// Lives reports whether a thread of the process lived when the table was read, or does now.
func (p Process) Lives() bool {
	if p.State != 'Z' && p.State != 'X' {
		return true
	}
	live, _ := Threads(p.PID)
	return live
}

// Scanner reads the process table. Its buffers are used again, because a tree
// is scanned several times over.
type Scanner struct {
	dir  [8 << 10]byte
	stat [512]byte
	all  []Process
}

// Below returns the descendants of roots.
func (s *Scanner) Below(roots []int, spare func(pid int) bool) []Process {
	s.read()
	in := make(map[int]bool, len(roots))
	for _, r := range roots {
		in[r] = true
	}
	var out []Process
	// A child mostly has a greater pid than its parent, and comes after it.
	for grown := true; grown; {
		grown = false
		for _, p := range s.all {
			if in[p.Parent] && !in[p.PID] && (spare == nil || !spare(p.PID)) {
				in[p.PID] = true
				out = append(out, p)
				grown = true
			}
		}
	}
	return out
}

// read reads all of /proc. A process that ends meanwhile may be missing, and
// so may one that starts: the caller looks again.
func (s *Scanner) read() {
	s.all = s.all[:0]
	fd, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for {
		n, err := fdio.Getdents(fd, s.dir[:])
		if err != nil || n == 0 {
			return
		}
		fdio.EachEntry(s.dir[:n], func(name []byte, _ byte) bool {
			if len(name) > 0 && name[0] >= '1' && name[0] <= '9' {
				s.add(fd, string(name))
			}
			return true
		})
	}
}

// Parent returns the parent of a process, or 0 if there is no such process or its parent is outside of this PID namespace.
func Parent(pid int) int {
	fd, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var s Scanner
	s.add(fd, strconv.Itoa(pid))
	if len(s.all) == 0 {
		return 0
	}
	return s.all[0].Parent
}

// Threads looks at the threads of a process, whose state can be that of a zombie while others of its threads run on. It reports
// whether one lives, and whether one is traced: as long as its tracer does not reap it, nobody else reaps the process.
func Threads(pid int) (live, traced bool) {
	dir, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, false
	}
	defer unix.Close(dir)
	var entries, status [4 << 10]byte
	for {
		n, err := fdio.Getdents(dir, entries[:])
		if err != nil || n == 0 {
			return live, traced
		}
		fdio.EachEntry(entries[:n], func(name []byte, _ byte) bool {
			if name[0] < '1' || name[0] > '9' {
				return true
			}
			fd, err := unix.Openat(dir, string(name)+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return true
			}
			n, err := unix.Read(fd, status[:])
			unix.Close(fd)
			if err != nil {
				return true
			}
			// A name in it can have no line break: the kernel escapes that.
			if _, b, ok := bytes.Cut(status[:n], []byte("\nState:\t")); ok && len(b) > 0 {
				live = live || b[0] != 'Z' && b[0] != 'X'
			}
			if _, b, ok := bytes.Cut(status[:n], []byte("\nTracerPid:\t")); ok && len(b) > 0 {
				traced = traced || b[0] != '0'
			}
			return true
		})
	}
}

func (s *Scanner) add(dir int, name string) {
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
		s.all = append(s.all, Process{pid, ppid, state})
	}
}
