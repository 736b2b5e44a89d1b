package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// A task that ends while it is being given up leaves nothing behind: its end is
// reported after its being stuck, and its sandbox is not stuck any more.
func TestEndWhileGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []string
		reporting := make(chan struct{})
		e := New(Options{Hangs: func(_ Stuck, ended bool) {
			if ended {
				calls = append(calls, "over")
				return
			}
			calls = append(calls, "reporting")
			<-reporting
			calls = append(calls, "reported")
		}})
		s := &Sandbox{engine: e}
		s.setName("box")
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

// Reads of a disk of the server that hang are given up, hold a bounded number of
// threads however many callers there are, and refuse no create. One that makes
// progress may take longer. (The catalogue's L13p.)
func TestStuckReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(Options{Hangs: func(Stuck, bool) {}})
		const what = "searching the audit"
		if err := e.Read(t.Context(), what, func(ctx context.Context, progress func(string)) error {
			for range 10 {
				time.Sleep(e.opts.Patience.Read - 1)
				progress("audit-1")
			}
			return ctx.Err()
		}); err != nil {
			t.Errorf("one that makes progress: %v", err)
		}
		if err := e.Read(t.Context(), what, func(ctx context.Context, _ func(string)) error {
			<-ctx.Done()
			return ctx.Err()
		}); !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), what+": it took longer") {
			t.Errorf("one that ends when it is called off: %v", err)
		}

		const limit, all = maxStuckSpace, 50
		var asked atomic.Int64
		released := make(chan struct{})
		hang := func(context.Context, func(string)) error {
			asked.Add(1)
			<-released
			return nil
		}
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { left <- e.Read(ctx, what, hang) }()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("whose caller leaves: %v", err)
		}
		began := time.Now()
		var wg sync.WaitGroup
		for range all {
			wg.Go(func() {
				if err := e.Read(t.Context(), what, hang); !errors.Is(err, sandpit.ErrUnavailable) && !errors.Is(err, sandpit.ErrExhausted) || !strings.Contains(err.Error(), what) {
					t.Errorf("one that hangs: %v", err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took != e.opts.Patience.Read+e.opts.Patience.Undo {
			t.Errorf("it took %s", took)
		}
		if n := asked.Load(); n != limit || e.StuckCount() != limit {
			t.Errorf("%d hang, and %d are stuck", n, e.StuckCount())
		}
		if err := e.Read(t.Context(), what, hang); !errors.Is(err, sandpit.ErrExhausted) || sandpit.RetryAfter(err) == 0 {
			t.Errorf("one more: %v", err)
		}
		if err := e.mayTry("tenant"); err != nil || e.Blocked() {
			t.Errorf("a create: %v", err)
		}
		close(released)
		synctest.Wait()
		if n := e.StuckCount(); n != 0 {
			t.Errorf("%d are stuck in the end", n)
		}
		if err := e.Read(t.Context(), what, func(context.Context, func(string)) error { return nil }); err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}
