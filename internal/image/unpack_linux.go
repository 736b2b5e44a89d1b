package image

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Unpacking turns the tar of one layer into a directory that overlayfs reads
// as one (image-spec v1.1, layer.md; Documentation/filesystems/overlayfs.rst).
// A layer is unpacked alone, never on top of another, so a symbolic link of a
// lower layer is of no account. These are the rules; whatever breaks them makes
// the whole layer be refused, unless it says "left out", which is recorded
// with the layer and shown by Inspect.
//
//   - Names: no "..", no NUL, components of at most 255 bytes, maxDepth of
//     them, maxPath bytes in all. Leading slashes and "." are dropped.
//   - A directory on the way to a file that is a symbolic link of the same layer is
//     followed, inside: its target is read as if the layer's directory were /,
//     and ".." stops there. Every file is then made in a directory that has
//     been opened without following any link (openat2), and never through a
//     link of its own name.
//   - Hard links lead to regular files or symbolic links of the same layer.
//   - A later entry replaces an earlier one of the same name.
//   - ".wh.NAME" becomes a whiteout (a character device 0:0), unless the layer
//     itself has NAME: then it hides only what is below, as the specification
//     wants it. ".wh..wh..opq" makes its directory opaque. Other names that start
//     with ".wh." are left out, and so is what is in directories named so.
//   - Devices, FIFOs and sockets are left out: nobody needs them in an image,
//     and a device 0:0 would be a whiteout that no .wh. entry has asked for.
//   - Set-user-id bits are kept. They gain nobody anything: a sandbox's mounts are
//     nosuid, its processes have no_new_privs, and on the host nobody
//     but the store's owner can reach them (see Store).
//   - Of extended attributes, user.* is kept, but not user.overlay.*, which
//     would speak to overlayfs. All others are left out, security.capability too.
//   - As root, owners are kept; ids above 65534 become 65534. An ordinary
//     user owns everything that is unpacked, and may read and write it.

const (
	maxName    = 255     // bytes of a component (NAME_MAX)
	maxDepth   = 512     // components; also keeps recursive removal within its descriptors
	maxLinks   = 40      // symbolic links on the way to a file, as in Linux
	maxXattrs  = 64      // of one file
	maxSeconds = 1 << 33 // the year 2242; more than that fits no file system's idea of time
)

// overlayXattrs begins the names of the extended attributes that overlayfs reads in layers, with the option userxattr.
const overlayXattrs = "user.overlay."

// maxOpenDirs bounds the directories that are kept open; an entry adds two at most.
const maxOpenDirs = 128

const (
	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh."
	whiteoutOpaque = ".wh..wh..opq"
)

const openBeneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// An unpacker fills one directory.
type unpacker struct {
	root       *os.Root // for removal
	fd         int      // of the directory
	keepOwners bool
	lim        Limits
	compressed int64
	about      about
	made       int64 // entries, and directories made on the way to them
	held       int64 // bytes of times

	dirs  map[string]openDir       // names as given -> open directories
	times map[string]unix.Timespec // of directories, by real name; set at the end
	buf   []byte
}

// An openDir is a directory that has been opened, and its real name.
type openDir struct {
	fd   int
	real string
}

// unpackTar unpacks a tar into an empty directory. After an error the directory is incomplete.
func unpackTar(dir string, r io.Reader, lim Limits, compressed int64) (about, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return about{}, err
	}
	defer root.Close()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return about{}, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	u := &unpacker{
		root: root, fd: fd, keepOwners: os.Getuid() == 0, lim: lim, compressed: compressed,
		dirs: make(map[string]openDir), times: make(map[string]unix.Timespec), buf: make([]byte, 128<<10),
	}
	defer u.forget()

	tr := tar.NewReader(r)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return u.about, badTar(err)
		}
		if err := u.count(1); err != nil {
			return u.about, err
		}
		u.about.entries++
		if len(u.dirs) >= maxOpenDirs { // only here, where no entry is using one
			u.forget()
		}
		if err := u.entry(hdr, tr); err != nil {
			return u.about, fmt.Errorf("entry %s: %w", fault.Clip(fmt.Sprintf("%q", hdr.Name)), err)
		}
	}
	for name, t := range u.times {
		d, err := u.openReal(name)
		if err != nil {
			continue // replaced by something else
		}
		err = unix.UtimesNanoAt(d, ".", []unix.Timespec{t, t}, 0)
		unix.Close(d)
		if err != nil {
			return u.about, &fs.PathError{Op: "set times of", Path: name, Err: err}
		}
	}
	return u.about, nil
}

