package commands

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// maxLinks is how many symbolic links a path may lead through, as for the
// kernel (path_resolution(7)).
const maxLinks = 40

// openPath opens a file or directory of this machine, to be used by its
// descriptor alone (O_PATH). With mkdir it makes the directories that are
// missing.
//
// A sandbox can fill what it has mounted for writing with symbolic links, also
// while the path is resolved, and they belong to the user, or to root. So
// openPath follows only the links of the system: see walk.mayFollow.
func openPath(name string, mkdir bool) (*os.File, error) {
	failed := func(op string, err error) (*os.File, error) {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	if name == "" {
		return failed("opening", unix.ENOENT)
	}
	w := walk{dir: -1}
	from := "."
	if filepath.IsAbs(name) {
		from = "/"
	}
	if err := w.start(from); err != nil {
		return failed("opening", err)
	}
	defer func() { unix.Close(w.dir) }()
	links := 0
	for rest := strings.Split(name, "/"); len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		if part == "" || part == "." {
			// A slash behind a name says that it is a directory.
			if err := w.isDirectory(); err != nil {
				return failed("opening", err)
			}
			continue
		}
		const how = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
		fd, err := unix.Openat(w.dir, part, how, 0)
		if mkdir && errors.Is(err, unix.ENOENT) {
			if err := unix.Mkdirat(w.dir, part, 0o777); err != nil && !errors.Is(err, unix.EEXIST) {
				return failed("making", err)
			}
			fd, err = unix.Openat(w.dir, part, how, 0)
		}
		if err != nil {
			return failed("opening", err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			unix.Close(fd)
			return failed("opening", err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			w.enter(fd, part, &st)
			continue
		}
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, "", buf)
		unix.Close(fd)
		if err != nil {
			return failed("opening", err)
		}
		if !w.mayFollow(&st) {
			return nil, refuseLink(name, part)
		}
		target := string(buf[:n])
		if links++; links > maxLinks {
			return failed("opening", unix.ELOOP)
		}
		rest = append(strings.Split(target, "/"), rest...)
		if filepath.IsAbs(target) {
			if err := w.start("/"); err != nil {
				return failed("opening", err)
			}
		}
	}
	again, err := unix.FcntlInt(uintptr(w.dir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return failed("opening", err)
	}
	return os.NewFile(uintptr(again), name), nil
}

// refuseLink returns the error for a path with a link that is not followed.
func refuseLink(name, part string) error {
	err := fault.Errorf(sandpit.ErrForbidden, "opening %s: %q is a symbolic link that a sandbox could have made", name, part)
	hint := "name the target file or directory without the link"
	if resolved, failed := filepath.EvalSymlinks(name); failed == nil {
		if resolved, failed = filepath.Abs(resolved); failed == nil {
			hint = fmt.Sprintf("if you trust the link, name its target instead: %q", resolved)
		}
	}
	return sandpit.WithHint(err, hint)
}

// walk is where the resolution of a path has got to.
type walk struct {
	dir  int      // descriptor (O_PATH) of the file or directory
	at   []string // the names that lead there from the root directory
	mode uint32   // of the file or directory
	safe bool     // at is known, and nobody but root can change a directory on the way
}

// start begins at a directory: "/" or ".".
func (w *walk) start(name string) error {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return err
	}
	w.at, w.safe = nil, name == "/"
	w.enter(fd, "", &st)
	return nil
}

// enter goes on to fd, which it takes over.
func (w *walk) enter(fd int, name string, st *unix.Stat_t) {
	if w.dir >= 0 {
		unix.Close(w.dir)
	}
	w.dir, w.mode = fd, st.Mode
	w.safe = w.safe && st.Uid == 0 && st.Mode&0o022 == 0
	switch {
	case name == "..":
		w.at = w.at[:max(len(w.at)-1, 0)]
	case name != "":
		w.at = append(w.at, name)
	}
}

func (w *walk) isDirectory() error {
	if w.mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.ENOTDIR
	}
	return nil
}

// mayFollow reports whether a link in the directory is one of the system, which
// no sandbox can have made unless it was given the whole machine. Such links are
// root's, only root can change a directory on the way to them, and they lie in a
// directory of which that is true: whoever can write there has the machine. The
// owner alone would not do: what root's sandboxes write in a mount is root's, too.
func (w *walk) mayFollow(link *unix.Stat_t) bool {
	if !w.safe || link.Uid != 0 {
		return false
	}
	switch strings.Join(w.at, "/") {
	case "", "var", "etc", "etc/alternatives", "bin", "sbin", "lib", "lib64", "usr", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64":
		return true
	}
	return false
}

// openSource opens a file or directory to be read, and returns its name for
// that, which is good until the file is closed.
func openSource(name string) (f *os.File, again string, err error) {
	if isStream(name) {
		f, err = os.OpenFile(name, unix.O_PATH, 0)
	} else {
		f, err = openPath(name, false)
	}
	if err != nil {
		return nil, "", err
	}
	return f, "/proc/self/fd/" + strconv.Itoa(int(f.Fd())), nil
}

// openDirectory opens a directory, in which everything is then done without
// leaving it. With mkdir it makes the directories that are missing.
func openDirectory(name string, mkdir bool) (*os.Root, error) {
	f, err := openPath(name, mkdir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	var path *fs.PathError
	if errors.As(err, &path) {
		err = &fs.PathError{Op: "opening", Path: name, Err: path.Err}
	}
	return root, err
}
