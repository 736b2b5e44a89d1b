package lanes

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// put has all pieces put: by this goroutine, and by those that take its place. A piece is
// the number of its lane and a text.
func put(l *Lanes, pieces []string) (done chan struct{}) {
	done = make(chan struct{})
	var mu sync.Mutex
	l.next = func() {
		for {
			mu.Lock()
			if len(pieces) == 0 {
				mu.Unlock()
				close(done)
				return
			}
			piece := pieces[0]
			pieces = pieces[1:]
			mu.Unlock()
			if !l.Put(int(piece[0]-'0'), []byte(piece[1:])) {
				return
			}
		}
	}
	go l.next()
	return done
}

// writer is a writer by a function.
type writer func(b []byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}

func TestPiecesComeInOrder(t *testing.T) {
	var all string
	l := New(writer(func(b []byte) { all += "0" + string(b) }), writer(func(b []byte) { all += "1" + string(b) }), 4, func(int, int) {}, nil)
	l.patience = time.Hour
	<-put(l, []string{"0a", "1b", "1c", "0d", "1e"})
	if want := "0a1b1c0d1e"; all != want {
		t.Errorf("got %s, want %s", all, want)
	}
}

func TestAStuckLaneHoldsUpItselfAlone(t *testing.T) {
	for _, stuck := range []int{0, 1} {
		open := make(chan struct{})
		var got [2]bytes.Buffer
		var passed [2]int
		var writers [2]writer
		for lane := range 2 {
			writers[lane] = func(b []byte) {
				if lane == stuck {
					<-open
				}
				got[lane].Write(b)
			}
		}
		l := New(writers[0], writers[1], 4, func(lane, n int) { passed[lane] += n }, nil)
		l.patience = 0
		var pieces []string
		var want [2]string
		for n := range 1000 {
			pieces = append(pieces, fmt.Sprint(n%2, ":", n))
			want[n%2] += fmt.Sprint(":", n)
		}
		<-put(l, pieces) // although the lane is stuck
		if n := l.Waiting(stuck); n == 0 || n > len(want[stuck]) {
			t.Errorf("%d bytes wait", n)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		l.Wait(ended) // which is not for ever
		close(open)
		l.Wait(t.Context())
		for lane := range 2 {
			if got[lane].String() != want[lane] || passed[lane] != len(want[lane]) {
				t.Errorf("lane %d has %d of %d bytes, %d passed", lane, got[lane].Len(), len(want[lane]), passed[lane])
			}
		}
	}
}

// A writer that has failed gets nothing more, and its lane goes on: what it drops is passed.
func TestAFailedWriterGetsNothingMore(t *testing.T) {
	var calls int
	passed := 0
	l := New(failing{&calls}, nil, 40, func(_, n int) { passed += n }, nil)
	l.patience = time.Hour
	<-put(l, []string{"0" + strings.Repeat("a", 9), "0a", "0" + strings.Repeat("b", 9), "1c"})
	if calls != 1 || passed != 10 {
		t.Errorf("the writer was called %d times, and %d bytes were passed", calls, passed)
	}
}

type failing struct{ calls *int }

func (f failing) Write([]byte) (int, error) {
	*f.calls++
	return 0, io.ErrClosedPipe
}

// Passing a piece on takes no memory for each piece, because collecting that would take a
// third of the time.
func TestMemoryIsReused(t *testing.T) {
	const size, count = 64 << 10, 500
	var written int
	l := New(writer(func(b []byte) { written += len(b) }), nil, 1<<20, func(int, int) {}, nil)
	l.patience = time.Hour
	piece := make([]byte, size)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range count {
		l.Put(0, piece)
	}
	runtime.ReadMemStats(&after)
	if written != size*count {
		t.Errorf("%d bytes were written, not %d", written, size*count)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > size*count/10 {
		t.Errorf("it took %d bytes of memory to pass on %d", took, size*count)
	}
}

// One writer of both lanes, which need not bear to be called twice at a time, is not.
func TestExclusive(t *testing.T) {
	var one, two bytes.Buffer
	if a, b := Exclusive(&one, &two); a != &one || b != &two {
		t.Error("two writers are changed")
	}
	if a, b := Exclusive(nil, nil); a != nil || b != nil {
		t.Error("no writers are changed")
	}
	a, b := Exclusive(&one, &one)
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() { _, _ = a.Write([]byte("a")) })
		all.Go(func() { _, _ = b.Write([]byte("b")) })
	}
	all.Wait()
	if one.Len() != 200 {
		t.Errorf("%d bytes", one.Len())
	}
}

// Lanes to one writer take turns.
func TestLanesToOneWriterTakeTurns(t *testing.T) {
	one := &single{}
	l := New(one, one, 4, func(int, int) {}, nil)
	l.patience = time.Hour
	var both sync.WaitGroup
	for lane := range 2 {
		both.Go(func() {
			for range 1000 {
				l.Put(lane, []byte("a"))
			}
		})
	}
	both.Wait()
	if one.twice.Load() {
		t.Error("the writer was called twice at the same time")
	}
}

// single notices calls at the same time.
type single struct{ busy, twice atomic.Bool }

func (w *single) Write(b []byte) (int, error) {
	if w.busy.Swap(true) {
		w.twice.Store(true)
	}
	runtime.Gosched()
	w.busy.Store(false)
	return len(b), nil
}

// A write that waits for one of the other lane to the same writer is dropped, too.
func TestDropOfOneWriter(t *testing.T) {
	entered, open := make(chan struct{}, 2), make(chan struct{})
	w := writer(func([]byte) {
		entered <- struct{}{}
		<-open
	})
	one := &w // functions can't be compared
	l := New(one, one, 4, func(int, int) {}, nil)
	l.patience = time.Hour
	var both sync.WaitGroup
	both.Go(func() { l.Put(0, []byte("a")) })
	<-entered
	both.Go(func() { l.Put(1, []byte("b")) })
	for {
		l.mu.Lock()
		busy := l.lanes[1].busy
		l.mu.Unlock()
		if busy {
			break
		}
		runtime.Gosched()
	}
	l.Drop()
	close(open)
	both.Wait()
	if len(entered) != 0 {
		t.Error("the second write was made")
	}
}

// What is dropped is not written, and a write in progress goes on.
func TestDrop(t *testing.T) {
	open := make(chan struct{})
	var got bytes.Buffer
	l := New(writer(func(b []byte) {
		<-open
		got.Write(b)
	}), writer(func(b []byte) { got.Write(b) }), 4, func(int, int) {}, nil)
	l.patience = 0
	<-put(l, []string{"0a", "0b", "0c"})
	l.Drop()
	if n := l.Waiting(0); n != 0 {
		t.Errorf("%d bytes wait", n)
	}
	close(open)
	l.Wait(t.Context())
	<-put(l, []string{"0d", "1e"})
	l.Wait(t.Context())
	if got.String() != "a" {
		t.Errorf("got %q", got.String())
	}
}

type joinedWriter struct{ writer }

func (joinedWriter) Joined() {}

func TestApart(t *testing.T) {
	a, b := &failing{}, &failing{}
	for name, tt := range map[string]struct {
		a, b io.Writer
		want bool
	}{
		"two":                {a, b, true},
		"one":                {a, a, false},
		"one, not compared":  {writer(nil), writer(nil), true},
		"only one":           {a, nil, false},
		"none":               {nil, nil, false},
		"memory":             {new(bytes.Buffer), new(bytes.Buffer), false},
		"one of them memory": {a, new(bytes.Buffer), false},
		"joined":             {joinedWriter{}, joinedWriter{}, false},
	} {
		if got := Apart(tt.a, tt.b); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
