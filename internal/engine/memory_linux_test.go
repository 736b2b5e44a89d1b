package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/ledger"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// heap returns the bytes that are reachable.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools held
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// alone reports whether this process runs the test alone. If not, it runs it in one
// that does: what is measured there is nobody else's memory.
func alone(t *testing.T) bool {
	t.Helper()
	const mark = "SANDPIT_TEST_ALONE"
	if os.Getenv(mark) != "" {
		return true
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), mark+"=1")
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("in a process of its own: %v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		testkit.Lacks(t, "what it says in a process of its own: "+string(out))
	case !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Errorf("it was not run in a process of its own:\n%s", out)
	}
	return false
}

// counted returns an engine whose memory is bounded, and its ledger. When the test
// has ended, nothing may be charged any more.
func counted(t *testing.T, b ledger.Bounds) (*engine.Engine, *ledger.Ledger) {
	t.Helper()
	needGuest(t)
	book := ledger.New(b)
	images, guests := engine.Home(t.TempDir())
	e := engine.New(engine.Options{
		Driver: linux.New(linux.Options{Dir: guests, Guest: embedded.Guest()}),
		Images: image.Open(images, image.Options{NoSync: true}),
		Policy: policy.Default(), Memory: book,
	})
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		e.ForgetEvents()
		if n := book.Used(); n != 0 {
			t.Errorf("%d bytes are charged for nothing", n)
		}
	})
	return e, book
}

// readLine reads up to the end of a line, without keeping it.
func readLine(r io.Reader) error {
	for b := make([]byte, 32<<10); ; {
		n, err := r.Read(b)
		if err != nil || bytes.IndexByte(b[:n], '\n') >= 0 {
			return err
		}
	}
}

// ran runs a command and waits for its end.
func ran(t *testing.T, sb sandpit.Sandbox, cmd sandpit.Command) sandpit.Process {
	t.Helper()
	p, err := sb.Start(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := p.Wait(t.Context()); err != nil || !res.Success() {
		t.Fatalf("%+v, %v", res, err)
	}
	return p
}

// What ended processes leave behind is small, however long their command lines
// were: of those the beginning is kept, and that is said. (The catalogue's L11a.)
func TestAttackL11CommandLines(t *testing.T) {
	if !alone(t) {
		return
	}
	e, _ := counted(t, ledger.Bounds{})
	sb := create(t, e, sandpit.Spec{})
	cmd := sandpit.Command{Argv: []string{"true"}, Env: []string{"X=" + strings.Repeat("e", 100<<10)}}
	for range 10 {
		cmd.Argv = append(cmd.Argv, strings.Repeat("x", 100<<10))
	}
	ran(t, sb, cmd)
	before := heap()
	const processes = 40
	for range processes {
		ran(t, sb, cmd)
	}
	if grown := heap() - before; grown > 8<<20 {
		t.Errorf("%d processes with %d MiB of arguments have left %d bytes", processes, processes, grown)
	}
	before = heap()
	run := cmd
	run.Argv, run.Background = append([]string{"sh", "-c", "exec sleep 10000"}, cmd.Argv[1:]...), true
	const running = 10
	for range running {
		if _, err := sb.Start(t.Context(), run); err != nil {
			t.Fatal(err)
		}
	}
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("%d processes that run with %d MiB of arguments hold %d bytes", running, running, grown)
	}
	all, err := sb.Processes(t.Context())
	if err != nil || len(all) != processes+1+running {
		t.Fatalf("%d processes, %v", len(all), err)
	}
	for _, p := range all {
		size := 0
		for _, arg := range p.Argv {
			size += len(arg)
		}
		if !p.ArgvCut || size > 8<<10 || p.Argv[0] != "true" && p.Argv[0] != "sh" || p.Argv[1] == "" {
			t.Fatalf("of %q %d bytes are kept, cut: %v", p.Argv[0], size, p.ArgvCut)
		}
	}
	ran(t, sb, sandpit.Command{Argv: []string{"true", "short"}})
	if all, err = sb.Processes(t.Context()); err != nil || all[len(all)-1].ArgvCut || fmt.Sprint(all[len(all)-1].Argv) != "[true short]" {
		t.Errorf("the last of them is %+v, %v", all[len(all)-1], err)
	}
	if _, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"true"}, User: strings.Repeat("0", 1<<20) + ":0"}); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("a user of 1 MiB: %v", err)
	}
}

