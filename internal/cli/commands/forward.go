package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// forwardCommand is sandpit forward.
func (a *tree) forwardCommand() *cobra.Command {
	return a.serverCommand(&cobra.Command{
		Use: "forward NAME [[ADDR:]PORT:]PORT...",
		Long: `Forward TCP ports of this machine to a sandbox until ^C. LOCAL:PORT forwards port LOCAL on
127.0.0.1 to port PORT on the sandbox's loopback. A LOCAL of 0 picks a free port. The
command fails when the sandbox is stopped or removed.`,
		Example:           "  sandpit forward work 8080:80\n  sandpit forward work 0:8000",
		Args:              arguments(2, -1),
		ValidArgsFunction: a.completeNames(1),
	}, func(ctx context.Context, s *session, args []string) error {
		sb, err := s.find(ctx, args[0])
		if err != nil {
			return err
		}
		args = args[1:]
		var wait sync.WaitGroup
		defer wait.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		failed := make(chan error, len(args)+1)
		locals, ports := make([]string, len(args)), make([]uint16, len(args))
		for i, arg := range args {
			var err error
			if locals[i], ports[i], err = parseForward(arg); err != nil {
				return err
			}
		}
		if err := ended(ctx, sb); err != nil {
			return err
		}
		listeners := make([]net.Listener, len(args))
		for i, local := range locals {
			l, err := net.Listen("tcp", local)
			if err != nil {
				var op *net.OpError
				if errors.As(err, &op) {
					err = op.Err // which does not name the address again
				}
				return sandpit.WithHint(fmt.Errorf("listening on %s: %w", local, err), "choose another port, or 0 for a free one")
			}
			defer l.Close()
			listeners[i] = l
		}
		for i, l := range listeners {
			port := ports[i]
			if _, err := fmt.Fprintf(a.Stdout, "%s -> %s:%d\n", l.Addr(), sb.Name(), port); err != nil {
				return err
			}
			wait.Go(func() { failed <- a.forward(ctx, l, sb, port) })
			context.AfterFunc(ctx, func() { _ = l.Close() })
		}
		wait.Go(func() {
			if err := s.outlast(ctx, sb); err != nil {
				failed <- err
			}
		})
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// serverPause is the time between attempts to reach a server that does not answer.
const serverPause = time.Second

// outlast returns when the sandbox is stopped, removed or failed, with an error that says
// which, or when ctx ends. Sandboxes outlive their server, which may come back.
func (s *session) outlast(ctx context.Context, sb sandpit.Sandbox) error {
	watcher, ok := s.Client.(sandpit.Watcher)
	if !ok {
		return nil
	}
	for {
		err := s.watchEnd(ctx, watcher, sb)
		if err != nil && !errors.Is(err, sandpit.ErrUnavailable) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(serverPause):
		}
	}
}

// watchEnd is outlast until the server can't be reached. It returns nil when the server
// ends the stream of events.
func (s *session) watchEnd(ctx context.Context, watcher sandpit.Watcher, sb sandpit.Sandbox) error {
	// The events after the list, and the state after that: no end is missed.
	page, err := s.List(ctx, sandpit.ListQuery{Limit: 1})
	if err != nil {
		return err
	}
	query := sandpit.EventQuery{
		After: page.Seq, Sandbox: sb.ID(),
		Kinds: []sandpit.EventKind{sandpit.EventStopped, sandpit.EventFailed, sandpit.EventRemoved},
	}
	if err := ended(ctx, sb); err != nil {
		return err
	}
	for _, err := range watcher.Events(ctx, query) {
		if err == nil {
			err = ended(ctx, sb)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ended returns an error if the sandbox is stopped, removed or failed, and can't be asked
// for a connection.
func ended(ctx context.Context, sb sandpit.Sandbox) error {
	info, err := sb.Info(ctx)
	switch {
	case errors.Is(err, sandpit.ErrClosed), errors.Is(err, sandpit.ErrNotFound):
		return fault.Errorf(sandpit.ErrClosed, "sandbox %q was removed", sb.Name())
	case err != nil:
		return err
	case info.State == sandpit.StateStopped:
		return sandpit.WithHint(fault.Errorf(sandpit.ErrState, "sandbox %q is stopped", sb.Name()), "start it with 'sandpit start "+sb.Name()+"'")
	case info.State == sandpit.StateFailed:
		return fault.Errorf(sandpit.ErrState, "sandbox %q has failed: %s", sb.Name(), info.Reason)
	}
	return nil
}

// parseForward reads PORT, LOCAL:PORT or ADDR:LOCAL:PORT.
func parseForward(text string) (local string, port uint16, err error) {
	bad := sandpit.WithHint(cli.Usagef("%q is not a valid port forwarding", text), "write LOCAL:PORT, for example 8080:80, or ADDR:LOCAL:PORT, with an IPv6 address in brackets")
	i := strings.LastIndexByte(text, ':')
	n, err := strconv.ParseUint(text[i+1:], 10, 16)
	if err != nil || n == 0 {
		return "", 0, bad
	}
	host, at := "127.0.0.1", text[i+1:]
	if i >= 0 {
		at = text[:i]
		if j := strings.LastIndexByte(at, ':'); j >= 0 {
			host, at = at[:j], at[j+1:]
			if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
				host = host[1 : len(host)-1]
			} else if strings.Contains(host, ":") {
				return "", 0, bad
			}
		}
	}
	if _, err := strconv.ParseUint(at, 10, 16); err != nil {
		return "", 0, bad
	}
	return net.JoinHostPort(host, at), uint16(n), nil
}

// forward passes connections on until the listener is closed.
func (a *tree) forward(ctx context.Context, l net.Listener, sb sandpit.Sandbox, port uint16) error {
	var wait sync.WaitGroup
	defer wait.Wait()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("forwarding to port %d: %w", port, err)
		}
		wait.Go(func() {
			defer conn.Close()
			inner, err := sb.Dial(ctx, port)
			if err != nil {
				a.Note("port %d: %v", port, err)
				return
			}
			defer inner.Close()
			stop := context.AfterFunc(ctx, func() { conn.Close(); inner.Close() })
			defer stop()
			join(conn, inner)
		})
	}
}

// join copies both ways until both ends have ended.
func join(x, y net.Conn) {
	var wait sync.WaitGroup
	one := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
			_ = half.CloseWrite()
			return
		}
		_ = to.Close()
		_ = from.Close()
	}
	wait.Go(func() { one(x, y) })
	one(y, x)
	wait.Wait()
}
