package files

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// userPrefix begins the names of the extended attributes that belong to users (xattr(7)). The
// guest reads and sets no others.
const userPrefix = "user."

// checkXattrs refuses attributes that no file can have, or that are not those of a new file.
func checkXattrs(m *wire.Write) error {
	if len(m.Attrs) > 0 && (m.AtEnd || m.InPlace) {
		return wire.Invalid("a write that does not replace the file sets no attributes")
	}
	for _, a := range m.Attrs {
		if a.Name == "" || len(a.Name) > wire.MaxAttrName || strings.ContainsAny(a.Name, "\x00=") {
			return wire.Invalid("the name of an attribute is empty or too long, or has a NUL or = in it")
		}
	}
	return nil
}

// setXattrs sets attributes of a new file.
func setXattrs(fd int, attrs []wire.Attr) error {
	for _, a := range attrs {
		err := unix.Fsetxattr(fd, userPrefix+a.Name, []byte(a.Value), 0)
		if err == unix.EOPNOTSUPP {
			return wire.Fail(wire.CodeUnsupported, "the file system can't store the attribute "+wire.Quote(userPrefix+a.Name)+": it or the kernel has no extended attributes of users")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// xattrs returns the attributes of a file, as far as they are within the bounds of a message. What
// can't be read is left out: a description is not to fail for it. Only regular files and
// directories have such attributes.
func xattrs(path string, st *unix.Stat_t) []wire.Attr {
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return nil
	}
	names, err := listXattrs(path)
	if err != nil {
		return nil
	}
	var all []wire.Attr
	left := wire.MaxAttrBytes
	var value [wire.MaxAttrBytes]byte
	for _, name := range names {
		if len(all) == wire.MaxAttrs {
			break
		}
		n, err := unix.Getxattr(path, name, value[:])
		if err != nil || len(name)+n > left {
			continue
		}
		left -= len(name) + n
		all = append(all, wire.Attr{Name: strings.TrimPrefix(name, userPrefix), Value: string(value[:n])})
	}
	return all
}

// listXattrs returns the names of the attributes of users that a file has.
func listXattrs(path string) ([]string, error) {
	var small [1024]byte
	names := small[:]
	n, err := unix.Listxattr(path, names)
	if err == unix.ERANGE {
		names = make([]byte, 64<<10) // XATTR_LIST_MAX
		n, err = unix.Listxattr(path, names)
	}
	if err != nil {
		return nil, err
	}
	var users []string
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if len(name) > len(userPrefix) && strings.HasPrefix(name, userPrefix) {
			users = append(users, name)
		}
	}
	return users, nil
}

// copyXattrs gives a new file or directory the attributes of users that another one has. Those that its file
// system has no place for are left out: it may have no attributes at all, or take less of them.
func copyXattrs(to, from int) error {
	path := procName(from)
	names, err := listXattrs(path)
	if err != nil && err != unix.EOPNOTSUPP || len(names) == 0 {
		return err
	}
	value := make([]byte, 64<<10) // XATTR_SIZE_MAX
	for _, name := range names {
		n, err := unix.Getxattr(path, name, value)
		if err == nil {
			err = unix.Fsetxattr(to, name, value[:n], 0)
		}
		switch err {
		case nil, unix.EOPNOTSUPP, unix.ENOSPC, unix.E2BIG, unix.ERANGE, unix.EDQUOT, unix.ENODATA: // just removed
		default:
			return err
		}
	}
	return nil
}
