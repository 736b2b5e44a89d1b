package agent

import (
	"errors"
	"sync"
	"time"
)

// inbox has messages that wait for their operation. Its methods are safe for concurrent use.
type inbox struct {
	messages int           // that may wait; 0: any number
	bytes    int64         // that may wait, unless it is one message; 0: any number
	patience time.Duration // how long the operation may take nothing while no more may wait
	paused   func() bool   // reports whether the sandbox is paused, which does not count as taking nothing

	mu     sync.Mutex
	cond   sync.Cond // something has changed
	all    []message
	size   int64
	busy   bool      // the operation has a message
	since  time.Time // when the operation took something last, or got something to take
	closed bool
}

// maxWaiting bounds the messages in an inbox. Their bytes are bounded by the channel's budget.
const maxWaiting = 64

// looks is how often a wait checks whether the sandbox is paused, in the time that it may last. If it is, that time begins anew.
const looks = 16

func newInbox(messages int, bytes int64, patience time.Duration, paused func() bool) *inbox {
	b := &inbox{messages: messages, bytes: bytes, patience: patience, paused: paused}
	b.cond.L = &b.mu
	return b
}

// errStuck is the error of an inbox whose operation takes nothing.
var errStuck = errors.New("the operation takes nothing")

// full reports whether a message has no room. Precondition: b.mu is held.
func (b *inbox) full(m message) bool {
	return b.messages > 0 && len(b.all) >= b.messages || b.bytes > 0 && len(b.all) > 0 && b.size+m.size > b.bytes
}

// put adds a message, and waits for room. If the operation takes nothing for too long, put returns errStuck. A message
// for an operation that has ended is dropped: then queued is false.
func (b *inbox) put(m message) (queued bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.all) == 0 && !b.busy {
		b.since = time.Now()
	}
	for b.full(m) && !b.closed {
		left := time.Until(b.since.Add(b.patience))
		if left <= 0 {
			return false, errStuck
		}
		late := false
		timer := time.AfterFunc(min(left, b.patience/looks), func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			late = true
			b.cond.Broadcast()
		})
		b.cond.Wait()
		timer.Stop()
		if late {
			b.look()
		}
	}
	if b.closed {
		return false, nil
	}
	b.all = append(b.all, m)
	b.size += m.size
	b.cond.Broadcast()
	return true, nil
}

// look begins the time of the operation anew if its sandbox is paused. Precondition: b.mu is held, which it releases meanwhile.
func (b *inbox) look() {
	b.mu.Unlock()
	paused := b.paused()
	b.mu.Lock()
	if paused {
		b.since = time.Now()
	}
}

// next takes the next message, and waits for it. ok is false when there will be none.
func (b *inbox) next() (m message, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy = false
	for len(b.all) == 0 && !b.closed {
		b.cond.Wait()
	}
	if len(b.all) == 0 {
		return message{}, false
	}
	m = b.all[0]
	b.all[0] = message{}
	if b.all = b.all[1:]; len(b.all) == 0 {
		b.all = nil
	}
	b.size -= m.size
	b.busy, b.since = true, time.Now()
	b.cond.Broadcast()
	return m, true
}

// progress notes that the operation has taken a part of a message.
func (b *inbox) progress() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.since = time.Now()
}

// gone reports whether messages are dropped.
func (b *inbox) gone() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// close drops all messages, and those that come later. It returns their size.
func (b *inbox) close() (size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	size = b.size
	b.all, b.size, b.closed = nil, 0, true
	b.cond.Broadcast()
	return size
}
