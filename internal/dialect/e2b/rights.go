package e2b

import (
	"cmp"
	"path"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
)

// E2B's agent is root, and what it creates belongs to the user whom a request names. So requests have the rights of root where the
// sandbox has root inside: the same that its programs have with sudo.

// rootHome is the home directory of root.
const rootHome = "/root"

// userFiles is the file system of a sandbox as requests of a user see it.
type userFiles struct {
	sandpit.Files
	home string // where relative paths begin
	base string // not empty: the sandbox must be told that, with an absolute path
}

// filesOf returns the files of a sandbox for a user; "" is the sandbox's own.
func filesOf(sb engine.Box, user string) userFiles {
	made, _ := sb.Made() // one that is not known has the usual user
	user = cmp.Or(user, made.Guest.User)
	f := userFiles{Files: sb.RootFiles(user), home: homeIn(made, user)}
	if f.home == rootHome {
		f.base = rootHome // also if the sandbox has a working directory
	}
	return f
}

// homeOf returns where relative paths of a user begin, as far as the host knows.
func homeOf(sb engine.Box, user string) string {
	made, _ := sb.Made() // one that is not known has the usual directories
	return homeIn(made, user)
}

func homeIn(made engine.Made, user string) string {
	switch name, _, _ := strings.Cut(cmp.Or(user, made.Guest.User), ":"); {
	case name == "root" || name == "0":
		return rootHome
	case made.Guest.Dir != "":
		return made.Guest.Dir
	case name == "" || name == "user":
		return "/home/user"
	default:
		return "/home/" + name
	}
}

// inside returns a path of a request as the sandbox takes it: "~" is where relative paths begin.
func (f userFiles) inside(p string) string {
	switch rest, ok := strings.CutPrefix(p, "~/"); {
	case ok:
		p = rest
	case p == "" || p == "~":
		p = "."
	}
	if p == "" {
		p = "."
	}
	if f.base == "" || path.IsAbs(p) {
		return p
	}
	return f.base + "/" + p
}

// absolute returns the path that clients are told for one of inside.
func (f userFiles) absolute(p string) string {
	if !path.IsAbs(p) {
		p = path.Join(f.home, p)
	}
	return path.Clean(p)
}
