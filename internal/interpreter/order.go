package interpreter

import (
	"sync"
	"time"
)

// order passes on the displayed values and the standard output of a run in the order in which the run produced them. Values come on
// the channel of the run, output through a lane. A numbered mark in the output is the place of each value. The value waits until
// the lane reaches that mark, and the lane waits there until the value was passed on. Standard error is not ordered: it shares a
// stream with standard output, and can't wait for it. Its methods are safe for concurrent use.
type order struct {
	mu     sync.Mutex
	cond   sync.Cond // something has changed
	placed int       // the last place that the lane has come to
	passed int       // the number of the last value that was passed on
	over   bool      // nothing waits any more
}

// orderPatience is the longest that anything waits. What takes longer is not read, or the code has forged a place: then
// nothing waits any more.
const orderPatience = time.Second

func newOrder() *order {
	o := new(order)
	o.cond.L = &o.mu
	return o
}

// reach says that the lane has come to a place, and waits for its value.
func (o *order) reach(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.placed = n
	o.cond.Broadcast()
	o.wait(func() bool { return o.passed >= n })
}

// await waits until the lane has come to the place of a value.
func (o *order) await(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wait(func() bool { return o.placed >= n })
}

// wait waits until so returns true, or the run has ended. Precondition: o.mu is held.
func (o *order) wait(so func() bool) {
	if o.over || so() {
		return
	}
	late := time.AfterFunc(orderPatience, o.end)
	defer late.Stop()
	for !o.over && !so() {
		o.cond.Wait()
	}
}

// pass says that a value was passed on.
func (o *order) pass(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.passed = max(o.passed, n)
	o.cond.Broadcast()
}

// end has nothing wait any more.
func (o *order) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	o.cond.Broadcast()
}
