package engine_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// Contexts of the other languages outlive the engine as those of Python do: see TestContextsOutliveTheEngine.
func TestContextsOfOtherLanguagesOutliveTheEngine(t *testing.T) {
	needGuest(t)
	dir := t.TempDir()
	first := openKept(dir)
	sb := create(t, first, sandpit.Spec{Name: "box"})
	languages := map[string]struct{ program, wait, state, after string }{
		sandpit.JavaScript: {
			"node", "var x = 1; console.log('begun'); const fs = require('fs'); while (!fs.existsSync('/tmp/go')) await new Promise(r => setTimeout(r, 10)); console.log('old'); x = 2",
			"console.log(x)", "console.log(process.cwd(), process.env.A, typeof x)",
		},
		sandpit.R: {
			"Rscript", "x <- 1; cat('begun'); while (!file.exists('/tmp/go')) Sys.sleep(0.01); cat('old'); x <- 2",
			"cat(x, '\n', sep = '')", "cat(getwd(), Sys.getenv('A'), if (exists('x')) 'defined' else 'undefined\n')",
		},
		sandpit.Bash: {"bash", "x=1; echo begun; while ! [ -e /tmp/go ]; do sleep 0.01; done; echo old; x=2", "echo $x", "echo $PWD $A ${x-undefined}"},
	}
	for name, l := range languages {
		testkit.NeedProgram(t, l.program) // and so in the host image
		if _, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: name + "-own", Language: name, Dir: "/tmp", Env: []string{"A=b'c"}}); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan struct{})
	for name, l := range languages {
		begun := make(chan struct{})
		go func() {
			if got, err := sb.RunCode(t.Context(), sandpit.Code{Source: l.wait, Context: name + "-own", Stdout: closer(begun)}); err == nil {
				t.Errorf("the run has ended with %+v, although its engine has gone", got)
			}
			ended <- struct{}{}
		}()
		<-begun
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for range languages {
		<-ended
	}
	second := openKept(dir)
	defer second.Close()
	if _, err := second.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	sb, err := second.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	if all, err := sb.Contexts(t.Context()); err != nil || len(all) != len(languages) {
		t.Fatalf("found %+v, %v", all, err)
	}
	shell(t, sb, "touch /tmp/go")
	for name, l := range languages {
		run := func(source string) (sandpit.CodeResult, string) {
			t.Helper()
			var out bytes.Buffer
			got, err := sb.RunCode(t.Context(), sandpit.Code{Source: source, Context: name + "-own", Stdout: &out})
			if err != nil || !got.Success() {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			return got, out.String()
		}
		if got, out := run(l.state); out != "2\n" || got.Run != 2 {
			t.Errorf("%s: the state is %q, %+v", name, out, got)
		}
		if err := sb.RestartContext(t.Context(), name+"-own"); err != nil {
			t.Fatal(err)
		}
		if _, out := run(l.after); out != "/tmp b'c undefined\n" {
			t.Errorf("%s: after a restart it has %q", name, out)
		}
	}
	for entry, err := range sb.Logs(t.Context(), sandpit.LogQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if bytes.ContainsAny(entry.Data, "\x1e\x1f") || bytes.Contains(entry.Data, []byte("job control")) {
			t.Errorf("the log has %q", entry.Data)
		}
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// The end of a run of bash is in its output: if that has reached its limit, bash is killed and says so.
func TestBashBeyondTheOutputLimit(t *testing.T) {
	sb := create(t, newEngine(t), sandpit.Spec{Limits: sandpit.Limits{Output: 10_000}})
	testkit.NeedProgram(t, "bash") // and so in the host image
	for range 2 {
		var out bytes.Buffer
		got, err := sb.RunCode(t.Context(), sandpit.Code{Source: "head -c 20000 /dev/zero; sleep 1000", Language: sandpit.Bash, Stdout: &out})
		if err != nil || !strings.Contains(got.InterpreterEnd, "its output has reached its limit") || !got.Truncated || out.Len() < 9000 || out.Len() > 10_000 {
			t.Errorf("%d bytes came, %+v, %v", out.Len(), got, err)
		}
		out.Reset()
		got, err = sb.RunCode(t.Context(), sandpit.Code{Source: "echo 42", Language: sandpit.Bash, Stdout: &out})
		if err != nil || !got.Success() || out.String() != "42\n" || got.StateLost == "" {
			t.Errorf("the next run: %q, %+v, %v", out.String(), got, err)
		}
	}
}
