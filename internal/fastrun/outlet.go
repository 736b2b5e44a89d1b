package fastrun

import (
	"encoding/binary"
	"io"
	"sync/atomic"
	"time"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/lanes"
)

// outlet passes on the output of a process and tells the server what of it was passed on.
//
// The goroutine that reads the connection also writes the output. If a write takes long,
// another goroutine reads on, and what it reads of that stream waits, at most Window bytes.
// So the connection is always read: the other stream, and what a signal or input brings
// about, are heard of while nobody takes the output.
type outlet struct {
	p       *process
	writers [2]io.Writer // nil: what comes is dropped, as after a failure, which the writer has told those whom it concerns
	lanes   lanes.Lanes
	untold  [2]atomic.Int64 // bytes that were passed on, of which the server has not heard
}

// patience is how long the connection is not read because of a write. It is too short for a
// person to notice, and long enough that output comes in the order in which it was written.
const patience = 10 * time.Millisecond

func newOutlet(p *process, stdout, stderr io.Writer) *outlet {
	stdout, stderr = lanes.Exclusive(stdout, stderr)
	o := &outlet{p: p, writers: [2]io.Writer{stdout, stderr}}
	o.lanes.Patience = patience
	o.lanes.Write, o.lanes.Passed, o.lanes.Next = o.write, o.passed, p.follow
	return o
}

// put passes a payload on, or has it wait behind what is being passed on. It reports
// false when the connection is not the caller's to read any more. The error is that of a
// server that sends more than it was told that there is room for.
func (o *outlet) put(kind byte, payload []byte) (reading bool, err error) {
	lane := int(kind - v1.FrameStdout)
	if o.lanes.Waiting(lane)+len(payload) > Window {
		return false, unexpected(kind)
	}
	return o.lanes.Put(lane, payload), nil
}

func (o *outlet) write(lane int, b []byte) {
	to := &o.writers[lane]
	if *to == nil {
		return
	}
	if _, err := (*to).Write(b); err != nil {
		*to = nil
	}
}

func (o *outlet) passed(lane, n int) {
	if o.untold[lane].Add(int64(n)) >= Window/4 {
		told := binary.BigEndian.AppendUint32([]byte{v1.FrameStdout + byte(lane)}, uint32(o.untold[lane].Swap(0)))
		_ = o.p.send(v1.FramePassed, told) // it may have ended
	}
}
