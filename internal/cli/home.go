package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/datadir"
)

// runDir returns the data directory for one sandbox, which remove is to be called for when
// that is gone.
//
// The host image needs no state. So a user whose default directory can't be used, because
// HOME is missing, not set or not writable, as with cron and services, gets one for this
// sandbox alone. It is left behind only if this program is killed.
func (o *Options) runDir(image string) (dir string, remove func() error, err error) {
	keep := func() error { return nil }
	if address, _ := o.Server(); address != "" {
		return "", keep, nil // what the sandbox needs is there
	}
	if !o.homeless() || image != "" && image != "host" {
		dir, err = o.DataDir()
		return dir, keep, err
	}
	if dir, err = os.MkdirTemp("", "sandpit-"); err != nil {
		return "", keep, sandpit.WithHint(fmt.Errorf("making a data directory for this sandbox, because this user has none: %w", err),
			"set SANDPIT_HOME or TMPDIR to a directory that you can write to")
	}
	return dir, func() error { return os.RemoveAll(dir) }, nil
}

// homeless reports whether a run of the host image gets a data directory for itself alone.
func (o *Options) homeless() bool {
	byDefault, none := datadir.Default(o.lookup)
	return !o.home.set && (none != nil || !usable(byDefault))
}

// OnlyRuns reports whether this user has no data directory, but can run commands without one.
func (o *Options) OnlyRuns() bool { return o.homeless() && usable(os.TempDir()) }

// usable reports whether this user can write to a directory, or can make it.
func usable(dir string) bool {
	for {
		err := unix.Access(dir, unix.W_OK|unix.X_OK)
		if err != unix.ENOENT || dir == "/" {
			return err == nil
		}
		dir = filepath.Dir(dir)
	}
}

// OwnerUmask takes the owner's bits out of the umask of this program, which can do nothing
// with a data directory that it can't read, write and enter. It is not for a program that
// writes files of the caller.
func OwnerUmask() { unix.Umask(unix.Umask(0o077) &^ 0o700) }
