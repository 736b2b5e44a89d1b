package ledger_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/ledger"
)

// Each bound refuses what goes over it, names itself, and charges nothing then.
func TestBounds(t *testing.T) {
	l := ledger.New(ledger.Bounds{Total: 100, Namespace: 60, Sandbox: 40})
	charge := func(a *ledger.Account, n int64, want ledger.Level) {
		t.Helper()
		before := l.Used()
		err := a.Charge(n)
		var full *ledger.Full
		switch {
		case want == "" && err != nil:
			t.Errorf("charging %d: %v", n, err)
		case want != "" && (!errors.As(err, &full) || full.Level != want || l.Used() != before):
			t.Errorf("charging %d: %v, and %d of %d are used", n, err, l.Used(), before)
		}
	}
	a, b, c := l.Sandbox("x"), l.Sandbox("x"), l.Sandbox("y")
	charge(a, 40, "")
	charge(a, 1, ledger.Own)
	charge(b, 21, ledger.Namespace)
	charge(b, 20, "")
	charge(c, 40, "")
	charge(l.Sandbox("z"), 1, ledger.Total)
	if l.Largest() != "x" || l.UsedBy("x") != 60 {
		t.Errorf("the largest is %q, and x has %d", l.Largest(), l.UsedBy("x"))
	}
	a.Return(40)
	charge(l.Sandbox("z"), 40, "")
	c.Add(1000) // what is there in any case
	charge(a, 1, ledger.Total)
	c.Return(1040)
	charge(a, 1, "")
	// What can be done without leaves half of it to others.
	l = ledger.New(ledger.Bounds{Total: 100, Namespace: 60, Sandbox: 40})
	a = l.Sandbox("x")
	if err := a.Grow(20); err != nil {
		t.Error(err)
	}
	if err := a.Grow(1); err == nil {
		t.Error("it grows over its half")
	}
	charge(a, 20, "")
}

// However many charge and return at once, nothing is left over.
func TestNothingIsLeft(t *testing.T) {
	l := ledger.New(ledger.Bounds{Total: 1000})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			a := l.Sandbox("x")
			for i := range int64(1000) {
				if a.Charge(i%100) == nil {
					a.Return(i % 100)
				}
			}
		})
	}
	wg.Wait()
	if l.Used() != 0 || l.UsedBy("x") != 0 || l.Largest() != "" {
		t.Errorf("%d are left", l.Used())
	}
	// Without a ledger an account has its own bound alone.
	var none *ledger.Ledger
	if a := none.Account("x", 10); a.Charge(10) != nil || a.Charge(1) == nil {
		t.Error("the account of no ledger does not hold its bound")
	}
	if err := none.Sandbox("x").Charge(1 << 20); err != nil {
		t.Error(err)
	}
	(*ledger.Account)(nil).Return(1)
	if err := (*ledger.Account)(nil).Charge(1); err != nil {
		t.Error(err)
	}
}

// What a charge and its return cost each who keeps something.
func BenchmarkCharge(b *testing.B) {
	a := ledger.New(ledger.Bounds{}).Sandbox("x")
	for b.Loop() {
		if err := a.Charge(100); err != nil {
			b.Fatal(err)
		}
		a.Return(100)
	}
}
