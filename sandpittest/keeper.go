package sandpittest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

var keeperProperties = []property{
	{"processes are listed, oldest first, with how they ended", testProcesses},
	{"a background process is found again, with the output kept so far", testAttach},
	{"many are attached and all get the same", testManyAttached},
	{"one who is slow stalls nobody, and is told what was lost", testSlowAttacher},
	{"how a process ended is kept after its end", testResultKept},
	{"input, signals and a terminal work for who has attached", testAttachedInput},
	{"detaching leaves the process alone", testDetach},
	{"a process that is not there is ErrNotFound", testAttachUnknown},
	{"a background process survives the client that started it", testSurvivesClient},
	{"a foreground process ends with the client that started it", testForegroundClient},
	{"a foreground process that is moved to the background survives its client", testMoved},
	{"a slow writer of a background process does not slow it down", testBackgroundWriter},
}

// attach attaches to a process.
func attach(t *testing.T, sb sandpit.Sandbox, id string, opt sandpit.AttachOptions) sandpit.Process {
	t.Helper()
	p, err := sb.Attach(guarded(t), id, opt)
	if err != nil {
		t.Fatalf("attaching to %q: %v", id, err)
	}
	return p
}

// clock returns the time in a sandbox, in seconds since 1970.
func clock(t *testing.T, sb sandpit.Sandbox) int64 {
	t.Helper()
	now, err := strconv.ParseInt(shell(t, sb, "date +%s"), 10, 64)
	must(t, err)
	return now
}

func testProcesses(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	before := clock(t, sb)
	sleeper := start(t, sb, sandpit.Command{Argv: []string{"sleep", "1000"}, Background: true})
	after := clock(t, sb)
	failing := start(t, sb, sandpit.Command{Script: "exit 3"})
	failed := wait(t, failing)
	term := start(t, sb, sandpit.Command{Argv: []string{"sleep", "1001"}, Dir: "/tmp", Tag: "nightly é", Terminal: normal, Background: true})
	for _, tag := range []string{"a\n", "\xff", strings.Repeat("x", sandpit.MaxTag+1)} {
		if _, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"true"}, Tag: tag}); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("the tag %q: %v", tag, err)
		}
	}
	ids := []string{sleeper.ID(), failing.ID(), term.ID()}
	if slices.Contains(ids, "") || ids[0] == ids[1] || ids[1] == ids[2] || ids[0] == ids[2] {
		t.Fatalf("the ids are %q", ids)
	}
	list, err := sb.Processes(t.Context())
	must(t, err)
	var found []sandpit.ProcessInfo
	for _, p := range list {
		if slices.Contains(ids, p.ID) {
			found = append(found, p)
		}
	}
	if len(found) != 3 || found[0].ID != ids[0] || found[1].ID != ids[1] || found[2].ID != ids[2] {
		t.Fatalf("the list is %+v", list)
	}
	a, b, c := found[0], found[1], found[2]
	if a.PID != sleeper.PID() || !slices.Equal(a.Argv, []string{"sleep", "1000"}) || !a.Background || a.Terminal || a.Result != nil || a.StartedAt.Unix() < before || a.StartedAt.Unix() > after {
		t.Errorf("got %+v", a)
	}
	if !slices.Equal(b.Argv, []string{"/bin/sh", "-c", "exit 3"}) || b.Background || b.Result == nil || *b.Result != failed {
		t.Errorf("got %+v, which ended with %+v", b, failed)
	}
	if !c.Terminal || c.Result != nil || c.Dir != "/tmp" || c.Tag != "nightly é" || a.Dir != "" || a.Tag != "" {
		t.Errorf("got %+v", c)
	}
	if a.User == "" {
		t.Error("a process of the sandbox's user is listed without a user")
	}
	must(t, sleeper.Kill(t.Context()))
	eventually(t, "the end is listed", func() bool {
		list, err := sb.Processes(t.Context())
		must(t, err)
		i := slices.IndexFunc(list, func(p sandpit.ProcessInfo) bool { return p.ID == ids[0] })
		return i >= 0 && list[i].Result != nil && list[i].Result.Signal == 9
	})
}

// waitFor is a script that waits for a file.
func waitFor(path string) string { return "while [ ! -e " + path + " ]; do sleep 0.02; done" }

