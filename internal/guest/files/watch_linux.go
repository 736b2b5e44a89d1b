package files

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/settings"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

const (
	maxWatchers = 16      // at once; a user may have 128 (inotify(7))
	maxWatched  = 1 << 13 // directories of one of them
	// renamePatience is how long the second half of a rename may take: who
	// renames may lose its processor between the two. What was moved to where
	// nobody watches is told that much later.
	renamePatience = 100 * time.Millisecond

	watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_EXCL_UNLINK
)

// watch tells the host what changes below path until it has heard enough, or
// what is watched is gone.
func (f *Files) watch(s *conn.Stream, path string, recursive bool) {
	if f.watchers.Add(1) > maxWatchers {
		f.watchers.Add(-1)
		s.Fail(wire.Fail(wire.CodeExhausted, "too many watches"))
		return
	}
	defer f.watchers.Add(-1)
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		s.Fail(err)
		return
	}
	w := &watcher{
		s: s, fd: fd, root: path, recursive: recursive, paths: make(map[int32]string),
		out: make([]byte, wire.HeaderSize, 4<<10),
	}
	file := os.NewFile(uintptr(fd), "inotify")
	defer file.Close()
	// Its number is used beside the file, so it is not closed until the end.
	s.WhenGone(func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	raw, err := file.SyscallConn()
	if err == nil {
		// All of it on one thread: a host that does not take what it is told
		// must keep nobody from his files.
		err = f.workers.Apart(f.user, func() error { return w.run(raw) })
	}
	if err != nil {
		s.Fail(wire.FileError(err))
		return
	}
	s.End(wire.EOF, conn.Nothing{})
}

// watcher turns what inotify says of directories into what has happened to paths.
type watcher struct {
	s         *conn.Stream
	fd        int
	root      string
	recursive bool
	over      bool // what is watched is gone

	paths map[int32]string // of what is watched, relative to root, by descriptor
	top   int32            // the descriptor of the root
	full  bool             // not everything is watched, which was said

	moved  *movedFrom
	last   wire.WatchEvent // the same thing is not said twice in a row
	out    []byte          // records, behind room for a header
	broken error
}

// movedFrom is the first half of a rename.
type movedFrom struct {
	cookie uint32
	path   string
	dir    bool
}

// run watches, with the user's rights, until there is nothing more to tell. It
// fails when the watch can't begin.
func (w *watcher) run(raw syscall.RawConn) error {
	if err := w.begin(); err != nil {
		return err
	}
	w.s.Reply(conn.Nothing{})
	for !w.over {
		if w.flush() != nil || w.read(raw) != nil {
			break
		}
	}
	_ = w.flush()
	return nil
}

// begin watches what is there.
func (w *watcher) begin() error {
	wd, err := unix.InotifyAddWatch(w.fd, w.root, watchMask)
	if err != nil {
		return err
	}
	w.top = int32(wd)
	w.paths[w.top] = ""
	if w.recursive {
		w.below("", false, 0)
	}
	return nil
}

// below watches the directories below one, and with tell says what is in them.
func (w *watcher) below(rel string, tell bool, depth int) {
	path := w.root
	if rel != "" {
		path = settings.JoinPath(path, rel)
	}
	fd, err := openDir(unix.AT_FDCWD, path, 0)
	if err != nil {
		return // no directory, not to be read, or gone
	}
	defer unix.Close(fd)
	buf := make([]byte, 8<<10)
	for {
		n, err := fdio.Getdents(fd, buf)
		if err != nil || n == 0 || w.s.Gone() {
			return
		}
		fdio.EachEntry(buf[:n], func(name []byte, kind byte) bool {
			sub := string(name)
			if kind == unix.DT_UNKNOWN {
				var st unix.Stat_t
				if unix.Fstatat(fd, sub, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
					kind = unix.DT_DIR
				}
			}
			if rel != "" {
				sub = rel + "/" + sub
			}
			if tell {
				w.tell(wire.WatchEvent{Kind: wire.WatchCreate, Path: sub})
			}
			if kind == unix.DT_DIR && w.recursive {
				w.add(sub, tell, depth+1)
			}
			return true
		})
	}
}

// add watches a directory below the root, and those below it.
func (w *watcher) add(rel string, tell bool, depth int) {
	if len(w.paths) >= maxWatched || depth > maxTreeDepth {
		w.lose()
		return
	}
	wd, err := unix.InotifyAddWatch(w.fd, settings.JoinPath(w.root, rel), watchMask|unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW)
	switch err {
	case nil:
		w.paths[int32(wd)] = rel
		w.below(rel, tell, depth)
	case unix.ENOENT, unix.ENOTDIR, unix.EACCES: // gone, or not to be read
	default:
		w.lose()
	}
}

// lose says once that not everything is watched.
func (w *watcher) lose() {
	if !w.full {
		w.full = true
		w.tell(wire.WatchEvent{Kind: wire.WatchOverflow})
	}
}

func (w *watcher) tell(e wire.WatchEvent) {
	if e == w.last {
		return
	}
	if w.broken != nil {
		return
	}
	w.last = e
	w.out = wire.AppendRecord(w.out, &e)
	if len(w.out) > wire.MaxData/2 {
		_ = w.flush()
	}
}

