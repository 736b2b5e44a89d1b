package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/ledger"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// A ring holds the latest bytes, each with its stream, whatever the pieces.
func TestRing(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		r := ring{max: 1 << (4 + rnd.IntN(10))}
		var all, streams []byte
		for range 100 {
			b := make([]byte, rnd.IntN(2*r.max))
			if rnd.IntN(4) > 0 {
				b = b[:min(len(b), 20)]
			}
			for i := range b {
				b[i] = byte(rnd.Uint32())
			}
			stream := 1 + byte(rnd.IntN(2))
			r.append(stream, b)
			all, streams = append(all, b...), append(streams, bytes.Repeat([]byte{stream}, len(b))...)
			switch rnd.IntN(50) {
			case 0:
				r.drop()
			case 1:
				r.resize(int(r.end - r.start))
			}
			if r.end != int64(len(all)) || len(r.buf) > r.max || r.end-r.start > int64(len(r.buf)) {
				t.Fatalf("from %d to %d of %d in %d of %d", r.start, r.end, len(all), len(r.buf), r.max)
			}
			for at := r.start; at < r.end; {
				stream, b := r.read(at)
				n := min(len(b), 1+rnd.IntN(100))
				if n == 0 || !bytes.Equal(b[:n], all[at:at+int64(n)]) || bytes.Count(streams[at:at+int64(n)], []byte{stream}) != n {
					t.Fatalf("at %d of %d: %d bytes of %d are wrong", at, r.end, n, stream)
				}
				at += int64(n)
			}
		}
	}
	r := ring{max: 1 << 20}
	for i := range 100_000 {
		r.append(1+byte(i%2), []byte{0})
	}
	if len(r.runs) > maxRuns {
		t.Errorf("there are %d runs", len(r.runs))
	}
}

// slow takes what it gets in pieces, and only when it is let.
type slow struct {
	let chan struct{}
	got *[]byte
	to  byte
}

func (s slow) Write(b []byte) (int, error) {
	<-s.let
	before := bytes.Clone(b)
	runtime.Gosched()
	if !bytes.Equal(b, before) {
		return 0, errors.New("it was overwritten")
	}
	for _, c := range b {
		*s.got = append(*s.got, s.to, c)
	}
	return len(b), nil
}

// One who is waited for gets all there is, in order, however often the stream
// changes and however late he is.
func TestWaitedFor(t *testing.T) {
	for name, size := range map[string]int{"small pieces": 1, "large ones": 100 << 10} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := new(Sandbox).newBroadcaster(keptOutput)
				close(h.ready)
				var want, got []byte
				let := make(chan struct{})
				r := &reader{stdout: slow{let, &got, stdoutStream}, stderr: slow{let, &got, stderrStream}, waitFor: true}
				h.read(r, true)
				fed := make(chan struct{})
				const pieces = 3*maxRuns/2 + 1
				n := min(pieces, 4<<20/size)
				for i := range n {
					for j := range size {
						want = append(want, stdoutStream+byte(i%2), byte(i+j))
					}
				}
				go func() {
					defer close(fed)
					b := make([]byte, size)
					for i := range n {
						for j := range b {
							b[j] = byte(i + j)
						}
						h.feed(stdoutStream+byte(i%2), b)
					}
				}()
				synctest.Wait()
				select {
				case <-fed:
					t.Error("the process was not held up")
				default:
				}
				close(let)
				<-fed
				h.mu.Lock()
				h.ended = true
				h.notify()
				h.mu.Unlock()
				<-r.done
				if !bytes.Equal(got, want) {
					t.Errorf("%d bytes arrived of %d, or others", len(got)/2, len(want)/2)
				}
			})
		})
	}
}

