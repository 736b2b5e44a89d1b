package cgroup

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxDepth bounds how deep groups inside of a group are looked for.
const maxDepth = 8

// Sweep removes groups without an owner and without processes, which remain when a sandpit
// and its watcher are killed together. It returns the number of removed groups. It never
// removes a group whose owner lives: the owner holds the lock of the primary directory,
// which a removal needs.
func (l *Layout) Sweep() int {
	l.mu.Lock()
	dirs := make([]string, 0, len(l.places))
	for _, p := range l.places {
		if p.dir != "" {
			dirs = append(dirs, p.dir)
		}
	}
	l.mu.Unlock()
	if len(dirs) == 0 {
		return 0
	}
	// The primary is listed last: what is in another hierarchy was in the
	// primary before, so that if it is not there now, nobody is making it.
	inPrimary := make(map[string]bool)
	for i := len(dirs) - 1; i >= 0; i-- {
		for _, name := range children(dirs[i]) {
			id, ok := strings.CutPrefix(name, prefix)
			if pid, self := strings.CutPrefix(id, "self-"); self {
				// Not a group: this process, or another like it, sits in it.
				if _, err := os.Stat("/proc/" + pid); ok && err != nil {
					_ = rmdir(dirs[i] + "/" + name)
				}
			} else if ok {
				inPrimary[name] = i == 0
			}
		}
	}
	n := 0
	for name, is := range inPrimary {
		if sweepGroup(dirs, name, !is) {
			n++
		}
	}
	if l.places[0].prep == prepShared && len(inPrimary) > 0 {
		_ = rmdir(dirs[0])
	}
	return n
}

// sweepGroup removes one group, if it may. An orphan is one whose primary is
// gone already.
func sweepGroup(dirs []string, name string, orphan bool) bool {
	primary := dirs[0] + "/" + name
	if orphan && mkdir(primary) != nil {
		// The claim to the id, without which a new owner could appear meanwhile.
		return false
	}
	fd, err := lock(primary)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if procs, err := readFile(primary + "/cgroup.procs"); err != nil || len(procs) > 0 {
		return false
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		removeBelow(dirs[i]+"/"+name, maxDepth)
		if rmdir(dirs[i]+"/"+name) != nil {
			if orphan {
				_ = rmdir(primary)
			}
			return false
		}
	}
	return true
}

// removeBelow removes the groups inside of dir that have no process.
func removeBelow(dir string, depth int) {
	if depth == 0 {
		return
	}
	for _, name := range children(dir) {
		removeBelow(dir+"/"+name, depth-1)
		_ = rmdir(dir + "/" + name)
	}
}

// children returns the names of the groups in dir.
func children(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}
