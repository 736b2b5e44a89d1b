package engine

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A task that ends while it is being given up leaves nothing behind: its end is
// reported after its being stuck, and its sandbox is not stuck any more.
func TestEndWhileGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []string
		reporting := make(chan struct{})
		e := New(Options{Hangs: func(_ Stuck, over bool) {
			if over {
				calls = append(calls, "over")
				return
			}
			calls = append(calls, "reporting")
			<-reporting
			calls = append(calls, "reported")
		}})
		s := &Sandbox{engine: e, name: "box"}
		hanging := make(chan struct{})
		task := e.work("removing", s, time.Second, func(context.Context) error {
			<-hanging
			return nil
		})
		time.Sleep(2 * time.Second) // of the bubble
		close(hanging)
		synctest.Wait()
		close(reporting)
		<-task.done
		synctest.Wait()
		if want := []string{"reporting", "reported", "over"}; !slices.Equal(calls, want) {
			t.Errorf("got %q, want %q", calls, want)
		}
		if s.stuck != nil || e.StuckCount() != 0 || len(e.Stuck()) != 0 {
			t.Errorf("the sandbox is stuck: %v; %d tasks are", s.stuck != nil, e.StuckCount())
		}
	})
}

// What is stuck of one namespace, however much, refuses the creates of that one
// only. So much of many refuses those of all.
func TestStuckOfOneNamespaceRefusesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(Options{})
		hanging := make(chan struct{})
		hang := func(namespace string, n int) {
			for range n {
				e.work("removing", &Sandbox{engine: e, namespace: namespace}, time.Second, func(context.Context) error {
					<-hanging
					return nil
				})
			}
			time.Sleep(2 * time.Second) // of the bubble
		}
		hang("a", 3*maxStuck)
		if e.mayTry("a") == nil {
			t.Error("a namespace with so much that is stuck makes sandboxes")
		}
		hang("b", maxStuck)
		hang("c", maxStuck)
		if err := e.mayTry("d"); err != nil || e.Blocked() {
			t.Errorf("three namespaces block another: %v", err)
		}
		hang("d", maxStuckSpace)
		if e.mayTry("e") == nil || !e.Blocked() {
			t.Errorf("with %d stuck, sandboxes are made", e.StuckCount())
		}
		close(hanging)
		synctest.Wait()
		if err := e.mayTry("a"); err != nil || e.StuckCount() != 0 {
			t.Errorf("when nothing hangs any more: %v", err)
		}
	})
}

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