// Those who wait in one namespace wait for each other, and those of another go
// in between; what does not fit does not stand in the way of another namespace.
func TestAdmissionIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := admission{capacity: Capacity{Memory: 10, Wait: time.Minute}}
		one := demand{memory: 1, sandboxes: 1}
		for range 10 {
			if err := a.enter(t.Context(), "x", one, 0); err != nil {
				t.Fatal(err)
			}
		}
		var mu sync.Mutex
		var order []string
		var wg sync.WaitGroup
		wait := func(name string, d demand) {
			wg.Go(func() {
				err := a.enter(t.Context(), name[:1], d, 0)
				mu.Lock()
				defer mu.Unlock()
				if order = append(order, name); err != nil {
					t.Error(name, err)
				}
			})
			synctest.Wait()
		}
		wait("a1", one)
		wait("a2", one)
		wait("b1", demand{memory: 5, sandboxes: 1})
		wait("c1", one)
		for range 3 {
			a.leave(new(one))
			synctest.Wait()
		}
		if want := []string{"a1", "c1", "a2"}; !slices.Equal(order, want) {
			t.Errorf("they came in as %v, want %v", order, want)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.enter(ctx, "d", demand{memory: 10}, 0); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		for range 4 {
			a.leave(new(one))
		}
		a.leave(new(one))
		wg.Wait()
		if a.used != (demand{memory: 10, sandboxes: 6}) || len(a.turn) != 0 || len(a.queues) != 0 {
			t.Errorf("used are %+v, and %v wait", a.used, a.turn)
		}
	})
}

// A sandbox grows only past creates of other namespaces that do not fit, and what it gives up is free
// once its new limits are in force.
func TestGrowthWaitsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := admission{capacity: Capacity{Memory: 10, Wait: time.Minute}}
		d := demand{memory: 4, sandboxes: 1}
		a.claim(d)
		var wg sync.WaitGroup
		wg.Go(func() { _ = a.enter(t.Context(), "x", demand{memory: 9, sandboxes: 1}, 0) })
		synctest.Wait()
		refused := func(namespace string, memory int64, kind error, message string) {
			t.Helper()
			if err := a.hold(namespace, &d, memory, 0); !errors.Is(err, kind) || !strings.Contains(err.Error(), message) {
				t.Errorf("to %d in %s: %v", memory, namespace, err)
			}
		}
		refused("x", 5, sandpit.ErrExhausted, "creates of this namespace that wait for capacity come first (waiting: 1)")
		if err := a.hold("y", &d, 5, 0); err != nil || d.memory != 5 || a.used.memory != 5 {
			t.Errorf("it has %+v, and all %+v: %v", d, a.used, err)
		}
		refused("x", 11, sandpit.ErrQuota, "it needs 11 B of memory, and this server has 10 B of memory in total")
		a.claim(demand{memory: 1})
		refused("y", 10, sandpit.ErrExhausted, "this server has no room for 10 B of memory")
		a.take(demand{memory: 1}, -1)
		if err := a.hold("x", &d, 1, 0); err != nil || d.memory != 5 || len(a.queues) != 1 {
			t.Errorf("before the change is in force, it has %+v, and %v wait", d, a.turn)
		}
		a.settle(&d, 1, 0)
		wg.Wait()
		if d.memory != 1 || a.used.memory != 10 {
			t.Errorf("it has %+v, and all %+v", d, a.used)
		}
		a.leave(&d)
		if a.settle(&d, 4, 0); a.used.memory != 9 {
			t.Errorf("once it has left, it has %+v, and all %+v", d, a.used)
		}
		refused("y", 1, sandpit.ErrState, "has failed")
	})
}

func TestBucket(t *testing.T) {
	var b bucket
	now := time.Unix(1e9, 0)
	for i := range 3 {
		if wait := b.take(3, now); wait != 0 {
			t.Errorf("the %d. waits %v", i+1, wait)
		}
	}
	if wait := b.take(3, now); wait < 300*time.Millisecond || wait > 400*time.Millisecond {
		t.Errorf("the 4. waits %v", wait)
	}
	if wait := b.take(3, now.Add(400*time.Millisecond)); wait != 0 {
		t.Errorf("after that it waits %v", wait)
	}
}