func (w *watcher) flush() error {
	n := len(w.out) - wire.HeaderSize
	if w.broken != nil || n == 0 {
		return w.broken
	}
	w.last = wire.WatchEvent{}
	w.broken = w.s.Send(wire.Data, w.out, n)
	w.out = w.out[:wire.HeaderSize]
	return w.broken
}

// read waits for events and handles them.
func (w *watcher) read(raw syscall.RawConn) error {
	var buf [4 << 10]byte
	for {
		n := 0
		var rerr error
		err := raw.Read(func(fd uintptr) bool {
			n, rerr = fdio.Read(int(fd), buf[:])
			return rerr != unix.EAGAIN || w.moved != nil
		})
		if rerr == unix.EAGAIN && w.moved != nil {
			w.await(renamePatience)
			n, rerr = fdio.Read(w.fd, buf[:])
		}
		switch {
		case err != nil:
			return err
		case rerr == unix.EAGAIN: // the other half is elsewhere
			w.away()
			return nil
		case rerr != nil:
			return rerr
		}
		w.events(buf[:n])
		if w.moved == nil {
			return nil
		}
	}
}

// await waits until inotify has something to say, and no longer than patience.
func (w *watcher) await(patience time.Duration) {
	fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
	for deadline := time.Now().Add(patience); ; {
		left := time.Until(deadline)
		if left <= 0 {
			return
		}
		if _, err := unix.Poll(fds, int(left.Milliseconds())+1); err != unix.EINTR {
			return
		}
	}
}

// events handles what inotify has said (inotify(7)): four bytes each of watch
// descriptor, mask, cookie and length, then the name.
func (w *watcher) events(b []byte) {
	for len(b) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(b))
		mask := binary.NativeEndian.Uint32(b[4:])
		cookie := binary.NativeEndian.Uint32(b[8:])
		n := int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if n > len(b) {
			return
		}
		name, _, _ := bytes.Cut(b[:n], []byte{0})
		b = b[n:]
		w.event(wd, mask, cookie, string(name))
	}
}

func (w *watcher) event(wd int32, mask, cookie uint32, name string) {
	if w.moved != nil && (mask&unix.IN_MOVED_TO == 0 || cookie != w.moved.cookie) {
		w.away()
	}
	if mask&unix.IN_Q_OVERFLOW != 0 {
		w.tell(wire.WatchEvent{Kind: wire.WatchOverflow})
		if w.recursive {
			w.below("", false, 0) // new directories may be among what was lost
		}
		return
	}
	dir, known := w.paths[wd]
	if !known {
		return
	}
	if mask&unix.IN_IGNORED != 0 {
		delete(w.paths, wd)
	}
	path := dir
	switch {
	case name == "":
	case dir == "":
		path = name
	default:
		path = dir + "/" + name
	}
	isDir := mask&unix.IN_ISDIR != 0
	switch {
	case name == "" && wd != w.top:
		// Its parent says so too.
	case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
		if !w.over {
			w.over = true
			w.tell(wire.WatchEvent{Kind: wire.WatchRemove})
		}
	case mask&unix.IN_CREATE != 0:
		w.tell(wire.WatchEvent{Kind: wire.WatchCreate, Path: path})
		if isDir && w.recursive {
			w.add(path, true, strings.Count(path, "/"))
		}
	case mask&unix.IN_MODIFY != 0:
		w.tell(wire.WatchEvent{Kind: wire.WatchWrite, Path: path})
	case mask&unix.IN_ATTRIB != 0:
		w.tell(wire.WatchEvent{Kind: wire.WatchChmod, Path: path})
	case mask&unix.IN_DELETE != 0:
		w.tell(wire.WatchEvent{Kind: wire.WatchRemove, Path: path})
	case mask&unix.IN_MOVED_FROM != 0:
		w.moved = &movedFrom{cookie, path, isDir}
	case mask&unix.IN_MOVED_TO != 0 && w.moved != nil:
		from := w.moved.path
		w.moved = nil
		w.tell(wire.WatchEvent{Kind: wire.WatchRename, Path: path, From: from})
		if isDir {
			for wd, p := range w.paths {
				if rest, ok := strings.CutPrefix(p, from); ok && (rest == "" || rest[0] == '/') && wd != w.top {
					w.paths[wd] = path + rest
				}
			}
		}
	case mask&unix.IN_MOVED_TO != 0:
		w.tell(wire.WatchEvent{Kind: wire.WatchCreate, Path: path})
		if isDir && w.recursive {
			w.add(path, true, strings.Count(path, "/"))
		}
	}
}

// away says that what was moved has left what is watched.
func (w *watcher) away() {
	m := w.moved
	w.moved = nil
	w.tell(wire.WatchEvent{Kind: wire.WatchRemove, Path: m.path})
	if !m.dir {
		return
	}
	for wd, p := range w.paths {
		if rest, ok := strings.CutPrefix(p, m.path); ok && (rest == "" || rest[0] == '/') && wd != w.top {
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
			delete(w.paths, wd)
		}
	}
}
