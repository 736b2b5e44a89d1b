package engine

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/logstore"
)

// How much of a process's output is kept for those who attach, in bytes.
const (
	keptOutput   = 1 << 20  // of a sandbox that outlives the engine
	directOutput = 64 << 10 // of others
)

// broadcaster serves one process: it takes the output from the guest, keeps the latest of
// it, enters it into the log, and hands it to all who are attached.
//
// One who is attached reads the ring at his own pace, from a goroutine of his
// own, so that he stands in nobody's way. The owner of a foreground process is
// waited for when the ring is full of what he has not taken.
type broadcaster struct {
	sandbox *Sandbox
	log     *logstore.Writer
	ready   chan struct{} // closed when the fields below are set

	info     sandpit.ProcessInfo // without Result
	ref      uint64              // by which the guest knows it
	told     bool                // how it ended was announced before it was found
	process  sandpit.Process     // of the guest; nil when it had ended before it was found
	stdin    *stdinPump          // nil when there is none
	oomKills int64               // of the sandbox, before the start
	patience *time.Timer         // with the guest, or nil
	waited   atomic.Bool         // somebody waits for it: its sandbox is not idle

	done chan struct{} // closed when it has ended

	keep int // bytes of output that are kept, as far as the ledger lets it

	mu        sync.Mutex
	at        int64 // position behind what has come from the guest
	ring      ring
	charged   int64 // to the sandbox's account, the ring included
	running   int64 // of that, what goes when the process ends
	forgotten bool  // nobody can find it any more: what it is charged goes with its last reader
	readers   map[*reader]struct{}
	changed   chan struct{} // closed at the next change; nil: nobody waits
	ended     bool
	result    sandpit.Result
	err       error
	once      sync.Once
}

// reader is one who is attached. at, left and done are guarded by broadcaster.mu.
type reader struct {
	stdout, stderr io.Writer
	lost           func(int64)
	waitFor        bool // the process waits for him
	at             int64
	left           bool
	done           chan struct{} // closed when he has got everything
}

func (s *Sandbox) newBroadcaster(keep int) *broadcaster {
	return &broadcaster{
		sandbox: s, ready: make(chan struct{}), done: make(chan struct{}),
		running: runningCost, keep: keep, ring: ring{max: min(minRing, keep)}, readers: map[*reader]struct{}{},
	}
}

// source is a stream of the guest's process, as a writer.
type source struct {
	h      *broadcaster
	stream byte
	direct io.Writer // the caller's own, which the process waits for; or nil
}

// Write takes output. It is called by one goroutine.
func (w *source) Write(b []byte) (int, error) {
	w.h.feed(w.stream, b)
	if w.direct != nil {
		if _, err := w.direct.Write(b); err != nil {
			w.direct = nil
		}
	}
	return len(b), nil
}

// feed enters output.
func (h *broadcaster) feed(stream byte, b []byte) {
	<-h.ready
	h.sandbox.touch()
	if h.log != nil {
		h.log.Write(stream, h.at, b)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at += int64(len(b))
	for len(b) > 0 {
		h.reserve(stream, len(b))
		n := min(len(b), h.room(stream))
		if n == 0 {
			h.wait()
			continue
		}
		h.ring.append(stream, b[:n])
		b = b[n:]
		h.notify()
	}
}

// reserve grows the ring for n more bytes of a stream, as far as the ledger allows.
// A ring that may not grow keeps less of the output; the log has all of it.
func (h *broadcaster) reserve(stream byte, n int) {
	r := &h.ring
	for r.max < h.keep && (int(r.end-r.start)+n > r.max || r.changesFull(stream)) {
		size := min(2*r.max, h.keep)
		more := ringCost(size) - ringCost(r.max)
		if h.sandbox.memory.Grow(more) != nil {
			return
		}
		h.charged += more
		r.max = size
	}
}

// shrink gives back the memory that the ring of an ended process does not need. With
// drop it gives back all of it, unless a reader that is waited for has yet to read it.
// Precondition: h.mu is held.
func (h *broadcaster) shrink(drop bool) {
	for r := range h.readers {
		drop = drop && (!r.waitFor || r.left)
	}
	size := int(h.ring.end - h.ring.start)
	if drop {
		h.ring.drop()
		size = 0
	} else if size < len(h.ring.buf) {
		h.ring.resize(size)
	}
	back := ringCost(h.ring.max) - ringCost(size)
	h.ring.max = size
	h.charged -= back
	h.sandbox.memory.Return(back)
}

// stopped gives back what only a running process takes. Precondition: h.mu is held.
func (h *broadcaster) stopped() {
	back := min(h.running, h.charged) // less of a forgotten one
	h.charged -= back
	h.sandbox.memory.Return(back)
}

// forget gives back what is kept of a process that can't be found any more, now or
// when its last reader has read its output.
func (h *broadcaster) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forgotten = true
	h.giveBack()
}

