package linux

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// guestCapabilities are the capabilities of the guest in its user namespace: those of a
// root process inside, since a child can't have more than its parent, and CAP_SETPCAP to
// take even those from its children.
const guestCapabilities = spawn.RootCapabilities | 1<<unix.CAP_SETPCAP

// Descriptors of the guest.
const (
	guestSocket  = 3 // the socket pair's inner end
	guestProgram = 4 // the guest itself, closed by its execution
)

// build is the input for compiling the program of one sandbox.
type build struct {
	ids        idMap
	quotas     quotas
	limits     sandpit.Limits // with which the scratch file system is made
	announce   bool           // the builder says when it has done all but what depends on the plan
	socket     int            // the guest's end of its socket pair
	answer     int            // the builder's end of its own: the guest makes its socket non-blocking
	mapped     int            // reading end of a pipe: two bytes come when the id maps are written
	base       string         // an existing host directory to build on
	dumpable   bool           // the owner is of itself, and so the builder, which shares its memory
	guest      string         // host path of the guest program
	execInRoot bool           // the guest can be executed only in its root, which the owner says is there
	argv       []string
	filter     []byte // seccomp, as struct sock_filter array

	join     []int  // files of cgroups to which the child writes "0" to join them
	denying  int    // the index in join of the one that limits devices, or -1
	tun      []byte // unless it is nil, tunPath is opened, and its descriptor, an int32, noted here, or -1
	cgroup2  bool   // show the v2 cgroup at /sys/fs/cgroup
	landlock int    // ABI version of Landlock, 0 for none

	// Known only when the rest is compiled.
	plan   *driver.Plan
	mounts []hostMount
	covers []cover // in the order of use
}

// rights of mounts.
const (
	attrPlain = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	attrRead  = attrPlain | unix.MOUNT_ATTR_RDONLY
)

// compiler adds the steps of one sandbox to a program.
type compiler struct {
	build
	p *sysprog.Program

	devices  []sysprog.Reg // detached trees of the host's device files
	sysTrees []sysprog.Arg // and of its sysPaths; those that it has not are -1
	message  []byte        // the received control message, with descriptors
	coverFD  sysprog.Reg   // of what covers are copies of
	covered  int           // how many of the covers are mounted
	linked   bool          // the answer to the owner begins with the interface
	ahead    bool          // the owner has the interface already: see linkAhead
	checked  []checked
	pinned   map[string]bool // see pin
	asIs     []byte          // for each bind 32 bits: not 0 once it is shown as it is
}

// trees lists the host paths whose mount trees the owner must send along with
// the first message, in order, when it can map their ids: the layers, the
// binds and the mounts.
func trees(plan *driver.Plan) []tree {
	var ts []tree
	for _, l := range plan.Root.Layers {
		ts = append(ts, tree{path: l, attr: attrRead})
	}
	for _, b := range plan.Root.Binds {
		ts = append(ts, tree{path: b.Source, attr: attrRead, recursive: true})
	}
	for i, m := range plan.Mounts {
		attr := uint64(attrPlain)
		if m.ReadOnly {
			attr = attrRead
		}
		ts = append(ts, tree{path: m.Source, attr: attr, recursive: true, owned: true, mount: i})
	}
	return ts
}

// tree is a host path whose mount tree goes into a sandbox.
type tree struct {
	path      string
	attr      uint64
	recursive bool
	owned     bool // its owner on the host is the sandbox's user inside
	mount     int  // of the plan, if owned
}

// writable reports whether the sandbox may write to it.
func (t *tree) writable() bool { return t.attr&unix.MOUNT_ATTR_RDONLY == 0 }

