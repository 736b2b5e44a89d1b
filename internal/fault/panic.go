package fault

import (
	"fmt"
	"runtime/debug"
)

// Panic is the error of work that panicked.
type Panic struct{ what, detail string }

func (e *Panic) Error() string { return e.what + " panicked" }

// Detail returns the value and the stack of the panic, which only the log of a server has.
func (e *Panic) Detail() string { return e.detail }

// Protect is deferred by goroutines whose panic must not end the program. If one panics, Protect calls failed with
// a *Panic. what says what the goroutine does.
func Protect(what string, failed func(error)) {
	if p := recover(); p != nil {
		failed(&Panic{what, fmt.Sprintf("%v\n%s", p, debug.Stack())})
	}
}
