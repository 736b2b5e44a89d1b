package cgroup

import (
	"bytes"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/mountinfo"
)

// ctrls is a set of the controllers that this package uses.
type ctrls uint8

const (
	memory ctrls = 1 << iota
	cpu
	cpuacct // v1 only; v2 accounts in every group
	pids
	devices // v1 only
	freezer // v1 only; v2 freezes every group
)

// parseCtrls reads names separated by sep. Unknown names are left out.
func parseCtrls(s []byte, sep byte) ctrls {
	var set ctrls
	for len(s) > 0 {
		name := s
		if i := bytes.IndexByte(s, sep); i >= 0 {
			name, s = s[:i], s[i+1:]
		} else {
			s = nil
		}
		switch string(bytes.TrimRight(name, "\n")) {
		case "memory":
			set |= memory
		case "cpu":
			set |= cpu
		case "cpuacct":
			set |= cpuacct
		case "pids":
			set |= pids
		case "devices":
			set |= devices
		case "freezer":
			set |= freezer
		}
	}
	return set
}

// String lists the names of the set for people.
func (c ctrls) String() string {
	var names []string
	for i, name := range [...]string{"memory", "cpu", "cpuacct", "pids", "devices", "freezer"} {
		if c&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// hierarchy is one cgroup tree: v2, or v1 with its controllers.
type hierarchy struct {
	v2     bool
	ctrls  ctrls // v1 only
	path   string
	mounts []mount
}

// mount is a place where a hierarchy is mounted.
type mount struct {
	point    string // where it is seen
	root     string // the part of the tree that is seen there
	readOnly bool
}

// own returns the directory of our own cgroup under m, if it is visible there.
// A root of "/.." is above our cgroup namespace, whose path from there nobody
// tells us.
func (m mount) own(path string) (string, bool) {
	if strings.HasPrefix(path, "/..") || strings.HasPrefix(m.root, "/..") {
		return "", false
	}
	rest := path
	if m.root != "/" {
		var ok bool
		if rest, ok = strings.CutPrefix(path, m.root); !ok || (rest != "" && rest[0] != '/') {
			return "", false
		}
	}
	if rest == "/" {
		rest = ""
	}
	return m.point + rest, true
}

// parseSelf reads /proc/self/cgroup: "ID:CONTROLLERS:PATH" lines, with ID 0 and
// no controllers for v2 (cgroups(7)). Hierarchies without a controller of
// ours, such as name=systemd, are left out.
func parseSelf(data []byte) []hierarchy {
	hs := make([]hierarchy, 0, 8)
	for len(data) > 0 {
		var line []byte
		line, data = cutLine(data)
		id, rest, ok := bytes.Cut(line, []byte{':'})
		if !ok {
			continue
		}
		names, path, ok := bytes.Cut(rest, []byte{':'})
		if !ok || len(path) == 0 || path[0] != '/' {
			continue
		}
		// A directory that was removed under us is shown with this suffix.
		path = bytes.TrimSuffix(path, []byte(" (deleted)"))
		switch {
		case string(id) == "0" && len(names) == 0:
			hs = append(hs, hierarchy{v2: true, path: string(path)})
		default:
			if set := parseCtrls(names, ','); set != 0 {
				hs = append(hs, hierarchy{ctrls: set, path: string(path)})
			}
		}
	}
	return hs
}

// parseMounts finds where hs are mounted in /proc/self/mountinfo.
func parseMounts(hs []hierarchy, data []byte) {
	for line := range mountinfo.All(data) {
		v2 := string(line.Type) == "cgroup2"
		if !v2 && string(line.Type) != "cgroup" {
			continue
		}
		m := mount{
			root:     line.Root(),
			point:    line.Point(),
			readOnly: hasOption(line.Options, "ro") || hasOption(line.Super, "ro"),
		}
		if !strings.HasPrefix(m.root, "/") || !strings.HasPrefix(m.point, "/") {
			continue
		}
		set := parseCtrls(line.Super, ',')
		for n := range hs {
			h := &hs[n]
			if h.v2 == v2 && (v2 || h.ctrls == set) {
				h.mounts = append(h.mounts, m)
			}
		}
	}
}

// hasOption reports whether a comma-separated list holds name.
func hasOption(list []byte, name string) bool {
	for len(list) > 0 {
		var o []byte
		o, list, _ = bytes.Cut(list, []byte{','})
		if string(o) == name {
			return true
		}
	}
	return false
}

func cutLine(data []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(data, []byte{'\n'})
	return line, rest
}

// field returns the number after "key " at the start of a line of a flat keyed
// file such as cpu.stat, or -1.
func field(data []byte, key string) int64 {
	for len(data) > 0 {
		var line []byte
		line, data = cutLine(data)
		if len(line) > len(key) && line[len(key)] == ' ' && string(line[:len(key)]) == key {
			return number(line[len(key)+1:])
		}
	}
	return -1
}

// number reads the decimal digits at the start of s; -1 when there are none
// or too many for an int64.
func number(s []byte) int64 {
	var n int64
	i := 0
	for ; i < len(s) && '0' <= s[i] && s[i] <= '9'; i++ {
		if n > (1<<63-1-9)/10 {
			return -1
		}
		n = n*10 + int64(s[i]-'0')
	}
	if i == 0 {
		return -1
	}
	return n
}

// pidLines reads a cgroup.procs file as it is. Processes outside of our pid
// namespace are shown as 0.
func pidLines(data []byte) []int64 {
	var list []int64
	for len(data) > 0 {
		var line []byte
		line, data = cutLine(data)
		if n := number(line); n >= 0 {
			list = append(list, n)
		}
	}
	return list
}