func (u *unpacker) count(n int64) error {
	if u.made += n; u.made > u.lim.Entries {
		return fault.Invalidf("the layer has more than %d entries", u.lim.Entries)
	}
	return nil
}

// cleanName checks a name from an archive: the result is relative, free of "."
// and "..", and empty for the root itself.
func cleanName(name string) (string, error) {
	if len(name) > maxPath {
		return "", fault.Invalidf("its name is longer than %d bytes", maxPath)
	}
	if strings.IndexByte(name, 0) >= 0 {
		return "", fault.Invalidf("its name contains a NUL byte")
	}
	var parts []string
	for p := range strings.SplitSeq(name, "/") {
		switch {
		case p == "" || p == ".":
		case p == "..":
			return "", fault.Invalidf("its name leads outside of the layer")
		case len(p) > maxName:
			return "", fault.Invalidf("its name has a part of more than %d bytes", maxName)
		default:
			parts = append(parts, p)
		}
	}
	if len(parts) > maxDepth {
		return "", fault.Invalidf("it is more than %d directories deep", maxDepth)
	}
	return strings.Join(parts, "/"), nil
}

func split(name string) (dir, base string) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return "", name
	}
	return name[:i], name[i+1:]
}

// entry unpacks one entry.
func (u *unpacker) entry(hdr *tar.Header, r io.Reader) error {
	switch hdr.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeDir, tar.TypeReg, tar.TypeRegA, tar.TypeCont, tar.TypeGNUSparse, tar.TypeSymlink, tar.TypeLink: //nolint:staticcheck // old archives have TypeRegA
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
	default:
		u.about.note("%.200q: of an unknown type %q", hdr.Name, hdr.Typeflag)
		return nil
	}
	name, err := cleanName(hdr.Name)
	if err != nil {
		return err
	}
	dir, base := split(name)
	if strings.HasPrefix(dir, whiteoutPrefix) || strings.Contains(dir, "/"+whiteoutPrefix) {
		u.about.note("%.200q: in a directory with the name of a whiteout", hdr.Name)
		return nil
	}
	if strings.HasPrefix(base, whiteoutPrefix) {
		return u.whiteout(hdr.Name, dir, base)
	}
	if name == "" {
		if hdr.Typeflag != tar.TypeDir {
			return fault.Invalidf("it would replace the root")
		}
		return u.finishDir(openDir{u.fd, ""}, hdr)
	}
	switch hdr.Typeflag {
	case tar.TypeDir:
		return u.directory(dir, base, hdr)
	case tar.TypeSymlink:
		return u.symlink(dir, base, hdr)
	case tar.TypeLink:
		return u.hardlink(dir, base, hdr)
	case tar.TypeChar, tar.TypeBlock:
		u.about.note("%.200q: a device", hdr.Name)
		return nil
	case tar.TypeFifo:
		u.about.note("%.200q: a FIFO", hdr.Name)
		return nil
	}
	return u.regular(dir, base, hdr, r)
}

