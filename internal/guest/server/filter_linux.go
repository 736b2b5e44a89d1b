package server

import (
	"encoding/binary"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxFilter is the size of the largest filter, in bytes: 1,024 instructions of
// struct sock_filter.
const maxFilter = 1024 * 8

// loadFilter receives a filter of system calls on a SEQPACKET socket, loads it
// for all threads, and with that for everything that is started later, and
// answers with the errno. It closes the socket. The message is the first two
// arguments of seccomp(2), of 8 bytes each, then the instructions. Without any
// the two are zero and it loads nothing: the answer says that what was sent
// before is in force.
func loadFilter(sock int) (loaded bool) {
	defer unix.Close(sock)
	m := make([]byte, 16+maxFilter)
	n, err := unix.Read(sock, m) // its owner has sent it before the socket
	errno := unix.EINVAL
	switch {
	case err != nil || n < 16 || n%8 != 0:
	case n == 16:
		errno = 0
	default:
		code := m[16:n]
		prog := unix.SockFprog{Len: uint16(len(code) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(&code[0]))}
		var thread uintptr
		thread, _, errno = unix.Syscall(unix.SYS_SECCOMP, uintptr(binary.LittleEndian.Uint64(m)), uintptr(binary.LittleEndian.Uint64(m[8:])), uintptr(unsafe.Pointer(&prog)))
		runtime.KeepAlive(m)
		if errno == 0 && thread != 0 { // it has another filter than this one
			errno = unix.EBUSY
		}
	}
	clear(m) // there is a key in it
	_, err = unix.Write(sock, binary.LittleEndian.AppendUint32(nil, uint32(errno)))
	return errno == 0 && err == nil
}
