package cgroup

import (
	"fmt"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/feature"
)

// Layout is where this process may make groups on this machine, as Detect found it. Its
// methods are safe for concurrent use.
type Layout struct {
	// places has the primary first; empty when no group can be made at all.
	places  []place
	trouble [len(limited)]trouble // why a limit can't be had
	kernel  version
	mode    string

	mu    sync.Mutex
	ready bool   // the places may be used: see prepare
	live  int    // groups made and not yet removed
	leaf  string // where this process moved itself, or ""
	bus   string // the user manager's bus socket, for prepScope
	pid   int
}

// limited are the controllers with a limit that callers ask for.
var limited = [...]struct {
	ctrl  ctrls
	limit feature.Feature
}{{memory, feature.Memory}, {cpu, feature.CPUs}, {pids, feature.Pids}}

// place is a directory of one hierarchy in which groups are made.
type place struct {
	v2    bool
	ctrls ctrls  // that a group made here has
	dir   string // "" for prepScope, before the scope exists
	prep  prep
	memsw bool  // v1: memory and swap can be limited together
	tcp   bool  // v1: buffers of TCP sockets can be limited
	mount mount // of prepScope
}

// prep says what must be done before the first group is made in a place.
type prep uint8

const (
	prepNone   prep = iota
	prepShared      // make dir, pass the controllers on to it and below it
	prepEnable      // pass the controllers on
	prepLeaf        // move this process from dir to a child, then pass them on
	prepScope       // ask systemd for a scope, then as prepLeaf
)

// trouble says why a controller can't be used.
type trouble struct {
	kind troubleKind
	dir  string
}

type troubleKind uint8

const (
	troubleNone        troubleKind = iota
	troubleAbsent                  // in no hierarchy that is mounted here
	troubleReadOnly                // mounted read-only
	troubleV1User                  // v1, and not ours to write
	troubleForeign                 // v2, own cgroup not ours to write, no user manager
	troubleBusy                    // v2, own cgroup is ours but holds other processes
	troubleUndelegated             // v2, ours, but without this controller
	troubleHidden                  // mounted, but our own cgroup is outside of what is visible
)

// version is a kernel version, 5.14 being 5<<16 | 14.
type version uint32

func kernel(major, minor uint32) version { return version(major<<16 | minor) }

// The kernels from which on a v2 group has what we use.
const (
	hasFreeze    version = 5<<16 | 2  // cgroup.freeze, 76f969e8948d8
	hasCloneInto version = 5<<16 | 7  // CLONE_INTO_CGROUP, ef2c41cf38a75
	hasKill      version = 5<<16 | 14 // cgroup.kill, 661ee6280931

	// Since 5.16 whoever opened a file decides who may join by it (1756d7994ad8), and
	// since 6.0 a group without processes gets its controllers and its type without a
	// wait for an RCU grace period (671c11f0619e).
	hasWork version = 6 << 16
)

// prober asks the machine. Tests replace it by a table.
type prober interface {
	read(name string) []byte // nil when it can't be read
	writable(name string) bool
	exists(name string) bool
}

// host is what Detect looks at.
type host struct {
	prober
	uid, pid  int
	kernel    version
	self      []byte // /proc/self/cgroup
	mountinfo []byte
	bus       string // socket of the user's bus, should systemd run for this user
}

// Detect finds out where this process may make groups. It reads /proc and a
// few files of cgroupfs and writes nothing. A machine on which nothing can be
// limited is not an error: see Gaps.
func Detect() (*Layout, error) {
	h, err := thisHost()
	if err != nil {
		return nil, err
	}
	return h.detect(), nil
}

func thisHost() (*host, error) {
	self, err := readFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("reading own cgroup: %w", err)
	}
	mountinfo, err := readFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading mounts: %w", err)
	}
	h := &host{
		prober: kernelProber{}, uid: unix.Geteuid(), pid: unix.Getpid(),
		kernel: kernelVersion(), self: self, mountinfo: mountinfo,
	}
	if h.uid != 0 {
		dir := os.Getenv("XDG_RUNTIME_DIR")
		if dir == "" {
			// pam_systemd sets the variable at log-in; su and sudo -u do not.
			dir = fmt.Sprintf("/run/user/%d", h.uid)
		}
		h.bus = path.Join(dir, "bus")
	}
	return h, nil
}