// compile puts together what happens between the clone and the guest's first
// instruction, by two processes side by side: the first, which becomes the
// guest, and a builder, which makes the root file system. Executing a program
// and starting its runtime takes about as long as building does.
//
// They share their namespaces and their root, so that when the builder changes
// the root it does so for the guest, too. The owner gives the guest nothing to do before the builder
// has answered: nothing of the sandbox runs while the host can be seen.
//
// The builder's part ends where it waits for the owner's message. What it goes
// on with is put together by the compiler that is returned (bind), when the
// plan is known.
func compile(b build) (first *sysprog.Program, rest *compiler, err error) {
	builder, c := &compiler{build: b, p: new(sysprog.Program)}, &compiler{build: b, p: new(sysprog.Program)}
	builder.p.Grow(builderSteps)
	c.p.Grow(firstSteps)
	builder.prepare()
	if err := c.first(builder.p); err != nil {
		return nil, nil, err
	}
	builder.p = builder.p.Continue()
	return c.p, builder, nil
}

// The approximate number of steps that every sandbox has.
const (
	builderSteps = 132
	restSteps    = 100
	firstSteps   = 48
)

// first is what the first process does up to executing the guest.
func (c *compiler) first(builder *sysprog.Program) error {
	p := c.p
	c.dieWithOwner()
	// An owner that has died before that is noticed by the end of what is read
	// from it: if nobody here holds the other ends, of this sandbox or another.
	c.keepOnly(append([]int{c.socket, c.answer, c.mapped}, c.join...))
	p.Call("starting a session", unix.SYS_SETSID)
	p.Call("setting the umask", unix.SYS_UMASK, sysprog.Int(0o022)) // for the builder, too
	// Outside of the cgroup, of which the owner now limits the devices. Nothing
	// that follows opens one.
	null := p.Call("opening /dev/null", unix.SYS_OPENAT, sysprog.Int(unix.AT_FDCWD), p.Str("/dev/null"), sysprog.Int(unix.O_RDWR|unix.O_CLOEXEC), sysprog.Int(0)).Result()
	c.namespaces()

	// Everything that has a path on the host comes before the builder, which
	// may change the root at any moment. What stands at the root is moved to
	// the new one by that; what stands elsewhere would stay outside.
	guest := c.openTree("opening the guest program", c.guest, false)
	c.setattr("sealing the guest program", guest, false, attrRead)
	p.Call("leaving the owner's directory", unix.SYS_CHDIR, p.Str("/"))

	p.Spawn("starting the builder", builder, c.answer)
	c.awaitMaps()
	c.identity()
	return c.becomeGuest(guest, null)
}

// keepOnly closes all descriptors above 2 but these.
func (c *compiler) keepOnly(fds []int) {
	closeRange := func(first, last uint32) {
		c.p.Call("closing the owner's descriptors", unix.SYS_CLOSE_RANGE, sysprog.Int(first), sysprog.Int(last), sysprog.Int(0))
	}
	next := 3
	slices.Sort(fds)
	for _, fd := range fds {
		if fd > next {
			closeRange(uint32(next), uint32(fd-1))
		}
		next = max(next, fd+1)
	}
	closeRange(uint32(next), ^uint32(0))
}

// awaitMaps waits until the id maps are written.
func (c *compiler) awaitMaps() {
	c.p.Call("waiting for the id maps", unix.SYS_READ, sysprog.Int(c.mapped), c.p.Bytes(make([]byte, 1)), sysprog.Int(1)).Want(1)
}

// tellOwner answers the owner with a byte.
func (c *compiler) tellOwner(what string, b byte) {
	c.p.Call(what, unix.SYS_WRITE, sysprog.Int(c.answer), c.p.Bytes([]byte{b}), sysprog.Int(1)).Want(1)
}

// answerOwner answers the owner with a byte and descriptors: the interface if it is made, and
// the Landlock rulesets, if there are any, for the guest.
func (c *compiler) answerOwner(b byte, fds []sysprog.Arg) {
	const what = "answering the owner"
	if len(fds) == 0 {
		c.tellOwner(what, b)
		return
	}
	control := controlMessage(len(fds))
	for i, fd := range fds {
		c.p.Store32(fd, control, unix.CmsgLen(0)+4*i)
	}
	hdr := messageHeader(c.p, []byte{b}, control)
	c.p.Call(what, unix.SYS_SENDMSG, sysprog.Int(c.answer), hdr, sysprog.Int(unix.MSG_NOSIGNAL)).Want(1)
}

