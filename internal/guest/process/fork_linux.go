package process

import (
	"cmp"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/procfs"
	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
)

// zygote is how a process was started from which others can be forked.
type zygote struct {
	attr spawn.Attr
	took int // what Table.took was
}

// fits reports whether a fork of the zygote has the same command line up to the tag, the same
// environment, and the same rights and limits as a program that is started with a.
func (z *zygote) fits(a *spawn.Attr) bool {
	same := len(z.attr.Argv) - 1
	return len(a.Argv) > same && slices.Equal(a.Argv[:same], z.attr.Argv[:same]) && slices.Equal(a.Env, z.attr.Env) &&
		a.SetUser == z.attr.SetUser && a.UID == z.attr.UID && a.GID == z.attr.GID && slices.Equal(a.Groups, z.attr.Groups) &&
		a.Caps == z.attr.Caps && slices.Equal(a.Rlimits, z.attr.Rlimits) && a.OOMScoreAdj == z.attr.OOMScoreAdj && !a.Terminal
}

// zygoteFor returns a running zygote that fits, or nil.
func (t *Table) zygoteFor(a *spawn.Attr) *process {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.procs {
		if p.zygote != nil && p.zygote.took == t.took && !p.hasExited() && p.zygote.fits(a) {
			return p
		}
	}
	return nil
}

const (
	// forkPatience is the time in which a zygote must have forked.
	forkPatience = 5 * time.Second
	// maxForkDir is the longest directory that is sent to a zygote.
	maxForkDir = 4 << 10
)

// errFork says that a zygote has not forked. Nothing of the fork is left then.
var errFork = errors.New("the zygote has not forked")

// fork forks a process from a zygote. The error matches errFork if it should be started like any
// other; else it is one of spawn.Start.
func (t *Table) fork(a *spawn.Attr, gone func(killed bool), calledOff func() bool) (*spawn.Proc, error) {
	z := t.zygoteFor(a)
	if z == nil || len(a.Dir) > maxForkDir {
		return nil, errFork
	}
	p, err := t.reaper.begin(nil, func(made func(pid int) bool) (*spawn.Proc, error) {
		s, err := z.askFork(a)
		if err != nil {
			return nil, err
		}
		p, err := s.greet(a, t, made)
		if err != nil {
			s.f.Close()
		}
		return p, err
	}, gone, calledOff)
	if err == nil {
		return p, nil
	}
	if _, failed := errors.AsType[*spawn.StartError](err); !failed {
		t.killOrphans()
		err = errFork
		if calledOff() {
			err = spawn.ErrHelper
		}
	}
	return nil, err
}

// askFork asks a zygote for a fork with the standard streams and the directory of a. It never asks another
// process that has taken the name of the zygote's socket.
func (p *process) askFork(a *spawn.Attr) (*forkStatus, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: "@sandpit-zygote-" + strconv.Itoa(p.pid)}); err != nil {
		return nil, err
	}
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || int(peer.Pid) != p.pid {
		return nil, errFork
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(pair[1])
	s := &forkStatus{f: fdio.WaitingFile(pair[0], "fork")}
	if s.raw, err = s.f.SyscallConn(); err == nil {
		err = unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}
	if err == nil {
		err = unix.Sendmsg(fd, []byte(a.Dir), unix.UnixRights(a.Stdin, a.Stdout, a.Stderr, pair[1]), nil, 0)
	}
	if err != nil {
		s.f.Close()
		return nil, err
	}
	return s, nil
}

// forkStatus is the socket on which a fork and its helper tell how they are. The kernel says who tells.
type forkStatus struct {
	f   *os.File
	raw syscall.RawConn
}

// greet waits for the helper and the fork.
func (s *forkStatus) greet(a *spawn.Attr, t *Table, made func(pid int) bool) (*spawn.Proc, error) {
	_ = s.f.SetDeadline(time.Now().Add(forkPatience))
	_, helper, err := s.receive()
	if err != nil || !made(helper) {
		return nil, errFork
	}
	fail := func(err error) (*spawn.Proc, error) {
		t.reaper.abandon(helper)
		return nil, err
	}
	if _, err := s.f.Write([]byte{1}); err != nil { // now it forks
		return fail(errFork)
	}
	said, pid, err := s.receive()
	errno, perr := strconv.Atoi(said)
	if err != nil || perr != nil || errno < 0 || pid == helper {
		return fail(errFork)
	}
	if errno == 0 && procfs.Parent(pid) != helper {
		return fail(errFork) // whoever says so is not the helper's
	}
	if errno != 0 {
		return fail(spawn.NotEntered(a.Dir, syscall.Errno(errno)))
	}
	_ = s.f.SetDeadline(time.Time{})
	return spawn.Forked(pid, helper, func() (spawn.Status, error) { return s.wait(helper) }, s.wake), nil
}

// wait waits until the helper tells how the fork has ended.
func (s *forkStatus) wait(helper int) (spawn.Status, error) {
	defer s.f.Close()
	said, from, err := s.receive()
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) { // the helper has ended, and may have told before
		said, from, err = s.receiveNow()
	}
	var n [4]int64
	fields := strings.Fields(said)
	if err != nil || from != helper || len(fields) != len(n) {
		return spawn.Status{}, spawn.ErrHelper
	}
	for i, f := range fields {
		if n[i], err = strconv.ParseInt(f, 10, 64); err != nil {
			return spawn.Status{}, spawn.ErrHelper
		}
	}
	return spawn.Status{Wait: syscall.WaitStatus(n[0]), Usage: syscall.Rusage{
		Utime: syscall.NsecToTimeval(n[1] * 1000), Stime: syscall.NsecToTimeval(n[2] * 1000), Maxrss: n[3],
	}}, nil
}

// wake ends a wait when the helper has ended: somebody else may hold its socket.
func (s *forkStatus) wake() { _ = s.f.SetReadDeadline(time.Unix(1, 0)) }

// receive waits for a message, and returns it with the process that has sent it.
func (s *forkStatus) receive() (said string, from int, err error) {
	rerr := s.raw.Read(func(uintptr) bool {
		said, from, err = s.receiveNow()
		return err != unix.EAGAIN
	})
	return said, from, cmp.Or(rerr, err)
}

func (s *forkStatus) receiveNow() (said string, from int, err error) {
	b, oob := make([]byte, 128), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	var n, oobn int
	cerr := s.raw.Control(func(fd uintptr) {
		n, oobn, _, _, err = unix.Recvmsg(int(fd), b, oob, unix.MSG_CMSG_CLOEXEC)
	})
	if err = cmp.Or(cerr, err); err != nil {
		return "", 0, err
	}
	if n == 0 {
		return "", 0, io.EOF
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(msgs) != 1 {
		return "", 0, errFork
	}
	who, err := unix.ParseUnixCredentials(&msgs[0])
	if err != nil {
		return "", 0, err
	}
	return string(b[:n]), int(who.Pid), nil
}
