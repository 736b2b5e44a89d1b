package settings

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// Config is what a wire.Config says, looked up.
type Config struct {
	User        User
	Env         []string
	Output      int64 // bytes of output of a process; 0: no limit
	NoFile      uint64
	Life        time.Duration // of a process; 0: no limit
	RootCaps    uint64        // capabilities of programs that run as root
	OOMScoreAdj int
	dir         string
}

// Configure takes over a configuration.
func (s *Settings) Configure(m *wire.Config) error {
	if err := CheckEnv(m.Env); err != nil {
		return err
	}
	if m.Output < 0 || m.Life < 0 {
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
		Life: time.Duration(m.Life), RootCaps: m.RootCaps & Permitted(), OOMScoreAdj: int(m.OOMScoreAdj),
	}
	s.mu.Unlock()
	return nil
}

// Config returns the present configuration; one that was never sent is that of
// the guest's own user.
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

// WorkDir returns the directory that relative paths of u begin in.
func (c *Config) WorkDir(u *User) string {
	if c.dir != "" {
		return c.dir
	}
	// A home that does not exist is no reason to start nothing.
	var st unix.Stat_t
	if u.Home != "" && unix.Stat(u.Home, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return u.Home
	}
	return "/"
}

// DefaultPath is the PATH of processes unless they have another.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// CheckEnv refuses strings that are not of the form KEY=VALUE.
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

// Environ returns the environment of a process: defaults, then what the lists
// say; of two entries for one name the later one is kept.
func Environ(u *User, terminal bool, lists ...[]string) []string {
	env := []string{
		"PATH=" + DefaultPath,
		"HOME=" + u.homeOr("/"),
		"USER=" + u.Name,
		"LOGNAME=" + u.Name,
		"LANG=C.UTF-8",
	}
	if host, err := os.Hostname(); err == nil {
		env = append(env, "HOSTNAME="+host)
	}
	if terminal {
		env = append(env, "TERM=xterm-256color")
	}
	for _, l := range lists {
		env = append(env, l...)
	}
	at := make(map[string]int, len(env))
	out := env[:0]
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		if i, ok := at[name]; ok {
			out[i] = e
			continue
		}
		at[name] = len(out)
		out = append(out, e)
	}
	return out
}