// A listener who is too slow is told that he has lost events, and gets those
// that are kept in their order.
func TestEventsAreLostInTheOpen(t *testing.T) {
	var l eventLog
	var seen []uint64
	l.observe = func(_ string, ev sandpit.Event) { seen = append(seen, ev.Seq) }
	for i := range maxEvents + 500 {
		l.add("a", sandpit.Event{Name: fmt.Sprint(i)})
		if i%100 == 0 {
			l.add("b", sandpit.Event{Name: "other"})
		}
	}
	if !slices.IsSorted(seen) || len(slices.Compact(seen)) != len(seen) {
		t.Error("their numbers do not grow")
	}
	l.close()
	var got []sandpit.Event
	for ev, err := range l.listen(t.Context(), &Tenant{namespace: "a"}, sandpit.EventQuery{After: seen[0]}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ev)
	}
	if len(got) != maxEvents+1 || got[0].Kind != sandpit.EventLost || got[1].Name != "500" || got[maxEvents].Name != fmt.Sprint(maxEvents+499) {
		t.Errorf("%d events, the first are %+v", len(got), got[:2])
	}
	got = nil
	for ev := range l.listen(t.Context(), &Tenant{namespace: "a"}, sandpit.EventQuery{After: lastButOne(seen)}) {
		got = append(got, ev)
	}
	if len(got) != 1 {
		t.Errorf("after the last but one there are %d", len(got))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	var open eventLog
	for ev, err := range open.listen(ctx, &Tenant{namespace: "a"}, sandpit.EventQuery{After: 0}) {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %+v, %v", ev, err)
		}
	}
}

// Who asks for events after a number learns nothing of those of others: not that
// there was one before it, or behind it.
func TestEventsOfOthersAreNotFelt(t *testing.T) {
	var seen []uint64
	l := eventLog{observe: func(_ string, ev sandpit.Event) { seen = append(seen, ev.Seq) }}
	heard := func(after uint64) (n int) {
		for range l.listen(t.Context(), &Tenant{namespace: "a"}, sandpit.EventQuery{After: after}) {
			n++
		}
		return n
	}
	l.add("a", sandpit.Event{Name: "mine"})
	l.closed = true
	before := heard(seen[0] + 1)
	l.add("b", sandpit.Event{Name: "other"})
	if after := heard(seen[0] + 1); after != before {
		t.Errorf("%d events were heard before something happened to another, %d then", before, after)
	}
	if n := heard(0); n != 0 {
		t.Errorf("from now on there are %d", n)
	}
}

// lastButOne returns the last but one.
func lastButOne(seen []uint64) uint64 { return seen[len(seen)-2] }

// A page of many sandboxes costs what one of few does.
func BenchmarkList(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e := New(Options{})
			for i := range n {
				s := e.newSandbox(fmt.Sprintf("id%d", i), "a")
				s.setName(s.id)
				s.state, s.created = sandpit.StateRunning, time.Unix(int64(i), 0)
				e.space("a").insert(s)
			}
			q := sandpit.ListQuery{Limit: 10}
			for b.Loop() {
				if page, err := e.list(&Tenant{namespace: "a"}, q); err != nil || len(page.Sandboxes) != 10 {
					b.Fatal(page, err)
				}
			}
		})
	}
}

// A sandbox has no more samples than an hour's.
func TestSamples(t *testing.T) {
	var h samples
	for i := range 2*maxSamples + 7 {
		h.add(sandpit.Sample{Time: time.Unix(int64(i), 0)})
	}
	all := h.since(time.Time{})
	if len(all) != maxSamples || all[0].Time.Unix() != maxSamples+7 || all[maxSamples-1].Time.Unix() != 2*maxSamples+6 {
		t.Errorf("%d samples", len(all))
	}
	if some := h.since(time.Unix(2*maxSamples, 0)); len(some) != 7 {
		t.Errorf("%d samples since then", len(some))
	}
}