func (h *host) detect() *Layout {
	l := &Layout{kernel: h.kernel, pid: h.pid, bus: h.bus}
	hs := parseSelf(h.self)
	parseMounts(hs, h.mountinfo)

	var v2 *hierarchy
	var found, inV1 ctrls
	for i := range hs {
		switch t := &hs[i]; {
		case len(t.mounts) == 0:
		case t.v2:
			v2 = t
		default:
			inV1 |= t.ctrls
		}
	}
	useless := ctrls(0)
	if v2 != nil {
		// v2 is asked only for what v1 does not hold.
		want := (memory | cpu | pids) &^ inV1
		p, why := h.chooseV2(v2, want)
		if why.kind == troubleNone {
			found |= p.ctrls
			l.places = append(l.places, p)
			why = trouble{troubleUndelegated, strings.TrimSuffix(p.dir, "/sandpit")}
			if p.prep == prepScope {
				why.dir = "the user's systemd"
			}
			if h.kernel >= hasFreeze {
				useless = freezer | cpuacct
			}
		}
		l.note(want&^p.ctrls, why)
	}
	for i := range hs {
		t := &hs[i]
		if t.v2 || len(t.mounts) == 0 || t.ctrls&^useless == 0 {
			continue
		}
		p, why := h.chooseV1(t)
		if why.kind == troubleNone {
			found |= p.ctrls
			l.places = append(l.places, p)
		}
		l.note(t.ctrls, why)
	}
	if len(l.places) > 0 && !l.places[0].v2 {
		// The freezer is in every group.
		for i, p := range l.places {
			if p.ctrls&freezer != 0 {
				l.places[0], l.places[i] = l.places[i], l.places[0]
				break
			}
		}
	}
	for i, c := range limited {
		switch {
		case found&c.ctrl != 0:
			l.trouble[i] = trouble{}
		case l.trouble[i].kind == troubleNone:
			l.trouble[i].kind = troubleAbsent
		}
	}
	switch {
	case inV1 != 0 && v2 != nil:
		l.mode = "hybrid"
	case inV1 != 0:
		l.mode = "v1"
	case v2 != nil:
		l.mode = "v2"
	default:
		l.mode = "none"
	}
	return l
}

// note keeps why the controllers of set can't be had.
func (l *Layout) note(set ctrls, why trouble) {
	for i, c := range limited {
		if set&c.ctrl != 0 {
			l.trouble[i] = why
		}
	}
}

// ours reports whether dir is a cgroup in which we may make groups and to and
// from which we may move processes. Root has both or neither.
func (h *host) ours(dir string) bool {
	return h.writable(dir+"/cgroup.procs") && (h.uid == 0 || h.writable(dir))
}

// chooseV1 takes the root of the hierarchy where it is ours, which is so for
// root, so that groups are independent of the caller's own; else the own cgroup.
func (h *host) chooseV1(t *hierarchy) (place, trouble) {
	why := trouble{kind: troubleHidden}
	for _, m := range t.mounts {
		if m.readOnly {
			why = trouble{troubleReadOnly, m.point}
			continue
		}
		dir := m.point
		if !h.ours(dir) {
			own, ok := m.own(t.path)
			if !ok || !h.ours(own) {
				why = trouble{troubleV1User, m.point}
				continue
			}
			dir = own
		}
		p := place{ctrls: t.ctrls, dir: dir}
		if h.uid != 0 {
			p.ctrls &^= devices // needs CAP_SYS_ADMIN
		}
		if t.ctrls&memory != 0 {
			p.memsw = h.exists(dir + "/memory.memsw.limit_in_bytes")
			p.tcp = h.exists(dir + tcpLimit)
		}
		return p, trouble{}
	}
	return place{}, why
}

// chooseV2 finds a directory for groups with the controllers of want, in the
// order that the package's comment gives. Without want any directory that is
// ours does: for kill, freeze and accounting.
func (h *host) chooseV2(t *hierarchy, want ctrls) (place, trouble) {
	why := trouble{kind: troubleHidden}
	for _, m := range t.mounts {
		if m.readOnly {
			why = trouble{troubleReadOnly, m.point}
			continue
		}
		// The true root of the tree, and only that, has no cgroup.type.
		if h.ours(m.point) && !h.exists(m.point+"/cgroup.type") {
			return h.shared(m.point, want), trouble{}
		}
		own, ok := m.own(t.path)
		if !ok {
			continue
		}
		p, w := h.delegated(m, own, want)
		if w.kind == troubleNone {
			return p, w
		}
		why = w
		if p, ok := h.scope(m, want); ok {
			return p, trouble{}
		}
	}
	return place{}, why
}

// shared is the place for groups at the root of a v2 tree.
func (h *host) shared(root string, want ctrls) place {
	p := place{v2: true, dir: root}
	if want != 0 {
		p.ctrls = h.controllers(root) & want
	}
	if p.ctrls != 0 {
		p.prep, p.dir = prepShared, root+"/sandpit"
	}
	return p
}

