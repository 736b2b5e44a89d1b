package linux

import (
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// Exposed looks for data directories of this user in the mounts of the sandbox.
// See driver.Exposer.
func (i *instance) Exposed() string {
	process := strconv.Itoa(i.child.PID)
	host, herr := readMounts("self")
	inside, err := readMounts(process)
	if herr != nil || err != nil {
		return "" // it can't be told
	}
	root, err := unix.Open("/proc/"+process+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(root)
	for _, dir := range i.driver.private() {
		at, err := host.locate(dir, 0)
		if err != nil {
			continue
		}
		parts, _, _ := host.parts(at)
		for _, part := range parts {
			if inside.shows(root, part) {
				return part.path
			}
		}
	}
	return ""
}

// shows reports whether the mounts of a sandbox with this root show a data directory, or a
// part of it: whether at a place where one of them could show it, that mount is what is
// seen, and not another one above it, such as a cover.
func (t mountTable) shows(root int, dir located) bool {
	const inside = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS
	want, _, err := look(unix.AT_FDCWD, dir.path, 0)
	for id, m := range t {
		if m.overlay && err == nil {
			// It may show any of the directories above this one, and has other inodes; the
			// times are those of what it shows, and can't be set.
			for i := range dir.path {
				if dir.path[i] != '/' {
					continue
				}
				if is, seen, err := look(root, m.point+dir.path[i:], inside); err == nil && seen == id && is == want {
					return true
				}
			}
		}
		rest, in := relative(dir.below, m.root)
		if !in {
			_, in = relative(m.root, dir.below)
		}
		if !in || m.dev != dir.dev {
			continue
		}
		if _, seen, err := look(root, path.Join(m.point, rest), inside); err == nil && seen == id {
			return true
		}
	}
	return false
}

// times are the times of creation and last change of a directory.
type times struct{ made, changed unix.StatxTimestamp }

// look returns the file at a path, and the mount that shows it.
func look(dir int, name string, resolve uint64) (is times, mount uint64, err error) {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve})
	if err != nil {
		return times{}, 0, err
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_CTIME|unix.STATX_BTIME|unix.STATX_MNT_ID, &st); err != nil {
		return times{}, 0, err
	}
	return times{st.Btime, st.Ctime}, st.Mnt_id, nil
}
