// Package settings holds what the guest was told: the user, environment and limits of
// processes, and the Landlock rulesets. It looks users up in the image's own files.
package settings

import (
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/rights"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// Settings are the present settings of the guest.
type Settings struct {
	single func() bool // only one uid exists here; asked when the root is made, and /proc with it

	mu       sync.Mutex
	conf     Config
	landlock []int // rulesets, all of which hold
}

// New returns default settings.
func New() *Settings {
	return &Settings{single: sync.OnceValue(singleUser)}
}

// AddLandlock puts file work under the ruleset fd, and under those added before. Call it
// before the first connection that needs the ruleset.
func (s *Settings) AddLandlock(fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.landlock = append(s.landlock, fd)
}

// Landlock returns the rulesets of file work.
func (s *Settings) Landlock() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.landlock)
}

// Path makes a path of a request by u, or by the sandbox's user if u is nil, absolute. It may
// have any bytes except NUL.
func (s *Settings) Path(u *User, p string) (string, error) {
	if p == "" {
		return "", wire.Invalid("the path is empty")
	}
	if strings.IndexByte(p, 0) >= 0 {
		return "", wire.Invalid("the path has a NUL in it")
	}
	if p[0] == '/' {
		return p, nil
	}
	c := s.Config()
	if u == nil {
		u = &c.User
	}
	return JoinPath(c.WorkDir(u), p), nil
}

// JoinPath joins two paths without cleaning them: a/../b may be another file than b if a is
// a symbolic link.
func JoinPath(dir, name string) string {
	if strings.HasSuffix(dir, "/") {
		return dir + name
	}
	return dir + "/" + name
}

// singleUser reports whether this process can't become another user.
func singleUser() bool {
	if os.Geteuid() != 0 {
		return true
	}
	if rights.Permitted()&(1<<unix.CAP_SETUID) == 0 {
		return true
	}
	b, err := fdio.ReadSmall("/proc/self/uid_map", 4<<10)
	if err != nil {
		return false
	}
	f := strings.Fields(string(b))
	return len(f) == 3 && f[2] == "1"
}
