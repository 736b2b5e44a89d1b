package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Packing writes what differs between the file system of a sandbox and the layers below it as the
// tar of a layer (image-spec v1.1, layer.md). Everything in it is hostile. No link is followed:
// every file is opened beneath the root (openat2), on the file system of the root only.
//
//   - A file is unchanged if its change time (st_ctime) is that of the file below. The overlay shows
//     that of the layer until the file is copied up, and nobody can set it. A directory with the
//     change time of the one below was never copied up, so nothing below it was changed. Packing
//     therefore takes time for what was changed, not for the whole image.
//   - What is gone, and what an opaque directory hides, becomes a whiteout by name.
//   - What a layer can't have is left out and noted: sockets, FIFOs and devices, names that start
//     with ".wh.", and the extended attributes that unpacking leaves out, such as user.overlay.*. Other extended
//     attributes than user.* are not noted: nobody inside can set one.
//   - What is mounted in the sandbox is left out: /proc, /dev, /sys, mounts and binds.
//   - Holes count as content, because a layer has none.

// maxPackedXattrs bounds the extended attributes of one file, in bytes: readers refuse a header of
// more than 1 MiB (archive/tar).
const maxPackedXattrs = 512 << 10

// A packer writes the changes of a tree.
type packer struct {
	ctx    context.Context
	tree   Tree
	root   int // descriptor
	mount  uint64
	lower  []int // descriptors of the layers, topmost first
	out    *quotaWriter
	tw     *tar.Writer
	lim    Limits
	about  about
	made   int64
	links  map[fileKey]*linked
	opened map[string]bool // directories whose headers were written
	held   int64           // bytes of links, opened and the directories that wait
	buf    []byte
	keys   []byte // of extended attributes: as many as the kernel lists (XATTR_LIST_MAX)
	value  []byte // of one (XATTR_SIZE_MAX)
}

// A fileKey identifies a file with several names. The times keep files apart that a file system
// gives the same number.
type fileKey struct {
	dev, ino     uint64
	size         int64
	ctime, mtime unix.StatxTimestamp
}

// linked is a file with several names: the first, and how many are still to come.
type linked struct {
	name string
	left uint32
}

// A pending is a directory that is to be looked at, and the layers in which it is.
type pending struct {
	name  string
	lower []int // indexes in packer.lower
}

// packChanges writes the changes of a tree over layers, which are topmost first, as a tar.
func packChanges(ctx context.Context, out *quotaWriter, tree Tree, layers []string, lim Limits) (about, error) {
	p := &packer{ctx: ctx, tree: tree, root: int(tree.Root.Fd()), lim: lim, out: out, tw: tar.NewWriter(out), links: map[fileKey]*linked{}, opened: map[string]bool{}, buf: make([]byte, 128<<10), keys: make([]byte, 64<<10), value: make([]byte, 64<<10)}
	defer func() {
		for _, fd := range p.lower {
			unix.Close(fd)
		}
	}()
	all := make([]int, len(layers))
	for i, dir := range layers {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			return p.about, &fs.PathError{Op: "open", Path: dir, Err: err}
		}
		p.lower, all[i] = append(p.lower, fd), i
	}
	st, err := statAt(p.root, "")
	if err != nil {
		return p.about, fmt.Errorf("looking at the root of the sandbox: %w", err)
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return p.about, fault.Unsupportedf("the kernel does not tell mounts apart (Linux 5.8 does)")
	}
	p.mount = st.Mnt_id
	waiting := []pending{{"", all}}
	for len(waiting) > 0 {
		next := waiting[len(waiting)-1]
		waiting = waiting[:len(waiting)-1]
		p.held -= next.memory()
		more, err := p.directory(next)
		if err != nil {
			if next.name != "" {
				err = fmt.Errorf("packing %s: %w", fault.Clip(fmt.Sprintf("%q", "/"+next.name)), err)
			}
			return p.about, err
		}
		waiting = append(waiting, more...)
	}
	return p.about, p.tw.Close()
}

// statAt looks at a name in a directory, without following a link; "" is the directory itself.
func statAt(dirfd int, name string) (st unix.Statx_t, err error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	for {
		if err = unix.Statx(dirfd, name, flags, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st); err != unix.EINTR {
			return st, err
		}
	}
}

