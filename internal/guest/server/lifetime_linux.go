package server

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// ExitExpired is the exit code of a guest whose lifetime or idle time is over.
const ExitExpired = 124

// life ends the guest when its time is over, whether a host is there or not.
type life struct {
	busy   atomic.Int64 // streams that count as activity
	active atomic.Int64 // when there was activity last: nanoseconds since the guest was started

	mu       sync.Mutex
	timer    *time.Timer
	deadline time.Time // zero: none
	idle     time.Duration
	grace    time.Duration
	expired  uint64    // the reason, from the moment on at which the time was over
	end      time.Time // when the grace is over
	hosts    map[*conn.Conn]bool
	waiting  map[*conn.Stream]bool
}

// touch says that there is activity.
func (l *life) touch(g *guest) { l.active.Store(int64(time.Since(g.started))) }

// set changes the lifetime, and says what is left of it.
func (l *life) set(g *guest, m *wire.Lifetime) *wire.LifetimeState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.Set {
		l.deadline = time.Time{}
		if m.Life > 0 {
			l.deadline = time.Now().Add(time.Duration(m.Life))
		}
		l.idle, l.grace = time.Duration(m.Idle), time.Duration(m.Grace)
		if l.grace == 0 {
			l.grace = wire.DefaultGrace
		}
		l.expired = 0
		l.touch(g) // an idle time begins now
		l.arm(g)
	}
	out := &wire.LifetimeState{Idle: int64(l.idle)}
	if !l.deadline.IsZero() {
		out.Life = max(1, int64(time.Until(l.deadline)))
	}
	if l.idle > 0 {
		out.IdleLeft = max(1, int64(l.idleLeft(g)))
	}
	return out
}

// idleLeft is how much is left of the idle time.
func (l *life) idleLeft(g *guest) time.Duration {
	if l.busy.Load() > 0 {
		return l.idle
	}
	return l.idle - (time.Since(g.started) - time.Duration(l.active.Load()))
}

// timeLeft is how much is left before the time is over for the reason given.
func (l *life) timeLeft(g *guest) (left time.Duration, reason uint64, limited bool) {
	if !l.deadline.IsZero() {
		left, reason, limited = time.Until(l.deadline), wire.ExpiredLife, true
	}
	if l.idle > 0 {
		if d := l.idleLeft(g); !limited || d < left {
			left, reason, limited = d, wire.ExpiredIdle, true
		}
	}
	return left, reason, limited
}

// arm makes check be called when the time may be over.
func (l *life) arm(g *guest) {
	left, _, limited := l.timeLeft(g)
	if !limited {
		if l.timer != nil {
			l.timer.Stop()
		}
		return
	}
	if l.expired != 0 {
		left = time.Until(l.end)
	}
	if l.timer == nil {
		l.timer = time.AfterFunc(max(0, left), func() { l.check(g) })
		return
	}
	l.timer.Reset(max(0, left))
}

// check ends the guest if its time is over. A host that is there is told first,
// and has a moment to stop, freeze or extend it.
func (l *life) check(g *guest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left, reason, limited := l.timeLeft(g)
	switch {
	case !limited:
		return
	case left > 0:
		l.expired = 0
	case l.expired == 0 && len(l.hosts) > 0:
		l.expired, l.end = reason, time.Now().Add(l.grace)
		for s := range l.waiting {
			go s.Answer(l.message(), nil)
		}
		clear(l.waiting)
	case l.expired == 0 || !time.Now().Before(l.end):
		l.quit(g, reason)
		return
	}
	l.arm(g)
}

func (l *life) message() *wire.Expired {
	return &wire.Expired{Reason: l.expired, Grace: max(0, int64(time.Until(l.end)))}
}

// farewell is how long the hosts may take to hear why the guest ends. It is only
// waited for when one takes nothing, or the machine is too busy to send it.
const farewell = time.Second

// quit ends the guest.
func (l *life) quit(g *guest, reason uint64) {
	text := "its lifetime has ended"
	if reason == wire.ExpiredIdle {
		text = "it reached its idle time"
	}
	m := wire.ErrorMessage{Code: wire.CodeExpired, Text: text}
	var told sync.WaitGroup
	for c := range l.hosts {
		told.Go(func() { c.Leave(&m, farewell) })
	}
	done := make(chan struct{})
	go func() { told.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * farewell):
	}
	g.stop()
	os.Exit(ExitExpired)
}

// await answers a stream when the time is over.
func (l *life) await(g *guest, s *conn.Stream) {
	l.mu.Lock()
	if l.expired != 0 {
		m := l.message()
		l.mu.Unlock()
		s.Answer(m, nil)
		return
	}
	if l.waiting == nil {
		l.waiting = make(map[*conn.Stream]bool)
	}
	l.waiting[s] = true
	l.mu.Unlock()
	s.WhenGone(func() {
		l.mu.Lock()
		delete(l.waiting, s)
		l.mu.Unlock()
	})
}

// arrived and left say which hosts are connected.
func (l *life) arrived(c *conn.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hosts == nil {
		l.hosts = make(map[*conn.Conn]bool)
	}
	l.hosts[c] = true
}

func (l *life) left(c *conn.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hosts, c)
}
