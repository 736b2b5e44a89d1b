package agent

import (
	"sync"
	"time"
)

// inbox has messages that wait for their operation.
type inbox struct {
	mu     sync.Mutex
	cond   sync.Cond // something has changed
	all    []message
	closed bool
}

// maxWaiting bounds the messages in an inbox. Their bytes are bounded by channel.hold.
const maxWaiting = 64

func newInbox() *inbox {
	b := new(inbox)
	b.cond.L = &b.mu
	return b
}

// put adds a message, and waits for room. If nobody makes any within a time, put returns an error. A message
// for an operation that has ended is dropped: then queued is false.
func (b *inbox) put(m message, patience time.Duration) (queued bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.all) >= maxWaiting && !b.closed {
		late := false
		timer := time.AfterFunc(patience, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			late = true
			b.cond.Broadcast()
		})
		defer timer.Stop()
		for len(b.all) >= maxWaiting && !b.closed {
			if late {
				return false, errFull
			}
			b.cond.Wait()
		}
	}
	if b.closed {
		return false, nil
	}
	b.all = append(b.all, m)
	b.cond.Broadcast()
	return true, nil
}

// next takes the next message, and waits for it. ok is false when there will be none.
func (b *inbox) next() (m message, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
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
	b.cond.Broadcast()
	return m, true
}

// close drops all messages, and those that come later. It returns their size.
func (b *inbox) close() (size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.all {
		size += m.size
	}
	b.all, b.closed = nil, true
	b.cond.Broadcast()
	return size
}