// maxAnswered is the number of descriptors that an answer has at most.
const maxAnswered = maxRulesets + 1

// maxRulesets is the number of rulesets that writePaths returns at most.
const maxRulesets = 2

// maxTrees is the number of descriptors that one message may carry: SCM_MAX_FD of unix(7).
const maxTrees = 253

// dieWithOwner asks for SIGKILL when the owner dies. A change of credentials
// undoes it: at the start it serves until the id maps are there.
func (c *compiler) dieWithOwner() {
	c.p.Call("asking to die with the owner", unix.SYS_PRCTL, sysprog.Int(unix.PR_SET_PDEATHSIG), sysprog.Int(int(unix.SIGKILL)))
}

// hostTree returns a descriptor of a detached mount tree of a host path, the
// i-th of those that the owner sends if it sends them.
func (c *compiler) hostTree(t tree, i int) sysprog.Arg {
	if c.ids.mapped {
		return c.p.Mem32(c.message, unix.CmsgLen(0)+4*i)
	}
	if !t.owned {
		fd := c.openTree("opening "+t.path, t.path, t.recursive)
		c.setattr("setting the mode of "+t.path, fd, t.recursive, t.attr)
		return sysprog.From(fd)
	}
	// Someone else may write to a directory above a mount: no link is followed.
	how := binary.NativeEndian.AppendUint64(nil, unix.O_PATH|unix.O_CLOEXEC)
	how = binary.NativeEndian.AppendUint64(how, 0)
	how = binary.NativeEndian.AppendUint64(how, unix.RESOLVE_NO_SYMLINKS)
	fd := c.p.Call("opening "+t.path, unix.SYS_OPENAT2, sysprog.Int(unix.AT_FDCWD), c.p.Str(t.path), c.p.Bytes(how), sysprog.Int(len(how))).Result()
	flags := unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH
	if t.recursive {
		flags |= unix.AT_RECURSIVE
	}
	c.p.Call("opening "+t.path, unix.SYS_OPEN_TREE, sysprog.From(fd), c.p.Str(""), sysprog.Int(flags)).Into(fd)
	c.setattr("setting the mode of "+t.path, fd, t.recursive, t.attr)
	return sysprog.From(fd)
}

func (c *compiler) openTree(what, path string, recursive bool) sysprog.Reg {
	flags := unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	return c.p.Call(what, unix.SYS_OPEN_TREE, sysprog.Int(unix.AT_FDCWD), c.p.Str(path), sysprog.Int(flags)).Result()
}

// setattr sets mount attributes of a tree.
func (c *compiler) setattr(what string, fd sysprog.Reg, recursive bool, set uint64) {
	flags := unix.AT_EMPTY_PATH
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	attr := mountAttr(set, 0, 0)
	c.p.Call(what, unix.SYS_MOUNT_SETATTR, sysprog.From(fd), c.p.Str(""), sysprog.Int(flags), c.p.Bytes(attr), sysprog.Int(len(attr)))
}

// mountAttr is struct mount_attr of mount_setattr(2).
func mountAttr(set, clear, userns uint64) []byte {
	b := binary.NativeEndian.AppendUint64(nil, set)
	b = binary.NativeEndian.AppendUint64(b, clear)
	b = binary.NativeEndian.AppendUint64(b, 0) // propagation
	return binary.NativeEndian.AppendUint64(b, userns)
}

// namespaces joins the cgroup and makes the namespaces that clone has not made:
// that of the cgroup, which shows what it is made in as the root, and that of
// the network, because it takes the kernel longer than all others together.
func (c *compiler) namespaces() {
	join := func(fd int) {
		c.p.Call("joining the cgroup", unix.SYS_WRITE, sysprog.Int(fd), c.p.Bytes([]byte("0")), sysprog.Int(1))
	}
	last := c.tun != nil && c.denying >= 0 // where that device can't be opened any more
	for i, fd := range c.join {
		if !last || i != c.denying {
			join(fd)
		}
	}
	unshare := unix.CLONE_NEWNET
	if !last {
		unshare |= unix.CLONE_NEWCGROUP
	}
	c.p.Call("creating network and cgroup namespaces", unix.SYS_UNSHARE, sysprog.Int(unshare))
	if c.tun != nil {
		c.openTUN()
	}
	if last {
		join(c.join[c.denying])
		c.p.Call("creating the cgroup namespace", unix.SYS_UNSHARE, sysprog.Int(unix.CLONE_NEWCGROUP))
	}
}

