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
)

// maxLinks is how many symbolic links a path may lead through, as for the
// kernel (path_resolution(7)).
const maxLinks = 40

// openPath opens a file or directory of this machine, to be used by its
// descriptor alone (O_PATH). With mkdir it makes the directories that are
// missing.
//
// What a sandbox has mounted for writing it may fill with symbolic links, also
// while the path is resolved, and these belong to the user, as all files there
// do. So it follows only links that no sandbox can have made: those of root,
// which for root itself must lie in the root directory.
func openPath(name string, mkdir bool) (*os.File, error) {
	failed := func(op string, err error) (*os.File, error) {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	from := "."
	if filepath.IsAbs(name) {
		from = "/"
	}
	dir, err := unix.Open(from, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return failed("opening", err)
	}
	defer func() { unix.Close(dir) }()
	links := 0
	for rest := strings.Split(name, "/"); len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		if part == "" || part == "." {
			continue
		}
		const how = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
		fd, err := unix.Openat(dir, part, how, 0)
		if mkdir && errors.Is(err, unix.ENOENT) {
			if err := unix.Mkdirat(dir, part, 0o777); err != nil && !errors.Is(err, unix.EEXIST) {
				return failed("making", err)
			}
			fd, err = unix.Openat(dir, part, how, 0)
		}
		if err != nil {
			return failed("opening", err)
		}
		target, err := trustedLink(dir, fd)
		if err != nil {
			unix.Close(fd)
			return nil, fmt.Errorf("opening %s: %q %w", name, part, err)
		}
		next := fd
		if target != "" {
			unix.Close(fd)
			if links++; links > maxLinks {
				return failed("opening", unix.ELOOP)
			}
			rest = append(strings.Split(target, "/"), rest...)
			if !filepath.IsAbs(target) {
				continue
			}
			if next, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
				return failed("opening", err)
			}
		}
		unix.Close(dir)
		dir = next
	}
	again, err := unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return failed("opening", err)
	}
	return os.NewFile(uintptr(again), name), nil
}

// trustedLink returns where a symbolic link in a directory leads, or "" for
// what is not a link. The error says that the link is not to be followed.
func trustedLink(dir, fd int) (string, error) {
	var st, in, top unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", err
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", err
	}
	target := string(buf[:n])
	trusted := st.Uid == 0
	if trusted && os.Geteuid() == 0 {
		if err := errors.Join(unix.Fstat(dir, &in), unix.Stat("/", &top)); err != nil {
			return "", err
		}
		trusted = in.Dev == top.Dev && in.Ino == top.Ino
	}
	if !trusted {
		return "", sandpit.WithHint(fmt.Errorf("is a symbolic link, which a sandbox may have made: %w", sandpit.ErrForbidden), fmt.Sprintf("name what it leads to, if that is meant: %q", target))
	}
	return target, nil
}

// openSource opens a file or directory to be read, and returns its name for
// that, which is good until the file is closed.
func openSource(name string) (f *os.File, again string, err error) {
	if f, err = openPath(name, false); err != nil {
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
