// Package ledger counts the memory that requests leave behind in a server after the answer. Code
// that keeps something charges it before building it, and returns the charge when it is gone.
//
// Charges are in bytes. They are estimates, rather too high than too low.
package ledger

import (
	"cmp"
	"fmt"
	"math"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// Bounds are the maximum charges, in bytes. 0 is the default.
type Bounds struct {
	Total     int64 // of all; default: no bound
	Namespace int64 // of one namespace; default a quarter of Total
	Sandbox   int64 // of one sandbox; default 64 MiB, and at most Namespace
}

const defaultSandbox = 64 << 20

// A Level says what a bound applies to.
type Level string

// The levels, from the smallest bound to the largest.
const (
	Own       Level = "sandbox"
	Namespace Level = "namespace"
	Total     Level = "server"
)

// Full is the error of a charge that exceeds a bound.
type Full struct {
	Level Level
	Bound int64 // bytes
}

// Error says which bound was reached.
func (f *Full) Error() string {
	whose := ""
	if f.Level != Total {
		whose = " for this " + string(f.Level)
	}
	return fmt.Sprintf("the server's memory for requests is exhausted%s (%d MiB)", whose, f.Bound>>20)
}

// Ledger is the sum of all accounts. Its methods, and those of its accounts, are safe for
// concurrent use. Accounts of a nil Ledger have only their own bounds.
type Ledger struct {
	bounds Bounds

	mu     sync.Mutex
	total  int64            // guarded by mu
	spaces map[string]int64 // by namespace; guarded by mu
}

// New returns an empty ledger.
func New(b Bounds) *Ledger {
	b.Total = cmp.Or(b.Total, math.MaxInt64)
	b.Namespace = cmp.Or(b.Namespace, b.Total/4)
	b.Sandbox = cmp.Or(b.Sandbox, min(b.Namespace, defaultSandbox))
	return &Ledger{bounds: b, spaces: map[string]int64{}}
}

// Sandbox returns a new account for a sandbox of a namespace.
func (l *Ledger) Sandbox(namespace string) *Account {
	if l == nil {
		l = New(Bounds{})
	}
	return l.Account(namespace, l.bounds.Sandbox)
}

// Account returns a new account of a namespace, with its own bound.
func (l *Ledger) Account(namespace string, bound int64) *Account {
	if l == nil {
		l = New(Bounds{})
	}
	return &Account{ledger: l, namespace: namespace, bound: bound}
}

// StringCost is the overhead of a string in a list or map.
const StringCost = 48

// Labels returns the size of labels.
func Labels(labels map[string]string) int64 {
	n := int64(0)
	for k, v := range labels {
		n += int64(len(k)+len(v)) + 2*StringCost
	}
	return n
}

// Event returns the size of an event without its labels.
func Event(ev *sandpit.Event) int64 {
	const fixed = 384 // the struct, its small strings, and room for the list to grow
	return int64(fixed + len(ev.Name) + len(ev.Reason))
}

// Used returns the charges of all accounts.
func (l *Ledger) Used() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// UsedBy returns the charges of the accounts of a namespace.
func (l *Ledger) UsedBy(namespace string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spaces[namespace]
}

// Largest returns the namespace with the largest charges.
func (l *Ledger) Largest() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	largest := ""
	for name, n := range l.spaces {
		if n > l.spaces[largest] {
			largest = name
		}
	}
	return largest
}

// Account counts the charges of one holder. A nil Account has no bound.
type Account struct {
	ledger    *Ledger
	namespace string
	bound     int64
	used      int64 // guarded by ledger.mu
}

// Charge charges n bytes, or nothing: then the error is a *Full, which names the
// smallest bound that was reached.
func (a *Account) Charge(n int64) error { return a.charge(n, 1) }

// Grow is Charge for optional data: it leaves half of each bound free for necessary data.
func (a *Account) Grow(n int64) error { return a.charge(n, 2) }

// charge charges n bytes up to one part of each bound.
func (a *Account) charge(n, part int64) error {
	if a == nil {
		return nil
	}
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case a.used+n > a.bound/part:
		return &Full{Own, a.bound}
	case l.spaces[a.namespace]+n > l.bounds.Namespace/part:
		return &Full{Namespace, l.bounds.Namespace}
	case l.total+n > l.bounds.Total/part:
		return &Full{Total, l.bounds.Total}
	}
	a.add(n)
	return nil
}

// Add charges n bytes regardless of the bounds, for data that exists in any case.
func (a *Account) Add(n int64) {
	if a == nil {
		return
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	a.add(n)
}

// Return returns n charged bytes.
func (a *Account) Return(n int64) { a.Add(-n) }

// add changes all sums. Precondition: ledger.mu is held.
func (a *Account) add(n int64) {
	l := a.ledger
	a.used += n
	l.total += n
	if l.spaces[a.namespace] += n; l.spaces[a.namespace] == 0 {
		delete(l.spaces, a.namespace)
	}
}