// loopback brings the loopback interface up.
func (c *compiler) loopback() {
	s := c.p.Call("bringing up the loopback", unix.SYS_SOCKET, sysprog.Int(unix.AF_INET), sysprog.Int(unix.SOCK_DGRAM|unix.SOCK_CLOEXEC), sysprog.Int(0)).Result()
	ifreq := make([]byte, 40) // struct ifreq, netdevice(7)
	copy(ifreq, "lo")
	binary.NativeEndian.PutUint16(ifreq[16:], unix.IFF_UP|unix.IFF_RUNNING)
	c.p.Call("bringing up the loopback", unix.SYS_IOCTL, sysprog.From(s), sysprog.Int(unix.SIOCSIFFLAGS), c.p.Bytes(ifreq))
}

// identity takes the user id inside that the guest runs with.
func (c *compiler) identity() {
	if c.ids.multi {
		c.p.Call("dropping groups", unix.SYS_SETGROUPS, sysprog.Int(0), sysprog.Int(0))
	}
	c.p.Call("setting the group", unix.SYS_SETRESGID, sysprog.Int(c.ids.gid), sysprog.Int(c.ids.gid), sysprog.Int(c.ids.gid))
	c.p.Call("setting the user", unix.SYS_SETRESUID, sysprog.Int(c.ids.uid), sysprog.Int(c.ids.uid), sysprog.Int(c.ids.uid))
	c.stayDumpable()
}

// stayDumpable follows a change of ids. See dumpable.
func (c *compiler) stayDumpable() {
	if c.ids.multi && c.dumpable {
		c.p.Call("making the owner dumpable", unix.SYS_PRCTL, sysprog.Int(unix.PR_SET_DUMPABLE), sysprog.Int(1), sysprog.Int(0), sysprog.Int(0), sysprog.Int(0))
	}
}

