package client

import (
	"context"
	"io"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/lanes"
)

// apart hands the two outputs of a process on, each of which waits for its own writer alone.
// The guest bounds what it sends of each by what was passed on.
type apart struct {
	p     *Process
	lanes *lanes.Lanes
}

func newApart(p *Process, stdout, stderr io.Writer) *apart {
	a := &apart{p: p}
	a.lanes = lanes.New(stdout, stderr, wire.PassWindow, a.passed, a.deliver)
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

// passed tells the guest how much was passed on.
func (a *apart) passed(lane, n int) {
	a.p.s.passed([2]wire.Type{wire.Data, wire.Data2}[lane], n)
}
