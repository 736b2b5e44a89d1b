package main

import (
	"context"
	"time"
)

// contestant is one of several things that are timed in turns.
type contestant struct {
	name string

	// once does it once and records what it took. An error ends the turns of
	// this contestant, not of the others.
	once func(ctx context.Context, rec *record) error

	err  error
	took time.Duration // in all so far, what is around the timed part included
	done int           // turns taken
}

// record holds the series of a contest by name.
type record struct {
	series map[string]*series
}

func newRecord() *record { return &record{series: map[string]*series{}} }

// get returns a series, an empty one when nothing was recorded.
func (r *record) get(name string) *series {
	s := r.series[name]
	if s == nil {
		s = &series{}
		r.series[name] = s
	}
	return s
}

func (r *record) time(name string, d time.Duration) { r.get(name).addTime(d) }

// contest lets contestants take turns: in every round each once, beginning with
// another one each time, so that what one leaves for the kernel to tidy up does
// not always hit the same next one. One turn of each goes before and is not
// recorded: it warms caches. One that has used up its budget of time takes part
// in fewer rounds, spread evenly, but in five at least.
func contest(ctx context.Context, rounds int, budget time.Duration, cs ...*contestant) *record {
	rec := newRecord()
	every := make([]int, len(cs))
	for i, c := range cs {
		start := time.Now()
		c.err = c.once(ctx, newRecord())
		every[i] = spacing(rounds, budget, time.Since(start))
	}
	for r := range rounds {
		for i := range cs {
			i = (i + r) % len(cs)
			c := cs[i]
			if c.err != nil || r%every[i] != 0 || ctx.Err() != nil {
				continue
			}
			start := time.Now()
			c.err = c.once(ctx, rec)
			c.took += time.Since(start)
			c.done++
			// The first turn, with cold caches, was a poor guess.
			every[i] = max(1, min(every[i], spacing(rounds, budget, c.took/time.Duration(c.done))))
		}
	}
	for _, c := range cs {
		if c.err == nil {
			c.err = ctx.Err()
		}
		if c.err != nil {
			rec.get(c.name).err = c.err
		}
	}
	return rec
}

// leastTurns is how often a slow thing is timed all the same.
const leastTurns = 5

// spacing returns in which part of the rounds (1: all, 2: every other one, …)
// something takes part whose turns each take so long.
func spacing(rounds int, budget, turn time.Duration) int {
	if turn <= 0 || rounds <= leastTurns {
		return 1
	}
	turns := max(leastTurns, min(rounds, int(budget/turn)))
	return max(1, rounds/turns)
}
