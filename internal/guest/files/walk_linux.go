package files

import (
	"container/heap"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// maxTreeDepth is how deep a tree may be that is gone through with a descriptor
// held for each level.
const maxTreeDepth = 256

// walker goes through a tree in the order of the elements of its paths. It
// follows no link, and holds a bounded number of names.
type walker struct {
	gone  func() bool
	glob  glob
	depth int // levels; at most maxTreeDepth
	// visit is called for what matches. It may stop the walk by an error.
	visit func(dir int, name, rel string, st *unix.Stat_t) error

	buf  []byte
	held int // names in memory
}

// Names are read from a directory some at a time, and the directory again for
// the next ones: fewer at a time when much is in memory already.
const (
	maxHeldNames = 1 << 15
	minNamePage  = 1 << 9
)

// walk goes through the directory fd, whose relative path is prefix, beginning
// behind the path after.
func (w *walker) walk(fd int, prefix, after string, at uint64, depth int) error {
	if after != "" {
		first, rest, _ := strings.Cut(after, "/")
		if err := w.enter(fd, first, prefix+first, rest, w.glob.step(at, first), depth); err != nil {
			return err
		}
		after = first
	}
	for {
		if w.gone() {
			return conn.ErrGone
		}
		if w.buf == nil {
			w.buf = make([]byte, 32<<10)
		}
		if _, err := unix.Seek(fd, 0, 0); err != nil {
			return err
		}
		names, more, err := namesAfter(fd, after, max(minNamePage, (maxHeldNames-w.held)/2), w.buf, w.gone)
		if err != nil {
			return err
		}
		w.held += len(names)
		for _, name := range names {
			next := w.glob.step(at, name)
			if w.glob.matches(next) {
				var st unix.Stat_t
				if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
					continue // just removed
				}
				if err := w.visit(fd, name, prefix+name, &st); err != nil {
					return err
				}
				if st.Mode&unix.S_IFMT != unix.S_IFDIR {
					continue
				}
			}
			if err := w.enter(fd, name, prefix+name, "", next, depth); err != nil {
				return err
			}
		}
		w.held -= len(names)
		if !more {
			return nil
		}
		after = names[len(names)-1]
	}
}

// enter walks the directory called name in fd, if it is one and may hold
// something that is asked for.
func (w *walker) enter(fd int, name, rel, after string, at uint64, depth int) error {
	if depth+1 >= w.depth || !w.glob.leads(at) || name == "" || name == "." || name == ".." {
		return nil
	}
	sub, err := openDir(fd, name, unix.O_NOFOLLOW)
	if err != nil {
		return nil // no directory, not to be read, or gone
	}
	defer unix.Close(sub)
	err = w.walk(sub, rel+"/", after, at, depth+1)
	if err == unix.ENOENT || err == unix.EACCES {
		return nil
	}
	return err
}

// treeDepth is how many levels a request for so many means; 0 is all that are possible.
func treeDepth(n uint64) int {
	if n == 0 || n > maxTreeDepth {
		return maxTreeDepth
	}
	return int(n)
}

// A largest holds the smallest names seen so far, with the greatest on top.
type largest []string

func (l largest) Len() int           { return len(l) }
func (l largest) Less(i, j int) bool { return l[i] > l[j] }
func (l largest) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }
func (l *largest) Push(x any)        { *l = append(*l, x.(string)) }
func (l *largest) Pop() any {
	x := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return x
}

// namesAfter returns the first limit names greater than after, sorted, of a
// directory that is read from its start. It holds no more names than that,
// however many there are.
func namesAfter(fd int, after string, limit int, buf []byte, gone func() bool) (names []string, more bool, err error) {
	var l largest
	for {
		n, err := fdio.Getdents(fd, buf)
		if err != nil {
			return nil, false, err
		}
		if n == 0 {
			break
		}
		if gone() {
			return nil, false, conn.ErrGone
		}
		fdio.EachEntry(buf[:n], func(name []byte, _ byte) bool {
			if string(name) <= after {
				return true
			}
			if len(l) < limit {
				heap.Push(&l, string(name))
				return true
			}
			more = true
			if string(name) < l[0] {
				l[0] = string(name)
				heap.Fix(&l, 0)
			}
			return true
		})
	}
	slices.Sort(l)
	return l, more, nil
}

// errEnough ends a walk that has found what it may find.
var errEnough = wire.Fail(wire.CodeExhausted, "enough")

// find answers with a page of what is below a directory.
func find(m *wire.Find, root string, gone func() bool) (conn.Message, error) {
	g, err := newGlob(m.Glob)
	if err != nil {
		return nil, err
	}
	fd, err := openDir(unix.AT_FDCWD, root, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	out := new(wire.Entries)
	limit := int(max(1, min(m.Limit, wire.MaxEntries)))
	size := 0
	w := walker{gone: gone, glob: g, depth: treeDepth(m.Depth)}
	w.visit = func(dir int, name, rel string, st *unix.Stat_t) error {
		if len(out.List) == limit || size > wire.MaxReply/2 {
			out.More = true
			return errEnough
		}
		f := describe(rel, st)
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			f.Target, _ = readlink(dir, name)
		} else if m.Attrs {
			f.Attrs = xattrs(procName(dir)+"/"+name, st)
		}
		size += len(rel) + len(f.Target) + wire.AttrBytes(f.Attrs) + 64
		out.List = append(out.List, f)
		return nil
	}
	if err := w.walk(fd, "", strings.Trim(m.After, "/"), g.begin(), 0); err != nil && err != errEnough {
		return nil, err
	}
	return out, nil
}