// whiteout hides something of the layers below.
func (u *unpacker) whiteout(given, dir, base string) error {
	target := strings.TrimPrefix(base, whiteoutPrefix)
	switch {
	case base == whiteoutOpaque:
		d, err := u.parent(dir)
		if err != nil {
			return err
		}
		return u.opaque(d.fd, ".")
	case strings.HasPrefix(base, whiteoutMeta) || target == "" || target == "." || target == "..":
		u.about.note("%.200q: a whiteout without a name", given)
		return nil
	}
	d, err := u.parent(dir)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstatat(d.fd, target, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return u.opaque(d.fd, target)
	case err == nil:
		return nil // the layer's own file hides what is below as well
	case err != unix.ENOENT:
		return &fs.PathError{Op: "stat", Path: target, Err: err}
	}
	if err := unix.Mknodat(d.fd, target, unix.S_IFCHR, 0); err != nil {
		return &fs.PathError{Op: "make whiteout", Path: target, Err: err}
	}
	return nil
}

// opaque makes a directory hide what the layers below have in it.
func (u *unpacker) opaque(dirfd int, name string) error {
	fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Fsetxattr(fd, overlayXattrs+"opaque", []byte("y"), 0); err != nil {
		return &fs.PathError{Op: "make opaque", Path: name, Err: err}
	}
	return nil
}

func (u *unpacker) directory(dir, base string, hdr *tar.Header) error {
	d, old, err := u.place(dir, base, true)
	if err != nil {
		return err
	}
	if old != placeDir {
		if err := unix.Mkdirat(d.fd, base, 0o700); err != nil {
			return &fs.PathError{Op: "mkdir", Path: base, Err: err}
		}
	}
	fd, err := unix.Openat(d.fd, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: base, Err: err}
	}
	defer unix.Close(fd)
	if old == placeOther {
		// What was there has hidden what the layers below have of that name.
		if err := u.opaque(fd, "."); err != nil {
			return err
		}
	}
	return u.finishDir(openDir{fd, join(d.real, base)}, hdr)
}

func join(dir, base string) string {
	if dir == "" {
		return base
	}
	return dir + "/" + base
}

// finishDir gives a directory its attributes, all but the times.
func (u *unpacker) finishDir(d openDir, hdr *tar.Header) error {
	mode := uint32(hdr.Mode) & 0o7777
	if !u.keepOwners {
		mode |= 0o700
	}
	if err := u.attributes(d.fd, hdr, mode); err != nil {
		return err
	}
	if _, again := u.times[d.real]; !again {
		if u.held += nameMemory(d.real); u.held > u.lim.Names {
			return fault.Invalidf("the layer has too many directories: their names need more than %d bytes of memory", u.lim.Names)
		}
	}
	u.times[d.real] = timeOf(hdr)
	return nil
}

