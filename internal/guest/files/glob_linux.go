package files

import (
	"path"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// glob is a pattern of paths, split at its slashes. An element ** matches any
// number of elements of a path, also none, but as the last one at least one;
// others are as path.Match has them. A nil glob matches everything.
//
// A set of places in the pattern is a set of bits: what is possible after some
// elements of a path. So every directory is asked once, however many ** there
// are.
type glob []string

// maxGlob bounds the elements of a pattern.
const maxGlob = 62

func newGlob(pattern string) (glob, error) {
	if pattern == "" {
		return nil, nil
	}
	g := glob(strings.Split(strings.Trim(pattern, "/"), "/"))
	if len(g) > maxGlob {
		return nil, wire.Invalid("the pattern has more than 62 elements")
	}
	for _, element := range g {
		if _, err := path.Match(element, ""); err != nil {
			return nil, wire.Invalid("malformed pattern " + wire.Quote(pattern))
		}
	}
	return g, nil
}

// begin returns the places before the first element.
func (g glob) begin() uint64 { return g.skip(1) }

// skip adds the places that are reached without an element.
func (g glob) skip(at uint64) uint64 {
	for i, element := range g[:max(0, len(g)-1)] {
		if at>>i&1 != 0 && element == "**" {
			at |= 1 << (i + 1)
		}
	}
	return at
}

// step returns the places behind an element of a path.
func (g glob) step(at uint64, name string) uint64 {
	var next uint64
	for i, element := range g {
		switch {
		case at>>i&1 == 0:
		case element == "**":
			next |= 1 << i
			if i == len(g)-1 {
				next |= 1 << (i + 1)
			}
		default:
			if ok, _ := path.Match(element, name); ok {
				next |= 1 << (i + 1)
			}
		}
	}
	return g.skip(next)
}

// matches reports whether a path that leads to these places matches.
func (g glob) matches(at uint64) bool { return g == nil || at>>len(g)&1 != 0 }

// leads reports whether a path below may match.
func (g glob) leads(at uint64) bool { return g == nil || at&(1<<len(g)-1) != 0 }
