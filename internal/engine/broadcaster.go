package engine

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/interpreter"
	"github.com/sandpit-dev/sandpit/internal/logstore"
)

// Bytes of a process's output that are kept for clients that attach.
const (
	keptOutput   = 1 << 20  // of a sandbox that outlives the engine
	directOutput = 64 << 10 // of others
)

// broadcaster serves one process: it takes the output from the guest, keeps the latest of
// it in a ring, records it in the log, and passes it to all attached readers.
//
// Each reader reads the ring at its own pace, from its own goroutine, and holds up no
// other. Only the owner of a foreground process is waited for when the ring is full of
// output that it has not read.
type broadcaster struct {
	sandbox *Sandbox
	log     *logstore.Writer
	marks   *interpreter.Unmarked // of an interpreter, whose marks are not logged; or nil
	ready   chan struct{}         // closed when the fields below are set

	info     sandpit.ProcessInfo // without Result
	ref      uint64              // in the guest
	told     bool                // its end was announced before it was found
	was      *sandpit.Result     // how it had ended before it was found; nil: it ran
	before   int64               // bytes of output that it had written when it was found
	process  sandpit.Process     // of the guest; nil when it had ended before it was found
	stdin    *stdinPump          // nil when there is none
	cpu      sandpit.Rlimit      // of its CPU time; the zero value: none, or it is not known
	oomKills int64               // of the sandbox, before the start
	refused  int64               // processes, likewise
	patience *time.Timer         // with the guest, or nil
	waited   atomic.Bool         // a client waits for it: its sandbox is not idle
	taking   atomic.Int32        // what the guest has sent and is being taken: writes of output, and the end

	done chan struct{} // closed when it has ended

	keep int // bytes of output that are kept, if the ledger allows it

	recording sync.Mutex // guards at, and the order in the log
	at        int64      // position behind what has come from the guest

	mu        sync.Mutex
	ring      ring
	charged   int64 // to the sandbox's account, the ring included
	running   int64 // of that, what goes when the process ends
	forgotten bool  // not listed any more: its charge is returned with its last reader
	readers   map[*reader]struct{}
	changed   chan struct{} // closed at the next change; nil: nobody waits
	moved     bool          // to the background
	ended     bool
	result    sandpit.Result
	err       error
	once      sync.Once
}

