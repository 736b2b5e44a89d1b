package fastrun

import (
	"context"
	"encoding/binary"
	"io"
	"sync"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// outlet passes on the output of a process, in the order in which it came, and
// tells the server what it has passed on. What it holds meanwhile is bounded by
// the Window, so that the connection is always read: what a signal or input
// brings about is heard of while nobody takes the output.
type outlet struct {
	p              *process
	stdout, stderr io.Writer // nil: what comes is dropped, as after a failure, which the writer has told those whom it concerns

	mu      sync.Mutex // guards all below
	waiting output
	untold  int  // bytes that were passed on, of which the server has not heard
	running bool // there is a goroutine that passes on
	idle    sync.Cond
}

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

// put has a payload passed on. It reports false when that is more than the
// server was told that there is room for.
func (o *outlet) put(kind byte, payload []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.waiting.bytes)+len(payload) > Window {
		return false
	}
	o.waiting.bytes = append(o.waiting.bytes, payload...)
	if n := len(o.waiting.parts); n > 0 && o.waiting.parts[n-1].kind == kind {
		o.waiting.parts[n-1].bytes += len(payload)
	} else {
		o.waiting.parts = append(o.waiting.parts, part{kind, len(payload)})
	}
	if !o.running {
		o.running = true
		go o.pass()
	}
	return true
}

// pass passes on until nothing waits.
func (o *outlet) pass() {
	var now output
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.waiting.parts) > 0 {
		now, o.waiting = o.waiting, output{now.bytes[:0], now.parts[:0]}
		o.mu.Unlock()
		rest := now.bytes
		for _, part := range now.parts {
			o.write(part.kind, rest[:part.bytes])
			rest = rest[part.bytes:]
		}
		o.mu.Lock()
		if o.untold += len(now.bytes); o.untold >= Window/4 {
			told := binary.BigEndian.AppendUint32(nil, uint32(o.untold))
			o.untold = 0
			o.mu.Unlock()
			_ = o.p.send(v1.FramePassed, told) // it may have ended
			o.mu.Lock()
		}
	}
	o.running = false
	o.idle.Broadcast()
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
	for o.running && ctx.Err() == nil {
		o.idle.Wait()
	}
}
