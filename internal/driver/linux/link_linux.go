package linux

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// The interface of a sandbox is a TUN device (Documentation/networking/tuntap.rst): what is
// routed to it can be read from a descriptor. The builder makes the one of a plan: tunPath was
// opened while it still saw the host, in every blank, and the descriptor comes back with its
// answer, or ahead of the plan with one of its own (linkAhead). To give a running sandbox one, or to attach to it again, a child joins the sandbox's user
// and network namespaces, makes the device or attaches to it, and passes the descriptor on. The
// device is persistent, so that it stays when the descriptor is closed: connections of the sandbox
// then hang until somebody attaches to it again, and nobody waits for the kernel to unregister it.

// tunPath is the file by which TUN devices are made.
const tunPath = "/dev/net/tun"

// linkName is the name of the interface inside, which programs expect of a first one.
const linkName = "eth0"

// linkIndex is its index, which is chosen so that it is known before the device is made.
const linkIndex = 1000

var _ driver.Linker = (*instance)(nil)

// Link makes the sandbox's interface or attaches to it. See driver.Linker.
func (i *instance) Link(ctx context.Context, l driver.Link) (*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := i.owned(); err != nil {
		return nil, err
	}
	if fd := i.takeLink(l); fd >= 0 {
		return os.NewFile(uintptr(fd), linkName), nil
	}
	i.doing(ctx, "link")
	dumpable, leave := processDumpable.enter()
	defer leave()
	fd, err := i.link(ctx, l, dumpable)
	if err != nil {
		return nil, fmt.Errorf("making the network interface of %s: %w", i.id, i.explainLink(err))
	}
	return os.NewFile(uintptr(fd), linkName), nil
}

// doing says which step begins.
func (i *instance) doing(ctx context.Context, step string) {
	doing := driver.Doing{Step: step, PID: i.child.PID}
	if i.group != nil {
		doing.Cgroup = i.group.Name()
	}
	driver.ProgressOf(ctx).Enter(doing)
}

// takeLink returns the interface that the builder has made, once, or -1.
func (i *instance) takeLink(l driver.Link) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed { // and so is the interface
		return -1
	}
	fd := i.iface
	i.iface = -1
	if fd >= 0 && *i.plan.Link != l {
		unix.Close(fd)
		return -1
	}
	return fd
}

func (i *instance) link(ctx context.Context, l driver.Link, dumpable bool) (int, error) {
	fds, err := i.enter(ctx, func(sandbox, socket int) *sysprog.Program { return linkSteps(l, sandbox, socket, dumpable) })
	if err != nil {
		return -1, err
	}
	if len(fds) != 1 {
		closeAll(fds)
		return -1, fmt.Errorf("received %d descriptors, not one", len(fds))
	}
	return fds[0], nil
}

// enter runs steps in a child, which gets the sandbox's pidfd and a socket for its answer. It returns
// the descriptors that come with that.
func (i *instance) enter(ctx context.Context, steps func(sandbox, socket int) *sysprog.Program) ([]int, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(ends[0])
	var p *sysprog.Program
	var child sysprog.Child
	raw, gone := i.pidfd.SyscallConn()
	if gone == nil { // Destroy closes the pidfd
		gone = raw.Control(func(sandbox uintptr) { p, child, err = i.fork(steps, int(sandbox), ends[1]) })
	}
	unix.Close(ends[1])
	if gone != nil {
		return nil, unix.ESRCH
	}
	if err != nil {
		return nil, err
	}
	buf, oob := make([]byte, sysprog.ReportSize), make([]byte, unix.CmsgSpace(4*maxTrees))
	n, oobn, err := hear(ctx, ends[0], buf, oob)
	if err != nil {
		_ = unix.Kill(child.PID, unix.SIGKILL) // not reaped yet
	}
	reap(child.PID)
	child.Release()
	fds := receivedFDs(oob[:oobn])
	if failed, ok := p.DecodeReport(buf[:n]); err == nil && ok {
		err = failed
	} else if err == nil && (n != 1 || buf[0] != goMessage) {
		err = errors.New("the process that entered the sandbox ended without an answer")
	}
	if err != nil {
		closeAll(fds)
		return nil, err
	}
	return fds, nil
}

// fork makes the child, which gets few descriptors.
func (i *instance) fork(steps func(sandbox, socket int) *sysprog.Program, sandbox, socket int) (*sysprog.Program, sysprog.Child, error) {
	below, back, err := i.driver.reserved.lend([]*int{&sandbox, &socket})
	if err != nil {
		return nil, sysprog.Child{}, err
	}
	defer back()
	p := steps(sandbox, socket)
	child, err := p.Fork(sysprog.ForkOptions{Cgroup: -1, Report: socket, Below: below})
	return p, child, err
}

