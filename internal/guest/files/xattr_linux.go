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
	var small [1024]byte
	names := small[:]
	n, err := unix.Listxattr(path, names)
	if err == unix.ERANGE {
		names = make([]byte, 64<<10) // XATTR_LIST_MAX
		n, err = unix.Listxattr(path, names)
	}
	if err != nil || n == 0 {
		return nil
	}
	var all []wire.Attr
	left := wire.MaxAttrBytes
	var value [wire.MaxAttrBytes]byte
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		short, ok := strings.CutPrefix(name, userPrefix)
		if !ok || short == "" || len(all) == wire.MaxAttrs {
			continue
		}
		n, err := unix.Getxattr(path, name, value[:])
		if err != nil || len(name)+n > left {
			continue
		}
		left -= len(name) + n
		all = append(all, wire.Attr{Name: short, Value: string(value[:n])})
	}
	return all
}
