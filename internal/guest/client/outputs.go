package client

import (
	"context"
	"io"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/lanes"
)

// outputs passes on the two outputs of a process. Each waits for its own writer alone.
// The guest bounds what it sends of each by what was passed on.
type outputs struct {
	p     *Process
	lanes *lanes.Lanes
}

func newOutputs(p *Process, stdout, stderr io.Writer) *outputs {
	o := &outputs{p: p}
	o.lanes = lanes.New(stdout, stderr, wire.PassWindow, o.passed, o.deliver)
	return o
}

func (o *outputs) start() { go o.deliver() }

// deliver hands the output on until the process has exited, or another goroutine does.
func (o *outputs) deliver() {
	in := o.p.s.in
	for {
		channel, b, err := in.Next()
		if err != nil {
			o.lanes.Wait(context.Background())
			o.p.finish(err)
			return
		}
		lane := 0
		if channel == wire.Data2 {
			lane = 1
		}
		if o.lanes.Waiting(lane)+len(b) > wire.PassWindow+wire.PassExcess {
			o.p.c.fail(violation("more output than was asked for"))
			continue
		}
		lent := in.Lend()
		o.p.s.credit(in.Credit(lent))
		reading := o.lanes.Put(lane, b)
		in.Return(lent)
		if !reading {
			return
		}
	}
}

// passed tells the guest how much was passed on.
func (o *outputs) passed(lane, n int) {
	o.p.s.passed([2]wire.Type{wire.Data, wire.Data2}[lane], n)
}
