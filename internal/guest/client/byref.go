package client

import (
	"context"
	"syscall"
)

// Kill kills a process, by its ref, and everything that it has started, even if it has
// exited.
func (c *Client) Kill(ctx context.Context, ref uint64) error {
	return (&Process{c: c, ref: ref}).Kill(ctx)
}

// SignalGroup sends a signal to the process group that a process leads, by its ref.
func (c *Client) SignalGroup(ctx context.Context, ref uint64, sig syscall.Signal) error {
	return (&Process{c: c, ref: ref}).SignalGroup(ctx, sig)
}