// open opens a file of the tree. O_NONBLOCK: a FIFO, or a file with a lease, holds nobody up.
func (p *packer) open(name string, flags uint64) (int, error) {
	if name == "" {
		name = "."
	}
	fd, err := openTree(p.root, name, flags)
	if err == unix.EACCES || err == unix.EPERM {
		return -1, sandpit.WithHint(fault.Unsupportedf("%s: this program may not read it: %v", fault.Clip(strconv.Quote("/"+name)), err), "make it readable for its owner, or run the server as root")
	}
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: "/" + name, Err: err}
	}
	return fd, nil
}

func openTree(root int, name string, flags uint64) (int, error) {
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NONBLOCK
	}
	for {
		fd, err := unix.Openat2(root, name, &unix.OpenHow{Flags: flags | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: openBeneath})
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// memory returns the bytes of memory that a directory takes while it waits.
func (d pending) memory() int64 { return nameMemory(d.name) + int64(16*len(d.lower)) }

// keep counts what is kept in memory.
func (p *packer) keep(memory int64) error {
	if p.held += memory; p.held > p.lim.Names {
		return fault.Invalidf("it has too many directories or names of files that have several: their names need more than %d bytes of memory", p.lim.Names)
	}
	return nil
}

// directory packs what is directly in a directory, and returns the directories in it that are to be
// looked at.
func (p *packer) directory(d pending) (more []pending, err error) {
	fd, err := p.open(d.name, unix.O_RDONLY|unix.O_DIRECTORY)
	if gone(err) {
		return nil, nil // since it was listed
	}
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), d.name)
	defer dir.Close()
	below := p.openLower(d)
	defer below.close()
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if err := p.entry(d.name, fd, name, below, &more); err != nil {
				return nil, err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return more, p.whiteouts(d.name, fd, below)
}

// gone reports whether an error says that a file was removed or replaced since it was listed.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// lowerDirs are the directories of the layers that one of the tree shows, topmost first.
type lowerDirs struct {
	fds    []int
	layers []int
}

func (l *lowerDirs) close() {
	for _, fd := range l.fds {
		unix.Close(fd)
	}
}

func (p *packer) openLower(d pending) *lowerDirs {
	l := new(lowerDirs)
	name := d.name
	if name == "" {
		name = "."
	}
	for _, i := range d.lower {
		// A directory that can't be opened hides nothing: the overlay has not read it either.
		if fd, err := openTree(p.lower[i], name, unix.O_RDONLY|unix.O_DIRECTORY); err == nil {
			l.fds, l.layers = append(l.fds, fd), append(l.layers, i)
		}
	}
	return l
}

// find looks a name up in the layers as overlayfs does. It returns the file that the overlay shows if
// nothing covers it, the layers of a directory, and the first directory of l that has it.
func (l *lowerDirs) find(name string) (st unix.Statx_t, layers []int, first int, ok bool) {
	for i, fd := range l.fds {
		s, err := statAt(fd, name)
		if err != nil {
			continue
		}
		if s.Mode&unix.S_IFMT == unix.S_IFCHR && s.Rdev_major == 0 && s.Rdev_minor == 0 { // a whiteout
			return st, layers, first, ok
		}
		dir := s.Mode&unix.S_IFMT == unix.S_IFDIR
		if !ok {
			st, first, ok = s, i, true
		} else if !dir {
			return st, layers, first, ok
		}
		if !dir {
			return st, nil, first, ok
		}
		layers = append(layers, l.layers[i])
		if isOpaque(fd, name) {
			return st, layers, first, ok
		}
	}
	return st, layers, first, ok
}

func isOpaque(dirfd int, name string) bool {
	fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var value [1]byte
	n, err := unix.Fgetxattr(fd, overlayXattrs+"opaque", value[:])
	return err == nil && n == 1 && value[0] == 'y'
}

// entry packs a name of a directory if it was changed.
func (p *packer) entry(dir string, dirfd int, base string, below *lowerDirs, more *[]pending) error {
	if err := fault.Move(p.ctx); err != nil {
		return err
	}
	name := join(dir, base)
	if p.omits(name) {
		return nil
	}
	st, err := statAt(dirfd, base)
	if gone(err) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "stat", Path: "/" + name, Err: err}
	}
	if st.Mnt_id != p.mount {
		return nil // something is mounted there
	}
	old, layers, _, exists := below.find(base)
	kind := st.Mode & unix.S_IFMT
	if exists && old.Ctime == st.Ctime && old.Mode&unix.S_IFMT == kind {
		return nil
	}
	if strings.HasPrefix(base, whiteoutPrefix) {
		p.about.note("%.200q: it has the name of a whiteout", name)
		return nil
	}
	if _, err := cleanName(name); err != nil {
		return fmt.Errorf("%s: %w", fault.Clip(fmt.Sprintf("%q", "/"+name)), err)
	}
	if kind == unix.S_IFDIR {
		// Its header is written with the first thing in it, unless it is new or was changed itself.
		if !exists || old.Mode&unix.S_IFMT != kind || old.Mode != st.Mode || p.uid(&st) != boundID(int(old.Uid)) || p.gid(&st) != boundID(int(old.Gid)) {
			if err := p.header(name); err != nil {
				return err
			}
		}
		d := pending{name, layers}
		*more = append(*more, d)
		return p.keep(d.memory())
	}
	return p.file(dir, name, &st)
}

