package datadir

import (
	"fmt"
	"io/fs"
	"os"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// CheckPart checks a part of a data directory, whose name is in the error: it
// must belong to this user or root, as must a symbolic link to it, and nobody
// else may write to it: otherwise the error matches sandpit.ErrForbidden. What is
// there must be a directory. What is not there is not an error.
func CheckPart(name string) error {
	return check(name, func(mode fs.FileMode) bool { return mode&0o022 == 0 })
}

// CheckHome checks a data directory itself, which may be one in which everybody may
// make files, such as /tmp, and one of a group.
func CheckHome(name string) error {
	return check(name, func(mode fs.FileMode) bool { return mode&0o002 == 0 || mode&fs.ModeSticky != 0 })
}

// CheckOwner checks only whose directory it is, for one whose mode is then mended.
func CheckOwner(name string) error { return check(name, func(fs.FileMode) bool { return true }) }

func check(name string, closed func(fs.FileMode) bool) error {
	link, err := os.Lstat(name)
	if err != nil {
		return nil //nolint:nilerr // who uses it learns why he can't
	}
	info := link
	if link.Mode()&fs.ModeSymlink != 0 {
		if info, err = os.Stat(name); err != nil {
			return nil //nolint:nilerr // the same
		}
	}
	why := ""
	switch {
	case !ours(link) || !ours(info):
		why = "belongs to another user"
	case !info.IsDir():
		return sandpit.WithHint(fmt.Errorf("opening the data directory: %s is not a directory", name), "remove it, or set SANDPIT_HOME to another directory")
	case !closed(info.Mode()):
		why = "is writable by other users"
	default:
		return nil
	}
	return sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "opening the data directory: %s %s", name, why),
		"check who created it and its contents; then remove it, change its owner and mode (chown, chmod go-w), or set SANDPIT_HOME to another directory")
}
