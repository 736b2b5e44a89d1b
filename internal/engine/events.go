package engine

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/ledger"
)

// Bounds of the events of a namespace that are kept: maxEvents, and maxEventBytes with
// the labels of their sandboxes. When the ledger is full fewer are kept, but at least
// minEvents.
const (
	maxEvents     = 10_000
	maxEventBytes = 16 << 20
	minEvents     = 100
	maxReason     = 1 << 10 // bytes of an event's reason
)

// eventLog keeps the latest events, separately for each namespace, so that one tenant's
// events neither push out nor reveal anything to another.
type eventLog struct {
	observe func(namespace string, ev sandpit.Event)
	ledger  *ledger.Ledger

	mu     sync.Mutex
	first  uint64 // Seq before which nothing is known: that was before this program
	last   uint64 // Seq of the latest event of all
	spaces map[string]*eventRing
	closed bool
}

// eventRing keeps the latest events of a namespace.
type eventRing struct {
	events  []sandpit.Event // oldest first
	labels  map[uintptr]int // how many of the events share labels, by the address of the map
	memory  *ledger.Account
	lost    uint64        // Seq of the latest dropped event; 0: none
	changed chan struct{} // closed at the next event; nil: nobody waits
}

// cost returns the memory that an event takes. Labels that events share are counted once.
func (r *eventRing) cost(ev *sandpit.Event) int64 {
	n := ledger.Event(ev)
	if r.labels[addressOf(ev.Labels)] == 0 {
		n += ledger.Labels(ev.Labels)
	}
	return n
}

// addressOf identifies labels, which a sandbox replaces and never changes.
func addressOf(labels map[string]string) uintptr { return reflect.ValueOf(labels).Pointer() }

// push adds an event, and drops the oldest until there is room for it.
func (r *eventRing) push(ev sandpit.Event) {
	for len(r.events) >= maxEvents || r.memory.Charge(r.cost(&ev)) != nil {
		if len(r.events) <= minEvents {
			r.memory.Add(r.cost(&ev))
			break
		}
		r.drop()
	}
	r.labels[addressOf(ev.Labels)]++
	r.events = append(r.events, ev)
}

// drop drops the oldest event.
func (r *eventRing) drop() {
	ev := r.events[0]
	r.events[0] = sandpit.Event{} // the array holds it no longer
	r.events = r.events[1:]
	r.lost = ev.Seq
	if at := addressOf(ev.Labels); r.labels[at] > 1 {
		r.labels[at]--
	} else {
		delete(r.labels, at)
	}
	r.memory.Return(r.cost(&ev))
}

// add adds an event. Its Seq is the time in microseconds, or one more than the previous
// one, so it also grows across restarts without being stored.
func (l *eventLog) add(namespace string, ev sandpit.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.ring(namespace) // before the time is taken: the first event is not lost
	ev.Time = time.Now()
	l.last = max(l.last+1, uint64(ev.Time.UnixMicro()))
	ev.Seq = l.last
	if len(ev.Reason) > maxReason {
		ev.Reason = strings.ToValidUTF8(ev.Reason[:maxReason], "") + "…"
	}
	r.push(ev)
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
	if l.observe != nil {
		l.observe(namespace, ev)
	}
}

func (l *eventLog) ring(namespace string) *eventRing {
	r := l.spaces[namespace]
	if r == nil {
		if l.spaces == nil {
			l.spaces = map[string]*eventRing{}
		}
		r = &eventRing{lost: l.first, labels: map[uintptr]int{}, memory: l.ledger.Account(namespace, maxEventBytes)}
		l.spaces[namespace] = r
	}
	return r
}

// newest returns the Seq of the latest event of the namespace. The Seq of all events would
// tell a tenant when something happens to others.
func (r *eventRing) newest() uint64 {
	if k := len(r.events); k > 0 {
		return r.events[k-1].Seq
	}
	return r.lost
}

// after returns at most n events with a greater Seq, in order.
func (r *eventRing) after(seq uint64, n int) []sandpit.Event {
	i, found := slices.BinarySearchFunc(r.events, seq, func(ev sandpit.Event, seq uint64) int { return cmp.Compare(ev.Seq, seq) })
	if found {
		i++
	}
	return slices.Clone(r.events[i:min(i+n, len(r.events))])
}

// newest returns the Seq of the latest event of a namespace.
func (l *eventLog) newest(namespace string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ring(namespace).newest()
}

// listen passes on the events of what a tenant sees that a query selects. A listener holds up no other: one that is too
// slow is told that it has lost events.
func (l *eventLog) listen(ctx context.Context, t *Tenant, q sandpit.EventQuery) iter.Seq2[sandpit.Event, error] {
	return func(yield func(sandpit.Event, error) bool) {
		after := q.After
		l.mu.Lock()
		defer l.mu.Unlock()
		r := l.ring(t.namespace)
		switch newest := r.newest(); {
		case after == 0:
			after = newest
		case after > newest:
			after = 0 // of a time that has not come: the clock was set back
		}
		give := func(ev sandpit.Event, err error) bool {
			l.mu.Unlock()
			defer l.mu.Lock()
			ev.Labels = maps.Clone(ev.Labels)
			return yield(ev, err)
		}
		for {
			if after < r.lost {
				after = r.lost
				if !give(sandpit.Event{Seq: after, Time: time.Now(), Kind: sandpit.EventLost}, nil) {
					return
				}
				continue
			}
			if batch := r.after(after, 100); len(batch) > 0 {
				for _, ev := range batch {
					if t.sees(ev.Namespace) && q.Matches(ev) && !give(ev, nil) {
						return
					}
					after = ev.Seq
				}
				continue
			}
			if l.closed {
				return
			}
			if r.changed == nil {
				r.changed = make(chan struct{})
			}
			changed := r.changed
			l.mu.Unlock()
			select {
			case <-changed:
				l.mu.Lock()
			case <-ctx.Done():
				l.mu.Lock()
				give(sandpit.Event{}, ctx.Err())
				return
			}
		}
	}
}

// close ends all listeners.
func (l *eventLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, r := range l.spaces {
		if r.changed != nil {
			close(r.changed)
			r.changed = nil
		}
	}
}