// reader is an attached client. at, left and done are guarded by broadcaster.mu.
type reader struct {
	stdout, stderr io.Writer
	marks          *interpreter.Unmarked // of an interpreter, whose marks it does not get; or nil
	lost           func(int64)
	waitFor        bool // the process waits for it
	at             int64
	left           bool
	done           chan struct{} // closed when it has got everything
	cancel         func()        // called when it leaves; or nil
	broke          atomic.Pointer[error]
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

// Write takes output. Only one goroutine at a time calls it.
func (w *source) Write(b []byte) (int, error) {
	w.h.taking.Add(1)
	defer w.h.taking.Add(-1)
	w.h.feed(w.stream, b)
	if w.direct != nil {
		if _, err := w.direct.Write(b); err != nil {
			w.direct = nil
		}
	}
	return len(b), nil
}

// feed adds output to the ring and the log.
func (h *broadcaster) feed(stream byte, b []byte) {
	<-h.ready
	h.sandbox.touch()
	h.recording.Lock()
	switch {
	case h.log == nil:
	case h.marks == nil:
		h.log.Write(stream, h.at, b)
	default:
		h.marks.Take(int(stream-stdoutStream), h.at, b, h.logged(stream))
	}
	h.at += int64(len(b))
	h.recording.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
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

// logged returns a function that records output of a stream in the log.
func (h *broadcaster) logged(stream byte) func(at int64, b []byte) {
	return func(at int64, b []byte) { h.log.Write(stream, at, b) }
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

// stopped returns the charge that only a running process has. Precondition: h.mu is held.
func (h *broadcaster) stopped() {
	back := min(h.running, h.charged) // less of a forgotten one
	h.charged -= back
	h.sandbox.memory.Return(back)
}

// forget returns the charge of a process that is no longer listed, now or when its last
// reader has read its output.
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

// room returns the number of bytes that can be added before a reader that is waited for
// loses output.
func (h *broadcaster) room(stream byte) int {
	free := h.ring.max
	for r := range h.readers {
		if r.waitFor && !r.left {
			free = min(free, h.ring.room(stream, r.at))
		}
	}
	return free
}

// notify wakes all waiting goroutines.
func (h *broadcaster) notify() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// wait releases the lock until something has changed.
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

// end records how the process ended. Only the first call counts; every call returns when
// that is done.
//
// If the kernel has counted an out-of-memory kill since the start, a process that was
// killed has died of it, and one that failed has lost a process to it. For one that
// succeeded the count is only updated, so that the next one is not blamed.
func (h *broadcaster) end(res sandpit.Result, err error) {
	h.once.Do(func() {
		s := h.sandbox
		h.taking.Add(1)
		if h.patience != nil {
			h.patience.Stop()
		}
		if err != nil {
			err = s.explain(err)
		} else {
			if res.Signal == int(syscall.SIGKILL) && s.outlived() {
				res.TimedOut, res.ExitCode = true, 124 // as with a timeout of its own
			}
			kills, refused, answered := s.counts()
			if res.ExitCode != 0 {
				res.OOMKilled = kills > h.oomKills && !res.TimedOut
				res.PidsRefused = refused > h.refused
				res.CPUExceeded = !res.TimedOut && !res.OOMKilled && exceedsCPU(res, h.cpu)
				if answered { // otherwise full would hang as well
					res.DiskFull, res.FilesFull = s.full()
				}
			}
		}
		if h.log != nil {
			h.recording.Lock()
			for _, stream := range []byte{stdoutStream, stderrStream} {
				if h.marks != nil {
					h.marks.End(int(stream-stdoutStream), h.logged(stream))
				}
			}
			h.recording.Unlock()
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

// exceedsCPU reports whether a process that failed has most likely reached its limit of CPU time, at which the
// kernel sends SIGXCPU, or SIGKILL if that is the hard one.
func exceedsCPU(res sandpit.Result, limit sandpit.Rlimit) bool {
	signal := syscall.Signal(res.Signal)
	if signal == syscall.SIGXCPU {
		return true // also if the limit is not known
	}
	if signal == 0 { // what shells make of the signal of a process that they waited for
		signal = syscall.Signal(res.ExitCode - 128)
	}
	bound := limit.Hard
	if signal == syscall.SIGXCPU {
		bound = limit.Soft
	} else if signal != syscall.SIGKILL {
		return false
	}
	// For the limit the kernel counts ticks. The exact time is less where the machine is busy: 0.77 s have counted as 1 s.
	return limit.Resource != "" && (res.UserCPU+res.SystemCPU).Seconds() >= 0.5*float64(bound)
}

// describe returns the process with its result.
func (h *broadcaster) describe() sandpit.ProcessInfo {
	info := h.info
	info.Stdin = h.stdin != nil
	h.mu.Lock()
	defer h.mu.Unlock()
	info.Background = info.Background || h.moved
	res := h.was
	if h.ended {
		res = &h.result
		if h.err != nil {
			// Its sandbox has failed under it.
			res = &sandpit.Result{ExitCode: 137, Signal: 9}
		}
	}
	if res != nil {
		res = new(*res)
	}
	info.Result = res
	return info
}

// read adds a reader, from now on or from the oldest kept output.
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

// leave removes a reader, which gets nothing more.
func (h *broadcaster) leave(r *reader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.left = true
	if r.cancel != nil {
		r.cancel()
	}
	h.notify() // deliver removes it
}

// buffers hold output on its way to readers that are not waited for.
var buffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// maxHanded bounds the output that is passed at once to a reader that is waited for, in
// bytes: reading it makes room.
const maxHanded = 256 << 10

// deliver passes output to a reader until the output ends or the reader leaves.
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
			if r.marks != nil {
				r.marks = interpreter.NewUnmarked(h.info.Argv)
			}
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
		at := r.at
		h.mu.Unlock()
		r.pass(stream, at, b)
		h.mu.Lock()
		r.at += int64(len(b))
		if r.waitFor {
			h.notify()
		}
	}
	if r.marks != nil && !r.left {
		h.mu.Unlock()
		for _, stream := range []byte{stdoutStream, stderrStream} {
			r.marks.End(int(stream-stdoutStream), func(_ int64, b []byte) { r.write(stream, b) })
		}
		h.mu.Lock()
	}
	delete(h.readers, r)
	h.giveBack()
	h.notify()
}

// pass passes output of a stream on, which begins at a position.
func (r *reader) pass(stream byte, at int64, b []byte) {
	if r.marks == nil {
		r.write(stream, b)
		return
	}
	r.marks.Take(int(stream-stdoutStream), at, b, func(_ int64, b []byte) { r.write(stream, b) })
}

// write writes output of a stream, up to an error.
func (r *reader) write(stream byte, b []byte) {
	w := &r.stdout
	if stream == stderrStream {
		w = &r.stderr
	}
	if *w == nil {
		return
	}
	if _, err := r.writeTo(*w, b); err != nil {
		*w = nil
	}
}

// writeTo writes output to one of the client's writers. If that panics, the client gets no more, and why from Wait.
func (r *reader) writeTo(w io.Writer, b []byte) (n int, err error) {
	defer fault.Protect("passing output on", func(e error) {
		err = e
		r.broke.CompareAndSwap(nil, &e)
	})
	return w.Write(b)
}

// stdinPump writes to the standard input of a process for all clients, so that one can
// leave while the process does not read.
type stdinPump struct {
	w io.WriteCloser

	mu      sync.Mutex
	changed sync.Cond
	pending []byte
	spare   []byte // empty, with the memory of what was written last
	busy    bool   // a goroutine writes
	closing bool
	err     error
}

// maxStdin bounds the input that waits for a process that does not read, in bytes.
const maxStdin = 64 << 10

func newStdinPump(w io.WriteCloser) *stdinPump {
	p := &stdinPump{w: w}
	p.changed.L = &p.mu
	return p
}

// run writes pending input until there is none.
func (p *stdinPump) run() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.pending) > 0 && p.err == nil {
		b := p.pending
		p.pending = p.spare
		p.changed.Broadcast()
		p.mu.Unlock()
		_, err := p.w.Write(b)
		p.mu.Lock()
		p.err = err
		p.spare = b[:0]
	}
	p.busy = false
	p.pending, p.spare = nil, nil // so that a process which is sent nothing takes no memory
	if p.closing || p.err != nil {
		_ = p.w.Close()
		if p.err == nil {
			p.err = io.ErrClosedPipe
		}
	}
	p.changed.Broadcast()
}

// start starts to write pending input. Precondition: p.mu is held.
func (p *stdinPump) start() {
	if !p.busy {
		p.busy = true
		go p.run()
	}
}

// stdinWriter is the standard input for one attached client.
type stdinWriter struct {
	p    *stdinPump
	s    *Sandbox
	left bool // guarded by p.mu
}

var errLeft = errors.New("detached from the process")

// Write returns when the process or the pump has taken b.
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

// Close closes the input for all clients, after pending input.
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

// leave makes a waiting Write return.
func (w *stdinWriter) leave() {
	w.p.mu.Lock()
	w.left = true
	w.p.changed.Broadcast()
	w.p.mu.Unlock()
}
