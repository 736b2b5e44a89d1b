// Package datadir knows where images and state are kept when nobody says where.
package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// ErrNone is the error where there is no such place.
var ErrNone = errors.New("there is no place for images and state: HOME is not set")

// Default returns the data directory of a user: /var/lib/sandpit for root, else
// $XDG_DATA_HOME/sandpit, else ~/.local/share/sandpit. Variables are found by
// lookup, which is like os.LookupEnv; one that is not an absolute path is none, as
// the XDG Base Directory Specification has it.
func Default(lookup func(string) (string, bool)) (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/sandpit", nil
	}
	if dir, _ := lookup("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sandpit"), nil
	}
	if home, _ := lookup("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "share", "sandpit"), nil
	}
	return "", ErrNone
}

// Private returns the data directories that no sandbox of this user may see:
// home, and the default one if that is another, at which a server may be, too.
func Private(home string, lookup func(string) (string, bool)) []string {
	dirs := []string{home}
	if dir, err := Default(lookup); err == nil && dir != home {
		dirs = append(dirs, dir)
	}
	return dirs
}

// OfOthers returns where the data directories of other users are, going by
// /etc/passwd, for root, whose sandboxes may be given their home directories.
// For others it returns nil: they can't reach what is in them.
func OfOthers() []string {
	if os.Geteuid() != 0 {
		return nil
	}
	data, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return nil // then there are no home directories to be known
	}
	return homesIn(string(data), os.Readlink)
}

// homesIn returns the data directories of the users in the text of /etc/passwd,
// passwd(5). A home directory may lie below a link in the root directory, as
// where /home is one; no other link is looked for.
func homesIn(passwd string, readlink func(string) (string, error)) []string {
	var dirs []string
	for line := range strings.Lines(passwd) {
		f := strings.Split(line, ":")
		if len(f) != 7 || !filepath.IsAbs(f[5]) || filepath.Clean(f[5]) == "/" {
			continue
		}
		home := filepath.Clean(f[5])
		top, rest, _ := strings.Cut(home[1:], "/")
		if target, err := readlink("/" + top); err == nil {
			home = filepath.Join("/", target, rest)
		}
		dirs = append(dirs, filepath.Join(home, ".local", "share", "sandpit"))
	}
	return dirs
}
