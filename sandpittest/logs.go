package sandpittest

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

var logProperties = []property{
	{"what processes have written is kept, by stream and line", testLogLines},
	{"a part of the log is picked by process, stream, time, number and tail", testLogQueries},
	{"a log is followed until the sandbox is gone", testLogFollow},
	{"a line that is long comes in parts, and every byte as it was", testLogLong},
	{"History has samples, oldest first", testHistory},
}

// logs reads a log that is not followed to its end.
func logs(t *testing.T, sb sandpit.Sandbox, q sandpit.LogQuery) []sandpit.LogEntry {
	t.Helper()
	var all []sandpit.LogEntry
	for e, err := range sb.Logs(guarded(t), q) {
		if err != nil {
			t.Fatalf("reading the log: %v", err)
		}
		all = append(all, e)
	}
	return all
}

// logged waits until the log has so many entries.
func logged(t *testing.T, sb sandpit.Sandbox, n int) []sandpit.LogEntry {
	t.Helper()
	var all []sandpit.LogEntry
	eventually(t, "the log has it all", func() bool {
		all = logs(t, sb, sandpit.LogQuery{})
		return len(all) >= n
	})
	return all
}

func testLogLines(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	began := time.Now().Add(-time.Minute)
	p := start(t, sb, sandpit.Command{Script: "echo one; read x; echo two >&2; read x; printf 'no end'", Background: true, Stdin: true})
	// What is written to both streams at once is in no order.
	for n := range 2 {
		logged(t, sb, n+1)
		if _, err := io.WriteString(p.Stdin(), "\n"); err != nil {
			t.Fatal(err)
		}
	}
	wait(t, p)
	all := logged(t, sb, 3)
	type line struct{ stream, data string }
	var got []line
	for i, e := range all {
		if e.Process != p.ID() || e.PID != p.PID() || e.Time.Before(began) || i > 0 && e.Seq != all[i-1].Seq+1 {
			t.Errorf("got %+v of process %s, %d", e, p.ID(), p.PID())
		}
		got = append(got, line{e.Stream, string(e.Data)})
	}
	if want := []line{{"stdout", "one\n"}, {"stderr", "two\n"}, {"stdout", "no end"}}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func testLogQueries(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	pair := func(word string, have int) sandpit.Process {
		p := start(t, sb, sandpit.Command{Script: "echo " + word + "1; read x; echo " + word + "2 >&2", Background: true, Stdin: true})
		logged(t, sb, have+1)
		if _, err := io.WriteString(p.Stdin(), "\n"); err != nil {
			t.Fatal(err)
		}
		wait(t, p)
		logged(t, sb, have+2)
		return p
	}
	a, b := pair("a", 0), pair("b", 2)
	all := logged(t, sb, 4)
	for name, c := range map[string]struct {
		q    sandpit.LogQuery
		want string
	}{
		"all":              {sandpit.LogQuery{}, "a1\na2\nb1\nb2\n"},
		"process":          {sandpit.LogQuery{Process: b.ID()}, "b1\nb2\n"},
		"stream":           {sandpit.LogQuery{Stream: "stderr"}, "a2\nb2\n"},
		"process, stream":  {sandpit.LogQuery{Process: a.ID(), Stream: "stdout"}, "a1\n"},
		"since":            {sandpit.LogQuery{Since: all[2].Time}, "b1\nb2\n"},
		"until":            {sandpit.LogQuery{Until: all[2].Time}, "a1\na2\n"},
		"since, until":     {sandpit.LogQuery{Since: all[1].Time, Until: all[3].Time}, "a2\nb1\n"},
		"after":            {sandpit.LogQuery{After: all[0].Seq}, "a2\nb1\nb2\n"},
		"after all":        {sandpit.LogQuery{After: all[3].Seq}, ""},
		"tail":             {sandpit.LogQuery{Tail: 3}, "a2\nb1\nb2\n"},
		"tail of a stream": {sandpit.LogQuery{Tail: 1, Stream: "stdout"}, "b1\n"},
		"long tail":        {sandpit.LogQuery{Tail: 100}, "a1\na2\nb1\nb2\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := joined(logs(t, sb, c.q)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	for _, err := range sb.Logs(t.Context(), sandpit.LogQuery{Process: "no-such-process"}) {
		wantKind(t, err, sandpit.ErrNotFound)
	}
	for _, q := range []sandpit.LogQuery{{Stream: "third"}, {Until: all[2].Time, Follow: true}} {
		for _, err := range sb.Logs(t.Context(), q) {
			wantKind(t, err, sandpit.ErrInvalid)
		}
	}
}

func testLogFollow(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	run(t, sb, sandpit.Command{Script: "echo before"})
	logged(t, sb, 1)
	ended := make(chan error, 1)
	var seen written
	go func() {
		var last error
		for e, err := range sb.Logs(guarded(t), sandpit.LogQuery{Follow: true, Tail: 1}) {
			if last = err; err == nil {
				_, _ = seen.Write(e.Data)
			}
		}
		ended <- last
	}()
	seen.until(t, "before\n")
	for _, word := range []string{"one", "two"} {
		run(t, sb, sandpit.Command{Script: "echo " + word})
		seen.until(t, word+"\n")
	}
	if got := seen.String(); got != "before\none\ntwo\n" {
		t.Errorf("got %q", got)
	}
	// It ends with its context, without an error.
	ctx, cancel := context.WithCancel(guarded(t))
	for _, err := range sb.Logs(ctx, sandpit.LogQuery{Follow: true}) {
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		cancel()
	}
	cancel()
	must(t, sb.Remove(guarded(t)))
	select {
	case err := <-ended:
		if err != nil && !errors.Is(err, sandpit.ErrClosed) {
			t.Errorf("got %v", err)
		}
	case <-time.After(guard):
		t.Error("it goes on after the sandbox")
	}
}

func testLogLong(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	run(t, sb, sandpit.Command{Script: `printf '\377\000\033[31m'; head -c 90000 /dev/zero | tr '\0' x; echo end`})
	var all []sandpit.LogEntry
	eventually(t, "the log has it all", func() bool {
		all = logs(t, sb, sandpit.LogQuery{})
		return strings.HasSuffix(joined(all), "end\n")
	})
	for _, e := range all {
		if len(e.Data) > 64<<10 {
			t.Errorf("an entry has %d bytes", len(e.Data))
		}
	}
	if got := joined(all); got != "\xff\x00\x1b[31m"+strings.Repeat("x", 90000)+"end\n" {
		t.Errorf("%d bytes are kept: %s", len(got), brief([]byte(got)))
	}
}

func testHistory(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	shell(t, sb, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")
	samples, err := sb.History(t.Context(), time.Time{})
	must(t, err)
	if len(samples) > 1000 {
		t.Errorf("there are %d", len(samples))
	}
	if !slices.IsSortedFunc(samples, func(a, b sandpit.Sample) int { return a.Time.Compare(b.Time) }) {
		t.Errorf("they are not in order: %+v", samples)
	}
	if later, err := sb.History(t.Context(), time.Now().Add(time.Hour)); err != nil || len(later) > 0 {
		t.Errorf("of the future there are %d, %v", len(later), err)
	}
}