// delegated is the place below or beside our own cgroup.
func (h *host) delegated(m mount, own string, want ctrls) (place, trouble) {
	why := trouble{troubleForeign, own}
	below := false
	if h.ours(own) {
		p := place{v2: true, dir: own, prep: prepNone}
		if want != 0 {
			p.ctrls = h.controllers(own) & want
		}
		if p.ctrls == 0 {
			if want == 0 {
				return p, trouble{}
			}
			why.kind = troubleUndelegated
		} else {
			below = h.alone(own)
			why.kind = troubleBusy
		}
	}
	if parent := path.Dir(own); own != m.point && strings.HasPrefix(parent, m.point) && h.beside(parent) {
		p := place{v2: true, dir: parent, ctrls: h.controllers(parent) & want, prep: prepEnable}
		on := parseCtrls(h.read(parent+"/cgroup.subtree_control"), ' ')
		switch {
		case p.ctrls == 0:
		case p.ctrls&^on == 0:
			p.prep = prepNone // somebody has prepared it
			return p, trouble{}
		case !below && len(pidLines(h.read(parent+"/cgroup.procs"))) == 0:
			return p, trouble{}
		}
	}
	if below {
		return place{v2: true, dir: own, ctrls: h.controllers(own) & want, prep: prepLeaf}, trouble{}
	}
	return place{}, why
}

// beside reports whether groups may be made in parent, next to our own cgroup.
// What systemd manages itself is left alone: it has one writer
// (https://systemd.io/CGROUP_DELEGATION).
func (h *host) beside(parent string) bool {
	name := path.Base(parent)
	return !strings.HasSuffix(name, ".slice") && !strings.HasPrefix(name, "user@") && h.ours(parent)
}

// scope is the place in a scope to be asked of the user's systemd. What it can
// delegate is what it was delegated.
func (h *host) scope(m mount, want ctrls) (place, bool) {
	if h.uid == 0 || want == 0 || m.root != "/" || h.bus == "" || !h.writable(h.bus) {
		return place{}, false
	}
	manager := fmt.Sprintf("%s/user.slice/user-%d.slice/user@%d.service", m.point, h.uid, h.uid)
	p := place{v2: true, prep: prepScope, mount: m, ctrls: h.controllers(manager) & want}
	return p, p.ctrls != 0
}

// controllers returns those that groups made in dir may be given.
func (h *host) controllers(dir string) ctrls {
	return parseCtrls(h.read(dir+"/cgroup.controllers"), ' ')
}

// alone reports whether this process is the only one in dir.
func (h *host) alone(dir string) bool {
	lines := pidLines(h.read(dir + "/cgroup.procs"))
	return len(lines) == 1 && lines[0] == int64(h.pid)
}

// String describes the layout in one line for people.
func (l *Layout) String() string {
	var b strings.Builder
	b.WriteString(l.mode)
	for i, p := range l.places {
		if i == 0 {
			b.WriteString(": ")
		} else {
			b.WriteString(", ")
		}
		switch {
		case p.prep == prepScope:
			b.WriteString("a scope of the user's systemd")
		default:
			b.WriteString(p.dir)
		}
		if p.v2 {
			b.WriteString(" (v2")
			if p.ctrls != 0 {
				b.WriteString(" " + p.ctrls.String())
			}
			b.WriteString(")")
		} else {
			b.WriteString(" (v1 " + p.ctrls.String() + ")")
		}
	}
	return b.String()
}

// kernelProber asks the kernel.
type kernelProber struct{}

func (kernelProber) read(name string) []byte {
	data, err := readFile(name)
	if err != nil {
		return nil
	}
	return data
}

func (kernelProber) writable(name string) bool { return access(name, unix.W_OK) }
func (kernelProber) exists(name string) bool   { return access(name, unix.F_OK) }

func access(name string, mode uint32) bool {
	// AT_EACCESS needs a newer system call than faccessat; the ids only differ
	// in set-uid programs, which this is not.
	return unix.Faccessat(unix.AT_FDCWD, name, mode, 0) == nil
}

func kernelVersion() version {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return 0
	}
	return parseVersion(unix.ByteSliceToString(u.Release[:]))
}

func parseVersion(release string) version {
	major, rest, _ := strings.Cut(release, ".")
	a, b := number([]byte(major)), number([]byte(rest))
	if a < 0 || a > 0xffff || b < 0 || b > 0xffff {
		return 0
	}
	return kernel(uint32(a), uint32(b))
}
