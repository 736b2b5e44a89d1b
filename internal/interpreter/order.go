package interpreter

import (
	"sync"
	"time"
)

// order has the values of a run, which come on its channel, and its standard output, which comes through a lane, passed on as
// they were produced. The place of each value is marked in the output, by a number: the value waits until the lane has
// come to its place, which waits there until the value is passed on. Standard error does not take part: it comes together
// with standard output, and can't wait for it. Its methods are safe for concurrent use.
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

// wait waits until something is so, or the order is over. Precondition: o.mu is held.
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
