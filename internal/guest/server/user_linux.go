package server

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// maxUserFile bounds /etc/passwd and /etc/group.
const maxUserFile = 1 << 20

// maxGroups bounds the supplementary groups of a user (NGROUPS_MAX is 65536).
const maxGroups = 1024

// user is who a process is.
type user struct {
	name   string // as in /etc/passwd, else the uid
	uid    uint32
	gid    uint32
	groups []uint32
	home   string // empty when unknown
	change bool   // the guest is someone else
}

func (u *user) homeOr(other string) string {
	if u.home != "" {
		return u.home
	}
	return other
}

// lookUser finds the user that spec names: "name", "uid", "name:group" or
// "uid:gid", in the image's own files. An empty spec is the guest's own user.
//
// A uid without an entry has the group of the same number. With an explicit
// group there are no supplementary groups, as in Docker.
func (g *guest) lookUser(spec string) (user, error) {
	own := uint32(os.Geteuid())
	if spec == "" {
		spec = strconv.FormatUint(uint64(own), 10)
		if g.single() {
			spec += ":" + strconv.Itoa(os.Getegid())
		}
	}
	name, group, hasGroup := strings.Cut(spec, ":")
	if name == "" || hasGroup && group == "" {
		return user{}, invalid("user " + quote(spec) + " is not of the form name, uid, name:group or uid:gid")
	}
	passwd, err := readUserFile("/etc/passwd")
	if err != nil {
		return user{}, err
	}
	var u user
	uid, numeric := parseID(name)
	found := false
	eachLine(passwd, func(f []string) bool {
		// name:password:uid:gid:comment:home:shell (passwd(5))
		if len(f) < 6 {
			return true
		}
		id, ok1 := parseID(f[2])
		gid, ok2 := parseID(f[3])
		if !ok1 || !ok2 || f[0] != name && (!numeric || id != uid) {
			return true
		}
		u = user{name: f[0], uid: id, gid: gid, home: f[5]}
		found = true
		return false
	})
	switch {
	case found:
	case numeric:
		u = user{name: name, uid: uid, gid: uid}
	default:
		return user{}, invalid("unknown user " + quote(name) + ": it is not in the image's /etc/passwd")
	}
	if hasGroup {
		gid, numeric := parseID(group)
		found := numeric
		if !numeric {
			groups, err := readUserFile("/etc/group")
			if err != nil {
				return user{}, err
			}
			eachLine(groups, func(f []string) bool {
				if len(f) < 3 || f[0] != group {
					return true
				}
				gid, found = parseID(f[2])
				return !found
			})
		}
		if !found {
			return user{}, invalid("unknown group " + quote(group) + ": it is not in the image's /etc/group")
		}
		u.gid = gid
	} else if found && !g.single() {
		groups, err := readUserFile("/etc/group")
		if err != nil {
			return user{}, err
		}
		eachLine(groups, func(f []string) bool {
			// name:password:gid:members (group(5))
			if len(f) < 4 {
				return true
			}
			if gid, ok := parseID(f[2]); ok && gid != u.gid && isMember(f[3], u.name) {
				u.groups = append(u.groups, gid)
			}
			return len(u.groups) < maxGroups
		})
	}
	if !g.single() {
		u.change = true
		return u, nil
	}
	if u.uid != own {
		return user{}, fail(wire.CodeUnsupported, "user "+quote(spec)+" (uid "+strconv.FormatUint(uint64(u.uid), 10)+
			") is not available: only uid "+strconv.FormatUint(uint64(own), 10)+" exists in this sandbox")
	}
	return u, nil
}

// readUserFile reads a file that may be missing.
func readUserFile(path string) ([]byte, error) {
	b, err := readSmall(path, maxUserFile)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, invalid("reading " + path + " of the image: " + err.Error())
	}
	return b, nil
}

// eachLine calls f with the fields of each line until it returns false.
func eachLine(b []byte, f func(fields []string) bool) {
	for len(b) > 0 {
		line, rest, _ := bytes.Cut(b, []byte{'\n'})
		b = rest
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if !f(strings.Split(string(line), ":")) {
			return
		}
	}
}

// parseID parses a uid or gid; -1 is none.
func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 1<<32-1 {
		return 0, false
	}
	return uint32(n), true
}

// isMember reports whether name is in a list separated by commas.
func isMember(list, name string) bool {
	for m := range strings.SplitSeq(list, ",") {
		if m == name {
			return true
		}
	}
	return false
}
