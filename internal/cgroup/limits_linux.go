package cgroup

import (
	"errors"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Limits are the limits of a group. Zero fields are not limited.
type Limits struct {
	Memory int64   // bytes, with page cache, tmpfs files and swap
	CPUs   float64 // processors, for example 0.5; at least 0.01
	Pids   int64   // processes and threads

	// Devices denies every device except null, zero, full, random, urandom, tty and
	// pseudo-terminals, with the v1 devices hierarchy and a privileged user. It is a
	// second layer: elsewhere the user namespace and nodev mounts suffice.
	Devices bool
}

// prefix begins the name of every directory that this package makes.
const prefix = "sandpit-"

// maxID is the longest id in bytes.
const maxID = 64

// checkID refuses ids that are not plain directory names.
func checkID(id string) error {
	if id == "" || len(id) > maxID {
		return fault.Errorf(sandpit.ErrInvalid, "cgroup id %q: its length is not 1 to %d bytes", id, maxID)
	}
	for i := range len(id) {
		c := id[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-' && i > 0:
		default:
			return fault.Errorf(sandpit.ErrInvalid, "cgroup id %q: only letters, digits, '_' and '-'", id)
		}
	}
	return nil
}

func (l Limits) check() error {
	switch {
	case l.Memory < 0:
		return errors.Join(errors.New("memory limit is negative"), sandpit.ErrInvalid)
	case l.Pids < 0:
		return errors.Join(errors.New("pids limit is negative"), sandpit.ErrInvalid)
	case l.CPUs < 0 || l.CPUs != l.CPUs || l.CPUs > 1e6 || (l.CPUs > 0 && l.CPUs < sandpit.MinCPUs):
		return fault.Errorf(sandpit.ErrInvalid, "cpu limit %v is not between %v and 1000000", l.CPUs, sandpit.MinCPUs)
	}
	return nil
}
