package settings

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/rights"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// Config is a wire.Config with its user looked up.
type Config struct {
	User        User
	Env         []string
	Output      int64 // bytes of output of a process; 0: no limit
	NoFile      uint64
	RootCaps    uint64 // capabilities of programs that run as root
	OOMScoreAdj int
	dir         string
}

// Configure sets the configuration.
func (s *Settings) Configure(m *wire.Config) error {
	if err := CheckEnv(m.Env); err != nil {
		return err
	}
	if m.Output < 0 {
		return wire.Invalid("a limit is negative")
	}
	u, err := s.LookUser(m.User)
	if err != nil {
		return err
	}
	if strings.IndexByte(m.Dir, 0) >= 0 {
		return wire.Invalid("the working directory has a NUL in it")
	}
	s.mu.Lock()
	s.conf = Config{
		User: u, dir: m.Dir, Env: m.Env, Output: m.Output, NoFile: m.NoFile,
		RootCaps: m.RootCaps & rights.Permitted(), OOMScoreAdj: int(m.OOMScoreAdj),
	}
	s.mu.Unlock()
	return nil
}

// Config returns the present configuration. By default it is that of the guest's own user.
func (s *Settings) Config() Config {
	s.mu.Lock()
	c := s.conf
	s.mu.Unlock()
	if c.User.Name == "" {
		if u, err := s.LookUser(""); err == nil {
			c.User = u
		}
	}
	return c
}

// WorkDir returns the directory for relative paths of u.
func (c *Config) WorkDir(u *User) string {
	if c.dir != "" {
		return c.dir
	}
	// A missing home directory does not prevent a start.
	var st unix.Stat_t
	if u.Home != "" && unix.Stat(u.Home, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return u.Home
	}
	return "/"
}

// CheckEnv returns an error for strings that are not KEY=VALUE.
func CheckEnv(env []string) error {
	for _, e := range env {
		if i := strings.IndexByte(e, '='); i <= 0 {
			return wire.Invalid("environment: " + wire.Quote(e) + " is not of the form KEY=VALUE")
		}
		if strings.IndexByte(e, 0) >= 0 {
			return wire.Invalid("environment: " + wire.Quote(e) + " has a NUL in it")
		}
	}
	return nil
}
