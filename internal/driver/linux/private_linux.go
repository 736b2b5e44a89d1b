package linux

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/mountinfo"
)

// Whether a mount contains a data directory is found out by the file systems of
// both and the paths within these, as the kernel tells them, and not by paths of
// the host, of which there may be several for one directory (bind mounts, links).

// located identifies a directory or file as the kernel does.
type located struct {
	id    fileID
	dev   string // of its file system, MAJOR:MINOR
	below string // its path within that
	path  string // on the host, without links
	owner uint32
}

// hostMountpoint is a mount of the host.
type hostMountpoint struct {
	parent           uint64
	dev, root, point string
	overlay          bool
}

// mountTable has the mounts of the host, by mount id.
type mountTable map[uint64]hostMountpoint

// readMounts reads /proc/self/mountinfo, or that of another process.
func readMounts(process string) (mountTable, error) {
	data, err := os.ReadFile("/proc/" + process + "/mountinfo")
	if err != nil {
		return nil, err
	}
	t := make(mountTable, bytes.Count(data, []byte{'\n'}))
	for m := range mountinfo.All(data) {
		t[m.ID] = hostMountpoint{m.Parent, string(m.Dev), m.Root(), m.Point(), string(m.Type) == "overlay"}
	}
	return t, nil
}

// locate returns what a path of the host leads to.
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
		return located{}, fault.Errorf(sandpit.ErrUnsupported, "examining %s: /proc/self/mountinfo does not show where it is mounted", name)
	}
	return located{idOf(&st), m.dev, path.Join(m.root, rest), whole, st.Uid}, nil
}

// relative returns the path of p below dir, "" for dir itself.
func relative(p, dir string) (string, bool) {
	if p == dir {
		return "", true
	}
	return strings.CutPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// way returns the directories in which the names of an absolute path are looked up, also
// those to which links on the way lead, and what the path leads to. With an error it returns
// those up to there.
func (t mountTable) way(name string) (dirs []located, err error) {
	at, rest := "/", name
	for links := 0; rest != ""; {
		var next string
		switch next, rest, _ = strings.Cut(rest, "/"); next {
		case "", ".":
			continue
		}
		dir, err := t.locate(at, unix.RESOLVE_NO_SYMLINKS)
		if err != nil {
			return dirs, err
		}
		dirs = append(dirs, dir)
		// at has no links in it.
		next = path.Join(at, next)
		switch to, err := os.Readlink(next); {
		case errors.Is(err, unix.EINVAL):
			at = next
		case err != nil:
			return dirs, err
		default:
			if links++; links > maxLinks {
				return dirs, &fs.PathError{Op: "opening", Path: name, Err: unix.ELOOP}
			}
			if path.IsAbs(to) {
				at = "/"
			}
			rest = to + "/" + rest
		}
	}
	end, err := t.locate(at, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return dirs, err
	}
	return append(dirs, end), nil
}

// maxLinks is the number of links that the kernel follows in a path.
const maxLinks = 40

// findCovers finds the data directories that the trees of the plan contain. It refuses
// writable mounts that contain one, or a directory on the way to one.
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
	tops := make([]located, len(ts))
	for i, t := range ts {
		if !t.owned {
			continue
		}
		if tops[i], err = table.locate(t.path, unix.RESOLVE_NO_SYMLINKS); err != nil {
			return fmt.Errorf("mounting %s: %w", t.path, err)
		}
		if tops[i].id != c.mounts[t.mount].id {
			return errMoved(t.path, nil)
		}
	}
	const looking = "looking for data directories in mounts"
	private := c.driver.private()
	var dirs []located
	ways := map[string][]located{} // to each data directory
	for _, dir := range private {
		at, err := table.locate(dir+"/", 0)
		way, werr := table.way(dir)
		if err == nil {
			err = werr
		}
		ways[dir] = way
		if isOutOfReach(err) {
			at, err = c.makePrivate(table, ts, tops, dir)
		}
		if errors.Is(err, errNotShown) {
			continue
		}
		var parts []located
		if err == nil {
			parts, way, err = table.parts(at)
		}
		if err != nil {
			return sandpit.WithHint(fmt.Errorf(looking+": %w", err), "give this user access to it, or mount another directory")
		}
		dirs, ways[dir] = append(dirs, parts...), append(ways[dir], way...)
	}
	if opts.PrivateOfOthers != nil {
		others := opts.PrivateOfOthers()
		// Only those near a mount by their paths: the file system of somebody's home
		// directory may be one that does not answer.
		for _, dir := range slices.Sorted(maps.Keys(others)) {
			if !slices.ContainsFunc(ts, func(t tree) bool { return holdsOne(t.path, []string{dir}) || holdsOne(dir, []string{t.path}) }) {
				continue
			}
			found, way, err := table.locateOf(dir, others[dir])
			if err != nil {
				return fmt.Errorf(looking+": %w", err)
			}
			private, dirs, ways[dir] = append(private, dir), append(dirs, found...), append(ways[dir], way...)
		}
	}
	for i, t := range ts {
		if !t.owned {
			if !holdsOne(t.path, private) {
				continue
			}
			if tops[i], err = table.locate(t.path, unix.RESOLVE_NO_SYMLINKS); err != nil {
				return fmt.Errorf("using %s: %w", t.path, err)
			}
		}
		for _, dir := range dirs {
			if err := c.coverIn(table, i, t, tops[i], dir); err != nil {
				return err
			}
		}
		if t.writable() {
			if err := table.refuseWritable(tops[i], ways, dirs); err != nil {
				return err
			}
		}
	}
	return nil
}

