package linux

import (
	"runtime"
	"sync"
	"time"
)

// parent has the threads that make the first processes of sandboxes.
//
// These ask to die with their parent (prctl(2), PR_SET_PDEATHSIG), which for the kernel is
// the thread, not the program. A thread of a Go program ends with a goroutine that is
// locked to it, and callers may have such goroutines on any thread. So these threads belong
// to parent: while a process that a thread has made is not reaped, a goroutine of parent is
// locked to it.
//
// One thread makes all processes. If the kernel blocks it, another one makes the next
// process.
type parent struct {
	mu  sync.Mutex
	now *thread // guarded by mu; nil without children
}

// thread is a thread of parent.
type thread struct {
	parent   *parent
	children int // guarded by parent.mu; also what is about to be made
	work     chan func()
}

// threadPatience is the time that a thread may be busy before another takes its place.
// Making a process takes far less than a millisecond.
const threadPatience = time.Second

// run calls f, which makes a process, on a thread. If f succeeds, call release of that
// thread when the process has been reaped.
func (p *parent) run(f func() error) (*thread, error) {
	var err error
	done := make(chan struct{})
	do := func() {
		defer close(done)
		err = f()
	}
	t := p.take(nil)
	for !t.try(do) {
		stuck := t
		t = p.take(stuck)
		stuck.release()
	}
	<-done
	if err != nil {
		t.release()
		return nil, err
	}
	return t, nil
}

// take returns the present thread, with one more child, or a new one if the present one is
// stuck or there is none.
func (p *parent) take(stuck *thread) *thread {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil || p.now == stuck {
		p.now = &thread{parent: p, work: make(chan func())}
		go serve(p.now.work)
	}
	p.now.children++
	return p.now
}

// try makes the thread call f, unless it is busy for too long.
func (t *thread) try(f func()) bool { return offer(t.work, f, threadPatience) }

// release frees the thread when its last process is gone.
func (t *thread) release() {
	p := t.parent
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.children--; t.children > 0 {
		return
	}
	close(t.work)
	if p.now == t {
		p.now = nil
	}
}

// serve does the work on one thread, and then unlocks it.
func serve(work <-chan func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for f := range work {
		f()
	}
}