func testAttach(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	p := start(t, sb, sandpit.Command{Script: "echo one; echo err >&2; " + waitFor("/tmp/go") + "; echo two; exit 5", Background: true})
	var byID, byPID, stderr, late written
	first := attach(t, sb, p.ID(), sandpit.AttachOptions{Stdout: &byID, Stderr: &stderr})
	second := attach(t, sb, strconv.Itoa(p.PID()), sandpit.AttachOptions{Stdout: &byPID})
	byID.until(t, "one\n")
	byPID.until(t, "one\n")
	stderr.until(t, "err\n")
	third := attach(t, sb, p.ID(), sandpit.AttachOptions{Stdout: &late, NoHistory: true})
	for _, q := range []sandpit.Process{first, second, third} {
		if q.ID() != p.ID() || q.PID() != p.PID() {
			t.Errorf("got %s, %d instead of %s, %d", q.ID(), q.PID(), p.ID(), p.PID())
		}
	}
	put(t, sb, "/tmp/go", "")
	want := wait(t, p)
	for _, q := range []sandpit.Process{first, second, third} {
		if res := wait(t, q); res != want || res.ExitCode != 5 {
			t.Errorf("got %+v, want %+v", res, want)
		}
	}
	if byID.String() != "one\ntwo\n" || byPID.String() != "one\ntwo\n" || stderr.String() != "err\n" || late.String() != "two\n" {
		t.Errorf("got %q, %q, %q, %q", byID.String(), byPID.String(), stderr.String(), late.String())
	}
}

func testManyAttached(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	const n, lines = 8, 2000
	p := start(t, sb, sandpit.Command{Script: waitFor("/tmp/go") + fmt.Sprintf("; seq 1 %d", lines), Background: true})
	outs := make([]written, n)
	procs := make([]sandpit.Process, n)
	for i := range n {
		procs[i] = attach(t, sb, p.ID(), sandpit.AttachOptions{Stdout: &outs[i]})
	}
	put(t, sb, "/tmp/go", "")
	var wg sync.WaitGroup
	for i := range n {
		for range 3 {
			wg.Go(func() {
				if res := wait(t, procs[i]); !res.Success() {
					t.Errorf("got %+v", res)
				}
			})
		}
	}
	wg.Wait()
	for i := range n {
		if got := outs[i].String(); strings.Count(got, "\n") != lines || !strings.HasSuffix(got, "\n"+strconv.Itoa(lines)+"\n") || got != outs[0].String() {
			t.Errorf("%d has %d bytes", i, len(got))
		}
	}
}

// valve is a writer that takes nothing until it is opened.
type valve struct {
	open  chan struct{}
	bytes atomic.Int64
}

func (v *valve) Write(b []byte) (int, error) {
	<-v.open
	v.bytes.Add(int64(len(b)))
	return len(b), nil
}

func testSlowAttacher(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	const size = 64 << 20
	p := start(t, sb, sandpit.Command{Script: waitFor("/tmp/go") + fmt.Sprintf("; head -c %d /dev/zero", size), Background: true})
	slow := &valve{open: make(chan struct{})}
	var lost atomic.Int64
	attached := attach(t, sb, p.ID(), sandpit.AttachOptions{Stdout: slow, Lost: func(n int64) { lost.Add(n) }})
	put(t, sb, "/tmp/go", "")
	if res := wait(t, p); !res.Success() || res.StdoutBytes != size {
		t.Errorf("got %+v", res)
	}
	close(slow.open)
	if res := wait(t, attached); !res.Success() {
		t.Errorf("got %+v", res)
	}
	if got := slow.bytes.Load(); got+lost.Load() != size || lost.Load() == 0 {
		t.Errorf("%d bytes have come and %d were lost, of %d", got, lost.Load(), size)
	}
}

func testBackgroundWriter(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	slow := &valve{open: make(chan struct{})}
	defer close(slow.open)
	p := start(t, sb, sandpit.Command{Script: "head -c 67108864 /dev/zero; echo >/tmp/done; sleep 1000", Background: true, Stdout: slow})
	eventually(t, "the process has written all", func() bool {
		_, err := sb.Files().Stat(t.Context(), "/tmp/done")
		return err == nil
	})
	must(t, p.Kill(t.Context()))
}