// The steps that fail where there is no TUN, and no sandbox any more.
const (
	openingTUN = "opening " + tunPath
	entering   = "entering the sandbox"
)

// ends waits for the end of a guest that seems to end, and reports whether it does.
func (i *instance) ends() bool {
	i.mu.Lock()
	closed := i.closed
	i.mu.Unlock()
	if closed {
		return true
	}
	select {
	case <-i.done:
		return true
	case <-time.After(time.Second):
		return false
	}
}

// explainLink says what to do about a link that can't be made.
func (i *instance) explainLink(err error) error {
	var step *sysprog.StepError
	// Of a process that is about to end, whose memory is gone, only root may enter the namespaces.
	dying := errors.As(err, &step) && step.What == entering && errors.Is(err, unix.EPERM) && i.ends()
	switch {
	case errors.Is(err, unix.ESRCH), dying:
		return fault.Errorf(sandpit.ErrClosed, "the sandbox has ended")
	case step == nil:
		return err
	case step.What == openingTUN:
		return sandpit.WithHint(fault.Kind{Err: err, Kind: sandpit.ErrUnsupported}, tunFix(err))
	case errors.Is(err, unix.EBUSY):
		return fault.Errorf(sandpit.ErrExists, "another process is attached to it")
	}
	return err
}

// tunFix says what to do when tunPath can't be opened.
func tunFix(err error) string {
	if errors.Is(err, unix.EACCES) {
		return "make it usable for other users than root, as most distributions do (chmod 666 " + tunPath + ")"
	}
	return "load the module (modprobe tun); in a container, pass the device on (--device " + tunPath + ")"
}

// openTUN opens tunPath in the network namespace, to which the file belongs from then on, but by
// the host's path. A blank may never need it.
func (c *compiler) openTUN() {
	binary.NativeEndian.PutUint32(c.tun, ^uint32(0))
	open := openTUN(c.p)
	if c.announce {
		open.Ignore(unix.ENOENT, unix.EACCES, unix.EPERM, unix.ENODEV)
	}
	tun := open.Result()
	c.p.Store32(sysprog.From(tun), c.tun, 0)
	c.p.Free(tun)
}

func openTUN(p *sysprog.Program) sysprog.Step {
	return p.Call(openingTUN, unix.SYS_OPENAT, sysprog.Int(unix.AT_FDCWD), p.Str(tunPath), sysprog.Int(unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK), sysprog.Int(0))
}

// hasTUN reports whether the builder has tunPath open. Where it is not a blank's, it fails without.
func (c *compiler) hasTUN() bool {
	return c.tun != nil && (!c.announce || int32(binary.NativeEndian.Uint32(c.tun)) >= 0)
}

// makeLink makes the interface, and returns its descriptor.
func (c *compiler) makeLink(l *driver.Link) sysprog.Arg {
	tun := c.p.Mem32(c.tun, 0)
	interfaceSteps(c.p, l, tun)
	return tun
}

// enterSteps begin a list of steps in the sandbox's user and network namespaces.
func enterSteps(sandbox int, dumpable bool) *sysprog.Program {
	p := new(sysprog.Program)
	p.Grow(24)
	p.Call(entering, unix.SYS_SETNS, sysprog.Int(sandbox), sysprog.Int(unix.CLONE_NEWUSER|unix.CLONE_NEWNET))
	if dumpable {
		p.Call("making the owner dumpable", unix.SYS_PRCTL, sysprog.Int(unix.PR_SET_DUMPABLE), sysprog.Int(1), sysprog.Int(0), sysprog.Int(0), sysprog.Int(0))
	}
	return p
}

// linkSteps makes the interface or attaches to it, and sends its descriptor over the socket.
func linkSteps(l driver.Link, sandbox, socket int, dumpable bool) *sysprog.Program {
	p := enterSteps(sandbox, dumpable)
	tun := sysprog.From(openTUN(p).Result()) // as openTUN of compiler does
	interfaceSteps(p, &l, tun)
	control := controlMessage(1)
	p.Store32(tun, control, unix.CmsgLen(0))
	p.Call("sending the interface", unix.SYS_SENDMSG, sysprog.Int(socket), messageHeader(p, []byte{goMessage}, control), sysprog.Int(unix.MSG_NOSIGNAL)).Want(1)
	return p
}

