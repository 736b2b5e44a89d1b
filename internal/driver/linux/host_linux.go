package linux

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// host describes this machine and this user. It does not change while the program runs.
type host struct {
	euid, egid int
	privileged bool // root, with CAP_SYS_ADMIN
	allIDs     bool // every user id exists in this user namespace
	uids, gids uint32

	subOnce        sync.Once
	subErr         error
	subuid, subgid subRange
}

// findHost examines this process.
func findHost() (*host, error) {
	h := &host{euid: os.Geteuid(), egid: os.Getegid()}
	if h.euid != 0 {
		return h, nil
	}
	h.privileged = hasCapability(unix.CAP_SYS_ADMIN)
	if !h.privileged {
		return h, nil
	}
	var err error
	if h.uids, err = idsFrom0("/proc/self/uid_map"); err != nil {
		return nil, err
	}
	if h.gids, err = idsFrom0("/proc/self/gid_map"); err != nil {
		return nil, err
	}
	h.allIDs = h.uids == 1<<32-1 && h.gids == 1<<32-1
	h.uids, h.gids = min(h.uids, rangeSize), min(h.gids, rangeSize)
	return h, nil
}

// idsFrom0 returns the number of ids from 0 on in this user namespace.
func idsFrom0(name string) (uint32, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	if f := bytes.Fields(line); len(f) == 3 && string(f[0]) == "0" { // inside, outside, count
		if count, err := strconv.ParseUint(string(f[2]), 10, 32); err == nil {
			return uint32(count), nil
		}
	}
	return 0, fmt.Errorf("reading %s: %q is not understood", name, line)
}

// hasCapability reports whether this thread has a capability in effect.
func hasCapability(c int) bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil {
		return false
	}
	return data[c/32].Effective&(1<<(c%32)) != 0
}

// unmappable are file systems, by their magic number of statfs(2), that can't
// map ids up to Linux 6.12 or that stand on others that must.
var unmappable = [...]int64{0x794c7630 /* overlayfs */, 0x6969 /* nfs */, 0x65735546 /* fuse */, 0x01021997 /* 9p */, 0xff534d42 /* cifs */, 0xfe534d42 /* smb2 */}

// canMap reports whether the file system of a path can show its ids mapped. It
// goes by its kind; the mount itself tells for sure.
func canMap(path string) bool {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return false
	}
	for _, m := range unmappable {
		if int64(uint32(st.Type)) == m {
			return false
		}
	}
	return true
}
