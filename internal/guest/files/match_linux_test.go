package files

import (
	"testing"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// A search that nobody wants any more ends within a line, and for good.
func TestMatcherIsCalledOff(t *testing.T) {
	asked := 0
	m := newMatcher(&wire.Grep{Prog: []wire.Inst{{Op: wire.InstRune, Out: 1, Ranges: []int32{'x', 'x'}}, {Op: wire.InstMatch}}})
	m.gone = func() bool { asked++; return asked == 3 }
	line := append(make([]byte, 4*goneSteps), 'x')
	if m.match(line) || asked != 3 {
		t.Errorf("it went on: asked %d times", asked)
	}
	if m.match([]byte("x")) {
		t.Error("it went on with the next line")
	}
}
