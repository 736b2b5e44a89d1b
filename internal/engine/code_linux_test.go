package engine_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// An interpreter that goes on after an interrupt, or whose channel is closed or broken, is killed, and
// the result says so.
func TestStubbornInterpretersAreKilled(t *testing.T) {
	sb := create(t, newEngine(t), sandpit.Spec{})
	testkit.NeedProgram(t, "python3") // and so in the host image
	for name, c := range map[string]struct {
		sandpit.Code
		why string
	}{
		"ignores":   {sandpit.Code{Source: "import os, time\nos.write(1, b'begun')\nwhile True:\n  try: time.sleep(1000)\n  except KeyboardInterrupt: pass", Timeout: 200 * time.Millisecond}, "it went on after it had been interrupted"},
		"closes":    {sandpit.Code{Source: "import os\nos.write(1, b'begun')\nos.closerange(0, 1000)"}, "the interpreter"},
		"breaks":    {sandpit.Code{Source: "import os, stat\nos.write(1, b'begun')\nfor fd in range(3, 20):\n  try: stat.S_ISSOCK(os.fstat(fd).st_mode) and os.write(fd, b'\\x00{}\\n[[\\n')\n  except OSError: pass"}, "wrote to the connection"},
		"never":     {sandpit.Code{Source: "import os, stat\nos.write(1, b'begun')\nfor fd in range(3, 20):\n  try: stat.S_ISSOCK(os.fstat(fd).st_mode) and os.write(fd, b'{' * (20 << 20))\n  except OSError: pass\nimport time\ntime.sleep(1000)", Timeout: 200 * time.Millisecond}, ""},
		"no socket": {sandpit.Code{Source: "import glob, os\nfor f in glob.glob('/tmp/.sandpit-*'): os.unlink(f)\nos.write(1, b'begun')"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: strings.ReplaceAll(name, " ", "-")}); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			c.Context, c.Stdout = strings.ReplaceAll(name, " ", "-"), &out
			got, err := sb.RunCode(t.Context(), c.Code)
			if err != nil || out.String() != "begun" || !strings.Contains(got.InterpreterEnd, c.why) || (got.InterpreterEnd == "") != (c.why == "") && c.Timeout == 0 {
				t.Errorf("%q, %+v, %v", out.String(), got, err)
			}
			for range 2 { // of an interpreter whose socket is gone the next run may say so
				if got, err = sb.RunCode(t.Context(), sandpit.Code{Source: "print(6 * 7)", Context: c.Context, Stdout: &out}); err == nil && got.InterpreterEnd == "" {
					break
				}
			}
			if err != nil || !got.Success() || !strings.HasSuffix(out.String(), "42\n") || got.StateLost == "" {
				t.Errorf("the next run: %q, %+v, %v", out.String(), got, err)
			}
		})
	}
}

// A run ends although output beyond the limit, and with it the mark of its end, is dropped.
func TestCodeBeyondTheOutputLimit(t *testing.T) {
	sb := create(t, newEngine(t), sandpit.Spec{Limits: sandpit.Limits{Output: 10_000}})
	testkit.NeedProgram(t, "python3") // and so in the host image
	for i, source := range []string{"x = 1", "print('y' * 20000)", "x"} {
		var out bytes.Buffer
		text := ""
		got, err := sb.RunCode(t.Context(), sandpit.Code{Source: source, Stdout: &out, Output: func(o sandpit.CodeOutput) { text = o.Text }})
		if err != nil || !got.Success() || got.Truncated != (i > 0) || got.Run != i+1 {
			t.Errorf("%+v, %v", got, err)
		}
		if i == 1 && (out.Len() < 9000 || out.Len() > 10_000) || i == 2 && (text != "1" || out.Len() > 0) {
			t.Errorf("run %d has %d bytes of output and displays %q", i, out.Len(), text)
		}
	}
}

// A panic in what a run calls ends the run and its interpreter, and not the program of the engine.
func TestOutputsPanic(t *testing.T) {
	sb := create(t, newEngine(t), sandpit.Spec{})
	testkit.NeedProgram(t, "python3") // and so in the host image
	got, err := sb.RunCode(t.Context(), sandpit.Code{Source: "display('shown')", Output: func(sandpit.CodeOutput) { panic("on purpose") }})
	var hidden interface{ Detail() string }
	if !errors.As(err, &hidden) || !strings.Contains(hidden.Detail(), "on purpose\n") || strings.Contains(err.Error(), "on purpose") {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = sb.RunCode(t.Context(), sandpit.Code{Source: "x = 1"}); err != nil || !got.Success() || got.StateLost == "" {
		t.Errorf("the next run: %+v, %v", got, err)
	}
}

// broken is a writer that panics.
type broken struct{}

func (broken) Write([]byte) (int, error) { panic("on purpose") }

// A panic in a client's writer ends the wait of that client, and not the program of the engine.
func TestWritersPanic(t *testing.T) {
	sb := made(t, newSurvivor(t).open(t), sandpit.Spec{})
	for _, stderr := range []io.Writer{nil, new(bytes.Buffer), new(testkit.Buffer)} { // the last of which is waited for apart
		p, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"echo", "hello"}, Stdout: broken{}, Stderr: stderr})
		if err != nil {
			t.Fatal(err)
		}
		var hidden interface{ Detail() string }
		if _, err := p.Wait(t.Context()); !errors.As(err, &hidden) || !strings.Contains(hidden.Detail(), "on purpose\n") {
			t.Errorf("got %v", err)
		}
	}
	if out, err := sandpit.Shell(t.Context(), sb, "echo on"); err != nil || string(out.Stdout) != "on\n" {
		t.Errorf("then: %q, %v", out.Stdout, err)
	}
}