// giveBack returns the charge of a forgotten process without readers.
// Precondition: h.mu is held.
func (h *broadcaster) giveBack() {
	if h.forgotten && len(h.readers) == 0 {
		h.ring.drop()
		h.sandbox.memory.Return(h.charged)
		h.charged = 0
	}
}

// room is how much can be entered before somebody would lose what he is waited for.
func (h *broadcaster) room(stream byte) int {
	free := h.ring.max
	for r := range h.readers {
		if r.waitFor && !r.left {
			free = min(free, h.ring.room(stream, r.at))
		}
	}
	return free
}

// notify wakes all who wait.
func (h *broadcaster) notify() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// wait gives up the lock until something has changed.
func (h *broadcaster) wait() {
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	ch := h.changed
	h.mu.Unlock()
	<-ch
	h.mu.Lock()
}

// watch ends the broadcaster when the process has ended.
func (h *broadcaster) watch() {
	res, err := h.process.Wait(context.Background())
	h.end(res, err)
}

// end enters how the process ended. Only the first call counts; every call
// returns when that is done.
//
// When the kernel has counted a kill for want of memory since the start, a
// process that was killed has died of that, and one that failed has lost a
// process to it. For one that succeeded the count is only taken, so that the
// next one is not blamed.
func (h *broadcaster) end(res sandpit.Result, err error) {
	h.once.Do(func() {
		s := h.sandbox
		if h.patience != nil {
			h.patience.Stop()
		}
		if err != nil {
			err = s.explain(err)
		} else {
			killed := s.oomKills() > h.oomKills
			res.OOMKilled = killed && res.ExitCode != 0 && !res.TimedOut
		}
		if h.log != nil {
			h.log.Close()
		}
		h.mu.Lock()
		h.ended, h.result, h.err = true, res, err
		h.stopped()
		h.notify()
		h.mu.Unlock()
		close(h.done)
		s.processEnded(h)
	})
}

// describe returns the process with its result.
func (h *broadcaster) describe() sandpit.ProcessInfo {
	info := h.info
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		res := h.result
		if h.err != nil {
			// Its sandbox has failed under it.
			res = sandpit.Result{ExitCode: 137, Signal: 9}
		}
		info.Result = &res
	}
	return info
}

// read makes somebody a reader, from now on or from the oldest output kept.
func (h *broadcaster) read(r *reader, history bool) {
	r.done = make(chan struct{})
	h.mu.Lock()
	r.at = h.ring.end
	if history {
		r.at = 0
		if r.waitFor {
			r.at = h.ring.start
		}
	}
	h.readers[r] = struct{}{}
	h.mu.Unlock()
	go h.deliver(r)
}

// leave ends a reader, who gets nothing more.
func (h *broadcaster) leave(r *reader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.left = true
	h.notify() // deliver removes him
}

// buffers are for handing output on to those who may lose it meanwhile.
var buffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// maxHanded is how much is handed on at once to one who is waited for, in bytes:
// what he takes he makes room for.
const maxHanded = 256 << 10

