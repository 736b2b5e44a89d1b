package process

import (
	"cmp"
	"os"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/guest/settings"
)

// defaultPath is the default PATH of processes.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environ returns the environment of a process: defaults, then the lists. Of two entries
// for a name the later one counts.
func environ(u *settings.User, terminal bool, lists ...[]string) []string {
	env := []string{
		"PATH=" + defaultPath,
		"HOME=" + cmp.Or(u.Home, "/"),
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

// candidates returns the paths at which a program is looked for.
func candidates(name string, env []string) []string {
	if name == "" || strings.Contains(name, "/") { // an empty name is not the directory that is searched
		return []string{name}
	}
	path := defaultPath
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	var out []string
	for dir := range strings.SplitSeq(path, ":") {
		if dir == "" { // an empty element is the working directory (environ(7))
			dir = "."
		}
		if len(out) == maxCandidates {
			break
		}
		out = append(out, settings.JoinPath(dir, name))
	}
	return out
}

// maxCandidates bounds the directories in which a program is looked for.
const maxCandidates = 256
