package server

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// config is what a Config message says, looked up.
type config struct {
	user        user
	dir         string
	env         []string
	output      int64
	noFile      uint64
	life        time.Duration
	rootCaps    uint64
	oomScoreAdj int
}

// configure takes over a configuration.
func (g *guest) configure(m *wire.Config) error {
	if err := checkEnv(m.Env); err != nil {
		return err
	}
	if m.Output < 0 || m.Life < 0 {
		return invalid("a limit is negative")
	}
	u, err := g.lookUser(m.User)
	if err != nil {
		return err
	}
	if strings.IndexByte(m.Dir, 0) >= 0 {
		return invalid("the working directory has a NUL in it")
	}
	g.mu.Lock()
	g.conf = config{
		user: u, dir: m.Dir, env: m.Env, output: m.Output, noFile: m.NoFile,
		life: time.Duration(m.Life), rootCaps: m.RootCaps & permitted(), oomScoreAdj: int(m.OOMScoreAdj),
	}
	g.mu.Unlock()
	g.workers.renew()
	return nil
}

// config returns the present configuration; one that was never sent is that of
// the guest's own user.
func (g *guest) config() config {
	g.mu.Lock()
	c := g.conf
	g.mu.Unlock()
	if c.user.name == "" {
		if u, err := g.lookUser(""); err == nil {
			c.user = u
		}
	}
	return c
}

// workDir returns the directory that relative paths of u begin in.
func (c *config) workDir(u *user) string {
	if c.dir != "" {
		return c.dir
	}
	// A home that does not exist is no reason to start nothing.
	var st unix.Stat_t
	if u.home != "" && unix.Stat(u.home, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return u.home
	}
	return "/"
}

// defaultPath is the PATH of processes unless they have another.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// checkEnv refuses what is no environment variable.
func checkEnv(env []string) error {
	for _, e := range env {
		if i := strings.IndexByte(e, '='); i <= 0 {
			return invalid("environment: " + quote(e) + " is not of the form KEY=VALUE")
		}
		if strings.IndexByte(e, 0) >= 0 {
			return invalid("environment: " + quote(e) + " has a NUL in it")
		}
	}
	return nil
}

// environ returns the environment of a process: defaults, then what the lists
// say; of two entries for one name the later one is kept.
func environ(u *user, terminal bool, lists ...[]string) []string {
	env := []string{
		"PATH=" + defaultPath,
		"HOME=" + u.homeOr("/"),
		"USER=" + u.name,
		"LOGNAME=" + u.name,
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

// quote shortens s and makes it fit to be shown.
func quote(s string) string {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return strconv.Quote(s)
}