// deliver hands output on to a reader until it ends or he leaves.
func (h *broadcaster) deliver(r *reader) {
	var buf *[]byte
	if !r.waitFor {
		buf = buffers.Get().(*[]byte)
		defer buffers.Put(buf)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	defer close(r.done)
	for !r.left && (r.stdout != nil || r.stderr != nil) {
		if gap := h.ring.start - r.at; gap > 0 {
			r.at = h.ring.start
			if r.lost != nil {
				h.mu.Unlock()
				r.lost(gap)
				h.mu.Lock()
			}
			continue
		}
		if r.at == h.ring.end {
			if h.ended {
				break
			}
			h.wait()
			continue
		}
		stream, b := h.ring.read(r.at)
		if r.waitFor {
			b = b[:min(len(b), maxHanded)] // nothing of it is overwritten before r.at says so
		} else {
			b = (*buf)[:copy(*buf, b)]
		}
		w := &r.stdout
		if stream == stderrStream {
			w = &r.stderr
		}
		if *w != nil {
			h.mu.Unlock()
			_, err := (*w).Write(b)
			h.mu.Lock()
			if err != nil {
				*w = nil
			}
		}
		r.at += int64(len(b))
		if r.waitFor {
			h.notify()
		}
	}
	delete(h.readers, r)
	h.giveBack()
	h.notify()
}

// stdinPump writes to the standard input of a process for all who do, so that
// one who leaves while the process does not read can do so.
type stdinPump struct {
	w io.WriteCloser

	mu      sync.Mutex
	changed sync.Cond
	pending []byte
	busy    bool // a goroutine writes
	closing bool
	err     error
}

// maxStdin is how much waits for a process that does not read, in bytes.
const maxStdin = 64 << 10

func newStdinPump(w io.WriteCloser) *stdinPump {
	p := &stdinPump{w: w}
	p.changed.L = &p.mu
	return p
}

// run writes what is pending until there is nothing.
func (p *stdinPump) run() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.pending) > 0 && p.err == nil {
		b := p.pending
		p.pending = nil
		p.changed.Broadcast()
		p.mu.Unlock()
		_, err := p.w.Write(b)
		p.mu.Lock()
		p.err = err
	}
	p.busy = false
	if p.closing || p.err != nil {
		_ = p.w.Close()
		p.pending = nil
		if p.err == nil {
			p.err = io.ErrClosedPipe
		}
	}
	p.changed.Broadcast()
}

// start has what is pending written. Precondition: p.mu is held.
func (p *stdinPump) start() {
	if !p.busy {
		p.busy = true
		go p.run()
	}
}

// stdinWriter is the standard input as one of those who are attached sees it.
type stdinWriter struct {
	p    *stdinPump
	s    *Sandbox
	left bool // guarded by p.mu
}

var errLeft = errors.New("detached from the process")

// Write returns when the process, or what waits for it, has taken b.
func (w *stdinWriter) Write(b []byte) (n int, err error) {
	if err := w.s.enter(context.Background()); err != nil {
		return 0, err
	}
	defer w.s.leave()
	p := w.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case w.left:
			return n, errLeft
		case p.err != nil:
			return n, p.err
		case p.closing:
			return n, io.ErrClosedPipe
		case len(b) == 0:
			return n, nil
		}
		if m := min(len(b), maxStdin-len(p.pending)); m > 0 {
			p.pending = append(p.pending, b[:m]...)
			n, b = n+m, b[m:]
			p.start()
			continue
		}
		p.changed.Wait()
	}
}

// Close ends the input, for all, after what was written before.
func (w *stdinWriter) Close() error {
	p := w.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closing && p.err == nil {
		p.closing = true
		p.start()
	}
	return nil
}

// leave makes a Write that waits return.
func (w *stdinWriter) leave() {
	w.p.mu.Lock()
	w.left = true
	w.p.changed.Broadcast()
	w.p.mu.Unlock()
}