// TestRevivedWithinPolicy has a sandbox that expired live on no longer than its
// policy allows in all.
func TestRevivedWithinPolicy(t *testing.T) {
	e := New(Options{Policy: policy.Default()})
	s := e.newSandbox("a", "ns")
	s.info.Limits.Life, s.maxLife = time.Hour, 90*time.Minute
	s.created = time.Now().Add(-80 * time.Minute)
	s.expired = true
	if err := s.mayRevive(); err != nil {
		t.Fatal(err)
	}
	s.revive()
	if left := time.Until(s.deadline); left > 10*time.Minute {
		t.Errorf("it may live on for %s", left)
	}
	s.created = time.Now().Add(-2 * time.Hour)
	if err := s.mayRevive(); !errors.Is(err, sandpit.ErrForbidden) || sandpit.Hint(err) == "" {
		t.Errorf("got %v", err)
	}
}

// TestExtendedMeanwhile has a sandbox, whose life was made longer when its end had come, neither pause nor
// stop, nor count as one that has expired.
func TestExtendedMeanwhile(t *testing.T) {
	for _, state := range []sandpit.State{sandpit.StateRunning, sandpit.StatePaused} {
		s := New(Options{Policy: policy.Default()}).newSandbox("a", "ns")
		s.state, s.deadline = state, time.Now().Add(time.Hour)
		for _, err := range []error{s.pause(t.Context(), "life"), s.stop(t.Context(), 0, "life")} {
			if err != nil || s.present() != state || s.expired {
				t.Errorf("%s: %v, then %s, %v", state, err, s.present(), s.expired)
			}
		}
	}
	s := New(Options{Policy: policy.Default()}).newSandbox("a", "ns")
	s.state, s.deadline = sandpit.StatePaused, time.Now()
	if err := s.pause(t.Context(), "life"); err != nil || !s.expired {
		t.Errorf("paused before its end: %v, %v", err, s.expired)
	}
}

// TestNotExtendedAfterItsEnd has the life of a sandbox whose processes are killed because it is over not made longer, and those
// of one whose life was made longer meanwhile not killed.
func TestNotExtendedAfterItsEnd(t *testing.T) {
	s := New(Options{Policy: policy.Default()}).newSandbox("a", "ns")
	s.state, s.deadline, s.timeUp = sandpit.StateRunning, time.Now(), true
	if err := s.SetLifetime(t.Context(), sandpit.Lifetime{Life: time.Hour}); !errors.Is(err, sandpit.ErrClosed) || sandpit.Hint(err) == "" {
		t.Errorf("got %v", err)
	}
	s.timeUp = false
	s.killAll() // which would ask the guest that it does not have
}

// late is a store in which the writing of a record takes its time.
type late struct {
	Store
	meanwhile func()
}

func (l late) PutSandbox(context.Context, Record) error {
	l.meanwhile()
	return nil
}

// TestExtendedOrRemoved has a change of the lifetime that was accepted keep a sandbox, and one in whose time the removal
// begins refused, so that no sandbox is both: whose life was made longer, and that its expiry removes.
func TestExtendedOrRemoved(t *testing.T) {
	e := New(Options{Policy: policy.Default()})
	for reason, s := range map[string]*Sandbox{"life": e.newSandbox("a", "ns"), "idle": e.newSandbox("b", "ns")} {
		s.state, s.deadline, s.idle = sandpit.StateRunning, time.Now().Add(time.Hour), time.Hour
		s.touch()
		if err := s.destroy(t.Context(), reason); err != nil || s.present() != sandpit.StateRunning || s.timer == nil {
			t.Errorf("%s: %v, then %q, with the timer %v", reason, err, s.present(), s.timer)
		}
		s.timer.Stop()
	}

	s := e.newSandbox("c", "ns")
	e.opts.Store = late{meanwhile: func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.over("life") {
			s.refuse()
		}
	}}
	s.state, s.deadline, s.persistent = sandpit.StatePaused, time.Now(), true
	before := s.deadline
	if err := s.SetLifetime(t.Context(), sandpit.Lifetime{Life: time.Hour}); !errors.Is(err, sandpit.ErrClosed) || !s.deadline.Equal(before) {
		t.Errorf("the removal had begun: %v, then it lives until %s", err, s.deadline)
	}
}

