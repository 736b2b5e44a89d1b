package linux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/mountinfo"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// A data directory has the sockets of a server and of guests, and its files are
// of the user who makes sandboxes. No sandbox may see one: a socket can be
// connected to on a read-only mount, too. A mount of what is in a data directory
// is refused. A mount that contains one gets a cover: an empty read-only
// directory, mounted on the data directory inside the sandbox before anything
// of the sandbox runs.
//
// A mount is on a directory, not on a path: a cover stays on the data directory
// whatever becomes of its path. In a writable mount each directory between the
// top of the mount and the data directory is pinned: the kernel does not rename
// or remove a directory on which anything is mounted in the caller's mount
// namespace, whichever mount it is seen by. A sandbox could otherwise move a parent
// of the data directory to where another mount shows it, without the cover. So
// the tree is attached twice: first one with covers on all those directories,
// and over it, so that no path leads to the first, the one that the sandbox sees.
//
// Whether a mount contains a data directory is found out by the file systems of
// both and the paths within these, as the kernel tells them, and not by paths of
// the host, of which there may be several for one directory (bind mounts, links).

// fileID tells a directory from any other as long as it exists.
type fileID struct {
	major, minor uint32
	ino          uint64
}

func idOf(st *unix.Stat_t) fileID {
	return fileID{unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)), st.Ino}
}

// cover is a data directory in a tree that goes into a sandbox.
type cover struct {
	tree int    // its number in trees
	path string // below the top of the tree
	id   fileID
	pin  bool // the directories above it must stay where they are
}

// located is a directory or file as the kernel knows it.
type located struct {
	id    fileID
	dev   string // of its file system, MAJOR:MINOR
	below string // its path within that
	path  string // on the host, without links
}

// hostMountpoint is a mount of the host.
type hostMountpoint struct {
	dev, root, point string
}

// mountTable is what is mounted on the host, by mount id.
type mountTable map[uint64]hostMountpoint

// readMounts reads /proc/self/mountinfo, or that of another process.
func readMounts(process string) (mountTable, error) {
	data, err := os.ReadFile("/proc/" + process + "/mountinfo")
	if err != nil {
		return nil, err
	}
	t := make(mountTable, bytes.Count(data, []byte{'\n'}))
	for m := range mountinfo.All(data) {
		t[m.ID] = hostMountpoint{string(m.Dev), m.Root(), m.Point()}
	}
	return t, nil
}

// locate finds out what a path of the host is.
func (t mountTable) locate(name string, resolve uint64) (located, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve})
	if err != nil {
		return located{}, &fs.PathError{Op: "opening", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	var more unix.Statx_t
	if err := errors.Join(unix.Fstat(fd, &st), unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &more)); err != nil {
		return located{}, &fs.PathError{Op: "looking at", Path: name, Err: err}
	}
	whole, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return located{}, err
	}
	m, ok := t[more.Mnt_id]
	rest, in := relative(whole, m.point)
	if !ok || !in || more.Mask&unix.STATX_MNT_ID == 0 || st.Nlink == 0 {
		return located{}, fmt.Errorf("looking at %s: /proc/self/mountinfo does not show where it is mounted: %w", name, sandpit.ErrUnsupported)
	}
	return located{idOf(&st), m.dev, path.Join(m.root, rest), whole}, nil
}

