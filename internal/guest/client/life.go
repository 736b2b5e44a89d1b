package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// Lifetime bounds the life of the guest, and with it of the sandbox. The guest keeps it by
// itself: when the time is over it kills everything and exits, with or without a host.
type Lifetime struct {
	Life  time.Duration // from now on; 0: for ever
	Idle  time.Duration // the longest time without activity; 0: for ever
	Grace time.Duration // how long a connected host may take to react when the time is over; 0: 5 s
}

// ErrExpired says that a connection has ended because the guest's time was over.
var ErrExpired = errors.New("its lifetime has ended")

// TimeLeft is the rest of a lifetime.
type TimeLeft struct {
	Life     time.Duration // positive; 0: for ever
	Idle     time.Duration // as set
	IdleLeft time.Duration // positive, if nothing happens; 0: for ever
}

// SetLifetime replaces the lifetime; setting it again extends it. The idle time starts
// again. Activity is a start of a process, a stream (of a foreground or attached process, a
// file, a port), any other call that changes or reads something of the sandbox, and output
// of any process. Not activity are a connection by itself, Info, Processes, TimeLeft,
// Expired, Ports, Ping, and an Attach that is Passive.
func (c *Client) SetLifetime(ctx context.Context, l Lifetime) (TimeLeft, error) {
	if l.Life < 0 || l.Idle < 0 || l.Grace < 0 {
		return TimeLeft{}, fmt.Errorf("setting the lifetime: %w: a negative time", sandpit.ErrInvalid)
	}
	return c.lifetime(ctx, &wire.Lifetime{Set: true, Life: int64(l.Life), Idle: int64(l.Idle), Grace: int64(l.Grace)})
}

// TimeLeft returns the rest of the lifetime.
func (c *Client) TimeLeft(ctx context.Context) (TimeLeft, error) {
	return c.lifetime(ctx, &wire.Lifetime{})
}

func (c *Client) lifetime(ctx context.Context, l *wire.Lifetime) (TimeLeft, error) {
	var m wire.LifetimeState
	if err := c.call(ctx, wire.OpLifetime, l, &m); err != nil {
		return TimeLeft{}, fmt.Errorf("getting the lifetime: %w", err)
	}
	return TimeLeft{time.Duration(m.Life), time.Duration(m.Idle), time.Duration(m.IdleLeft)}, nil
}

// An Expiry says that the time of a sandbox is over.
type Expiry struct {
	Idle  bool          // it was idle for too long; otherwise its life is over
	Grace time.Duration // until the guest ends everything, unless a new lifetime is set, or there is activity after being idle
}

// Expired waits until the time is over.
func (c *Client) Expired(ctx context.Context) (Expiry, error) {
	var m wire.Expired
	if err := c.call(ctx, wire.OpExpiry, nil, &m); err != nil {
		return Expiry{}, fmt.Errorf("waiting for the end of the lifetime: %w", err)
	}
	return Expiry{Idle: m.Reason == wire.ExpiredIdle, Grace: time.Duration(max(0, m.Grace))}, nil
}