// omits reports whether a path, or what it is in, is left out.
func (p *packer) omits(name string) bool {
	return slices.ContainsFunc(p.tree.Omit, func(o string) bool {
		rest, in := strings.CutPrefix("/"+name, o)
		return in && (rest == "" || rest[0] == '/')
	})
}

func (p *packer) uid(st *unix.Statx_t) int { return p.tree.UIDs.inside(st.Uid) }
func (p *packer) gid(st *unix.Statx_t) int { return p.tree.GIDs.inside(st.Gid) }

// common returns what the headers of all kinds of files have.
func (p *packer) common(name string, st *unix.Statx_t) *tar.Header {
	return &tar.Header{
		Name: name, Mode: int64(st.Mode & 0o7777), Uid: p.uid(st), Gid: p.gid(st),
		ModTime: time.Unix(st.Mtime.Sec, 0), Format: tar.FormatPAX,
	}
}

// write writes a header, and counts it.
func (p *packer) write(hdr *tar.Header) error {
	if p.made++; p.made > p.lim.Entries {
		return fault.Invalidf("more than %d files were changed", p.lim.Entries)
	}
	p.about.entries++
	if err := p.out.take(entryBytes); err != nil {
		return err
	}
	return p.tw.WriteHeader(hdr)
}

// header writes the headers of a directory and of those that it is in, once: a layer that has only
// what is in a directory would give that other attributes.
func (p *packer) header(dir string) error {
	if dir == "" || p.opened[dir] {
		return nil
	}
	if err := p.header(path.Dir("/" + dir)[1:]); err != nil {
		return err
	}
	fd, err := p.open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	st, err := statAt(fd, "")
	if err != nil {
		return &fs.PathError{Op: "stat", Path: "/" + dir, Err: err}
	}
	hdr := p.common(dir+"/", &st)
	hdr.Typeflag = tar.TypeDir
	p.xattrs(fd, hdr)
	p.opened[dir] = true
	if err := p.keep(nameMemory(dir)); err != nil {
		return err
	}
	return p.write(hdr)
}

// file packs what is not a directory.
func (p *packer) file(dir, name string, st *unix.Statx_t) error {
	hdr := p.common(name, st)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFLNK:
		hdr.Typeflag = tar.TypeSymlink
		fd, err := p.open(name, unix.O_PATH)
		if gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, "", target)
		if err != nil {
			return &fs.PathError{Op: "readlink", Path: "/" + name, Err: err}
		}
		hdr.Linkname = string(target[:n])
		if err := p.header(dir); err != nil {
			return err
		}
		return p.write(hdr)
	case unix.S_IFSOCK:
		if p.tree.Sockets == "" || !strings.HasPrefix("/"+name, p.tree.Sockets) {
			p.about.note("%.200q: a socket", name)
		}
		return nil
	case unix.S_IFIFO:
		p.about.note("%.200q: a FIFO", name)
		return nil
	default:
		p.about.note("%.200q: a device", name)
		return nil
	}
	if err := p.header(dir); err != nil {
		return err
	}
	key := fileKey{dev: unix.Mkdev(st.Dev_major, st.Dev_minor), ino: st.Ino, size: int64(st.Size), ctime: st.Ctime, mtime: st.Mtime}
	if first := p.links[key]; first != nil {
		if first.left--; first.left == 0 {
			delete(p.links, key)
			p.held -= nameMemory(first.name)
		}
		hdr.Typeflag, hdr.Linkname = tar.TypeLink, first.name
		return p.write(hdr)
	}
	fd, err := p.open(name, unix.O_RDONLY)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// It may have been replaced since it was looked at.
	now, err := statAt(fd, "")
	if err != nil {
		return &fs.PathError{Op: "stat", Path: "/" + name, Err: err}
	}
	if now.Mode&unix.S_IFMT != unix.S_IFREG || now.Mnt_id != p.mount {
		return nil
	}
	hdr = p.common(name, &now)
	hdr.Typeflag, hdr.Size = tar.TypeReg, int64(now.Size)
	if p.about.bytes += hdr.Size; hdr.Size < 0 || p.about.bytes > p.lim.LayerBytes || p.about.bytes < 0 {
		return fault.Invalidf("%s: the changed files have more than %d bytes, in which holes count", fault.Clip(fmt.Sprintf("%q", "/"+name)), p.lim.LayerBytes)
	}
	p.xattrs(fd, hdr)
	if now.Nlink > 1 {
		if err := p.keep(nameMemory(name)); err != nil {
			return err
		}
		p.links[fileKey{dev: unix.Mkdev(now.Dev_major, now.Dev_minor), ino: now.Ino, size: int64(now.Size), ctime: now.Ctime, mtime: now.Mtime}] = &linked{name, now.Nlink - 1}
	}
	if err := p.write(hdr); err != nil {
		return err
	}
	return p.content(fd, hdr)
}

