package main

import (
	"math"
	"slices"
	"time"
)

// series is the measurements of one thing, in the unit of its group.
type series struct {
	values []float64 // in the order in which they were taken
	err    error     // why there are none, or no more
}

func (s *series) add(v float64) { s.values = append(s.values, v) }

// addTime adds a duration in milliseconds.
func (s *series) addTime(d time.Duration) { s.add(float64(d) / float64(time.Millisecond)) }

// n is the number of measurements.
func (s *series) n() int { return len(s.values) }

// percentile returns the smallest measurement that is not less than p percent
// of all (the nearest rank: a value that was seen, never one between two), or
// NaN when there are none.
func (s *series) percentile(p float64) float64 {
	if len(s.values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s.values))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// upper is percentile counted from the side of the worse: for speeds, where
// less is worse, the p90 is the speed that 90 percent of the runs reached.
func (s *series) upper(p float64, more bool) float64 {
	if more {
		return s.percentile(100 - p)
	}
	return s.percentile(p)
}
