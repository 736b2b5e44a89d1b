package files

import (
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// A program that a host has sent ends, and stays within itself.
func FuzzMatcher(f *testing.F) {
	f.Add((&wire.Grep{Prog: []wire.Inst{
		{Op: wire.InstAlt, Out: 1, Arg: 2}, {Op: wire.InstRune, Out: 0, Ranges: []int32{'a', 'z'}}, {Op: wire.InstEmpty, Out: 3, Arg: wire.EmptyEnd}, {Op: wire.InstMatch},
	}}).Append(nil), []byte("abc"))
	f.Add((&wire.Grep{Literal: "b", Prog: []wire.Inst{{Op: wire.InstAlt}, {Op: wire.InstAny}}}).Append(nil), []byte("äb"))
	f.Fuzz(func(t *testing.T, message, line []byte) {
		var m wire.Grep
		if m.Decode(message) != nil {
			return
		}
		k := newMatcher(&m)
		first := k.match(line)
		if k.match(line) != first {
			t.Error("not the same a second time")
		}
	})
}

func FuzzGlob(f *testing.F) {
	f.Add("src/**/*.go", "src/a/b/c.go")
	f.Add("**/**/**/x", "a/a/a/a/x")
	f.Add("[a-", "a")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		g, err := newGlob(pattern)
		if err != nil || g == nil {
			return
		}
		at := g.begin()
		for element := range strings.SplitSeq(name, "/") {
			led := g.leads(at)
			at = g.step(at, element)
			if g.matches(at) && !led {
				t.Errorf("%q matches %q below what leads nowhere", pattern, name)
			}
		}
	})
}