// becomeGuest gives up what the guest does not need, and becomes the guest.
func (c *compiler) becomeGuest(guest, null sysprog.Reg) error {
	p := c.p
	for _, lim := range c.quotas.rlimits() {
		b := binary.NativeEndian.AppendUint64(nil, lim.value)
		b = binary.NativeEndian.AppendUint64(b, lim.value)
		p.Call("limiting "+lim.what, unix.SYS_PRLIMIT64, sysprog.Int(0), sysprog.Int(lim.resource), p.Bytes(b), sysprog.Int(0)).Ignore(unix.EPERM)
	}

	// Descriptors: first out of the way of each other, then to their places.
	const fdStage = "putting descriptors in their places"
	high := func(fd sysprog.Arg) sysprog.Reg {
		return p.Call(fdStage, unix.SYS_FCNTL, fd, sysprog.Int(unix.F_DUPFD_CLOEXEC), sysprog.Int(guestProgram+1)).Result()
	}
	sock, prog := high(sysprog.Int(c.socket)), high(sysprog.From(guest))
	null = high(sysprog.From(null))
	for fd := range 2 {
		p.Call(fdStage, unix.SYS_DUP3, sysprog.From(null), sysprog.Int(fd), sysprog.Int(0))
	}
	p.Call(fdStage, unix.SYS_DUP3, sysprog.From(sock), sysprog.Int(2), sysprog.Int(0)) // for its last words, see Explain
	p.Call(fdStage, unix.SYS_DUP3, sysprog.From(sock), sysprog.Int(guestSocket), sysprog.Int(0))
	p.ReportVia(guestSocket)
	p.Call(fdStage, unix.SYS_DUP3, sysprog.From(prog), sysprog.Int(guestProgram), sysprog.Int(unix.O_CLOEXEC))
	p.Call("closing descriptors", unix.SYS_CLOSE_RANGE, sysprog.Int(guestProgram+1), sysprog.Int(^uint32(0)), sysprog.Int(0))
	if !c.execInRoot {
		c.openNothing()
	}

	// Capabilities. The bounding set is what a root process inside may have;
	// the guest gets the rest of its own by inheritance, as an ordinary user
	// by the ambient set. What is inherited must be set first: it can't go
	// beyond the bounding set.
	p.Call("setting capabilities", unix.SYS_CAPSET, p.Bytes(spawn.CapHeader()), p.Bytes(spawn.CapData(guestCapabilities, guestCapabilities)))
	// All 64 are tried: this kernel may have more than are known here.
	p.Call("dropping capabilities", unix.SYS_PRCTL, sysprog.Int(unix.PR_CAPBSET_DROP)).Each(1, ^uint64(spawn.RootCapabilities)).Ignore(unix.EINVAL)
	p.Call("keeping capabilities", unix.SYS_PRCTL, sysprog.Int(unix.PR_CAP_AMBIENT), sysprog.Int(unix.PR_CAP_AMBIENT_RAISE)).Each(2, guestCapabilities)
	// Until it is told otherwise the guest ends with the socket to its owner. It must
	// not be killed at that moment, see awaitEnd: it kills its programs first.
	p.Call("outliving the owner", unix.SYS_PRCTL, sysprog.Int(unix.PR_SET_PDEATHSIG), sysprog.Int(0))
	p.Call("forbidding new privileges", unix.SYS_PRCTL, sysprog.Int(unix.PR_SET_NO_NEW_PRIVS), sysprog.Int(1), sysprog.Int(0), sysprog.Int(0), sysprog.Int(0))
	p.ResetSignals()
	if c.execInRoot {
		p.Call("waiting for the root", unix.SYS_READ, sysprog.Int(guestSocket), p.Bytes(make([]byte, 1)), sysprog.Int(1)).Want(1)
	}

	// struct sock_fprog: a count, and a pointer to the instructions.
	fprog := make([]byte, 16)
	binary.NativeEndian.PutUint16(fprog, uint16(len(c.filter)/8))
	p.PutPointer(fprog, 8, c.filter)
	p.Call(loadingFilter, unix.SYS_SECCOMP, sysprog.Int(unix.SECCOMP_SET_MODE_FILTER), sysprog.Int(0), p.Bytes(fprog))

	argv, err := p.Strs(c.argv)
	if err != nil {
		return err
	}
	// One processor at a time until there is more to do: a runtime that wakes
	// threads on all of them takes a third more processor time to start.
	envp, err := p.Strs([]string{"GOMAXPROCS=1"})
	if err != nil {
		return err
	}
	p.Call(executingGuest, unix.SYS_EXECVEAT, sysprog.Int(guestProgram), p.Str(""), argv, envp, sysprog.Int(unix.AT_EMPTY_PATH))
	return nil
}

// openNothing leaves the guest no descriptor to open a file with while its runtime
// starts. A Go runtime looks for its limit of processors in /proc and in the cgroup
// file system, which are the host's until the builder changes the root. If the root
// changes between the two files of a limit, the runtime never closes the first; if the
// program asks for that limit, it keeps both. Package syscall raises the soft limit
// again before any code of the guest runs.
//
// A guest that is executed in its root sees nothing of the host, and its dynamic
// loader opens files.
func (c *compiler) openNothing() {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return
	}
	b := binary.NativeEndian.AppendUint64(nil, guestProgram) // which its execution closes
	b = binary.NativeEndian.AppendUint64(b, lim.Max)
	c.p.Call("limiting open files", unix.SYS_PRLIMIT64, sysprog.Int(0), sysprog.Int(unix.RLIMIT_NOFILE), c.p.Bytes(b), sysprog.Int(0))
}

// What the builder answers: that it has done what it can without a plan, that the
// interface is made (see linkAhead), that all is mounted (see lockMounts), and that
// all is in place.
const (
	preparedByte = 'P'
	linkedByte   = 'L'
	mountedByte  = 'M'
	readyByte    = 'R'
)
