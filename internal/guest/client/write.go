package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// write writes a frame, which may be in two parts. When ctx ends while the
// guest does not read, write returns at once; sent says that some of the frame
// is under way, and then the rest goes before anything else.
func (c *Client) write(ctx context.Context, head, rest []byte) (sent bool, err error) {
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
	return c.writeLocked(ctx, head, rest)
}

// writeLocked is write for one who holds wsem.
func (c *Client) writeLocked(ctx context.Context, head, rest []byte) (sent bool, err error) {
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
	var n int
	if len(rest) == 0 {
		n, err = c.conn.Write(head)
	} else {
		var n64 int64
		bufs := net.Buffers{head, rest}
		n64, err = bufs.WriteTo(c.conn)
		n = int(n64)
	}
	if err == nil {
		return true, nil
	}
	if err := c.writeError(ctx, err); n == 0 || c.Err() != nil {
		return false, err
	}
	if n < len(head) {
		c.pending = append(append([]byte(nil), head[n:]...), rest...)
	} else {
		c.pending = append([]byte(nil), rest[n-len(head):]...)
	}
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
	c.fail(fmt.Errorf("%w: its guest does not listen any more", sandpit.ErrClosed))
	return c.Err()
}

// readerPatience is how long the reader may take to find why a guest does not
// listen any more.
const readerPatience = 2 * time.Second

// writeLater writes a small frame without waiting for it.
func (c *Client) writeLater(frame []byte) {
	c.lateMu.Lock()
	defer c.lateMu.Unlock()
	c.late = append(c.late, frame...)
	if c.flushing {
		return
	}
	c.flushing = true
	go func() {
		for {
			c.lateMu.Lock()
			b := c.late
			c.late = nil
			if len(b) == 0 || c.Err() != nil {
				c.flushing = false
				c.lateMu.Unlock()
				return
			}
			c.lateMu.Unlock()
			_, _ = c.write(context.Background(), b, nil)
		}
	}()
}
