package logstore

import "golang.org/x/sys/unix"

// space returns how many bytes of the disk of a directory are free for this user,
// and how many it has.
func space(dir string) (free, size int64, ok bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0, 0, false
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, true
}
