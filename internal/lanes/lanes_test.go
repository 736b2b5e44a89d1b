package lanes

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// put has all pieces put: by this goroutine, and by those that take its place. A piece is
// the number of its lane and a text.
func put(l *Lanes, pieces []string) (done chan struct{}) {
	done = make(chan struct{})
	var mu sync.Mutex
	l.Next = func() {
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
	go l.Next()
	return done
}

func TestPiecesComeInOrder(t *testing.T) {
	var all []string
	l := &Lanes{Patience: time.Hour, Write: func(lane int, b []byte) { all = append(all, fmt.Sprint(lane, string(b))) }}
	pieces := []string{"0a", "1b", "1c", "0d", "1e"}
	<-put(l, pieces)
	if got, want := strings.Join(all, " "), "0a 1b 1c 0d 1e"; strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
		t.Errorf("got %s", got)
	}
}

func TestAStuckLaneHoldsUpItselfAlone(t *testing.T) {
	for _, stuck := range []int{0, 1} {
		open := make(chan struct{})
		var mu sync.Mutex
		var got [2]bytes.Buffer
		var passed [2]int
		l := &Lanes{}
		l.Write = func(lane int, b []byte) {
			if lane == stuck {
				<-open
			}
			mu.Lock()
			defer mu.Unlock()
			got[lane].Write(b)
		}
		l.Passed = func(lane, n int) {
			mu.Lock()
			defer mu.Unlock()
			passed[lane] += n
		}
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