// One tenant keeps no more in memory than it may: the output of processes is kept
// as far as there is room, those that have ended go first, and then what it asks
// for is refused. The others have their share. (The catalogue's L11b.)
func TestAttackL11Output(t *testing.T) {
	if !alone(t) {
		return
	}
	const limit = 6 << 20
	e, book := counted(t, ledger.Bounds{Total: 12 << 20, Namespace: limit, Sandbox: 4 << 20})
	greedy, other := e.As("greedy", policy.Default()), e.As("other", policy.Default())
	boxes := []sandpit.Sandbox{create(t, greedy, sandpit.Spec{}), create(t, greedy, sandpit.Spec{})}
	theirs := create(t, other, sandpit.Spec{})
	before := heap()
	started := 0
	var err error
	for i := 0; i < 1000; i++ {
		// What it writes is read to its end, so that it is known to be kept, and nothing
		// of it is on its way when the memory is measured.
		var p sandpit.Process
		r, w := io.Pipe()
		p, err = boxes[i%2].Start(t.Context(), sandpit.Command{Script: "head -c 600000 /dev/zero; echo; exec sleep 10000", Background: true, Stdout: w})
		if err != nil {
			break
		}
		if err := readLine(r); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, r) }()
		defer r.Close()
		started++
		if i < 30 { // these end
			if err := p.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := book.UsedBy("greedy"); n > limit {
			t.Fatalf("%d bytes are charged", n)
		}
	}
	if started < 90 { // output keeps no process out
		t.Errorf("only %d processes were started", started)
	}
	if !errors.Is(err, sandpit.ErrQuota) || sandpit.RetryAfter(err) != 0 || sandpit.Hint(err) == "" {
		t.Errorf("after %d processes: %v (%s)", started, err, sandpit.Hint(err))
	}
	if grown := heap() - before; grown > 3*limit {
		t.Errorf("%d processes have left %d bytes", started, grown)
	}
	if _, err := greedy.Create(t.Context(), sandpit.Spec{}); !errors.Is(err, sandpit.ErrExhausted) {
		t.Errorf("one more sandbox: %v", err)
	}
	// The neighbour works.
	out, err := sandpit.Shell(t.Context(), theirs, "echo fine")
	if err != nil || string(out.Stdout) != "fine\n" {
		t.Errorf("the neighbour: %q, %v", out.Stdout, err)
	}
	create(t, other, sandpit.Spec{})
	// Room comes back when something goes.
	if err := boxes[1].Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	ran(t, boxes[0], sandpit.Command{Argv: []string{"true"}})
	create(t, greedy, sandpit.Spec{})
}

// Of processes that have ended the oldest are forgotten when there is no room for
// new ones: a sandbox is never full of what is over.
func TestEndedProcessesGiveWay(t *testing.T) {
	e, book := counted(t, ledger.Bounds{Total: 1 << 20})
	sb := create(t, e, sandpit.Spec{})
	long := strings.Repeat("x", 16<<10)
	var last sandpit.Process
	for range 60 {
		last = ran(t, sb, sandpit.Command{Argv: []string{"true", long}})
	}
	all, err := sb.Processes(t.Context())
	if err != nil || len(all) < 2 || len(all) > 30 || all[len(all)-1].ID != last.ID() {
		t.Errorf("%d processes are known, %v", len(all), err)
	}
	if n := book.Used(); n > 1<<20 {
		t.Errorf("%d bytes are charged", n)
	}
}

// Labels that are too long together are refused: each may be 4 KiB, and there may
// be 64 of them. (The catalogue's L11c.)
func TestAttackL11Labels(t *testing.T) {
	e, _ := counted(t, ledger.Bounds{})
	labels := map[string]string{}
	for i := range 4 {
		labels[fmt.Sprint(i)] = strings.Repeat("x", 4<<10)
	}
	if _, err := e.Create(t.Context(), sandpit.Spec{Labels: labels}); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("more than 16 KiB: %v", err)
	}
	delete(labels, "0")
	create(t, e, sandpit.Spec{Labels: labels})
}

// A context is charged, and its charge returns with it or its sandbox.
func TestContextsAreCharged(t *testing.T) {
	e, book := counted(t, ledger.Bounds{})
	testkit.NeedProgram(t, "python3") // and so in the host image
	sb := create(t, e, sandpit.Spec{})
	before := book.Used()
	for _, id := range []string{"one", "two"} {
		if _, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: id, Env: []string{"A=" + strings.Repeat("x", 50_000)}}); err != nil {
			t.Fatal(err)
		}
	}
	both := book.Used() - before
	if both < 2*50_000 {
		t.Errorf("two contexts with large environments are charged with %d bytes", both)
	}
	if err := sb.RemoveContext(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if one := book.Used() - before; one > both-50_000 || one < 50_000 {
		t.Errorf("of %d bytes %d are left when one of two is removed", both, one)
	}
	_, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: "long", Dir: strings.Repeat("d", 5000)})
	if !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("a context in a directory with a name that no path can have: %v", err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Processes that look like interpreters of an earlier server are contexts. They are charged, and the policy
// says how many of them, the oldest, can be used.
func TestFoundContextsAreBounded(t *testing.T) {
	e, book := counted(t, ledger.Bounds{})
	testkit.NeedProgram(t, "python3") // and so in the host image
	allowing := func(n int) sandpit.Client {
		p := policy.ServerDefault()
		p.Rules.Contexts = n
		return e.As("tenant", p)
	}
	sb := create(t, allowing(1), sandpit.Spec{Name: "box"})
	for _, id := range []string{"first", "second"} {
		argv := []string{"python3", "-u", "-X", "utf8", "-", "sandpit-context", id, "python", "/tmp/.sandpit-" + id}
		if _, err := sb.Start(t.Context(), sandpit.Command{Argv: argv, Stdin: true, Background: true}); err != nil {
			t.Fatal(err)
		}
	}
	before := book.Used()
	if all, err := sb.Contexts(t.Context()); err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	if n := book.Used() - before; n < 2*4096 {
		t.Errorf("two contexts that were found are charged with %d bytes", n)
	}
	for _, c := range []struct {
		limit int
		id    string
		kind  error
	}{{0, "first", sandpit.ErrForbidden}, {1, "second", sandpit.ErrQuota}} {
		sb, err := allowing(c.limit).Get(t.Context(), "box")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sb.RunCode(t.Context(), sandpit.Code{Source: "1", Context: c.id}); !errors.Is(err, c.kind) {
			t.Errorf("a run in %q where %d contexts are allowed: %v", c.id, c.limit, err)
		}
	}
	if err := sb.RemoveContext(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	got, err := sb.RunCode(t.Context(), sandpit.Code{Source: "1", Context: "second"})
	if err != nil || got.InterpreterEnd == "" { // it is admitted, and does not answer
		t.Errorf("a run in a context that is the oldest now: %+v, %v", got, err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
}
