package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// serverPID returns the process that serves a data directory, or 0.
func serverPID(t *testing.T, home string) int {
	t.Helper()
	conn, err := server.DialHome(context.WithoutCancel(t.Context()), home)
	if err != nil {
		return 0
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return int(cred.Pid)
}

// endServer removes the sandboxes of a data directory's server, and ends it.
func endServer(t *testing.T, home string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // which has ended when tests clean up
	pid := serverPID(t, home)
	if pid == 0 {
		return
	}
	if err := removeAll(ctx, client.Options{Address: server.SocketIn(home).String()}); err != nil {
		t.Error(err)
	}
	signalServer(t, pid, unix.SIGTERM)
}

// signalServer sends a server a signal that ends it, and waits until it has ended.
func signalServer(t *testing.T, pid int, sig unix.Signal) {
	t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has left by itself
	}
	defer unix.Close(pidfd)
	if err := unix.PidfdSendSignal(pidfd, sig, nil, 0); err != nil {
		t.Errorf("ending the server: %v", err)
		return
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, -1)
		if err != unix.EINTR {
			break
		}
	}
}

// removeAll removes all sandboxes that a client sees.
func removeAll(ctx context.Context, way client.Options) error {
	c, err := client.New(way)
	if err != nil {
		return err
	}
	defer c.Close()
	page, err := c.List(ctx, sandpit.ListQuery{Limit: 1000})
	for _, info := range page.Sandboxes {
		// Its life may have ended meanwhile.
		if rerr := c.Remove(ctx, info.ID); rerr != nil && !errors.Is(rerr, sandpit.ErrNotFound) {
			err = errors.Join(err, fmt.Errorf("removing %s: %w", info.Name, rerr))
		}
	}
	if err != nil {
		return err
	}
	page, err = c.List(ctx, sandpit.ListQuery{})
	for _, info := range page.Sandboxes {
		err = errors.Join(err, fmt.Errorf("%s is removed, and still there", info.Name))
	}
	return err
}

// startServer starts a server of a data directory, which endServer ends, and
// returns when it answers.
func startServer(t *testing.T, home string) {
	t.Helper()
	cmd := commandLine(t, "sandpit", "serve")
	cmd.Env = append(cmd.Env, "SANDPIT_HOME="+home)
	log := new(testkit.Buffer)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	testkit.Until(t, "the server answers", func() bool {
		select {
		case <-ended:
			t.Fatalf("the server has ended: %s\n%s", cmd.ProcessState, log)
		default:
		}
		return serverPID(t, home) == cmd.Process.Pid
	}, log.String)
}
