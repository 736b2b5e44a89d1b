package engine_test

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Starts that fail, and those that end at once, leave nothing with the owner or
// inside, however many they are. (The catalogue's C10.)
func TestManyStartsThatFail(t *testing.T) {
	sb := create(t, newEngine(t), sandpit.Spec{})
	size := sandpit.TerminalSize{Rows: 24, Cols: 80}
	try := func() {
		for _, cmd := range []sandpit.Command{
			{Argv: []string{"no-such-program-here"}},
			{Argv: []string{"no-such-program-here"}, Stdin: true},
			{Argv: []string{"no-such-program-here"}, Terminal: &size},
			{Argv: []string{"true"}, Dir: "/no/such/directory", Terminal: &size},
			{Argv: []string{"true"}, Terminal: &size},
		} {
			p, err := sb.Start(t.Context(), cmd)
			if errors.Is(err, sandpit.ErrStart) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = p.Resize(t.Context(), sandpit.TerminalSize{Rows: 1, Cols: 65535})
			if _, err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := sb.Start(t.Context(), sandpit.Command{}); err == nil {
			t.Fatal("a command of nothing was started")
		}
	}
	// What is there: goroutines and descriptors here, processes inside.
	type state struct{ routines, descriptors, pids int }
	look := func() state {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		m, err := sb.Metrics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return state{runtime.NumGoroutine(), len(fds), int(m.Pids)}
	}
	try()
	before := look()
	const rounds = 200
	for range rounds {
		try()
	}
	// What is on its way out gets a moment; the runtime may keep a few.
	more := func() bool {
		after := look()
		return after.routines > before.routines+rounds/10 || after.descriptors > before.descriptors+rounds/10 || after.pids > before.pids+rounds/10
	}
	for end := time.Now().Add(time.Minute); more(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %d rounds there are %+v, before %+v", rounds, look(), before)
		}
	}
	t.Logf("after %d rounds there are %+v, before %+v", rounds, look(), before)
}