// TestExtendedWhileItIsWritten has an extension that was asked for in time not overtaken by the end of the lifetime while the disk
// takes its time, unless that is very long, and one that came too late say so.
func TestExtendedWhileItIsWritten(t *testing.T) {
	const life = time.Minute
	for wait, extended := range map[time.Duration]bool{extendPatience - time.Second: true, extendPatience + lifeGrace: false} {
		synctest.Test(t, func(t *testing.T) {
			e := New(Options{Policy: policy.Default()})
			s := e.newSandbox("a", "ns")
			e.opts.Store = late{meanwhile: func() {
				time.Sleep(wait)
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.over("life") {
					s.refuse()
				}
			}}
			s.state, s.deadline, s.persistent, s.onExpiry = sandpit.StatePaused, time.Now().Add(time.Millisecond), true, sandpit.ExpiryPause
			err := s.SetLifetime(t.Context(), sandpit.Lifetime{Life: life})
			s.mu.Lock()
			defer s.mu.Unlock()
			if left := time.Until(s.deadline); extended && (err != nil || left != life-wait || s.removing) {
				t.Errorf("a disk that took %s: %v, and it lives for %s", wait, err, left)
			}
			if !extended && (!errors.Is(err, sandpit.ErrClosed) || !strings.Contains(err.Error(), "whose time was over")) {
				t.Errorf("a disk that took %s: %v", wait, err)
			}
			if !s.extending.IsZero() {
				t.Errorf("a disk that took %s: it is being extended", wait)
			}
			if s.timer != nil {
				s.timer.Stop()
			}
		})
	}
}

// solid is an instance that can't be frozen.
type solid struct{ driver.Instance }

func (solid) Freeze(context.Context) error         { return errors.New("it does not freeze") }
func (solid) Thaw(context.Context) error           { return nil }
func (solid) Frozen(context.Context) (bool, error) { return false, nil }

// TestFailedExpiryIsRetriedLater has a sandbox that could not be paused at its end expire again, and not at once.
func TestFailedExpiryIsRetriedLater(t *testing.T) {
	s := New(Options{Policy: policy.Default()}).newSandbox("a", "ns")
	s.state, s.instance, s.deadline, s.onExpiry = sandpit.StateRunning, solid{}, time.Now(), sandpit.ExpiryPause
	if err := s.pause(t.Context(), "life"); err == nil || s.expired || s.timer != nil {
		t.Errorf("got %v, then it has expired: %v, with the timer %v", err, s.expired, s.timer)
	}
}

// A panic in a task ends the task with an error, and not the program.
func TestTasksPanic(t *testing.T) {
	e := New(Options{Policy: policy.Default()})
	err := e.work("trying", nil, 0, func(context.Context) error { panic("on purpose") }).wait(t.Context())
	var p *fault.Panic
	if !errors.As(err, &p) || !strings.Contains(p.Detail(), "on purpose\n") || strings.Contains(err.Error(), "on purpose") {
		t.Errorf("got %v", err)
	}
}

