package client

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/lanes"
)

// apart hands the two outputs of a process on, each of which waits for its own writer alone.
// The guest bounds what it sends of each by what was passed on.
type apart struct {
	p       *Process
	writers [2]io.Writer // nil: dropped, as after a failure
	lanes   lanes.Lanes
	untold  [2]atomic.Int64 // bytes that were passed on, of which the guest has not heard
}

// patience is how long an output holds up the other one. It is too short for a person to
// notice, and long enough that both come in the order in which they were written.
const patience = 10 * time.Millisecond

func newApart(p *Process, stdout, stderr io.Writer) *apart {
	stdout, stderr = lanes.Exclusive(stdout, stderr)
	a := &apart{p: p, writers: [2]io.Writer{stdout, stderr}}
	a.lanes.Patience = patience
	a.lanes.Write, a.lanes.Passed, a.lanes.Next = a.write, a.passed, a.deliver
	return a
}

func (a *apart) start() { go a.deliver() }

// deliver hands the output on until the process has exited, or another goroutine does.
func (a *apart) deliver() {
	in := a.p.s.in
	for {
		channel, b, err := in.Next()
		if err != nil {
			a.lanes.Wait(context.Background())
			a.p.finish(err)
			return
		}
		lane := 0
		if channel == wire.Data2 {
			lane = 1
		}
		if a.lanes.Waiting(lane)+len(b) > wire.PassWindow+wire.PassExcess {
			a.p.c.fail(violation("more output than was asked for"))
			continue
		}
		lent := in.Lend()
		a.p.s.credit(in.Credit(lent))
		reading := a.lanes.Put(lane, b)
		in.Return(lent)
		if !reading {
			return
		}
	}
}

func (a *apart) write(lane int, b []byte) {
	if w := &a.writers[lane]; *w != nil {
		if _, err := (*w).Write(b); err != nil {
			*w = nil
		}
	}
}

// passed tells the guest from time to time how much was passed on.
func (a *apart) passed(lane, n int) {
	if a.untold[lane].Add(int64(n)) >= wire.PassWindow/4 {
		a.p.s.passed([2]wire.Type{wire.Data, wire.Data2}[lane], int(a.untold[lane].Swap(0)))
	}
}
