package engine

import (
	"context"
	"io"

	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/lanes"
)

// apart passes output to the owner of a foreground process whose two outputs wait for
// different readers. An output that is stuck must not fill the ring, which both share. So what
// comes of it leaves the ring and waits in its lane. That is bounded, because the guest is told
// what was passed on of each output. A guest that sends more holds up its own process.
//
// The memory of a stuck lane is charged to the sandbox. If the ledger refuses it, both outputs
// wait for the one that is stuck.
type apart struct {
	h     *broadcaster
	r     *reader
	guest interface {
		Passed(stderr bool, n int)
		PassedAll()
	}
	lanes *lanes.Lanes
	gone  context.Context // ended by cancel when the reader leaves

	writing *piece // what the goroutine that delivers is writing, or nil; guarded by broadcaster.mu
}

// piece is output on its way to a writer, in the ring's memory from the reader's position on.
// If it was set aside, it is not in the ring any more, and charged.
type piece struct {
	size    int
	charged int64
}

// readApart adds the owner of a process that was started with client.Detach.Windows.
func (h *broadcaster) readApart(r *reader, guest *client.Process) {
	a := &apart{h: h, r: r, guest: guest}
	a.gone, r.cancel = context.WithCancel(context.Background())
	a.lanes = lanes.New(counted{h, r, r.stdout}, counted{h, r, r.stderr}, client.PassWindow, a.passed, a.takeOver)
	r.done = make(chan struct{})
	h.mu.Lock()
	h.readers[r] = struct{}{}
	h.mu.Unlock()
	go a.deliver()
}

// counted is a writer of the owner. While it waits, so does what the guest has to tell.
type counted struct {
	h *broadcaster
	r *reader
	w io.Writer
}

// Write writes to the owner.
func (c counted) Write(b []byte) (int, error) {
	c.h.taking.Add(1)
	defer c.h.taking.Add(-1)
	return c.r.writeTo(c.w, b)
}

// passed tells the guest how much of a lane was passed on.
func (a *apart) passed(lane, n int) {
	a.guest.Passed(lane == 1, n)
	a.h.mu.Lock()
	defer a.h.mu.Unlock()
	a.h.notify() // its lane may have room again
}

// deliver passes output on until it ends or the owner leaves, or until another goroutine does.
func (a *apart) deliver() {
	h, r := a.h, a.r
	var p piece
	h.mu.Lock()
	for !r.left {
		if r.at == h.ring.end {
			if h.ended {
				break
			}
			h.wait()
			continue
		}
		stream, b := h.ring.read(r.at)
		b = b[:min(len(b), maxHanded)]
		lane := int(stream - stdoutStream)
		if a.lanes.Waiting(lane)+len(b) > client.MaxUnpassed {
			h.wait()
			continue
		}
		p.size = len(b)
		a.writing = &p
		h.mu.Unlock()
		reading := a.lanes.Put(lane, b)
		h.mu.Lock()
		if p.charged > 0 {
			h.sandbox.memory.Return(p.charged)
		} else {
			r.at += int64(p.size)
			a.writing = nil
		}
		h.notify()
		if !reading {
			h.mu.Unlock()
			return
		}
	}
	h.mu.Unlock()
	a.end()
}

// takeOver delivers in the place of a goroutine whose write takes long. That one keeps the ring's
// memory, and the ring gets other memory.
func (a *apart) takeOver() {
	h, r := a.h, a.r
	h.mu.Lock()
	for a.writing != nil && !r.left {
		cost := int64(len(h.ring.buf) + 2*client.MaxUnpassed) // what waits, and what is written of that
		if h.sandbox.memory.Grow(cost) != nil {
			h.wait()
			continue
		}
		h.ring.resize(len(h.ring.buf))
		r.at += int64(a.writing.size)
		a.writing.charged = cost
		a.writing = nil
		h.notify()
	}
	h.mu.Unlock()
	a.deliver()
}

// end waits until everything was passed on, or the owner has left, whose process then waits
// for nobody.
func (a *apart) end() {
	a.lanes.Wait(a.gone)
	if a.gone.Err() != nil {
		a.lanes.Drop()
		a.guest.PassedAll()
	}
	a.r.cancel()
	h := a.h
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.readers, a.r)
	h.giveBack()
	h.notify()
	close(a.r.done)
}
