package engine

import (
	"context"
	"testing"
)

// BenchmarkTask times what a task costs beside its work: a goroutine, a timer and
// two contexts.
func BenchmarkTask(b *testing.B) {
	e := New(Options{})
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := context.WithCancelCause(b.Context())
		t := e.start(ctx, &task{what: "making", cancel: cancel}, e.opts.Patience.Create, func(context.Context) error { return nil })
		if err := t.wait(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
