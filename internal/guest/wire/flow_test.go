package wire_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// TryTake takes all or nothing.
func TestTryTake(t *testing.T) {
	w := wire.NewWindow(wire.Cost(1000) + wire.Cost(10))
	if !w.TryTake(1000) || w.TryTake(11) || !w.TryTake(10) || w.TryTake(1) {
		t.Error("credit was taken that is not there, or not taken that is")
	}
	if w.Add(uint32(wire.Cost(1))); !w.TryTake(1) {
		t.Error("credit that came later was not taken")
	}
	w.Add(1000)
	w.Fail(wire.ErrWoken)
	if w.TryTake(1) {
		t.Error("credit was taken of a window that has failed")
	}
}

// A window that is widened takes so much more, and is never made smaller.
func TestWiden(t *testing.T) {
	const small, large = wire.MinWindow, 4 * wire.MinWindow
	q := wire.NewQueue(small)
	put := func() bool {
		if _, ok := q.Space(wire.MaxData); !ok {
			return false
		}
		q.Commit(wire.Data, wire.MaxData)
		return true
	}
	fill := func() (n int) {
		for put() {
			n++
		}
		return n
	}
	if n := fill(); n != 2 {
		t.Errorf("%d frames had room", n)
	}
	if n := q.Widen(large); n != large-small {
		t.Errorf("credit of %d is to be given", n)
	}
	if n := q.Widen(small); n != 0 {
		t.Errorf("credit of %d is to be given for less", n)
	}
	if n := fill(); n != 6 {
		t.Errorf("%d more frames had room", n)
	}
	given := 0
	for range 8 {
		if _, _, err := q.Next(); err != nil {
			t.Fatal(err)
		}
		given += q.Done()
	}
	if given != large {
		t.Errorf("credit of %d came back of %d", given, large)
	}
	q.Finish()
	if n := q.Widen(2 * large); n != 0 {
		t.Errorf("credit of %d is to be given after the end", n)
	}
}