func testResultKept(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	p := start(t, sb, sandpit.Command{Script: "echo out; exit 7", Background: true})
	want := wait(t, p)
	for i := range 20 {
		run(t, sb, sandpit.Command{Script: "exit " + strconv.Itoa(i)})
	}
	var out written
	late := attach(t, sb, p.ID(), sandpit.AttachOptions{Stdout: &out})
	if res := wait(t, late); res != want || res.ExitCode != 7 || out.String() != "out\n" {
		t.Errorf("got %+v and %q, want %+v", res, out.String(), want)
	}
	quiet := attach(t, sb, p.ID(), sandpit.AttachOptions{})
	if res := wait(t, quiet); res != want {
		t.Errorf("got %+v, want %+v", res, want)
	}
	must(t, quiet.Kill(t.Context()))
	wantKind(t, quiet.Signal(t.Context(), 15), sandpit.ErrNotFound)
}

func testAttachedInput(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	p := start(t, sb, sandpit.Command{Script: "cat; echo end", Stdin: true, Background: true})
	var out written
	q := attach(t, sb, p.ID(), sandpit.AttachOptions{Stdin: true, Stdout: &out})
	if q.Stdin() == nil {
		t.Fatal("there is no Stdin")
	}
	for _, w := range []io.Writer{q.Stdin(), p.Stdin()} { // both have the same
		if _, err := io.WriteString(w, "line\n"); err != nil {
			t.Fatal(err)
		}
	}
	out.until(t, "line\nline\n")
	must(t, q.Stdin().Close())
	if res := wait(t, q); !res.Success() || out.String() != "line\nline\nend\n" {
		t.Errorf("got %+v, %q", res, out.String())
	}
	// A terminal.
	p = start(t, sb, sandpit.Command{Script: `trap 'stty size' WINCH; trap 'exit 6' INT; echo ready; while :; do sleep 0.02; done`, Terminal: normal, Background: true})
	var screen written
	q = attach(t, sb, p.ID(), sandpit.AttachOptions{Stdin: true, Stdout: &screen})
	screen.until(t, "ready")
	must(t, q.Resize(t.Context(), sandpit.TerminalSize{Rows: 33, Cols: 44}))
	screen.until(t, "33 44")
	if _, err := io.WriteString(q.Stdin(), "\x03"); err != nil {
		t.Fatal(err)
	}
	if res := wait(t, q); res.ExitCode != 6 {
		t.Errorf("got %+v", res)
	}
}

func testDetach(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	p := start(t, sb, sandpit.Command{Script: "while :; do echo tick; sleep 0.01; done", Background: true})
	var out written
	q := attach(t, sb, p.ID(), sandpit.AttachOptions{Stdout: &out})
	out.until(t, "tick")
	d, ok := q.(sandpit.Detacher)
	if !ok {
		t.Skip("this client does not detach")
	}
	d.Detach()
	if !out.still() {
		t.Error("more output comes to who has left")
	}
	var again written
	r := attach(t, sb, p.ID(), sandpit.AttachOptions{Stdout: &again, NoHistory: true})
	again.until(t, "tick")
	must(t, r.Kill(t.Context()))
	if res := wait(t, p); res.Signal != 9 {
		t.Errorf("got %+v", res)
	}
}

func testAttachUnknown(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	for _, id := range []string{"no-such-process", "999999", "", "../..", "a/b", "-1", "\xff"} {
		_, err := sb.Attach(t.Context(), id, sandpit.AttachOptions{Stdout: io.Discard})
		wantKind(t, err, sandpit.ErrNotFound)
	}
	other := e.sandbox(t, sandpit.Spec{})
	p := start(t, other, sandpit.Command{Argv: []string{"sleep", "1000"}, Background: true})
	if _, err := sb.Attach(t.Context(), p.ID(), sandpit.AttachOptions{}); err == nil && p.ID() != "" {
		// Ids are unique in their sandbox: another may have the same.
		list, err := sb.Processes(t.Context())
		if err != nil || !slices.ContainsFunc(list, func(i sandpit.ProcessInfo) bool { return i.ID == p.ID() }) {
			t.Errorf("a process of another sandbox is found: %v", err)
		}
	}
	must(t, other.Remove(guarded(t)))
	_, err := other.Attach(t.Context(), p.ID(), sandpit.AttachOptions{})
	wantKind(t, err, sandpit.ErrClosed)
	_, err = other.Processes(t.Context())
	wantKind(t, err, sandpit.ErrClosed)
}

