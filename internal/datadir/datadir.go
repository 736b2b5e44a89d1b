// Package datadir has the default places of images and state.
package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ErrNone is the error where there is no such place.
var ErrNone = errors.New("no directory for images and state: HOME is not set to an absolute path")

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
// home, and each that is the default one with or without $XDG_DATA_HOME, at which
// a server may be, too.
func Private(home string, lookup func(string) (string, bool)) []string {
	dirs := []string{home}
	for _, lookup := range []func(string) (string, bool){lookup, func(name string) (string, bool) {
		if name == "XDG_DATA_HOME" {
			return "", false
		}
		return lookup(name)
	}} {
		if dir, err := Default(lookup); err == nil && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// OfOthers returns where else data directories may be that this user can reach, each with
// the ids of those whose it may be: those in home directories, going by /etc/passwd, of all users if this is
// root, and of this one, whatever HOME is now. Root may have been somebody else before
// it was root: of root, also those that the variables name, with -1 for an owner that is
// not known.
func OfOthers() map[string][]int {
	data, _ := os.ReadFile("/etc/passwd") // without it there are no home directories to be known
	return others(string(data), os.Geteuid(), os.LookupEnv, os.Readlink)
}

func others(passwd string, uid int, lookup func(string) (string, bool), readlink func(string) (string, error)) map[string][]int {
	dirs := map[string][]int{}
	if uid == 0 { // Private knows the variables of others
		if dir, _ := lookup("XDG_DATA_HOME"); filepath.IsAbs(dir) {
			dirs[filepath.Join(dir, "sandpit")] = []int{-1}
		}
		if home, _ := lookup("HOME"); filepath.IsAbs(home) {
			dirs[filepath.Join(home, ".local", "share", "sandpit")] = []int{-1}
		}
	}
	// In the text of /etc/passwd, passwd(5). A home directory may lie below a link in the root
	// directory, as where /home is one.
	for line := range strings.Lines(passwd) {
		f := strings.Split(line, ":")
		if len(f) != 7 || !filepath.IsAbs(f[5]) || filepath.Clean(f[5]) == "/" {
			continue
		}
		owner, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil || uid != 0 && int(owner) != uid {
			continue
		}
		home := filepath.Clean(f[5])
		top, rest, _ := strings.Cut(home[1:], "/")
		if target, err := readlink("/" + top); err == nil {
			home = filepath.Join("/", target, rest)
		}
		dir := filepath.Join(home, ".local", "share", "sandpit")
		dirs[dir] = append(dirs[dir], int(owner)) // several users may have one home
	}
	return dirs
}
