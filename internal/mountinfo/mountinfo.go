// Package mountinfo reads the kernel's list of the mounts of a process,
// /proc/PID/mountinfo of proc_pid_mountinfo(5):
//
//	32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
//	id parent dev root point options [tags…] - type source super-options
package mountinfo

import (
	"bytes"
	"iter"
	"strconv"
)

// A Mount is a line of the list. Its fields are substrings of the list.
type Mount struct {
	ID      uint64
	Parent  uint64 // the mount that it is mounted in
	Dev     []byte // of its file system, MAJOR:MINOR
	Options []byte // of the mount
	Type    []byte // of its file system
	Super   []byte // options of its file system

	root, point []byte
}

// Root returns the directory or file of the file system that is mounted.
func (m *Mount) Root() string { return unescape(m.root) }

// Point returns where it is mounted.
func (m *Mount) Point() string { return unescape(m.point) }

// All returns the mounts of a list. It skips malformed lines.
func All(list []byte) iter.Seq[Mount] {
	return func(yield func(Mount) bool) {
		for line := range bytes.Lines(list) {
			if m, ok := parse(bytes.TrimSuffix(line, []byte{'\n'})); ok && !yield(m) {
				return
			}
		}
	}
}

func parse(line []byte) (m Mount, ok bool) {
	var f [6][]byte
	for i := range f {
		if f[i], line, ok = bytes.Cut(line, []byte{' '}); !ok {
			return m, false
		}
	}
	id, err := strconv.ParseUint(string(f[0]), 10, 64)
	parent, perr := strconv.ParseUint(string(f[1]), 10, 64)
	m = Mount{ID: id, Parent: parent, Dev: f[2], root: f[3], point: f[4], Options: f[5]}
	for tag := []byte(nil); string(tag) != "-"; {
		if tag, line, ok = bytes.Cut(line, []byte{' '}); !ok {
			return m, false
		}
	}
	m.Type, line, ok = bytes.Cut(line, []byte{' '})
	_, m.Super, _ = bytes.Cut(line, []byte{' '}) // after the source
	return m, ok && err == nil && perr == nil
}

// unescape undoes the kernel's octal escapes of blank, tab, newline and backslash.
func unescape(s []byte) string {
	if bytes.IndexByte(s, '\\') < 0 {
		return string(s)
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(string(s[i+1:i+4]), 8, 8); err == nil {
				out = append(out, byte(n))
				i += 3
				continue
			}
		}
		out = append(out, s[i])
	}
	return string(out)
}
