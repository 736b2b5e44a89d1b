package driver

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
)

// Progress holds what a driver is doing for a caller. A system call may never return,
// and no context ends it. A caller that gives up waiting reports from Progress which
// step hangs and what exists of the sandbox.
//
// All methods may be called on a nil Progress and from many goroutines at once.
type Progress struct{ now atomic.Pointer[Doing] }

// Doing is one step of a driver and what exists of the sandbox at that moment.
type Doing struct {
	Step   string // "clone", "kill", …
	PID    int    // of the sandbox's first process; 0: there is none yet
	Cgroup string // its name; empty: there is none yet
}

// String describes the step for people.
func (d Doing) String() string {
	if d.Step == "" {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "step %q", d.Step)
	if d.PID > 0 {
		fmt.Fprintf(&b, ", process %d", d.PID)
	}
	if d.Cgroup != "" {
		fmt.Fprintf(&b, ", cgroup %s", d.Cgroup)
	}
	return b.String()
}

// Enter notes that a step begins.
func (p *Progress) Enter(d Doing) {
	if p != nil {
		p.now.Store(&d)
	}
}

// Now returns the present step. Its Step is empty before the first one.
func (p *Progress) Now() Doing {
	if p == nil {
		return Doing{}
	}
	if d := p.now.Load(); d != nil {
		return *d
	}
	return Doing{}
}

type progressKey struct{}

// WithProgress returns a context for the calls of a driver, which enters into p each
// step that it begins.
func WithProgress(ctx context.Context, p *Progress) context.Context {
	return context.WithValue(ctx, progressKey{}, p)
}

// ProgressOf returns the Progress of a context, or nil.
func ProgressOf(ctx context.Context) *Progress {
	p, _ := ctx.Value(progressKey{}).(*Progress)
	return p
}