// Blanks have what is left of the memory, and give way to what is promised.
func TestBlanksCountInCapacity(t *testing.T) {
	e := New(Options{Capacity: Capacity{Memory: 3*blankMemory + 1}, Pool: Pool{Size: 8}})
	e.pool.lastUse = time.Now()
	target := func() int {
		e.pool.mu.Lock()
		defer e.pool.mu.Unlock()
		return e.pool.target(time.Now())
	}
	if n := target(); n != 3 {
		t.Errorf("%d blanks where there is room for 3", n)
	}
	d := demand{memory: 2 * blankMemory, sandboxes: 1}
	if err := e.gate.enter(t.Context(), "", d, 0); err != nil {
		t.Fatalf("blanks are in the way: %v", err)
	}
	if n := target(); n != 1 {
		t.Errorf("%d blanks beside a sandbox", n)
	}
	e.gate.claim(d) // more than there is, as after an adoption
	if n := target(); n != 0 {
		t.Errorf("%d blanks where there is no room", n)
	}
	e.gate.leave(new(d))
	e.gate.leave(new(d))
	if n := target(); n != 3 {
		t.Errorf("%d blanks when there is room again", n)
	}
	e = New(Options{Pool: Pool{Size: 8}})
	e.pool.lastUse = time.Now()
	if n := target(); n != 8 {
		t.Errorf("%d blanks without a bound", n)
	}
}

// Events take a bounded number of bytes with the labels of their sandboxes, which
// they share; where the ledger is full, fewer are kept; and what is dropped is told
// as lost. (The catalogue's L11c.)
func TestEventsAreBounded(t *testing.T) {
	labels := func(i int) map[string]string {
		return map[string]string{"a": strings.Repeat("x", 16<<10) + fmt.Sprint(i)}
	}
	for name, tt := range map[string]struct {
		total        int64
		sandboxes    int // each with two events
		fewest       int
		limit, least int64
	}{
		"labels of many":     {1 << 30, 3000, 1500, maxEventBytes, maxEventBytes / 2},
		"labels of one":      {1 << 30, 1, 20_000 / 2, 5 << 20, 3 << 20},
		"the server is full": {1, 3000, minEvents, 2 << 20, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := eventLog{ledger: ledger.New(ledger.Bounds{Total: tt.total}), first: 1, last: 1}
			all := map[int]map[string]string{}
			for j := range tt.sandboxes {
				all[j] = labels(j)
			}
			for range 20_000 / 2 / tt.sandboxes {
				for j, shared := range all {
					for range 2 {
						l.add("x", sandpit.Event{Kind: sandpit.EventProcess, Sandbox: fmt.Sprint(j), Labels: shared})
					}
				}
			}
			r := l.spaces["x"]
			if n := l.ledger.Used(); n > tt.limit || n < tt.least || len(r.events) < tt.fewest || len(r.events) > maxEvents {
				t.Errorf("%d events are kept in %d bytes", len(r.events), n)
			}
			if oldest := r.events[0].Seq; r.lost == 0 || r.lost >= oldest || r.newest() != l.last {
				t.Errorf("from %d to %d are kept, %d is lost, %d the latest", oldest, r.newest(), r.lost, l.last)
			}
			if after := r.after(r.events[5].Seq, 3); len(after) != 3 || after[0].Seq != r.events[6].Seq {
				t.Errorf("got %+v", after)
			}
			for len(r.events) > 0 {
				r.drop()
			}
			if n := l.ledger.Used(); n != 0 || len(r.labels) != 0 {
				t.Errorf("%d bytes are left of %d sandboxes", n, len(r.labels))
			}
		})
	}
}

// A guest that is adopted can have the engine hold no more processes than its
// sandbox may have, and those that ended.
func TestMostProcesses(t *testing.T) {
	info := sandpit.Info{Limits: sandpit.Limits{Pids: 100}}
	if n := maxProcesses(info); n != 100+4*endedProcesses {
		t.Errorf("got %d", n)
	}
	info.Limits.Pids = 4 << 20
	if n := maxProcesses(info); n > 1<<17 {
		t.Errorf("got %d", n)
	}
	info.NotEnforced = []sandpit.Gap{{What: string(feature.Pids)}}
	if n := maxProcesses(info); n != 1<<16 {
		t.Errorf("got %d", n)
	}
}

