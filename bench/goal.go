package main

import (
	"fmt"
	"strconv"
)

// direction says how Sandpit is compared with a peer.
type direction int

const (
	plain   direction = iota // a ratio is printed, none is aimed at
	atMost                   // at most so many times what the peer takes
	faster                   // so many times faster than the peer
	atLeast                  // at least this part of the peer's speed
	below                    // an absolute figure, at most; there is no peer
)

// goal is what Sandpit is to reach against a peer: first, and then. If both are the same, there is one target.
type goal struct {
	how         direction
	first, then float64
}

// ratio returns what is compared with the goal.
func (g goal) ratio(own, peer float64) float64 {
	switch g.how {
	case faster:
		return peer / own
	case below:
		return own
	}
	return own / peer
}

// met reports whether a ratio reaches a target of the goal.
func (g goal) met(ratio, target float64) bool {
	if g.how == faster || g.how == atLeast {
		return ratio >= target
	}
	return ratio <= target
}

// text is the ratio for people.
func (g goal) text(ratio float64) string {
	switch g.how {
	case faster:
		return number(ratio) + "x faster"
	case below:
		return ""
	}
	return number(ratio) + "x"
}

// target is the goal for people.
func (g goal) target() string {
	sign := ""
	switch g.how {
	case plain:
		return ""
	case atMost, below:
		sign = "≤ "
	case faster, atLeast:
		sign = "≥ "
	}
	unit := "x"
	if g.how == below {
		unit = ""
	}
	if g.then == g.first {
		return sign + number(g.first) + unit
	}
	return fmt.Sprintf("%s%s%s, then %s%s", sign, number(g.first), unit, number(g.then), unit)
}

// verdict says which targets a ratio reaches.
func (g goal) verdict(ratio float64) string {
	switch {
	case g.how == plain:
		return ""
	case g.met(ratio, g.then) && g.then == g.first:
		return "met"
	case g.met(ratio, g.then):
		return "both met"
	case g.met(ratio, g.first):
		return "first met"
	}
	return "not met"
}

// number writes a figure with three digits that count.
func number(v float64) string {
	switch {
	case v != v:
		return "-"
	case v >= 100 || v <= -100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10 || v <= -10:
		return trimmed(strconv.FormatFloat(v, 'f', 1, 64))
	case v >= 1 || v <= -1:
		return trimmed(strconv.FormatFloat(v, 'f', 2, 64))
	}
	return trimmed(strconv.FormatFloat(v, 'f', 3, 64))
}
