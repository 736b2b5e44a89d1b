package engine_test

import (
	"bytes"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func background(t *testing.T, sb sandpit.Sandbox, script string) sandpit.Process {
	t.Helper()
	p, err := sb.Start(t.Context(), sandpit.Command{Script: script, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A process is found again by its id and its pid, with its output so far, by any
// number of callers, and with its result when it has ended.
func TestProcessesAreFoundAgain(t *testing.T) {
	for _, bg := range []bool{false, true} {
		e := newEngine(t)
		sb := create(t, e, sandpit.Spec{})
		cmd := sandpit.Command{Script: "echo one; echo two >&2; read x; echo $x; exit 3", Stdin: true, Background: bg}
		p, err := sb.Start(t.Context(), cmd)
		if err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		again, err := sb.Attach(t.Context(), p.ID(), sandpit.AttachOptions{Stdout: &out, Stderr: &errs, Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := again.Stdin().Write([]byte("three\n")); err != nil {
			t.Fatal(err)
		}
		for _, w := range []sandpit.Process{p, again} {
			if res, err := w.Wait(t.Context()); err != nil || res.ExitCode != 3 {
				t.Errorf("got %+v, %v", res, err)
			}
		}
		if out.String() != "one\nthree\n" || errs.String() != "two\n" {
			t.Errorf("got %q and %q", out.String(), errs.String())
		}
		list, err := sb.Processes(t.Context())
		if err != nil || len(list) != 1 || list[0].ID != p.ID() || list[0].Result == nil || list[0].Background != bg {
			t.Errorf("got %+v, %v", list, err)
		}
		// Each stream is in order; what one says may come before the other.
		log := map[string]string{}
		for e, err := range sb.Logs(t.Context(), sandpit.LogQuery{}) {
			if err != nil {
				t.Fatal(err)
			}
			log[e.Stream] += string(e.Data)
		}
		if log["stdout"] != "one\nthree\n" || log["stderr"] != "two\n" {
			t.Errorf("the log has %q", log)
		}
	}
}
