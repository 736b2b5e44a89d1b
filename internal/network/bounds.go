package network

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandpit-dev/sandpit"
)

// bounds holds what a sandbox may use. It is safe for concurrent use.
type bounds struct {
	mu             sync.Mutex
	max            sandpit.EgressBounds // guarded by mu
	now            int64                // open connections, guarded by mu
	given          int64                // bytes of their buffers, each way; guarded by mu
	fresh          *rate.Limiter        // new connections
	up, down       *rate.Limiter        // bytes; nil: unlimited
	sent, received atomic.Int64
}

// burst is the number of bytes that may be moved at once with a bound of bandwidth.
const burst = 64 << 10

func (b *bounds) set(max sandpit.EgressBounds) {
	b.mu.Lock()
	defer b.mu.Unlock()
	max.Connections = cmp.Or(max.Connections, sandpit.DefaultConnections)
	max.NewConnections = cmp.Or(max.NewConnections, sandpit.DefaultNewConnections)
	b.max = max
	b.fresh = limited(b.fresh, max.NewConnections, int(max.NewConnections)*2)
	b.up, b.down = limited(b.up, max.Bandwidth, burst), limited(b.down, max.Bandwidth, burst)
}

// limited returns a limiter of what happens per second, or nil if that is 0. It changes and returns the
// limiter of before, if there is one: a full burst with each change would let the sandbox pass its bounds.
func limited(was *rate.Limiter, perSecond int64, burst int) *rate.Limiter {
	switch {
	case perSecond <= 0:
		return nil
	case was == nil:
		return rate.NewLimiter(rate.Limit(perSecond), burst)
	}
	was.SetLimit(rate.Limit(perSecond))
	was.SetBurst(burst)
	return was
}

var (
	errConnections = errors.New("the sandbox has too many open connections")
	errTooFast     = errors.New("the sandbox opens connections too quickly")
	errTraffic     = errors.New("the sandbox has used up its traffic")
)

// admit takes the place of a connection with buffers of a size, until release is called. The next one
// gets a part of what is left for buffers, so that few have much, and all of them a bounded sum.
func (b *bounds) admit() (size int64, release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.now >= b.max.Connections:
		return 0, nil, errConnections
	case b.usedUp():
		return 0, nil, errTraffic
	case !b.fresh.Allow():
		return 0, nil, errTooFast
	}
	size = min(max((buffers-b.given)/8, minBuffer), maxBuffer)
	b.now++
	b.given += size
	return size, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.now--
		b.given -= size
	}, nil
}

// usedUp reports whether no more bytes may be moved. Precondition: b.mu is held.
func (b *bounds) usedUp() bool {
	return b.max.Sent > 0 && b.sent.Load() >= b.max.Sent || b.max.Received > 0 && b.received.Load() >= b.max.Received
}

// count counts bytes that are about to be moved for a flow, and waits as long as the bandwidth asks
// for. If they exceed the bounds, it cuts the flow and returns an error: the caller moves none of them.
func (b *bounds) count(ctx context.Context, f *flow, sent, received int) error {
	b.mu.Lock()
	most, up, down := b.max, b.up, b.down
	b.mu.Unlock()
	if all := b.sent.Add(int64(sent)); sent > 0 && most.Sent > 0 && all > most.Sent {
		f.cut(errTraffic)
		return errTraffic
	}
	if all := b.received.Add(int64(received)); received > 0 && most.Received > 0 && all > most.Received {
		f.cut(errTraffic)
		return errTraffic
	}
	for _, w := range []struct {
		limit *rate.Limiter
		n     int
	}{{up, sent}, {down, received}} {
		for n := w.n; w.limit != nil && n > 0; n -= burst {
			if err := w.limit.WaitN(ctx, min(n, burst)); err != nil {
				return err
			}
		}
	}
	return nil
}

// counted is the sandbox's end of a connection, whose bytes are counted and bounded.
type counted struct {
	*end
	ctx     context.Context
	flow    *flow
	bounds  *bounds
	sockets *share

	// Of the goroutine that calls take.
	taken int64  // bytes
	idle  func() // of a connection that counts as busy
}

// Read reads what the sandbox sends.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if n > 0 {
		if over := c.bounds.count(c.ctx, c.flow, n, 0); over != nil {
			return 0, over
		}
		c.flow.moved(int64(n), 0)
	}
	if err != nil && !errors.Is(err, io.EOF) && !isTimeout(err) {
		c.flow.reset() // the origin must not take what it got for all
	}
	return n, err
}

// Write sends to the sandbox.
func (c *counted) Write(b []byte) (int, error) {
	if err := c.bounds.count(c.ctx, c.flow, 0, len(b)); err != nil {
		return 0, err
	}
	n, err := c.TCPConn.Write(b)
	c.flow.moved(0, int64(n))
	return n, err
}

// Drain discards what the sandbox still sends, which does not count: nobody gets it.
func (c *counted) Drain(most time.Duration) {
	_ = c.SetReadDeadline(time.Now().Add(most))
	_, _ = io.Copy(io.Discard, c.TCPConn)
}