// content writes the content of a file: as many bytes as its header says, with zeros for what is
// missing because the file was truncated meanwhile.
func (p *packer) content(fd int, hdr *tar.Header) error {
	for left := hdr.Size; left > 0; {
		if err := fault.Move(p.ctx); err != nil {
			return err
		}
		buf := p.buf[:min(left, int64(len(p.buf)))]
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return &fs.PathError{Op: "read", Path: "/" + hdr.Name, Err: err}
		}
		if n == 0 {
			clear(buf)
			n = len(buf)
		}
		if _, err := p.tw.Write(buf[:n]); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

// xattrs adds the extended attributes of an open file that a layer may have.
func (p *packer) xattrs(fd int, hdr *tar.Header) {
	n, err := unix.Flistxattr(fd, p.keys)
	if err != nil || n == 0 {
		return
	}
	total, count := 0, 0
	for key := range strings.SplitSeq(string(p.keys[:n]), "\x00") {
		if !strings.HasPrefix(key, "user.") {
			continue
		}
		if strings.HasPrefix(key, overlayXattrs) {
			p.about.note("%.200q: extended attribute %.100q", hdr.Name, key)
			continue
		}
		size, err := unix.Fgetxattr(fd, key, p.value)
		if err != nil {
			continue
		}
		total += len(key) + size
		if count++; count > maxXattrs || total > maxPackedXattrs || strings.Contains(key, "=") {
			p.about.note("%.200q: extended attribute %.100q", hdr.Name, key)
			continue
		}
		if hdr.PAXRecords == nil {
			hdr.PAXRecords = map[string]string{}
		}
		hdr.PAXRecords["SCHILY.xattr."+key] = string(p.value[:size])
	}
}

// whiteouts writes what the layers have in a directory and the tree has not.
func (p *packer) whiteouts(dir string, dirfd int, below *lowerDirs) error {
	for i, fd := range below.fds {
		// Another description of the directory, which starts at its beginning.
		again, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "open", Path: "/" + dir, Err: err}
		}
		f := os.NewFile(uintptr(again), dir)
		for {
			names, err := f.Readdirnames(1024)
			for _, base := range names {
				if err := p.whiteout(dir, dirfd, base, i, below); err != nil {
					f.Close()
					return err
				}
			}
			if err != nil {
				f.Close()
				if err == io.EOF {
					break
				}
				return err
			}
		}
	}
	return nil
}

// whiteout writes a whiteout for a name that the i-th of some lower directories has, if it is gone.
func (p *packer) whiteout(dir string, dirfd int, base string, i int, below *lowerDirs) error {
	if err := fault.Move(p.ctx); err != nil {
		return err
	}
	if _, err := statAt(dirfd, base); err != unix.ENOENT {
		return nil
	}
	name := join(dir, base)
	_, _, first, ok := below.find(base)
	if !ok || first != i || p.omits(name) || strings.HasPrefix(base, whiteoutPrefix) {
		return nil
	}
	if err := p.header(dir); err != nil {
		return err
	}
	hdr := &tar.Header{Typeflag: tar.TypeReg, Name: join(dir, whiteoutPrefix+base), Format: tar.FormatPAX}
	if len(whiteoutPrefix+base) > maxName {
		return fault.Invalidf("%s was removed, but its name is too long for a whiteout", fault.Clip(strconv.Quote("/"+name)))
	}
	return p.write(hdr)
}
