package notation

import "io/fs"

// modeBits are the bits of a mode that fs.FileMode has elsewhere (inode(7)).
func modeBits() [3]struct {
	mode fs.FileMode
	bit  uint64
} {
	return [...]struct {
		mode fs.FileMode
		bit  uint64
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}}
}

// ModeBits returns the permission bits of a mode, with setuid, setgid and sticky as chmod(2)
// has them.
func ModeBits(m fs.FileMode) uint64 {
	bits := uint64(m.Perm())
	for _, b := range modeBits() {
		if m&b.mode != 0 {
			bits |= b.bit
		}
	}
	return bits
}

// ParseModeBits returns the mode with the bits of ModeBits. It ignores others.
func ParseModeBits(bits uint64) fs.FileMode {
	m := fs.FileMode(bits) & fs.ModePerm
	for _, b := range modeBits() {
		if bits&b.bit != 0 {
			m |= b.mode
		}
	}
	return m
}