// relative returns the path of p below dir, "" for dir itself.
func relative(p, dir string) (string, bool) {
	if p == dir {
		return "", true
	}
	return strings.CutPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// findCovers finds the data directories that the trees of the plan contain.
func (c *creation) findCovers() error {
	ts, opts := trees(c.plan), &c.driver.opts
	for i := range ts {
		// See openTree; nor does an overlay show what is mounted below its parts.
		ts[i].recursive = ts[i].recursive && !c.ids.mapped && !(ts[i].owned && c.mounts[ts[i].mount].NoSockets)
	}
	if len(c.plan.Mounts) == 0 && !slices.ContainsFunc(ts, func(t tree) bool { return !t.owned && holdsOne(t.path, opts.Private) }) {
		return nil // as nearly always: the host image shows no data directory
	}
	table, err := readMounts("self")
	if err != nil {
		return fmt.Errorf("looking for data directories in mounts: %w", err)
	}
	private := c.driver.private()
	made := len(private) // those after it are not made
	if opts.PrivateOfOthers != nil {
		// Only by their paths: the file system of somebody's home directory may
		// be one that does not answer.
		for _, dir := range opts.PrivateOfOthers() {
			if slices.ContainsFunc(ts, func(t tree) bool { return holdsOne(t.path, []string{dir}) || holdsOne(dir, []string{t.path}) }) {
				private = append(private, dir)
			}
		}
	}
	var dirs []located
	for i, dir := range private {
		if i >= made && leadsAway(dir) {
			continue
		}
		at, err := table.locate(dir, 0)
		if isOutOfReach(err) && i < made {
			at, err = c.makePrivate(table, ts, dir)
		}
		switch {
		case errors.Is(err, errNotShown), isOutOfReach(err) && i >= made:
			continue
		case err != nil:
			return sandpit.WithHint(fmt.Errorf("looking for data directories in mounts: %w", err), "let this user make and reach it, or mount another directory")
		}
		parts, err := table.parts(at, i < made)
		if err != nil {
			return fmt.Errorf("looking for data directories in mounts: %w", err)
		}
		for _, part := range parts {
			if !slices.Contains(dirs, part) {
				dirs = append(dirs, part)
			}
		}
	}
	for i, t := range ts {
		if !t.owned && !holdsOne(t.path, private) {
			continue
		}
		top, err := table.locate(t.path, unix.RESOLVE_NO_SYMLINKS)
		if err != nil {
			return fmt.Errorf("mounting %s: %w", t.path, err)
		}
		if t.owned && top.id != c.mounts[t.mount].id {
			return errMoved(t.path, nil)
		}
		for _, dir := range dirs {
			if err := c.coverIn(table, i, t, top, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// private returns the directories of this user that no sandbox may see.
func (d *Driver) private() []string {
	if os.Geteuid() != 0 {
		return slices.Clone(d.opts.Private)
	}
	return append(slices.Clone(d.opts.Private), path.Dir(idClaims)) // who can read it can hold all ranges
}

// Exposed looks for data directories of this user in the mounts of the sandbox.
// See driver.Exposer.
func (i *instance) Exposed() string {
	host, herr := readMounts("self")
	inside, err := readMounts(strconv.Itoa(i.child.PID))
	if herr != nil || err != nil {
		return "" // it can't be told
	}
	for _, dir := range i.driver.private() {
		at, err := host.locate(dir, 0)
		if err != nil {
			continue
		}
		parts, _ := host.parts(at, true)
		for _, part := range parts {
			if inside.shows(part) {
				return part.path
			}
		}
	}
	return ""
}

// shows reports whether the mounts of a sandbox show a data directory, or a part
// of it, without a cover.
func (t mountTable) shows(dir located) bool {
	for _, m := range t {
		rest, in := relative(dir.below, m.root)
		if !in {
			_, in = relative(m.root, dir.below)
		}
		if !in || m.dev != dir.dev {
			continue
		}
		at, covered := path.Join(m.point, rest), false
		for _, c := range t {
			_, below := relative(at, c.point)
			covered = covered || below && c.root == "/"+coverDir
		}
		if !covered {
			return true
		}
	}
	return false
}

// parts returns a data directory, what is mounted below it, and with links also
// the directories to which links in it lead: each is a data directory, too. Others'
// links are not followed: they lead where those like.
func (t mountTable) parts(dir located, links bool) ([]located, error) {
	all := []located{dir}
	add := func(name string, links bool) error {
		at, err := t.locate(name+"/", 0) // a directory
		switch {
		case isOutOfReach(err):
			return nil
		case err != nil:
			return err
		case !links:
			all = append(all, at)
			return nil
		}
		more, err := t.parts(at, false)
		all = append(all, more...)
		return err
	}
	for _, m := range t {
		if rest, in := relative(m.point, dir.path); in && rest != "" {
			if err := add(m.point, false); err != nil {
				return nil, err
			}
		}
	}
	if !links {
		return all, nil
	}
	entries, err := os.ReadDir(dir.path)
	if err != nil && !isOutOfReach(err) {
		return nil, err
	}
	for _, e := range entries {
		if e.Type() == fs.ModeSymlink {
			if err := add(path.Join(dir.path, e.Name()), true); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// leadsAway reports whether a path is a link of one user to what belongs to another:
// anybody could have root's mounts refused, or things hidden in them, by such.
func leadsAway(name string) bool {
	var link, dir unix.Stat_t
	return unix.Lstat(name, &link) == nil && unix.Stat(name, &dir) == nil && link.Uid != dir.Uid
}

// holdsOne reports whether one of dirs is in a directory, going by their paths.
func holdsOne(dir string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(p string) bool {
		_, in := relative(filepath.Clean(p), dir)
		return in
	})
}

// errNotShown says that no mount shows the place of a data directory that does
// not exist, or can't be made by anyone.
var errNotShown = errors.New("no mount shows it")

// isOutOfReach reports whether an error says that a path leads nowhere, or
// nowhere for this user.
func isOutOfReach(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, fs.ErrPermission)
}

// makePrivate makes a data directory that does not exist, if a mount would show
// it: it can be covered only where it is, and a server may make it later. One
// that is out of reach only now, because a sandbox has changed the mode of a
// directory above it, is an error.
func (c *creation) makePrivate(table mountTable, ts []tree, dir string) (located, error) {
	above := filepath.Clean(dir)
	at, err := located{}, fs.ErrNotExist
	for isOutOfReach(err) && above != "/" {
		above = filepath.Dir(above)
		at, err = table.locate(above, 0)
	}
	if err != nil {
		return located{}, err
	}
	inside := slices.ContainsFunc(ts, func(t tree) bool {
		top, err := table.locate(t.path, unix.RESOLVE_NO_SYMLINKS)
		if err != nil || !t.owned {
			return false
		}
		for _, v := range table.shown(t.recursive, top) {
			if _, in := relative(at.below, v.root); in && at.dev == v.dev {
				return true
			}
		}
		return false
	})
	if !inside {
		return located{}, errNotShown
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		if errors.Is(err, unix.EROFS) {
			err = errNotShown
		}
		return located{}, err
	}
	return table.locate(dir, 0)
}

// shown returns what a tree shows of file systems, with paths below its top as
// mount points.
func (t mountTable) shown(recursive bool, top located) []hostMountpoint {
	all := []hostMountpoint{{top.dev, top.below, ""}}
	if recursive {
		for _, m := range t {
			if rest, in := relative(m.point, top.path); in && rest != "" {
				all = append(all, hostMountpoint{m.dev, m.root, rest})
			}
		}
	}
	return all
}

// coverIn adds the covers that a tree needs for a data directory.
func (c *creation) coverIn(table mountTable, i int, t tree, top, dir located) error {
	hint := "mount another directory; a sandbox gets no part of a data directory"
	_, byPath := relative(top.path, dir.path)
	if _, in := relative(top.below, dir.below); in && top.dev == dir.dev || byPath {
		return sandpit.WithHint(fmt.Errorf("mounting %s: it is in the data directory %s: %w", t.path, dir.path, sandpit.ErrForbidden), hint)
	}
	for _, v := range table.shown(t.recursive, top) {
		if v.dev != dir.dev {
			continue
		}
		if rest, in := relative(dir.below, v.root); in {
			if i < len(c.plan.Root.Layers) {
				return fmt.Errorf("using %s as a layer: the data directory %s is in it: %w", t.path, dir.path, sandpit.ErrForbidden)
			}
			c.covers = append(c.covers, cover{tree: i, path: path.Join(v.point, rest), id: dir.id, pin: t.attr&unix.MOUNT_ATTR_RDONLY == 0})
			continue
		}
		_, hidden := relative(path.Join(top.path, v.point), dir.path) // by the cover of where dir is itself
		if _, in := relative(v.root, dir.below); in && !hidden {
			return sandpit.WithHint(fmt.Errorf("mounting %s: at %s in it, a part of the data directory %s is mounted: %w", t.path, v.point, dir.path, sandpit.ErrForbidden), hint)
		}
	}
	return nil
}

// points returns where covers go and what is pinned for them, in the order of use:
// by tree, first what is pinned, and what lies deeper first, because a cover hides
// what is below it. pinned are the trees in which something is pinned.
func points(covers []cover) (all []point, pinned []int) {
	seen := map[point]bool{}
	add := func(p point) {
		if !seen[p] {
			seen[p] = true
			all = append(all, p)
		}
	}
	for _, c := range covers {
		if slices.ContainsFunc(covers, func(o cover) bool {
			rest, in := relative(c.path, o.path)
			return in && rest != "" && o.tree == c.tree
		}) {
			continue // covered with what is above it
		}
		add(point{c.tree, c.path, c.id, false})
		for dir := path.Dir(c.path); c.pin && dir != "."; dir = path.Dir(dir) {
			add(point{tree: c.tree, path: dir, pin: true})
			if !slices.Contains(pinned, c.tree) {
				pinned = append(pinned, c.tree)
			}
		}
	}
	slices.SortFunc(all, func(a, b point) int {
		switch {
		case a.tree != b.tree:
			return a.tree - b.tree
		case a.pin != b.pin && a.pin:
			return -1
		case a.pin != b.pin:
			return 1
		}
		return strings.Compare(b.path, a.path)
	})
	return all, pinned
}

// point is a directory below the top of a tree, on which a cover is mounted.
type point struct {
	tree int
	path string
	id   fileID // of a data directory
	pin  bool   // it is above one, in the tree that is not seen
}

// inTree is how a path is opened below the top of a tree: no link leads on.
const inTree = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// openPoints opens the points in trees that the owner has opened, in which pinned
// come last. It checks that they are what they were when they were looked for.
func openPoints(points []point, trees, pinned []int) (fds []int, err error) {
	defer func() {
		if err != nil {
			closeAll(fds)
		}
	}()
	for _, p := range points {
		tree := p.tree
		if p.pin {
			tree = len(trees) - len(pinned) + slices.Index(pinned, p.tree)
		}
		fd, err := unix.Openat2(trees[tree], p.path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: inTree})
		if err != nil {
			return fds, errMoved(p.path, err)
		}
		fds = append(fds, fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || !p.pin && idOf(&st) != p.id {
			return fds, errMoved(p.path, err)
		}
	}
	return fds, nil
}

// errMoved says that a path leads elsewhere than a moment ago, or nowhere.
func errMoved(name string, err error) error {
	if err == nil {
		err = errors.New("it is not what it was a moment ago")
	}
	return sandpit.WithHint(fmt.Errorf("mounting %s: %w: %w", name, err, sandpit.ErrState), "something was moved meanwhile: try again")
}

// coverDir is the name of that in the scratch file system.
const coverDir = "cover"

// makeCover makes what all covers are copies of: a detached mount of an empty
// directory of the scratch file system, which is the working directory.
func (c *compiler) makeCover() {
	if len(c.points) == 0 {
		return
	}
	c.p.Grow(6 * len(c.points))
	c.mkdir(coverDir, 0o555)
	c.coverFD = c.openTree("making a cover", coverDir, false)
	c.setattr("making a cover read-only", c.coverFD, false, attrRead|unix.MOUNT_ATTR_NOEXEC)
}

// cover puts covers on the data directories in a tree that is attached, or with
// pin on what is above them. What is attached is the tree itself, or an overlay
// that shows it, in which a directory is known only by its path: no sandbox can
// change that, because all of them have it pinned.
func (c *compiler) cover(tree int, pin bool, fd, attached sysprog.Arg) {
	const what = "covering the data directory in a mount"
	how := binary.NativeEndian.AppendUint64(nil, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
	how = binary.NativeEndian.AppendUint64(how, 0)
	how = binary.NativeEndian.AppendUint64(how, inTree)
	var open []sysprog.Reg
	result := func(s sysprog.Step) sysprog.Arg {
		r := s.Result()
		open = append(open, r)
		return sysprog.From(r)
	}
	for ; c.covered < len(c.points); c.covered++ {
		p := c.points[c.covered]
		if p.tree != tree || p.pin != pin {
			return
		}
		var at sysprog.Arg
		if c.ids.mapped { // and looked at by the owner
			at = c.sentPoint()
		} else {
			at = result(c.p.Call(what, unix.SYS_OPENAT2, fd, c.p.Str(p.path), c.p.Bytes(how), sysprog.Int(len(how))))
			if !pin {
				c.check(p.path, at, p.id)
			}
		}
		in := at
		if attached != fd {
			in = result(c.p.Call(what, unix.SYS_OPENAT2, attached, c.p.Str(p.path), c.p.Bytes(how), sysprog.Int(len(how))))
		}
		mount := sysprog.From(c.coverFD)
		if c.covered > 0 { // the first is where it may be copied from
			mount = result(c.p.Call(what, unix.SYS_OPEN_TREE, mount, c.p.Str(""), sysprog.Int(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)))
		}
		c.p.Call(what, unix.SYS_MOVE_MOUNT, mount, c.p.Str(""), in, c.p.Str(""), sysprog.Int(unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
		if c.ids.mapped {
			c.p.Call(what, unix.SYS_CLOSE, at)
		}
		for _, r := range open {
			c.p.Call(what, unix.SYS_CLOSE, sysprog.From(r))
			c.p.Free(r)
		}
		open = open[:0]
	}
}

// sentPoint returns the descriptor of the point that is covered next, which the
// owner sends, as many at a time as fit.
func (c *compiler) sentPoint() sysprog.Arg {
	i := c.covered % maxTrees
	if i == 0 {
		c.message = bytes.Repeat([]byte{0xff}, unix.CmsgSpace(4*maxTrees)) // no descriptor where none comes
		hdr := messageHeader(c.p, make([]byte, 1), c.message)
		c.p.Call("waiting for what is to be covered", unix.SYS_RECVMSG, sysprog.Int(c.answer), hdr, sysprog.Int(unix.MSG_CMSG_CLOEXEC)).Want(1)
	}
	return c.p.Mem32(c.message, unix.CmsgLen(0)+4*i)
}

// check notes what a descriptor of the builder is, for verify.
func (c *compiler) check(name string, fd sysprog.Arg, want fileID) {
	statx := make([]byte, 256)
	c.p.Call("looking at "+name, unix.SYS_STATX, fd, c.p.Str(""), sysprog.Int(unix.AT_EMPTY_PATH), sysprog.Int(unix.STATX_INO), c.p.Bytes(statx))
	c.checked = append(c.checked, checked{name, statx, want})
}

// checked is what the builder found in place of a directory or file.
type checked struct {
	name  string
	statx []byte // struct statx of statx(2)
	want  fileID
}

// verify returns nil if the builder found all that it should have found. It is
// for after the builder has ended, and before anything of the sandbox runs.
func (c *compiler) verify() error {
	for _, s := range c.checked {
		ne := binary.NativeEndian
		if got := (fileID{ne.Uint32(s.statx[136:]), ne.Uint32(s.statx[140:]), ne.Uint64(s.statx[32:])}); got != s.want {
			return errMoved(s.name, nil)
		}
	}
	return nil
}
