package linux

import (
	"runtime"
	"sync"
)

// parent is the thread that makes the first processes of sandboxes.
//
// Those ask to die with their parent (prctl(2), PR_SET_PDEATHSIG), and for the
// kernel that is the thread, not the program. A thread of a Go program ends when
// a goroutine that is locked to it does, which callers may do, on whichever
// thread. So the thread belongs to this: as long as a process that it has made
// is not reaped, a goroutine of our own is locked to it.
type parent struct {
	mu       sync.Mutex
	children int         // guarded by mu
	work     chan func() // guarded by mu; nil without children
}

// run calls f, which makes a process, on the thread. Unless it has failed,
// release is to be called when the process has been reaped.
func (p *parent) run(f func() error) error {
	var err error
	done := make(chan struct{})
	do := func() {
		defer close(done)
		err = f()
	}
	p.mu.Lock()
	p.children++
	work := p.work
	if work == nil {
		p.work = make(chan func())
		go serve(do, p.work)
	}
	p.mu.Unlock()
	if work != nil {
		work <- do
	}
	<-done
	if err != nil {
		p.release()
	}
	return err
}

// release lets the thread go when no process of its is left.
func (p *parent) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.children--; p.children == 0 {
		close(p.work)
		p.work = nil
	}
}

// serve does the work on one thread, which is an ordinary one again afterwards.
func serve(first func(), work <-chan func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	first()
	for f := range work {
		f()
	}
}
