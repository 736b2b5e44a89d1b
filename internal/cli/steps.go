package cli

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// steps is the record behind --init-time. A nil one records nothing.
type steps struct {
	mu    sync.Mutex
	start time.Time
	last  time.Time
	rows  []step
}

type step struct {
	name  string
	took  time.Duration
	inner bool // part of the next row that is not
}

func newSteps(wanted bool) *steps {
	if !wanted {
		return nil
	}
	now := time.Now()
	return &steps{start: now, last: now}
}

// done records the step from the last one until now.
func (s *steps) done(name string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.rows = append(s.rows, step{name: name, took: now.Sub(s.last)})
	s.last = now
}

// trace returns what records parts of the step at hand, or nil.
func (s *steps) trace() func(string, time.Duration) {
	if s == nil {
		return nil
	}
	return func(name string, took time.Duration) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rows = append(s.rows, step{name: name, took: took, inner: true})
	}
}

// print writes the table: each step followed by its parts.
func (s *steps) print(w *os.File) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	row := func(indent, name string, took time.Duration) {
		fmt.Fprintf(&b, "%-36s %10.3f ms\n", indent+Harmless(name), float64(took)/float64(time.Millisecond))
	}
	b.WriteByte('\n')
	var parts []step
	for _, r := range s.rows {
		if r.inner {
			parts = append(parts, r)
			continue
		}
		row("", r.name, r.took)
		for _, p := range parts {
			row("  ", p.name, p.took)
		}
		parts = nil
	}
	for _, p := range parts { // of a step that failed
		row("  ", p.name, p.took)
	}
	row("", "all", s.last.Sub(s.start))
	quietly(w, b.String())
}
