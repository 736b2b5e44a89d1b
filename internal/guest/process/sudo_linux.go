package process

import (
	"cmp"
	"errors"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/settings"
	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

const (
	// maxSudo is how many commands of sudo run at once; others wait to be accepted.
	maxSudo = 16
	// sudoPatience is the time in which a connection must send its request.
	sudoPatience = 5 * time.Second
	// sudoStart is the time in which a command must have been executed. What it is looked for in may be slow.
	sudoStart = 10 * time.Second
)

// ServeSudo starts the commands of the program sudo, which asks for them on the abstract
// socket wire.SudoSocket of the sandbox's network namespace. The sandbox's user and uid 0 may
// ask. A command has the rights of any other process of its user, and ends when whoever asked
// for it does. The socket is made before anything of the sandbox runs, so its name is free.
func (t *Table) ServeSudo() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sudo {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: wire.SudoSocket}); err == nil {
		err = unix.Listen(fd, maxSudo)
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	t.sudo = true
	go t.acceptSudo(fdio.WaitingFile(fd, "sudo"))
	return nil
}

func (t *Table) acceptSudo(f *os.File) {
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	for tokens := make(chan struct{}, maxSudo); ; {
		fd := -1
		var aerr error
		err := raw.Read(func(s uintptr) bool {
			fd, _, aerr = unix.Accept4(int(s), unix.SOCK_CLOEXEC)
			return aerr != unix.EAGAIN
		})
		if err != nil {
			return
		}
		if aerr != nil { // no descriptor is free, for example
			time.Sleep(sudoPatience / 50)
			continue
		}
		peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || peer.Uid != 0 && peer.Uid != t.settings.Config().User.UID {
			// Others must not take the places of those who may. They may lose this answer, if they have sent something.
			_, _ = unix.SendmsgN(fd, refuseSudo(1, "only the sandbox's own user may use sudo").Append(nil), nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			unix.Close(fd)
			continue
		}
		// Of the process that connected, whoever has its number now.
		pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err == unix.ENOPROTOOPT { // before Linux 6.5
			pidfd, err = unix.PidfdOpen(int(peer.Pid), 0)
		}
		if err != nil {
			unix.Close(fd)
			continue
		}
		tokens <- struct{}{}
		go func() {
			defer func() { <-tokens }()
			c := fdio.WaitingFile(fd, "sudo")
			defer c.Close()
			e := t.serveSudo(c, int(peer.Pid), pidfd)
			_ = c.SetDeadline(time.Now().Add(sudoPatience))
			_, _ = c.Write(e.Append(nil))
			// To close before everything is read would take the answer back (ECONNRESET).
			_, _ = io.Copy(io.Discard, c)
		}()
	}
}

// ends waits for the end of a process by its pidfd. It returns false if the pidfd is closed before.
func ends(pidfd *os.File) bool {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return false
	}
	return raw.Read(hasEnded) == nil
}

// hasEnded reports whether the process of a pidfd has ended.
func hasEnded(pidfd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return n > 0 || err != nil && err != unix.EINTR
}

// refuseSudo is the answer to a request that starts nothing.
func refuseSudo(code uint64, why string) *wire.Exit { return &wire.Exit{Code: code, StartError: why} }

