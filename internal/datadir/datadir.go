// Package datadir knows where images and state are kept when nobody says where.
package datadir

import (
	"errors"
	"os"
	"path/filepath"
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