// Contexts outlive the engine with their state: the next one finds them, waits for a run that the
// earlier one has begun, and restarts them with their directory and variables.
func TestContextsOutliveTheEngine(t *testing.T) {
	needGuest(t)
	dir := t.TempDir()
	first := openKept(dir)
	sb := create(t, first, sandpit.Spec{Name: "box"})
	testkit.NeedProgram(t, "python3") // and so in the host image
	context, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: "own", Dir: "/tmp", Env: []string{"A=b"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: "gone"}); err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		got, err := sb.RunCode(t.Context(), sandpit.Code{Source: "x = 1\nprint('begun')\nimport os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nprint('old')\nx = 2", Context: "own", Stdout: closer(begun)})
		if err == nil {
			t.Errorf("the run has ended with %+v, although its engine has gone", got)
		}
		close(ended)
	}()
	<-begun
	if _, err := sb.RunCode(t.Context(), sandpit.Code{Source: "import os\nos._exit(0)", Context: "gone"}); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
	second := openKept(dir)
	defer second.Close()
	if _, err := second.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if sb, err = second.Get(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	all, err := sb.Contexts(t.Context())
	if err != nil || len(all) != 1 || all[0].ID != "own" || all[0].Process != context.Process || all[0].Language != sandpit.Python {
		t.Fatalf("found %+v, %v", all, err)
	}
	shell(t, sb, "touch /tmp/go")
	text := ""
	run := func(source string) (sandpit.CodeResult, string) {
		t.Helper()
		var out bytes.Buffer
		got, err := sb.RunCode(t.Context(), sandpit.Code{Source: source, Context: "own", Stdout: &out, Output: func(o sandpit.CodeOutput) { text = o.Text }})
		if err != nil || !got.Success() {
			t.Errorf("%+v, %v", got, err)
		}
		return got, out.String()
	}
	if got, out := run("x"); text != "2" || out != "" || got.Run != 2 {
		t.Errorf("the state is %q, %+v; it writes %q", text, got, out)
	}
	if err := sb.RestartContext(t.Context(), "own"); err != nil {
		t.Fatal(err)
	}
	if run("import os\nos.getcwd(), os.environ['A']"); text != "('/tmp', 'b')" {
		t.Errorf("after a restart it has %s", text)
	}
	// So are contexts that have not been used since. A run of the earlier engine is interrupted.
	begun = make(chan struct{})
	ended = make(chan struct{})
	go func() {
		if got, err := sb.RunCode(t.Context(), sandpit.Code{Source: "import os, time\nos.chdir('/')\nprint('begun')\ntime.sleep(1000)", Context: "own", Stdout: closer(begun)}); err == nil {
			t.Errorf("the run has ended with %+v, although its engine has gone", got)
		}
		close(ended)
	}()
	<-begun
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
	third := openKept(dir)
	defer third.Close()
	if _, err := third.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if sb, err = third.Get(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	if err := sb.RestartContext(t.Context(), "own"); err != nil {
		t.Fatal(err)
	}
	if got, _ := run("import os\nos.getcwd(), os.environ['A']"); text != "('/tmp', 'b')" || got.StateLost != "" {
		t.Errorf("after another restart it has %s: %+v", text, got)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// closer closes a channel at the first write.
type closer chan struct{}

func (c closer) Write(b []byte) (int, error) {
	select {
	case <-c:
	default:
		close(c)
	}
	return len(b), nil
}

// Values of the promised size arrive, as far as they can: text and images of almost MaxCodeOutput as JSON. Of larger ones
// the result says that they are missing.
func TestLargeValuesArrive(t *testing.T) {
	sb := create(t, newEngine(t), sandpit.Spec{})
	testkit.NeedProgram(t, "python3") // and so in the host image
	for name, c := range map[string]struct {
		source    string
		text, png int
	}{
		"an image":      {"class P:\n def _repr_png_(self): return b'x' * (5 << 20)\n def __repr__(self): return ''\ndisplay(P())\nP()", 0, 5 << 20},
		"text":          {"class T:\n def __repr__(self): return '<' * (8_300_000)\ndisplay(T())\nT()", 8_300_000, 0},
		"too much text": {"class T:\n def __repr__(self): return '<' * (8 << 20)\nT()", -1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var got []sandpit.CodeOutput
			res, err := sb.RunCode(t.Context(), sandpit.Code{Source: c.source, Output: func(o sandpit.CodeOutput) { got = append(got, o) }})
			if err != nil || !res.Success() || res.Truncated != (c.text < 0) {
				t.Fatalf("%+v, %v", res, err)
			}
			if c.text < 0 {
				if len(got) != 1 || !strings.Contains(got[0].Text, "can't be displayed: it is too large") {
					t.Errorf("%d outputs", len(got))
				}
				return
			}
			if len(got) != 2 {
				t.Fatalf("%d outputs, want 2", len(got))
			}
			for _, o := range got {
				if len(o.Text) != c.text || len(o.PNG) != c.png {
					t.Errorf("an output has %d bytes of text and %d of an image", len(o.Text), len(o.PNG))
				}
			}
		})
	}
}