// A process that is forgotten, to make room, after it counts as ended and before all
// that belongs to its end is done, is not kept by the engine for ever.
func TestForgottenWhileItEnds(t *testing.T) {
	e := New(Options{})
	s := e.newSandbox("id", "ns")
	h := s.newBroadcaster(keptOutput)
	h.info.ID = "p1"
	s.enlist(h)
	h.mu.Lock()
	h.ended = true
	h.mu.Unlock()
	close(h.done)
	if !s.evict(ledger.Own) {
		t.Fatal("it is not forgotten")
	}
	s.processEnded(h)
	if n := len(e.ended.places); n != 0 {
		t.Errorf("the engine keeps %d processes", n)
	}
}

// destroyable is an instance that can be destroyed.
type destroyable struct{ driver.Instance }

func (destroyable) Destroy(context.Context) error { return nil }

func (destroyable) Stats(context.Context) (sandpit.Metrics, error) { return sandpit.Metrics{}, nil }

// A guest that does not tell of the end of a process at its timeout is given its whole time
// to do so while it can: a server that stood still until long after, a pause, and a client
// that does not read what comes before the end, destroy no sandbox. (The catalogue's L13t.)
func TestOverdue(t *testing.T) {
	const timeout, whole = 3 * time.Second, 15 * time.Second // which is the default of Patience.Guest
	for name, late := range map[string]func(t *testing.T, s *Sandbox, h *broadcaster) (over func()){
		"in time": func(*testing.T, *Sandbox, *broadcaster) func() {
			time.Sleep(timeout)
			return func() {}
		},
		"a stalled server": func(_ *testing.T, _ *Sandbox, h *broadcaster) func() {
			h.patience.Reset(0) // as if the timer's time had passed in one step
			synctest.Wait()
			return func() {}
		},
		"a pause": func(_ *testing.T, s *Sandbox, _ *broadcaster) func() {
			become := func(state sandpit.State) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.state = state
			}
			become(sandpit.StatePaused)
			time.Sleep(time.Hour + time.Millisecond)
			return func() { become(sandpit.StateRunning) }
		},
		"a client that does not read": func(_ *testing.T, _ *Sandbox, h *broadcaster) func() {
			r, w := io.Pipe()
			out := &source{h: h, stream: stdoutStream, direct: w}
			go out.Write([]byte("x"))
			time.Sleep(time.Hour + time.Millisecond)
			return func() {
				r.Close()
				synctest.Wait()
			}
		},
		"a client that does not read one output": func(_ *testing.T, _ *Sandbox, h *broadcaster) func() {
			r, w := io.Pipe()
			go counted{h, &reader{}, w}.Write([]byte("x"))
			time.Sleep(time.Hour + time.Millisecond)
			return func() {
				r.Close()
				synctest.Wait()
			}
		},
	} {
		for _, ends := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, ends %t", name, ends), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := New(Options{}).newSandbox("id", "ns")
					s.state, s.instance = sandpit.StateRunning, destroyable{}
					h := s.newBroadcaster(keptOutput)
					h.patience = s.patience(h, timeout)
					close(h.ready)
					late(t, s, h)()
					time.Sleep(whole - whole/patienceParts - time.Millisecond)
					synctest.Wait()
					if state := s.present(); state != sandpit.StateRunning {
						t.Fatalf("the guest could have told of the end for a moment less, and its sandbox is %s", state)
					}
					if ends {
						h.end(sandpit.Result{}, nil)
					}
					time.Sleep(timeout + whole)
					synctest.Wait()
					if failed := s.present() == sandpit.StateFailed; failed == ends {
						t.Errorf("the sandbox has failed: %t", failed)
					}
					h.end(sandpit.Result{}, nil)
				})
			})
		}
	}
}

func TestDemandAboveTheCapacity(t *testing.T) {
	a := &admission{capacity: Capacity{Memory: 1 << 30}}
	err := a.enter(t.Context(), "x", demand{memory: 2 << 30, cpus: 1}, 0)
	const want = "creating a sandbox: it needs 2 GiB of memory, and this server has 1 GiB of memory in total"
	if !errors.Is(err, sandpit.ErrExhausted) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