// serveSudo serves a connection that a process has made. It returns the answer. The command ends with the connection, and
// with that process, of which pidfd is: the command may hold the other end of the connection itself. And it is killed with what that process belongs to.
func (t *Table) serveSudo(c *os.File, requester, pidfd int) *wire.Exit {
	conf := t.settings.Config()
	asks := fdio.WaitingFile(pidfd, "requester")
	defer asks.Close()
	_ = c.SetReadDeadline(time.Now().Add(sudoPatience))
	m, fds, err := receiveSudo(c)
	closeFDs := func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
		fds = nil
	}
	defer closeFDs()
	if err != nil {
		return refuseSudo(1, "the request is malformed")
	}
	_ = c.SetReadDeadline(time.Time{})
	u, err := t.settings.LookUser(cmp.Or(m.User, "root"))
	if err != nil {
		return refuseSudo(1, err.Error())
	}
	env := environ(&u, false, conf.Env, m.Env)
	t.sudos.Add(1) // before it is certain that the process lives: see KillAll
	defer t.sudos.Add(-1)
	limits, err := limitsOf(requester)
	owner := t.reaper.treeOf(requester)
	if err != nil || owner == nil || hasEnded(uintptr(pidfd)) { // then they may be another process's
		return refuseSudo(1, "the process that asks has ended")
	}
	a := &spawn.Attr{
		Argv: m.Argv, Candidates: candidates(m.Argv[0], env), Env: env, Dir: m.Dir,
		SetUser: u.Change, UID: u.UID, GID: u.GID, Groups: u.Groups,
		Rlimits: limits, OOMScoreAdj: conf.OOMScoreAdj,
		Stdin: fds[0], Stdout: fds[1], Stderr: fds[2], On: t.on(),
	}
	if u.UID == 0 {
		a.Caps = conf.RootCaps
	}
	begun := time.Now()
	var late, ended atomic.Bool
	proc, err := t.reaper.spawn(a, owner, func(killed bool) {
		if killed {
			go t.killOrphans()
		}
	}, func() bool {
		late.Store(time.Since(begun) > sudoStart)
		return late.Load() || hasEnded(uintptr(pidfd))
	})
	closeFDs()
	if err != nil {
		se, started := errors.AsType[*spawn.StartError](err)
		switch {
		case errors.Is(err, spawn.ErrHelper):
			t.killOrphans()
			if late.Load() {
				return refuseSudo(126, wire.Quote(m.Argv[0])+" could not be executed within "+sudoStart.String())
			}
			return new(killed())
		case !started:
			return refuseSudo(1, err.Error())
		}
		return new(notStarted(m, se))
	}
	leave := func() {
		if !ended.Load() {
			t.killTree(proc)
		}
	}
	if t.reaper.dying(owner) { // since it was looked at
		go leave()
	}
	go func() {
		if ends(asks) {
			leave()
		}
	}()
	go func() { // what comes now are signals, until whoever asked has gone
		for b := make([]byte, 1); ; {
			n, err := c.Read(b)
			if err != nil || n != 1 {
				leave()
				return
			}
			if s := unix.Signal(b[0]); s > 0 && s <= 64 {
				t.reaper.running(proc, func() { _ = unix.Kill(-proc.PID(), s) })
			}
		}
	}()
	e := t.exitOf(proc.Wait())
	// Nothing may stay that a kill of the command that used sudo would not reach.
	t.killTree(proc)
	t.killOrphansLeft() // the command can kill its helper, if both are root's
	ended.Store(true)
	return &e
}

// receiveSudo receives a request: one message with three descriptors.
func receiveSudo(c *os.File) (m *wire.Start, fds []int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	b, oob := make([]byte, wire.MaxSudo), make([]byte, unix.CmsgSpace(3*4))
	var n, oobn, flags int
	var rerr error
	err = raw.Read(func(s uintptr) bool {
		n, oobn, flags, _, rerr = unix.Recvmsg(int(s), b, oob, unix.MSG_CMSG_CLOEXEC)
		return rerr != unix.EAGAIN && rerr != unix.EINTR
	})
	if err = cmp.Or(err, rerr); err != nil {
		return nil, nil, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, nil, err
	}
	for i := range msgs {
		if got, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	m = new(wire.Start)
	switch err := m.Decode(b[:n]); {
	case err != nil:
		return nil, fds, err
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0, len(fds) != 3, len(m.Argv) == 0, !strings.HasPrefix(m.Dir, "/"), strings.IndexByte(m.Dir, 0) >= 0:
		return nil, fds, wire.ErrMessage
	}
	for _, a := range m.Argv {
		if strings.IndexByte(a, 0) >= 0 {
			return nil, fds, wire.ErrMessage
		}
	}
	return m, fds, settings.CheckEnv(m.Env)
}