// another returns the sandbox as a second client of the same server sees it.
func (e *env) another(t *testing.T, sb sandpit.Sandbox) (sandpit.Client, sandpit.Sandbox) {
	t.Helper()
	if !e.opt.Shared {
		t.Skip("a sandbox ends with its client")
	}
	c := e.newClient(t)
	t.Cleanup(func() { _ = c.Close() })
	same, err := c.Get(t.Context(), sb.ID())
	must(t, err)
	return c, same
}

func testSurvivesClient(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	other, same := e.another(t, sb)
	var out written
	p := start(t, same, sandpit.Command{Script: "echo one; " + waitFor("/tmp/go") + "; echo two; exit 4", Background: true, Stdout: &out})
	out.until(t, "one\n")
	must(t, other.Close())
	if _, err := p.Wait(guarded(t)); err == nil {
		t.Error("Wait succeeds on a closed client")
	}
	put(t, sb, "/tmp/go", "")
	var kept written
	if res := wait(t, attach(t, sb, p.ID(), sandpit.AttachOptions{Stdout: &kept})); res.ExitCode != 4 || kept.String() != "one\ntwo\n" {
		t.Errorf("got %+v, %q", res, kept.String())
	}
}

func testForegroundClient(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	other, same := e.another(t, sb)
	start(t, same, sandpit.Command{Argv: []string{"sleep", "86611"}})
	start(t, same, sandpit.Command{Argv: []string{"sleep", "86611"}, Stdin: true})
	start(t, same, sandpit.Command{Argv: []string{"sleep", "86611"}, Terminal: normal})
	eventually(t, "three are running", func() bool { return len(running(t, sb, "sleep 86611")) == 3 })
	must(t, other.Close())
	allDead(t, sb, "86611")
	_, err := same.Start(t.Context(), sandpit.Command{Argv: []string{"true"}})
	if !errors.Is(err, sandpit.ErrState) && !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("a closed client starts: %v", err)
	}
}

func testMoved(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	other, same := e.another(t, sb)
	var out written
	p := start(t, same, sandpit.Command{Script: "echo one; read x; echo $x; exit 4", Stdin: true, Timeout: time.Hour, Stdout: &out})
	out.until(t, "one\n")
	b, ok := p.(sandpit.Backgrounder)
	if !ok {
		t.Fatal("it can't be moved")
	}
	for range 2 {
		must(t, b.Background(t.Context()))
	}
	silent := start(t, same, sandpit.Command{Script: waitFor("/tmp/go") + "; exit 5"})
	must(t, silent.(sandpit.Backgrounder).Background(t.Context()))
	must(t, other.Close())
	put(t, sb, "/tmp/go", "")
	if res := wait(t, attach(t, sb, silent.ID(), sandpit.AttachOptions{})); res.ExitCode != 5 {
		t.Errorf("got %+v", res)
	}
	infos, err := sb.Processes(t.Context())
	must(t, err)
	if i := infos[0]; i.ID != p.ID() || !i.Background || !i.Stdin || i.Timeout != time.Hour || i.Result != nil {
		t.Errorf("it is listed as %+v", i)
	}
	var kept written
	again := attach(t, sb, p.ID(), sandpit.AttachOptions{Stdout: &kept, Stdin: true})
	if _, err := again.Stdin().Write([]byte("two\n")); err != nil {
		t.Fatal(err)
	}
	if res := wait(t, again); res.ExitCode != 4 || kept.String() != "one\ntwo\n" {
		t.Errorf("got %+v, %q", res, kept.String())
	}
	must(t, again.(sandpit.Backgrounder).Background(t.Context()))
}

// collect reads what comes until enough says so.
func collect[T any](t *testing.T, seq func(ctx context.Context) func(yield func(T, error) bool), enough func([]T) bool) []T {
	t.Helper()
	ctx, cancel := context.WithCancel(guarded(t))
	defer cancel()
	var all []T
	for v, err := range seq(ctx) {
		if err != nil {
			t.Fatalf("after %d: %v", len(all), err)
		}
		if all = append(all, v); enough(all) {
			return all
		}
	}
	if t.Context().Err() == nil && ctx.Err() != nil {
		t.Fatalf("only %d came: %+v", len(all), all)
	}
	return all
}

// joined is the data of log entries.
func joined(entries []sandpit.LogEntry) string {
	var b bytes.Buffer
	for _, e := range entries {
		b.Write(e.Data)
	}
	return b.String()
}
