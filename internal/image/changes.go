package image

import (
	"os"
	"strconv"
	"strings"
)

// A Tree is the root file system of a sandbox, as this program can read it from outside.
type Tree struct {
	Root *os.File // its root directory

	// UIDs and GIDs tell which ids the sandbox sees.
	UIDs, GIDs IDMap

	// Omit are absolute paths that are left out, with everything below them: what is not the
	// sandbox's own.
	Omit []string

	// Sockets begins the paths of sockets that are no loss. Others are noted, as no image has sockets. Empty: all are.
	Sockets string
}

// An IDMap maps ids of the host to those inside: the lines of a file such as /proc/PID/uid_map,
// see user_namespaces(7).
type IDMap []IDRange

// An IDRange maps Count ids.
type IDRange struct{ Inside, Outside, Count uint32 }

// ParseIDMap reads the text of such a file. Lines that it does not understand map nothing.
func ParseIDMap(text string) IDMap {
	var m IDMap
	for line := range strings.Lines(text) {
		var n [3]uint64
		f := strings.Fields(line)
		ok := len(f) == len(n)
		for i := 0; ok && i < len(n); i++ {
			var err error
			n[i], err = strconv.ParseUint(f[i], 10, 32)
			ok = err == nil
		}
		if ok {
			m = append(m, IDRange{uint32(n[0]), uint32(n[1]), uint32(n[2])})
		}
	}
	return m
}

// inside returns the id that the sandbox sees, nobody's for one that does not exist there.
func (m IDMap) inside(id uint32) int {
	for _, r := range m {
		if id >= r.Outside && id-r.Outside < r.Count {
			return boundID(int(r.Inside + (id - r.Outside)))
		}
	}
	return maxID
}

// maxID is the highest id of a file in a layer, nobody's.
const maxID = 65534

func boundID(id int) int {
	if id < 0 || id > maxID {
		return maxID
	}
	return id
}
