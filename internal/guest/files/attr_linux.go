package files

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// maxID is the highest id of a user or group that a file can be given. Above it are the
// id that the kernel shows for unknown owners, and the one that chown(2) ignores.
const maxID = 65534

// checkAttr refuses changes that make no sense.
func checkAttr(m *wire.SetAttr) error {
	const all = wire.AttrAccessTime<<1 - 1
	switch {
	case m.Attrs&^all != 0:
		return wire.Fail(wire.CodeUnsupported, "an attribute is unknown to this guest")
	case m.Attrs&wire.AttrSize != 0 && m.Size < 0:
		return wire.Invalid("the size is negative")
	case m.Attrs&wire.AttrUID != 0 && m.UID > maxID, m.Attrs&wire.AttrGID != 0 && m.GID > maxID:
		return wire.Invalid("the ids of a sandbox end at " + strconv.Itoa(maxID))
	}
	return nil
}

// setAttr changes attributes of one file, whatever its path leads to meanwhile. Each change
// comes after those that would undo it: a change of the size sets the times, and one of the
// owner removes set-id bits. The first that fails ends it.
func setAttr(m *wire.SetAttr, path string) error {
	flags := unix.O_PATH | unix.O_CLOEXEC
	if !m.Follow {
		flags |= unix.O_NOFOLLOW
	}
	fd := -1
	err := fdio.Retry(func() (err error) {
		fd, err = unix.Open(path, flags, 0)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK && m.Attrs&(wire.AttrSize|wire.AttrMode) != 0 {
		return unix.EOPNOTSUPP
	}
	if m.Attrs&wire.AttrSize != 0 {
		w, _, err := openRegular(procName(fd), unix.O_WRONLY, 0)
		if err != nil {
			return err
		}
		err = fdio.Retry(func() error { return unix.Ftruncate(w, m.Size) })
		unix.Close(w)
		if err != nil {
			return err
		}
	}
	if m.Attrs&(wire.AttrUID|wire.AttrGID) != 0 {
		uid, gid := -1, -1 // unchanged
		if m.Attrs&wire.AttrUID != 0 {
			uid = int(m.UID)
		}
		if m.Attrs&wire.AttrGID != 0 {
			gid = int(m.GID)
		}
		err := unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH)
		if err == unix.EINVAL { // an id that this sandbox does not have
			err = unix.EPERM
		}
		if err != nil {
			return err
		}
	}
	if m.Attrs&wire.AttrMode != 0 {
		if err := unix.Chmod(procName(fd), uint32(m.Mode)&0o7777); err != nil {
			return err
		}
	}
	if m.Attrs&(wire.AttrModTime|wire.AttrAccessTime) == 0 {
		return nil
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
	if m.Attrs&wire.AttrAccessTime != 0 {
		times[0] = unix.NsecToTimespec(m.AccessTime)
	}
	if m.Attrs&wire.AttrModTime != 0 {
		times[1] = unix.NsecToTimespec(m.ModTime)
	}
	return setTimes(fd, st.Mode&unix.S_IFMT == unix.S_IFLNK, times)
}

// setTimes sets the times of access and modification of an open file or, if it is one, of a
// symbolic link.
func setTimes(fd int, link bool, times []unix.Timespec) error {
	if link {
		return unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH)
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, procName(fd), times, 0)
}

// procName is a name of an open file, which leads to it whatever its path leads to (proc_pid_fd(5)).
func procName(fd int) string { return "/proc/thread-self/fd/" + strconv.Itoa(fd) }