// interfaceSteps makes the interface of tun, or attaches tun to it. Nobody needs the sums of packets that
// do not leave the machine, and with the header in front of them they are left out.
func interfaceSteps(p *sysprog.Program, l *driver.Link, tun sysprog.Arg) {
	index := binary.NativeEndian.AppendUint32(nil, linkIndex)
	p.Call("choosing the index of the interface", unix.SYS_IOCTL, tun, sysprog.Int(unix.TUNSETIFINDEX), p.Bytes(index))
	ioctl := func(what string, fd sysprog.Arg, request uint, b []byte) sysprog.Step {
		return p.Call(what, unix.SYS_IOCTL, fd, sysprog.Int(request), p.Bytes(b))
	}
	ioctl("making the interface", tun, unix.TUNSETIFF, ifreq(binary.NativeEndian.AppendUint16(nil, unix.IFF_TUN|unix.IFF_NO_PI|unix.IFF_VNET_HDR)))
	p.Call("leaving sums out", unix.SYS_IOCTL, tun, sysprog.Int(unix.TUNSETOFFLOAD), sysprog.Int(unix.TUN_F_CSUM))
	p.Call("keeping the interface", unix.SYS_IOCTL, tun, sysprog.Int(unix.TUNSETPERSIST), sysprog.Int(1))

	inet := sysprog.From(p.Call("opening a socket", unix.SYS_SOCKET, sysprog.Int(unix.AF_INET), sysprog.Int(unix.SOCK_DGRAM|unix.SOCK_CLOEXEC), sysprog.Int(0)).Result())
	ioctl("setting the MTU", inet, unix.SIOCSIFMTU, ifreq(binary.NativeEndian.AppendUint32(nil, uint32(l.MTU))))
	ioctl("setting the IPv4 address", inet, unix.SIOCSIFADDR, ifreq(sockaddr4(l.IPv4.Addr())))
	ioctl("setting the IPv4 network", inet, unix.SIOCSIFNETMASK, ifreq(sockaddr4(mask(l.IPv4.Bits()))))
	ioctl("bringing the interface up", inet, unix.SIOCSIFFLAGS, ifreq(binary.NativeEndian.AppendUint16(nil, unix.IFF_UP|unix.IFF_RUNNING)))
	// struct rtentry of linux/route.h: any destination, by this interface.
	route := make([]byte, 120)
	for _, at := range []int{8, 24, 40} { // destination, gateway, mask
		copy(route[at:], sockaddr4(netip.IPv4Unspecified()))
	}
	binary.NativeEndian.PutUint16(route[56:], unix.RTF_UP)
	p.PutPointer(route, 88, append([]byte(linkName), 0))
	ioctl("setting the IPv4 route", inet, unix.SIOCADDRT, route).Ignore(unix.EEXIST)

	const steps6 = 2
	inet6 := sysprog.From(p.Call("opening a socket", unix.SYS_SOCKET, sysprog.Int(unix.AF_INET6), sysprog.Int(unix.SOCK_DGRAM|unix.SOCK_CLOEXEC), sysprog.Int(0)).
		Ignore(unix.EAFNOSUPPORT).SkipAfterIgnored(steps6).Result())
	// struct in6_ifreq of linux/ipv6.h.
	address := binary.NativeEndian.AppendUint32(l.IPv6.Addr().AsSlice(), uint32(l.IPv6.Bits()))
	address = binary.NativeEndian.AppendUint32(address, linkIndex)
	// Where IPv6 is disabled, these fail.
	ioctl("setting the IPv6 address", inet6, unix.SIOCSIFADDR, address).Ignore(unix.EEXIST, unix.EACCES, unix.EPERM)
	// struct in6_rtmsg of linux/ipv6_route.h: any destination, by this interface.
	route6 := make([]byte, 80)
	binary.NativeEndian.PutUint32(route6[56:], 1024) // metric
	binary.NativeEndian.PutUint32(route6[72:], unix.RTF_UP)
	binary.NativeEndian.PutUint32(route6[76:], linkIndex)
	ioctl("setting the IPv6 route", inet6, unix.SIOCADDRT, route6).Ignore(unix.EEXIST, unix.EACCES, unix.EPERM)
}

// ifreq is struct ifreq of netdevice(7) for the interface.
func ifreq(value []byte) []byte {
	b := make([]byte, 40)
	copy(b, linkName)
	copy(b[unix.IFNAMSIZ:], value)
	return b
}

// sockaddr4 is struct sockaddr_in of ip(7).
func sockaddr4(a netip.Addr) []byte {
	b := binary.NativeEndian.AppendUint16(make([]byte, 0, unix.SizeofSockaddrInet4), unix.AF_INET)
	return append(append(b, 0, 0), a.AsSlice()...)[:unix.SizeofSockaddrInet4]
}

// mask is the mask of an IPv4 network.
func mask(bits int) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-bits))))
}
