package fastrun

import (
	"context"
	"encoding/binary"
	"io"
	"sync"
	"time"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// outlet passes on the output of a process, in the order in which it came, and
// tells the server what it has passed on.
//
// The goroutine that reads the connection also writes the output, because waking
// another one for each frame takes longer than the write. If a write takes longer than
// patience, another goroutine reads on, and what it reads waits here, at most Window
// bytes. So the connection is always read: what a signal or input brings about is heard
// of while nobody takes the output.
type outlet struct {
	p              *process
	stdout, stderr io.Writer // nil: what comes is dropped, as after a failure, which the writer has told those whom it concerns

	mu      sync.Mutex // guards the fields below
	waiting output
	spare   output // empty, with the memory of what was passed on last
	untold  int    // bytes that were passed on, of which the server has not heard
	writing bool   // a goroutine passes on
	idle    sync.Cond
}

// patience is how long the connection is not read because of a write.
const patience = time.Millisecond

// output is a stretch of output.
type output struct {
	bytes []byte
	parts []part // of bytes, one after the other
}

// part is so many bytes of one stream: v1.FrameStdout or v1.FrameStderr.
type part struct {
	kind  byte
	bytes int
}

func newOutlet(p *process, stdout, stderr io.Writer) *outlet {
	o := &outlet{p: p, stdout: stdout, stderr: stderr}
	o.idle.L = &o.mu
	return o
}

// put passes a payload on, or has it wait behind what is being passed on. It reports
// false when the connection is not the caller's to read any more. The error is that of a
// server that sends more than it was told that there is room for.
func (o *outlet) put(kind byte, payload []byte) (reading bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.writing {
		if len(o.waiting.bytes)+len(payload) > Window {
			return false, unexpected(kind)
		}
		o.waiting.bytes = append(o.waiting.bytes, payload...)
		if n := len(o.waiting.parts); n > 0 && o.waiting.parts[n-1].kind == kind {
			o.waiting.parts[n-1].bytes += len(payload)
		} else {
			o.waiting.parts = append(o.waiting.parts, part{kind, len(payload)})
		}
		return true, nil
	}
	o.writing = true
	late := time.AfterFunc(patience, o.p.follow)
	o.pass(output{payload, []part{{kind, len(payload)}}})
	if reading = late.Stop(); !reading {
		for len(o.waiting.parts) > 0 {
			now := o.waiting
			o.waiting = o.spare
			o.pass(now)
			o.spare = output{now.bytes[:0], now.parts[:0]}
		}
	}
	o.writing = false
	o.idle.Broadcast()
	return reading, nil
}

// pass passes output on. Precondition: o.mu is held, which pass unlocks meanwhile.
func (o *outlet) pass(out output) {
	o.mu.Unlock()
	rest := out.bytes
	for _, part := range out.parts {
		o.write(part.kind, rest[:part.bytes])
		rest = rest[part.bytes:]
	}
	o.mu.Lock()
	if o.untold += len(out.bytes); o.untold >= Window/4 {
		told := binary.BigEndian.AppendUint32(nil, uint32(o.untold))
		o.untold = 0
		o.mu.Unlock()
		_ = o.p.send(v1.FramePassed, told) // it may have ended
		o.mu.Lock()
	}
}

func (o *outlet) write(kind byte, b []byte) {
	to := &o.stdout
	if kind == v1.FrameStderr {
		to = &o.stderr
	}
	if *to == nil {
		return
	}
	if _, err := (*to).Write(b); err != nil {
		*to = nil
	}
}

// flush returns when everything has been passed on, or ctx has ended.
func (o *outlet) flush(ctx context.Context) {
	defer context.AfterFunc(ctx, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.idle.Broadcast()
	})()
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.writing && ctx.Err() == nil {
		o.idle.Wait()
	}
}