// refuseWritable refuses a writable mount in which a sandbox could put something else in the
// place of a data directory, or take a mount of the host away. The kernel lets a
// directory be removed or moved on which something is mounted in other mount namespaces
// only, and unmounts that there. So neither a mount inside nor one of the host holds a
// directory where it is: another sandbox may be passed a descriptor of what is above it.
func (t mountTable) refuseWritable(top located, ways map[string][]located, dirs []located) error {
	in := func(at located) bool {
		_, in := relative(at.below, top.below)
		return in && at.dev == top.dev
	}
	refused := func(dir string) error {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "mounting %s for writing: the data directory %s is in it, or is reached through it", top.path, dir),
			"mount it read-only (:ro), or mount a directory in it that does not contain the data directory; SANDPIT_HOME can name a data directory elsewhere")
	}
	for _, dir := range slices.Sorted(maps.Keys(ways)) {
		if slices.ContainsFunc(ways[dir], in) {
			return refused(dir)
		}
	}
	if i := slices.IndexFunc(dirs, in); i >= 0 {
		return refused(dirs[i].path)
	}
	var points []string
	for _, m := range t {
		// On what it is mounted, by whatever path that is seen.
		on := t[m.parent]
		rest, ok := relative(m.point, on.point)
		if below, in := relative(path.Join(on.root, rest), top.below); ok && in && below != "" && on.dev == top.dev {
			points = append(points, m.point)
		}
	}
	if len(points) == 0 {
		return nil
	}
	point := slices.Min(points)
	return sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "mounting %s for writing: something is mounted in it, at %s, which a sandbox could unmount", top.path, point),
		"mount it read-only (:ro), or mount the directories beside "+point+"; "+point+" can be a mount of its own")
}

// private returns the directories of this user that no sandbox may see.
func (d *Driver) private() []string {
	if os.Geteuid() != 0 {
		return slices.Clone(d.opts.Private)
	}
	return append(slices.Clone(d.opts.Private), path.Dir(idClaims)) // who can read it can hold all ranges
}

// parts returns a data directory of this user with what is mounted below it, and the
// directories to which links in it lead: each is a data directory, too. ways are the
// directories on the way to the latter.
func (t mountTable) parts(dir located) (all, ways []located, err error) {
	all, err = t.withMounts(dir)
	if err != nil {
		return nil, nil, err
	}
	entries, err := os.ReadDir(dir.path)
	if err != nil && !isOutOfReach(err) {
		return nil, nil, err
	}
	for _, e := range entries {
		if e.Type() != fs.ModeSymlink {
			continue
		}
		link := path.Join(dir.path, e.Name())
		at, err := t.locate(link+"/", 0)
		way, werr := t.way(link)
		ways = append(ways, way...)
		if err == nil {
			err = werr
		}
		if isOutOfReach(err) {
			continue
		}
		var more []located
		if err == nil {
			more, err = t.withMounts(at)
		}
		if err != nil {
			return nil, nil, err
		}
		all = append(all, more...)
	}
	return all, ways, nil
}