func (u *unpacker) regular(dir, base string, hdr *tar.Header, r io.Reader) error {
	d, _, err := u.place(dir, base, false)
	if err != nil {
		return err
	}
	fd, err := unix.Openat(d.fd, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &fs.PathError{Op: "create", Path: base, Err: err}
	}
	defer unix.Close(fd)
	for {
		n, rerr := r.Read(u.buf)
		u.about.bytes += int64(n)
		// The stream is held to the limits too; but a sparse file is larger
		// than its part of the stream.
		if u.about.bytes > u.lim.LayerBytes {
			return fault.Invalidf("the layer's files are larger than %d bytes", u.lim.LayerBytes)
		}
		if u.about.bytes > u.lim.RatioFloor && u.about.bytes/u.lim.Ratio > u.compressed {
			return fault.Invalidf("the layer's files are more than %d times as large as the layer: a decompression bomb", u.lim.Ratio)
		}
		if err := writeAll(fd, u.buf[:n]); err != nil {
			return &fs.PathError{Op: "write", Path: base, Err: err}
		}
		if rerr == io.EOF {
			break
		}
		if rerr != nil {
			return badTar(rerr)
		}
	}
	mode := uint32(hdr.Mode) & 0o7777
	if !u.keepOwners {
		mode |= 0o600
	}
	if err := u.attributes(fd, hdr, mode); err != nil {
		return err
	}
	return setTimes(d.fd, base, hdr)
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// attributes sets the owner, mode and extended attributes of an open file.
func (u *unpacker) attributes(fd int, hdr *tar.Header, mode uint32) error {
	if u.keepOwners {
		if err := unix.Fchown(fd, boundID(hdr.Uid), boundID(hdr.Gid)); err != nil {
			return &fs.PathError{Op: "chown", Path: hdr.Name, Err: err}
		}
	}
	if err := u.xattrs(fd, hdr); err != nil {
		return err
	}
	// After the chown, which takes set-user-id bits away.
	if err := unix.Fchmod(fd, mode); err != nil {
		return &fs.PathError{Op: "chmod", Path: hdr.Name, Err: err}
	}
	return nil
}

func (u *unpacker) xattrs(fd int, hdr *tar.Header) error {
	const prefix = "SCHILY.xattr." // star's, and everybody's
	n := 0
	for key, value := range hdr.PAXRecords {
		key, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		if n++; n > maxXattrs {
			return fault.Invalidf("it has more than %d extended attributes", maxXattrs)
		}
		if !strings.HasPrefix(key, "user.") || strings.HasPrefix(key, overlayXattrs) || len(key) > 255 || strings.IndexByte(key, 0) >= 0 {
			u.about.note("%.200q: extended attribute %.100q", hdr.Name, key)
			continue
		}
		err := unix.Fsetxattr(fd, key, []byte(value), 0)
		switch err {
		case nil:
		case unix.EOPNOTSUPP, unix.E2BIG, unix.ERANGE, unix.ENOSPC:
			// ENOSPC: file systems say so when an attribute does not fit into
			// the inode; a full disk shows with the next file.
			u.about.note("%.200q: extended attribute %.100q: %v", hdr.Name, key, err)
		default:
			return &fs.PathError{Op: "set attribute of", Path: hdr.Name, Err: err}
		}
	}
	return nil
}

func (u *unpacker) symlink(dir, base string, hdr *tar.Header) error {
	if hdr.Linkname == "" || len(hdr.Linkname) > maxPath || strings.IndexByte(hdr.Linkname, 0) >= 0 {
		return fault.Invalidf("it is a symbolic link with an invalid target")
	}
	d, _, err := u.place(dir, base, false)
	if err != nil {
		return err
	}
	if err := unix.Symlinkat(hdr.Linkname, d.fd, base); err != nil {
		return &fs.PathError{Op: "symlink", Path: base, Err: err}
	}
	if u.keepOwners {
		if err := unix.Fchownat(d.fd, base, boundID(hdr.Uid), boundID(hdr.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &fs.PathError{Op: "chown", Path: base, Err: err}
		}
	}
	return setTimes(d.fd, base, hdr)
}

func setTimes(dirfd int, base string, hdr *tar.Header) error {
	t := timeOf(hdr)
	if err := unix.UtimesNanoAt(dirfd, base, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "set times of", Path: base, Err: err}
	}
	return nil
}

func (u *unpacker) hardlink(dir, base string, hdr *tar.Header) error {
	target, err := cleanName(hdr.Linkname)
	if err != nil {
		return fmt.Errorf("target of a hard link: %w", err)
	}
	tdir, tbase := split(target)
	if tbase == "" || strings.HasPrefix(tbase, whiteoutPrefix) {
		return fault.Invalidf("it is a hard link to a file that can't have one")
	}
	d, err := u.parent(dir)
	if err != nil {
		return err
	}
	real := d.real
	// The target's directory must be there: unlike for a file, none is made.
	td, err := u.resolve(tdir, false)
	if err == nil && td.real == real && tbase == base {
		return nil // to itself
	}
	if err == nil {
		err = u.linkable(td.fd, tbase)
	}
	if err != nil {
		return err
	}
	if d, _, err = u.place(dir, base, false); err != nil {
		return err
	}
	// What was in the place of the link may have held the target.
	if td, err = u.resolve(tdir, false); err != nil {
		return err
	}
	if err := unix.Linkat(td.fd, tbase, d.fd, base, 0); err != nil {
		if err == unix.ENOENT {
			return errLinkTarget()
		}
		return &fs.PathError{Op: "link", Path: base, Err: err}
	}
	return nil
}

func errLinkTarget() error {
	return fault.Invalidf("it is a hard link to a file that is not in this layer")
}

// linkable checks what a hard link is to be made of: a whiteout is nothing to
// link to, nor is a directory.
func (u *unpacker) linkable(dirfd int, base string) error {
	var st unix.Stat_t
	err := unix.Fstatat(dirfd, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && err != unix.ENOENT {
		return &fs.PathError{Op: "stat", Path: base, Err: err}
	}
	if kind := st.Mode & unix.S_IFMT; err != nil || kind != unix.S_IFREG && kind != unix.S_IFLNK {
		return errLinkTarget()
	}
	return nil
}

// What place has found.
const (
	placeNothing = iota
	placeDir     // a directory, which is kept
	placeOther   // something else, which has been removed
)

// place opens the directory for a new file and makes room in it.
func (u *unpacker) place(dir, base string, keepDir bool) (openDir, int, error) {
	d, err := u.parent(dir)
	if err != nil {
		return d, 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err == unix.ENOENT {
		return d, placeNothing, nil
	} else if err != nil {
		return d, 0, &fs.PathError{Op: "stat", Path: base, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if keepDir {
			return d, placeDir, nil
		}
		name := join(d.real, base)
		u.forget()
		if err := u.root.RemoveAll(name); err != nil {
			return d, 0, err
		}
		d, err = u.parent(dir)
		return d, placeOther, err
	case unix.S_IFLNK:
		u.forget() // directories may have been opened through it
		if d, err = u.parent(dir); err != nil {
			return d, 0, err
		}
	}
	if err := unix.Unlinkat(d.fd, base, 0); err != nil {
		return d, 0, &fs.PathError{Op: "remove", Path: base, Err: err}
	}
	return d, placeOther, nil
}

// forget closes the directories that are kept open.
func (u *unpacker) forget() {
	for _, d := range u.dirs {
		if d.fd != u.fd {
			unix.Close(d.fd)
		}
	}
	clear(u.dirs)
}

// parent opens the directory of an entry, and makes what is missing of it.
func (u *unpacker) parent(dir string) (openDir, error) { return u.resolve(dir, true) }

// resolve opens a directory by its clean name. The result is good until the
// next call of forget.
func (u *unpacker) resolve(dir string, create bool) (openDir, error) {
	if dir == "" {
		return openDir{u.fd, ""}, nil
	}
	if d, ok := u.dirs[dir]; ok {
		return d, nil
	}
	// Nearly always it is there, and no link in it.
	real := dir
	fd, err := u.openReal(dir)
	if err != nil {
		if real, err = u.follow(dir, create); err != nil {
			return openDir{}, err
		}
		if real == "" {
			return openDir{u.fd, ""}, nil
		}
		if fd, err = u.openReal(real); err != nil {
			return openDir{}, &fs.PathError{Op: "open", Path: real, Err: err}
		}
	}
	d := openDir{fd, real}
	u.dirs[dir] = d
	return d, nil
}

// openReal opens a directory whose name has no link in it: whatever happens
// meanwhile, it lies beneath the layer's directory.
func (u *unpacker) openReal(name string) (int, error) {
	if name == "" {
		name = "."
	}
	for {
		fd, err := unix.Openat2(u.fd, name, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: openBeneath,
		})
		if err != unix.EAGAIN && err != unix.EINTR { // EAGAIN: a rename anywhere on the machine
			return fd, err
		}
	}
}

// follow walks to a directory, follows the links of the layer on its way, and
// makes directories that are missing. It returns the name without links.
func (u *unpacker) follow(dir string, create bool) (string, error) {
	var real []string
	todo := strings.Split(dir, "/")
	links := 0
	for len(todo) > 0 {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if len(real) > 0 {
				real = real[:len(real)-1]
			}
			continue
		}
		in := strings.Join(real, "/")
		if len(part) > maxName || len(real) >= maxDepth || len(in)+1+len(part) > maxPath {
			return "", fault.Invalidf("the symbolic links in its path are nested too deeply")
		}
		fd, err := u.openReal(in)
		if err != nil {
			return "", &fs.PathError{Op: "open", Path: in, Err: err}
		}
		target, err := u.step(fd, in, part, create)
		unix.Close(fd)
		if err != nil {
			return "", err
		}
		if target == "" {
			real = append(real, part)
			continue
		}
		if links++; links > maxLinks {
			return "", fault.Invalidf("its path contains too many symbolic links")
		}
		if path.IsAbs(target) {
			real = nil
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return strings.Join(real, "/"), nil
}

// step looks at one part of a way: it returns the target of a link, or nothing
// for a directory, which it makes if it is missing.
func (u *unpacker) step(dirfd int, in, part string, create bool) (target string, err error) {
	var st unix.Stat_t
	switch err := unix.Fstatat(dirfd, part, &st, unix.AT_SYMLINK_NOFOLLOW); err {
	case nil:
	case unix.ENOENT:
		if !create {
			return "", errLinkTarget()
		}
		return "", u.makeDir(dirfd, join(in, part))
	default:
		return "", &fs.PathError{Op: "stat", Path: part, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "", nil
	case unix.S_IFLNK:
		buf := make([]byte, maxPath+1)
		n, err := unix.Readlinkat(dirfd, part, buf)
		if err != nil || n == 0 || n > maxPath {
			return "", fault.Invalidf("its path contains an unusable symbolic link")
		}
		return string(buf[:n]), nil
	case unix.S_IFCHR: // a whiteout: the directory is the layer's own
		if !create {
			return "", errLinkTarget()
		}
		if err := unix.Unlinkat(dirfd, part, 0); err != nil {
			return "", &fs.PathError{Op: "remove", Path: part, Err: err}
		}
		if err := u.makeDir(dirfd, join(in, part)); err != nil {
			return "", err
		}
		return "", u.opaque(dirfd, part)
	}
	return "", fault.Invalidf("its path contains a file instead of a directory")
}

// makeDir makes a directory that the layer does not list itself, with the mode
// that one of its name mostly has: overlayfs shows the mode of the topmost.
func (u *unpacker) makeDir(dirfd int, name string) error {
	if err := u.count(1); err != nil {
		return err
	}
	mode := uint32(0o755)
	_, base := split(name)
	switch name {
	case "tmp", "var/tmp":
		mode = 0o1777
	case "root":
		mode = 0o700
	}
	if err := unix.Mkdirat(dirfd, base, 0o700); err != nil {
		return &fs.PathError{Op: "mkdir", Path: name, Err: err}
	}
	// Not left to the umask.
	if err := unix.Fchmodat(dirfd, base, mode, 0); err != nil {
		return &fs.PathError{Op: "chmod", Path: name, Err: err}
	}
	return nil
}

// timeOf returns the time of an entry, in bounds.
func timeOf(hdr *tar.Header) unix.Timespec {
	t := hdr.ModTime
	if sec := t.Unix(); sec < 0 || sec > maxSeconds {
		t = time.Unix(0, 0)
	}
	return unix.NsecToTimespec(t.UnixNano())
}

func syncFS(fd int) error {
	if err := unix.Syncfs(fd); err != nil && err != syscall.ENOSYS {
		return os.NewSyscallError("syncfs", err)
	}
	return nil
}
