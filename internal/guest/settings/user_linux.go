package settings

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// maxUserFile bounds /etc/passwd and /etc/group.
const maxUserFile = 1 << 20

// maxGroups bounds the supplementary groups of a user (NGROUPS_MAX is 65536).
const maxGroups = 1024

// User is the user of a process.
type User struct {
	Name   string // as in /etc/passwd, else the uid
	UID    uint32
	GID    uint32
	Groups []uint32
	Home   string // empty when unknown
	Change bool   // the guest is someone else
	Root   bool   // file work has the capabilities of root, too
}

// Same reports whether u and v have the same rights and home directory.
func (u *User) Same(v *User) bool {
	return u.UID == v.UID && u.GID == v.GID && slices.Equal(u.Groups, v.Groups) && u.Home == v.Home
}

// LookUser finds the user that spec names: "name", "uid", "name:group" or
// "uid:gid", in the image's own files. An empty spec is the guest's own user.
//
// As in Docker, a uid without an entry has the group 0, and with an explicit group there are
// no supplementary groups.
func (s *Settings) LookUser(spec string) (User, error) {
	u, err := s.lookUser(spec)
	return u, wire.At(wire.StageUser, err)
}

func (s *Settings) lookUser(spec string) (User, error) {
	own := uint32(os.Geteuid())
	if spec == "" {
		spec = strconv.FormatUint(uint64(own), 10)
		if s.single() {
			spec += ":" + strconv.Itoa(os.Getegid())
		}
	}
	name, group, hasGroup := strings.Cut(spec, ":")
	if name == "" || hasGroup && group == "" {
		return User{}, wire.Invalid("user " + wire.Quote(spec) + " is not of the form name, uid, name:group or uid:gid")
	}
	var u User
	uid, numeric := parseID(name)
	known := numeric || name == "root" // also without the files, or with some that can't be read
	passwd, err := readUserFile("/etc/passwd")
	if err != nil && !known {
		return User{}, err
	}
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
		u = User{Name: f[0], UID: id, GID: gid, Home: f[5]}
		found = true
		return false
	})
	switch {
	case found:
	case known:
		u = User{Name: name, UID: uid} // 0 for root
		if s.single() {
			u.GID = uint32(os.Getegid())
		}
	default:
		return User{}, wire.Invalid("unknown user " + wire.Quote(name) + ": it is not in the image's /etc/passwd")
	}
	if hasGroup {
		gid, numeric := parseID(group)
		found := numeric
		if !numeric {
			groups, err := readUserFile("/etc/group")
			if err != nil {
				return User{}, err
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
			return User{}, wire.Invalid("unknown group " + wire.Quote(group) + ": it is not in the image's /etc/group")
		}
		u.GID = gid
	} else if found && !s.single() {
		groups, err := readUserFile("/etc/group")
		if err != nil && !known {
			return User{}, err
		}
		eachLine(groups, func(f []string) bool {
			// name:password:gid:members (group(5))
			if len(f) < 4 {
				return true
			}
			if gid, ok := parseID(f[2]); ok && gid != u.GID && isMember(f[3], u.Name) {
				u.Groups = append(u.Groups, gid)
			}
			return len(u.Groups) < maxGroups
		})
	}
	if !s.single() {
		u.Change = true
		return u, nil
	}
	if u.UID != own {
		return User{}, wire.Fail(wire.CodeUnsupported, "user "+wire.Quote(spec)+" (uid "+strconv.FormatUint(uint64(u.UID), 10)+
			") is not available: only uid "+strconv.FormatUint(uint64(own), 10)+" exists in this sandbox")
	}
	return u, nil
}

// readUserFile reads a file that may be missing.
func readUserFile(path string) ([]byte, error) {
	b, err := fdio.ReadSmall(path, maxUserFile)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, wire.Invalid("reading " + path + " of the image: " + err.Error())
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
