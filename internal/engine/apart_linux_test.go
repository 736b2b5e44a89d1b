package engine_test

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/ledger"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// valve is a writer that takes nothing until it is opened.
type valve struct {
	open chan struct{}
	mu   sync.Mutex
	n    int // guarded by mu
}

func (v *valve) Write(b []byte) (int, error) {
	<-v.open
	v.mu.Lock()
	defer v.mu.Unlock()
	v.n += len(b)
	return len(b), nil
}

func (v *valve) got() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.n
}

// apartBytes is what each output of the processes here has: more than everything on the way holds.
const apartBytes = 4 << 20

var apartScript = fmt.Sprintf("head -c %d /dev/zero & head -c %[1]d /dev/zero >&2; echo free >&2; wait", apartBytes)

// waitEnd waits for the end of a process.
func waitEnd(t *testing.T, p sandpit.Process) sandpit.Result {
	t.Helper()
	ended := make(chan sandpit.Result, 1)
	go func() {
		res, err := p.Wait(t.Context())
		if err != nil {
			t.Error(err)
		}
		ended <- res
	}()
	select {
	case res := <-ended:
		return res
	case <-time.After(testkit.Patience):
		t.Fatal("it does not end")
		return sandpit.Result{}
	}
}

// An output of a foreground process that its owner does not take does not hold up the other one, in a
// sandbox that outlives the engine. What waits for the owner is charged, and nothing in the end.
func TestOutputsAreApart(t *testing.T) {
	book := ledger.New(ledger.Bounds{})
	e := newSurvivor(t).open(t, func(o *engine.Options) { o.Memory = book })
	sb := made(t, e, sandpit.Spec{})
	for _, first := range []bool{true, false} {
		stuck, other := &valve{open: make(chan struct{})}, new(testkit.Buffer)
		cmd := sandpit.Command{Script: apartScript, Stdout: stuck, Stderr: other}
		if !first {
			cmd.Stdout, cmd.Stderr, cmd.Script = other, stuck, "exec 3>&1 1>&2 2>&3; "+apartScript
		}
		p, err := sb.Start(t.Context(), cmd)
		if err != nil {
			t.Fatal(err)
		}
		testkit.Until(t, "all of the other comes", func() bool { return strings.HasSuffix(other.String(), "free\n") })
		testkit.Until(t, "what waits of the stuck one is charged", func() bool { return book.Used() >= 2<<20 })
		close(stuck.open)
		if res := waitEnd(t, p); !res.Success() || stuck.got() != apartBytes || res.DroppedBytes != 0 {
			t.Errorf("got %+v, %d bytes", res, stuck.got())
		}
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.ForgetEvents()
	testkit.Until(t, "nothing is charged", func() bool { return book.Used() == 0 })
}

// Without memory for an output that is stuck, both wait for it, and nothing is lost.
func TestOutputsShareWhatThereIs(t *testing.T) {
	book := ledger.New(ledger.Bounds{Sandbox: 2 << 20})
	e := newSurvivor(t).open(t, func(o *engine.Options) { o.Memory = book })
	sb := made(t, e, sandpit.Spec{})
	stuck, other := &valve{open: make(chan struct{})}, new(testkit.Buffer)
	p, err := sb.Start(t.Context(), sandpit.Command{Script: "head -c 100000 /dev/zero; " + apartScript, Stdout: stuck, Stderr: other})
	if err != nil {
		t.Fatal(err)
	}
	// Something else happens meanwhile.
	if out, res := shell(t, sb, "echo else"); out != "else\n" || !res.Success() {
		t.Errorf("got %q, %+v", out, res)
	}
	if n := book.Used(); n > 2<<20 {
		t.Errorf("%d bytes are charged", n)
	}
	close(stuck.open)
	if res := waitEnd(t, p); !res.Success() || stuck.got() != 100000+apartBytes || len(other.String()) != apartBytes+len("free\n") {
		t.Errorf("got %+v, %d and %d bytes", res, stuck.got(), len(other.String()))
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// When the owner leaves, the process no longer waits, although a write still does.
func TestOwnerLeavesAStuckOutput(t *testing.T) {
	e := newSurvivor(t).open(t)
	sb := made(t, e, sandpit.Spec{})
	stuck, other := &valve{open: make(chan struct{})}, new(testkit.Buffer)
	defer close(stuck.open)
	p, err := sb.Start(t.Context(), sandpit.Command{Script: apartScript, Stdout: stuck, Stderr: other})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "all of the other comes", func() bool { return strings.HasSuffix(other.String(), "free\n") })
	again, err := sb.Attach(t.Context(), p.ID(), sandpit.AttachOptions{Stdout: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	p.(sandpit.Detacher).Detach()
	if res := waitEnd(t, again); !res.Success() || res.StdoutBytes != apartBytes {
		t.Errorf("got %+v", res)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
}
