package server

import (
	"fmt"
	"slices"
	"testing"
)

// A service has its own places, of which each namespace has a part. Those with fewer renewals come first.
func TestTurns(t *testing.T) {
	turns := newTurns()
	var began []string
	add := func(service, namespace string, n int) {
		for i := range n {
			turns.add(turn{share{service, namespace}, func() { began = append(began, fmt.Sprint(service, " ", namespace, i)) }})
		}
	}
	want := func(about string, all ...string) {
		t.Helper()
		if !slices.Equal(began, all) {
			t.Errorf("%s: %q began, want %q", about, began, all)
		}
		began = nil
	}
	add("one", "a", 40)
	want("one namespace", "one a0", "one a1", "one a2", "one a3")
	add("two", "a", 1)
	want("at another service", "two a0")
	add("one", "b", 40)
	want("another namespace", "one b0", "one b1", "one b2", "one b3")
	add("one", "c", 2)
	want("beyond the places of a service")
	turns.end(share{"one", "a"})
	want("the namespace with fewest", "one c0")
	turns.end(share{"one", "b"})
	want("the namespace with fewest, again", "one c1")
	turns.end(share{"one", "b"})
	want("of two namespaces", "one b4")
	for len(turns.at)+len(turns.waiting) > 0 {
		for s := range turns.of {
			turns.end(s)
			break
		}
	}
	if len(began) != 36+35 || len(turns.of) != 0 {
		t.Errorf("%d of those that waited began, and %v is left", len(began), turns.of)
	}
}
