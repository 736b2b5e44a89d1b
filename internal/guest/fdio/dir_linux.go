package fdio

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Getdents fills buf with entries of a directory, for EachEntry. It returns 0 bytes at the end.
func Getdents(fd int, buf []byte) (n int, err error) {
	err = Retry(func() (err error) {
		n, err = unix.Getdents(fd, buf)
		return err
	})
	return max(n, 0), err
}

// nameOffset is the offset of the name in struct linux_dirent64 (getdents(2)).
const nameOffset = int(unsafe.Offsetof(unix.Dirent{}.Name))

// EachEntry calls f with the name and type (unix.DT_*) of each entry in b, which Getdents has
// filled, until f returns false. It leaves out "." and "..". The name is valid until f
// returns.
func EachEntry(b []byte, f func(name []byte, kind byte) bool) {
	for len(b) >= nameOffset {
		size := int(binary.NativeEndian.Uint16(b[16:]))
		if size < nameOffset || size > len(b) {
			return
		}
		name := b[nameOffset:size]
		if i := bytes.IndexByte(name, 0); i >= 0 {
			name = name[:i]
		}
		kind := b[18]
		b = b[size:]
		if string(name) == "." || string(name) == ".." {
			continue
		}
		if !f(name, kind) {
			return
		}
	}
}
