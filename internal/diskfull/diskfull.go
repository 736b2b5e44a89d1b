// Package diskfull recognises a full disk of the host, and reserves room for vital writes.
package diskfull

import (
	"errors"
	"syscall"

	"github.com/sandpit-dev/sandpit"
)

// Is reports whether an error of the system says that a disk, or a quota on it, is
// full.
func Is(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// Mark returns an error with the text of err that also matches sandpit.ErrDiskFull.
func Mark(err error) error { return marked{err} }

type marked struct{ error }

func (e marked) Unwrap() []error { return []error{e.error, sandpit.ErrDiskFull} }
