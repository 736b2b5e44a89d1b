package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// write writes frames, which may be in several pieces. When ctx ends while the
// guest does not read, write returns at once; sent says that some of it is under
// way, and then the rest goes before anything else.
func (c *Client) write(ctx context.Context, pieces ...[]byte) (sent bool, err error) {
	select {
	case c.wsem <- struct{}{}:
	default:
		select {
		case c.wsem <- struct{}{}:
		case <-ctx.Done():
			return false, ctx.Err()
		case <-c.done:
			return false, c.err
		}
	}
	defer func() { <-c.wsem }()
	return c.writeLocked(ctx, pieces...)
}

// writeLocked is write for one who holds wsem.
func (c *Client) writeLocked(ctx context.Context, pieces ...[]byte) (sent bool, err error) {
	if ctx.Done() != nil {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		interrupted := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			_ = c.conn.SetWriteDeadline(time.Unix(1, 0))
			close(interrupted)
		})
		defer func() {
			if !stop() {
				<-interrupted
				_ = c.conn.SetWriteDeadline(time.Time{})
			}
		}()
	}
	if len(c.pending) > 0 {
		n, err := c.conn.Write(c.pending)
		c.pending = c.pending[n:]
		if err != nil {
			return false, c.writeError(ctx, err)
		}
		c.pending = nil
	}
	var n int64
	left := net.Buffers(pieces) // WriteTo takes out what is written
	if len(pieces) == 1 {
		var k int
		k, err = c.conn.Write(pieces[0])
		left, n = net.Buffers{pieces[0][k:]}, int64(k)
	} else {
		n, err = left.WriteTo(c.conn)
	}
	if err == nil {
		return true, nil
	}
	if err := c.writeError(ctx, err); n == 0 || c.Err() != nil {
		return false, err
	}
	c.pending = slices.Concat(left...)
	return true, ctx.Err()
}

// writeError returns the error of ctx if that is what has ended a write, and
// else ends the connection.
func (c *Client) writeError(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	// The reader is about to find a better reason, unless the guest goes on
	// talking to one that it does not listen to.
	select {
	case <-c.done:
	case <-time.After(readerPatience):
	}
	c.fail(fmt.Errorf("%w: its guest no longer reads", sandpit.ErrClosed))
	return c.Err()
}

// readerPatience is how long the reader may take to find why a guest does not
// listen any more.
const readerPatience = 2 * time.Second

// writeLater writes a small frame without waiting for it.
func (c *Client) writeLater(frame []byte) {
	c.delayedMu.Lock()
	defer c.delayedMu.Unlock()
	c.delayed = append(c.delayed, frame...)
	if c.flushing {
		return
	}
	c.flushing = true
	go func() {
		for {
			c.delayedMu.Lock()
			b := c.delayed
			c.delayed = nil
			if len(b) == 0 || c.Err() != nil {
				c.flushing = false
				c.delayedMu.Unlock()
				return
			}
			c.delayedMu.Unlock()
			_, _ = c.write(context.Background(), b)
		}
	}()
}