// withMounts returns a directory and the directories that are mounted below it. An
// error does not keep it from returning the others.
func (t mountTable) withMounts(dir located) (all []located, err error) {
	all = []located{dir}
	for _, m := range t {
		if rest, in := relative(m.point, dir.path); in && rest != "" {
			at, lerr := t.locate(m.point+"/", 0)
			switch {
			case lerr == nil:
				all = append(all, at)
			case !isOutOfReach(lerr):
				err = errors.Join(err, lerr)
			}
		}
	}
	return all, err
}

// locateOf returns the data directory of another user, by its path and the ids of the users
// whose home it is in, and what is mounted below it, with the directories on the way to it, or nothing. That user decides what is at the path: a
// link, to what belongs to others or to itself, a file, a file system that is broken. So a
// link leads only to what belongs to that user, and what can't be opened is not there: root's
// mounts are not refused for it. Nor are they for directories of others on the way that
// only a link of that user leads through.
func (t mountTable) locateOf(dir string, uids []int) (all, way []located, err error) {
	at, err := t.locate(dir+"/", unix.RESOLVE_NO_SYMLINKS)
	if errors.Is(err, unix.ELOOP) {
		if at, err = t.locate(dir+"/", 0); err == nil && !slices.Contains(uids, int(at.owner)) {
			return nil, nil, nil
		}
	}
	if err == nil {
		all, err = t.withMounts(at)
		var werr error
		way, werr = t.way(dir)
		way = slices.DeleteFunc(way, func(w located) bool { return !holdsOne(w.path, []string{dir}) && !slices.Contains(uids, int(w.owner)) })
		err = errors.Join(err, werr)
	}
	if !slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOMEM}, func(short error) bool { return errors.Is(err, short) }) {
		err = nil
	}
	return all, way, err
}

// holdsOne reports whether one of dirs is in a directory, judging by their paths.
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
func (c *creation) makePrivate(table mountTable, ts []tree, tops []located, dir string) (located, error) {
	above := filepath.Clean(dir)
	at, err := located{}, fs.ErrNotExist
	for isOutOfReach(err) && above != "/" {
		above = filepath.Dir(above)
		at, err = table.locate(above, 0)
	}
	if err != nil {
		return located{}, err
	}
	inside := false
	for i, t := range ts {
		if !t.owned || t.writable() { // a writable one is refused
			continue
		}
		for _, v := range table.shown(t.recursive, tops[i]) {
			_, in := relative(at.below, v.root)
			inside = inside || in && at.dev == v.dev
		}
	}
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
	all := []hostMountpoint{{dev: top.dev, root: top.below}}
	if recursive {
		for _, m := range t {
			if rest, in := relative(m.point, top.path); in && rest != "" {
				all = append(all, hostMountpoint{dev: m.dev, root: m.root, point: rest})
			}
		}
	}
	return all
}

// coverIn adds the covers that a read-only tree needs for a data directory, and refuses a
// tree that is in it.
func (c *creation) coverIn(table mountTable, i int, t tree, top, dir located) error {
	hint := "mount another directory; sandboxes get no access to data directories"
	_, byPath := relative(top.path, dir.path)
	if _, in := relative(top.below, dir.below); in && top.dev == dir.dev || byPath {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "mounting %s: it is in the data directory %s", t.path, dir.path), hint)
	}
	for _, v := range table.shown(t.recursive, top) {
		if v.dev != dir.dev {
			continue
		}
		if rest, in := relative(dir.below, v.root); in {
			if i < len(c.plan.Root.Layers) {
				return fault.Errorf(sandpit.ErrForbidden, "using %s as a layer: it contains the data directory %s", t.path, dir.path)
			}
			if !t.writable() { // else refuseWritable sees to it
				c.covers = append(c.covers, cover{tree: i, path: path.Join(v.point, rest), id: dir.id})
			}
			continue
		}
		_, hidden := relative(path.Join(top.path, v.point), dir.path) // by the cover of where dir is itself
		if _, in := relative(v.root, dir.below); in && !hidden {
			return sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "mounting %s: at %s it contains a mount of the data directory %s", t.path, v.point, dir.path), hint)
		}
	}
	return nil
}
