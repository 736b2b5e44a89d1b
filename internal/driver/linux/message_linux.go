package linux

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// messageHeader is struct msghdr of recvmsg(2) for one buffer and a control
// buffer, on 64-bit Linux.
func messageHeader(p *sysprog.Program, buf, control []byte) sysprog.Arg {
	iov := make([]byte, 16)
	p.PutPointer(iov, 0, buf)
	binary.NativeEndian.PutUint64(iov[8:], uint64(len(buf)))
	hdr := make([]byte, 56)
	p.PutPointer(hdr, 16, iov)
	binary.NativeEndian.PutUint64(hdr[24:], 1)
	p.PutPointer(hdr, 32, control)
	binary.NativeEndian.PutUint64(hdr[40:], uint64(len(control)))
	return p.Bytes(hdr)
}

// openTrees makes detached mount trees of host paths, of which mapTrees maps the
// ids: what only the owner of the file systems may do.
func openTrees(ts []tree) (fds []int, err error) {
	for _, t := range ts {
		fd, err := openTree(t)
		if err != nil {
			closeAll(fds)
			return nil, err
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

func openTree(t tree) (int, error) {
	dir, name, at := unix.AT_FDCWD, t.path, 0
	if t.owned {
		fd, err := unix.Openat2(unix.AT_FDCWD, t.path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
		if err != nil {
			return -1, &fs.PathError{Op: "opening", Path: t.path, Err: err}
		}
		defer unix.Close(fd)
		dir, name, at = fd, "", unix.AT_EMPTY_PATH
	}
	// Only the layers and the mounts themselves: what else is mounted below a
	// path of the host was not asked for.
	fd, err := unix.OpenTree(dir, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|uint(at))
	if err != nil {
		return -1, &fs.PathError{Op: "opening the mount of", Path: t.path, Err: err}
	}
	return fd, nil
}

// mapTrees maps the ids of opened trees to those of a sandbox, whose first
// process is pid, and sets the rights of the mounts. From then on root has no
// capabilities over files of those who do not exist inside.
func mapTrees(fds []int, ts []tree, mounts []hostMount, ids idMap, uid, gid uint32, pid int) error {
	userns, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "opening", Path: "/proc/" + strconv.Itoa(pid) + "/ns/user", Err: err}
	}
	defer unix.Close(userns)
	for i, t := range ts {
		ns := userns
		if t.owned {
			m := mounts[t.mount]
			if ns, err = idNamespace(m.uid, m.gid, ids.base+uid, ids.base+gid); err != nil {
				return fmt.Errorf("mapping the owner of %s: %w", t.path, err)
			}
		}
		err := mapTree(fds[i], t, ns)
		if t.owned {
			unix.Close(ns)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func mapTree(fd int, t tree, userns int) error {
	attr := &unix.MountAttr{Attr_set: t.attr | unix.MOUNT_ATTR_IDMAP, Propagation: unix.MS_PRIVATE, Userns_fd: uint64(userns)}
	switch err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err {
	case nil:
		return nil
	case unix.EINVAL:
		return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "mapping the ids of %s: its file system does not support it", t.path),
			"use a directory on ext4, xfs, btrfs or tmpfs")
	default:
		return &fs.PathError{Op: "mapping the ids of", Path: t.path, Err: err}
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// The kinds of messages: goMessage lets the child go on; the others are for the
// guest, docs/guest-protocol.md.
const (
	goMessage       = 'G'
	connMessage     = 'c'
	filterMessage   = 'f'
	forkerMessage   = 'p'
	landlockMessage = 'l'
	listenMessage   = 's'
)

// send sends one message with descriptors. It does not wait: EAGAIN says that
// the other end does not read, as a compromised guest may.
func send(sock int, kind byte, fds []int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		err := unix.Sendmsg(sock, []byte{kind}, oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return os.NewSyscallError("sendmsg", err)
		}
	}
}

// left takes a message that a child may have left on a socket before it ended, and
// returns its size, or 0 if there is none. That the child has not read what was sent to it
// (ECONNRESET) is told first, and once.
func left(sock int, buf []byte) int {
	for {
		n, _, err := unix.Recvfrom(sock, buf, unix.MSG_DONTWAIT)
		if err != unix.EINTR && err != unix.ECONNRESET {
			return max(n, 0)
		}
	}
}

// receivedFDs returns the descriptors in a control message.
func receivedFDs(oob []byte) []int {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 {
		return nil
	}
	fds, _ := unix.ParseUnixRights(&msgs[0])
	return fds
}

// controlMessage is struct cmsghdr with room for n descriptors, from unix.CmsgLen(0)
// on, on 64-bit Linux.
func controlMessage(n int) []byte {
	b := make([]byte, unix.CmsgSpace(4*n))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(4*n)))
	binary.NativeEndian.PutUint32(b[8:], unix.SOL_SOCKET)
	binary.NativeEndian.PutUint32(b[12:], unix.SCM_RIGHTS)
	return b
}
