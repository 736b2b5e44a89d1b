package sandpittest

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

var codeProperties = []property{
	{"a context keeps its state, and the value of the last expression is displayed", testCodeState},
	{"RunCode passes on all output, also of children and threads, before it returns", testCodeOutput},
	{"values are displayed in rich formats", testCodeFormats},
	{"an error of code has a name, a value and a traceback of its lines", testCodeError},
	{"code awaits at its top level, and tasks go on", testCodeAwait},
	{"input is at its end", testCodeInput},
	{"code that exits ends its run, with an error unless it says success, and keeps the state", testCodeExits},
	{"packages that are installed after the first run are found", testCodePackages},
	{"lines of notebooks that begin with ! or % are carried out", testCodeMagics},
	{"code imports display and its kinds of data from IPython, whether that is installed or not", testCodeIPython},
	{"an interpreter that ends says why, and the next run begins afresh", testCodeEnds},
	{"an interpreter that is out of memory says so, and the next run begins afresh", testCodeMemory},
	{"a timeout interrupts a run, which keeps the state", testCodeTimeout},
	{"a run that its caller leaves is interrupted", testCodeLeft},
	{"runs in one context are queued, those in several are parallel", testCodeQueue},
	{"contexts are created, listed, restarted, interrupted and removed", testContexts},
	{"what the code does to its channel does not hold RunCode up", testCodeChannel},
	{"the log of an interpreter has what the code prints, and nothing else, and who attaches to it gets the same", testCodeLog},
	{"a timeout of nothing ends a run as any timeout does", testCodeNoTime},
	{"a bad request for code is refused", testBadCode},
}

// coded is what a run has produced.
type coded struct {
	sandpit.CodeResult
	stdout, stderr string
	outputs        []sandpit.CodeOutput
}

// text returns the displayed texts.
func (c coded) text() string {
	var all []string
	for _, o := range c.outputs {
		all = append(all, o.Text)
	}
	return strings.Join(all, "|")
}

// speaker is a sandbox that runs code in a language.
type speaker struct {
	sb       sandpit.Sandbox
	language string
}

// program returns a sandbox with a program of the host image, which runs code of a language.
func program(t *testing.T, e *env, name, language string) speaker {
	t.Helper()
	sb := e.sandbox(t, sandpit.Spec{})
	if !run(t, sb, sandpit.Command{Script: "PATH=$PATH:/usr/local/go/bin; command -v " + name}).Success() { // where Go is by its own guide
		if _, err := exec.LookPath(name); err == nil && state(t, sb, sandpit.StateRunning).Image == "host" {
			t.Fatalf("%s of this machine is not in the sandbox", name)
		}
		_, err := sb.RunCode(guarded(t), sandpit.Code{Source: "1", Language: language})
		wantKind(t, err, sandpit.ErrNotFound)
		t.Skipf("the image has no %s to run code: a machine that has one runs this in its host image", name)
	}
	return speaker{sb, language}
}

func python(t *testing.T, e *env) speaker {
	t.Helper()
	return program(t, e, "python3", sandpit.Python)
}

// coder returns a sandbox with python3.
func coder(t *testing.T, e *env) sandpit.Sandbox {
	t.Helper()
	return python(t, e).sb
}

// run runs code in the default context of the language.
func (n speaker) run(t *testing.T, source string) coded {
	t.Helper()
	return runsIn(t, n.sb, sandpit.Code{Source: source, Language: n.language})
}

// step is code with the text of its value.
type step struct{ source, text string }

// steps runs code whose values are displayed.
func (n speaker) steps(t *testing.T, all []step) {
	t.Helper()
	for i, step := range all {
		got := n.run(t, step.source)
		if !got.Success() || got.text() != step.text || got.stdout+got.stderr != "" || got.Run != i+1 || got.Context != n.language || got.StateLost != "" {
			t.Errorf("%q: %+v, error %+v", step.source, got, got.Error)
		}
		if len(got.outputs) > 0 && !got.outputs[0].Main {
			t.Errorf("%q: its value is not the main output", step.source)
		}
	}
}

// variable runs code that uses the variable A, with that, and then code that displays nothing without it.
func (n speaker) variable(t *testing.T, source, text, without string) {
	t.Helper()
	if got := runsIn(t, n.sb, sandpit.Code{Source: source, Env: []string{"A=b=c"}, Language: n.language}); got.text() != text {
		t.Errorf("with a variable: %+v, error %+v", got, got.Error)
	}
	if got := n.run(t, without); got.text() != "" {
		t.Errorf("after that run the variable is %q", got.text())
	}
}

// long runs code that prints 8 MiB of x, and then code that prints nothing.
func (n speaker) long(t *testing.T, source string) {
	t.Helper()
	const size = 8 << 20
	if got := n.run(t, source); len(got.stdout) != size || got.Truncated || strings.Trim(got.stdout, "x") != "" {
		t.Errorf("%d bytes of %d came: %+v", len(got.stdout), size, got.CodeResult)
	}
	if got := n.run(t, ""); got.stdout != "" {
		t.Errorf("the next run has %q", got.stdout)
	}
}

// mistake is the error of code, and what is in its traceback and what is not.
type mistake struct{ name, value, in, notIn string }

// mistakes runs code that fails.
func (n speaker) mistakes(t *testing.T, all map[string]mistake) {
	t.Helper()
	for source, want := range all {
		got := n.run(t, source)
		if er := got.Error; er == nil || er.Name != want.name || !strings.Contains(er.Value, want.value) || !strings.Contains(er.Traceback, want.in) ||
			want.notIn != "" && strings.Contains(er.Traceback, want.notIn) || got.InterpreterEnd != "" || got.Success() {
			t.Errorf("%q: %+v, error %+v", source, got, got.Error)
		}
	}
}

// end is code that prints "last" and ends its interpreter.
type end struct{ source, why string }

// ends runs code that ends the interpreter. set sets a state, and lost shows as none that it is lost.
func (n speaker) ends(t *testing.T, set, lost, none string, all []end) {
	t.Helper()
	for _, end := range all {
		if got := n.run(t, set); !got.Success() {
			t.Errorf("%+v", got)
		}
		got := n.run(t, end.source)
		if got.InterpreterEnd != end.why || got.stdout != "last" || strings.Contains(got.stderr, "debugger") || got.Success() || got.Error != nil || strings.Contains(end.source, "display") != (got.text() == "'shown'") {
			t.Errorf("%q: %+v, error %+v", end.source, got, got.Error)
		}
		got = n.run(t, lost)
		if !got.Success() || got.text()+got.stdout != none || !strings.HasSuffix(got.StateLost, end.why) || got.Run != 1 {
			t.Errorf("after %q: %+v", end.source, got)
		}
	}
}

// memory runs code that prints "last" and then takes 1 GiB, in a sandbox that has less. See ends. It returns the
// sandbox.
func (n speaker) memory(t *testing.T, e *env, set, take, lost, none string) speaker {
	t.Helper()
	e.need(t, feature.Memory)
	n.sb = e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Memory: 160 << 20}})
	n.run(t, set)
	got := n.run(t, take)
	if !strings.HasSuffix(got.InterpreterEnd, "out of memory") || got.stdout != "last\n" || got.Success() {
		t.Errorf("%+v", got)
	}
	if got = n.run(t, lost); got.text()+got.stdout != none || !strings.HasSuffix(got.StateLost, "out of memory") {
		t.Errorf("after that: %+v", got)
	}
	return n
}

// late runs code until its timeout, at which it is interrupted.
func (n speaker) late(t *testing.T, source string) coded {
	t.Helper()
	got := runsIn(t, n.sb, sandpit.Code{Source: source, Timeout: 200 * time.Millisecond, Language: n.language})
	if !got.TimedOut || got.InterpreterEnd != "" || got.Success() {
		t.Errorf("%q: %+v, error %+v", source, got, got.Error)
	}
	return got
}

// runCode runs code and collects its output.
func runCode(ctx context.Context, sb sandpit.Sandbox, code sandpit.Code) (c coded, err error) {
	var stdout, stderr written
	var mu sync.Mutex
	code.Stdout, code.Stderr = &stdout, &stderr
	code.Output = func(o sandpit.CodeOutput) {
		o.PNG = bytes.Clone(o.PNG)
		mu.Lock()
		defer mu.Unlock()
		c.outputs = append(c.outputs, o)
	}
	c.CodeResult, err = sb.RunCode(ctx, code)
	mu.Lock()
	defer mu.Unlock()
	c.stdout, c.stderr = stdout.String(), stderr.String()
	return c, err
}

// runs runs code in the default context.
func runs(t *testing.T, sb sandpit.Sandbox, source string) coded {
	t.Helper()
	return runsIn(t, sb, sandpit.Code{Source: source})
}

func runsIn(t *testing.T, sb sandpit.Sandbox, code sandpit.Code) coded {
	t.Helper()
	c, err := runCode(guarded(t), sb, code)
	if err != nil {
		t.Fatalf("running %q: %v (hint: %s)", code.Source, err, sandpit.Hint(err))
	}
	return c
}

func testCodeState(t *testing.T, e *env) {
	n := python(t, e)
	n.steps(t, []step{
		{"x = 20\ndef f(n):\n    return n + 1\n\nclass A:\n\n    def g(self): return 'ü'", ""},
		{"x + f(x) + 1", "42"},
		{"import math\nmath.floor(2.5); x", "20"},
		{"x;", ""},
		{"None", ""},
		{"", ""},
		{"A().g()", "'ü'"},
		{"_ * 2", "'üü'"},
		{"import pickle\npickle.loads(pickle.dumps(A())).g()", "'ü'"},
		{"from __future__ import annotations", ""},
		{"def h(a: missing): pass\nh.__annotations__['a']", "'missing'"},
	})
	n.variable(t, "import os\nos.environ['A'], x", "('b=c', 20)", "os.environ.get('A')")
}

func testCodeOutput(t *testing.T, e *env) {
	n := python(t, e)
	sb := n.sb
	got := runs(t, sb, `
import os, subprocess, sys, threading
print("one")
sys.stderr.write("warn")
subprocess.run(["sh", "-c", "echo two"])
os.system("printf three")
t = threading.Thread(target=lambda: print("four", end=""))
t.start(); t.join()
os.write(1, b"\xff")
`)
	if want := "one\ntwo\nthreefour\xff"; !got.Success() || got.stdout != want || got.stderr != "warn" {
		t.Errorf("%+v", got)
	}
	inOrder(t, n, "print('a', flush=True)\ndisplay(1)\nprint('b')\ndisplay(2)\nprint('c', end='')\ndisplay(3)\nprint('d')\n4")
	n.long(t, "for i in range(128): os.write(1, b'x' * 65536)")
}

// inOrder checks that values come in their place among what is printed, as the code has it: a, 1, b, 2, c, 3, d, 4.
func inOrder(t *testing.T, n speaker, source string) {
	t.Helper()
	for range 20 {
		all := new(written)
		_, err := n.sb.RunCode(guarded(t), sandpit.Code{
			Source: source, Language: n.language, Stdout: all, Output: func(o sandpit.CodeOutput) { fmt.Fprintf(all, "<%s>", o.Text) },
		})
		must(t, err)
		if got := all.String(); got != "a\n<1>b\n<2>c<3>d\n<4>" {
			t.Fatalf("the output and the values come as %q", got)
		}
	}
}

func testCodeFormats(t *testing.T, e *env) {
	sb := coder(t, e)
	got := runs(t, sb, `
class All:
    def __repr__(self): return "plain"
    def _repr_html_(self): return "<b>"
    def _repr_markdown_(self): return "*m*"
    def _repr_svg_(self): return "<svg/>"
    def _repr_latex_(self): return "$l$"
    def _repr_png_(self): return b"\x89PNG"
    def _repr_jpeg_(self): return b"\xff\xd8", {"width": 1}
    def _repr_pdf_(self): return b"%PDF"
    def _repr_json_(self): return {"a": [1, None]}
    def _repr_javascript_(self): return "js()"
class Bundle:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "bundled", "application/x-own": {"b": 1}}
display("first", 2)
display({"text/html": "<i>"}, raw=True)
display(Bundle())
All()
`)
	if !got.Success() || len(got.outputs) != 5 || got.text() != "'first'|2||bundled|plain" {
		t.Fatalf("%+v", got)
	}
	all := got.outputs[4]
	if !all.Main || all.HTML != "<b>" || all.Markdown != "*m*" || all.SVG != "<svg/>" || all.LaTeX != "$l$" || all.JavaScript != "js()" ||
		string(all.PNG) != "\x89PNG" || string(all.JPEG) != "\xff\xd8" || string(all.PDF) != "%PDF" || string(all.JSON) != `{"a":[1,null]}` && string(all.JSON) != `{"a": [1, null]}` {
		t.Errorf("%+v", all)
	}
	if got.outputs[2].HTML != "<i>" || got.outputs[2].Main || got.outputs[3].Extra["application/x-own"] != `{"b": 1}` {
		t.Errorf("%+v", got.outputs)
	}
	if got := runs(t, sb, "'x' * (20 << 20)"); !got.Success() || !got.Truncated || len(got.outputs) != 1 || !strings.Contains(got.text(), "str can't be displayed") {
		t.Errorf("of a long value comes %.200s, %+v", got.text(), got.CodeResult)
	}
	if got := runs(t, sb, "display({'application/json': float('nan')}, raw=True)\nfor i in range(1010): display(i)"); !got.Success() || !got.Truncated || len(got.outputs) != sandpit.MaxCodeOutputs {
		t.Errorf("of many values come %d, %+v", len(got.outputs), got.CodeResult)
	}
}

func testCodeError(t *testing.T, e *env) {
	n := python(t, e)
	n.mistakes(t, map[string]mistake{
		"y = 'a\u2028b'\ny / 0":                {"TypeError", "", "line 2, in <module>\n    y / 0", "execute"},
		"x = 1\nx / 0":                         {"ZeroDivisionError", "division by zero", "line 2, in <module>\n    x / 0", "execute"},
		"def f():\n  raise KeyError('k')\nf()": {"KeyError", "'k'", "line 2, in f\n    raise KeyError('k')", "execute"},
		"print('before'":                       {"SyntaxError", "", "print('before'", "compile"},
		"raise KeyboardInterrupt":              {"KeyboardInterrupt", "", "KeyboardInterrupt", "execute"},
		"class E(Exception):\n  def __str__(self): raise self\nraise E": {"E", "(its text can't be made)", "", ""},
		"def r(): r()\nr()": {"RecursionError", "", "Recursion", "execute"},
		"await 1":           {"TypeError", "", "await 1", "evaluate"},
	})
	if got := n.run(t, "x"); got.text() != "1" {
		t.Errorf("after the errors x is %q", got.text())
	}
}

func testCodeAwait(t *testing.T, e *env) {
	sb := coder(t, e)
	got := runs(t, sb, `
import asyncio
async def slow(n):
    await asyncio.sleep(0)
    return n
y = await slow(40)
async with asyncio.Lock():
    y += 1
ticks = []
async def ticker():
    while True:
        ticks.append(1)
        await asyncio.sleep(0.001)
task = asyncio.create_task(ticker())
y + await slow(1)
`)
	if !got.Success() || got.text() != "42" {
		t.Errorf("%+v, error %+v", got, got.Error)
	}
	eventually(t, "a task goes on between runs", func() bool { return runs(t, sb, "len(ticks) > 20").text() == "True" })
	// A block without await creates tasks, too. They begin before it is over.
	got = runs(t, sb, `
async def told():
    print("begun")
    await slow(1)
    ticks.append("told")
    return 43
task.cancel()
told = asyncio.get_running_loop().create_task(told())
asyncio.create_task(slow(2)), asyncio.get_event_loop() is asyncio.get_running_loop(), ticks.count("told")`)
	if !got.Success() || got.stdout != "begun\n" || !strings.HasSuffix(got.text(), ", True, 0)") {
		t.Errorf("without await: %+v, error %+v", got, got.Error)
	}
	if got := runs(t, sb, "await told"); got.text() != "43" {
		t.Errorf("its task: %+v, error %+v", got, got.Error)
	}
	got = runs(t, sb, `
import threading
def other():
    try: asyncio.get_running_loop()
    except RuntimeError as e: print(e)
thread = threading.Thread(target=other)
thread.start()
thread.join()`)
	if got.stdout != "no running event loop\n" {
		t.Errorf("in a thread: %+v, error %+v", got, got.Error)
	}
	if got := runs(t, sb, "asyncio.run(slow(7))"); !got.Success() || got.text() != "7" {
		t.Errorf("asyncio.run: %+v, error %+v", got, got.Error)
	}
	if got := runs(t, sb, "await asyncio.gather(asyncio.ensure_future(slow(8)), asyncio.get_event_loop().create_task(slow(9)))"); got.text() != "[8, 9]" {
		t.Errorf("after asyncio.run: %+v, error %+v", got, got.Error)
	}
}

func testCodeInput(t *testing.T, e *env) {
	got := runs(t, coder(t, e), "import sys\nprint(repr(sys.stdin.read()))\ninput()")
	if got.stdout != "''\n" || got.Error == nil || got.Error.Name != "EOFError" {
		t.Errorf("%+v, error %+v", got, got.Error)
	}
}

func testCodeExits(t *testing.T, e *env) {
	sb := coder(t, e)
	runs(t, sb, "x = 1\nimport asyncio, os, sys")
	for source, value := range map[string]string{
		"sys.exit()": "", "sys.exit(0)": "", "exit()": "", "quit(0)": "", "raise SystemExit": "", "sys.exit(False)": "",
		"await asyncio.sleep(0)\nsys.exit(0)": "",
		"exit(3)":                             "3", "sys.exit('why')": "why", "def f(): sys.exit(4)\nf()": "4", "await asyncio.sleep(0)\nsys.exit(5)": "5",
		"class E(SystemExit):\n  code = property(lambda self: 1 / 0)\nraise E(6)": "6",
	} {
		got := runs(t, sb, "print('last')\n"+source)
		name := "SystemExit"
		if strings.Contains(source, "class E") {
			name = "E"
		}
		switch er := got.Error; {
		case got.stdout != "last\n" || got.stderr != "" || got.InterpreterEnd != "" || got.StateLost != "":
			t.Errorf("%q: %+v", source, got)
		case value == "" && (er != nil || !got.Success()):
			t.Errorf("%q: %+v, error %+v", source, got, er)
		case value != "" && (er == nil || er.Name != name || er.Value != value || got.Success()):
			t.Errorf("%q: %+v, error %+v", source, got, er)
		}
	}
	// Neither standard input nor the event loop is lost.
	if got := runs(t, sb, "await asyncio.sleep(0.01)\nx, sys.stdin.read()"); got.text() != "(1, '')" || got.stderr != "" {
		t.Errorf("after that: %+v, error %+v", got, got.Error)
	}
	runs(t, sb, "async def leave():\n  await asyncio.sleep(0.01)\n  sys.exit(8)\ntask = asyncio.get_event_loop().create_task(leave())")
	eventually(t, "a task exits between runs", func() bool { return runs(t, sb, "task.done()").text() == "True" })
	if got := runs(t, sb, "await asyncio.sleep(0.01)\nx"); got.text() != "1" || got.StateLost != "" {
		t.Errorf("after the exit of a task: %+v, error %+v", got, got.Error)
	}
	got := runs(t, sb, "pid = os.fork()\nif pid == 0: sys.exit(7)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if hasattr(os, 'waitstatus_to_exitcode') else 7")
	if got.text() != "7" || got.stdout != "" {
		t.Errorf("of a child: %+v, error %+v", got, got.Error)
	}
}

func testCodePackages(t *testing.T, e *env) {
	sb := coder(t, e)
	home := strings.TrimSpace(string(run(t, sb, sandpit.Command{Script: "mktemp -d"}).Stdout))
	env := []string{"HOME=" + home, "PYTHONUSERBASE=" + home + "/base", "PYTHONNOUSERSITE="}
	_, err := sb.CreateContext(guarded(t), sandpit.NewContext{ID: "own", Env: env})
	must(t, err)
	own := func(source string) coded {
		t.Helper()
		return runsIn(t, sb, sandpit.Code{Source: source, Context: "own"})
	}
	if got := own("import own_package"); got.Error == nil || got.Error.Name != "ModuleNotFoundError" {
		t.Fatalf("a package that is not there: %+v, error %+v", got, got.Error)
	}
	// A wheel is a zip. Without pip its content is put in place as pip does.
	const install = `python3 -c '
import site, zipfile
z = zipfile.ZipFile("own_package-1-py3-none-any.whl", "w")
z.writestr("own_package/__init__.py", "value = 42")
z.writestr("own_package-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: own-package\nVersion: 1\n")
z.writestr("own_package-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
z.writestr("own_package-1.dist-info/RECORD", "")
z.close()'
if python3 -m pip --version; then PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --user --no-index --no-deps ./own_package-1-py3-none-any.whl
else python3 -m zipfile -e own_package-1-py3-none-any.whl "$(python3 -m site --user-site)"
fi`
	if res := run(t, sb, sandpit.Command{Script: install, Dir: home, Env: env}); !res.Success() {
		t.Fatalf("installing it: %+v", res)
	}
	if got := own("import own_package\nown_package.value"); got.text() != "42" {
		t.Errorf("when it is installed: %+v, error %+v", got, got.Error)
	}
	// The same within a run.
	must(t, sb.RestartContext(guarded(t), "own"))
	got := own("import os, site\ntry: import later\nexcept ImportError: open(os.path.join(site.getusersitepackages(), 'later.py'), 'w').write('value = 43')\nimport later\nlater.value")
	if got.text() != "43" {
		t.Errorf("within a run: %+v, error %+v", got, got.Error)
	}
}

func testCodeMagics(t *testing.T, e *env) {
	sb := coder(t, e)
	for _, step := range []struct{ source, text, stdout string }{
		{"x = 1\n!echo \"it's\"; echo a \\\n  b\nprint(x)\n!exit 3\n_exit_code", "3", "it's\na b\n1\n"},
		{"%matplotlib inline\n%cd /\nimport os\nos.getcwd()", "'/'", "/\n"},
		{"%env A=b c\n%env A", "'b c'", "env: A=b c\n"},
		{"!echo $A", "", "b c\n"},
		{"y = (7\n%4)\ny", "3", ""},
		{"def f(n):\n    if n:\n        !echo {n + 1} $n $A ${A} {n,n}\n    out = !echo a; echo b\n    return out, out.s\nf(2)", "(['a', 'b'], 'a b')", "3 2 b c b c {n,n}\n"},
		{"%load_ext autoreload\n%autoreload 2\nwas = %pwd\n%cd /tmp\n%cd -\nwas", "'/'", "/tmp\n/\n"},
		{"%%bash\nread -r word <<X\nit's\nX\necho $word {was}", "", "it's {was}\n"},
		{"%%capture kept\nprint('no')\n!echo neither\n1", "", ""},
		{"kept.stdout", "'no\\nneither\\n'", ""},
		{"%%capture --no-stdout\nprint('shown')", "", "shown\n"},
		{"class C:\n    a = 1\n    %matplotlib inline\n    get_ipython().run_cell_magic('capture', '', 'd = a + 1')\nC.d", "2", ""},
		{"import os\nos.environ['PATH'].split(':')[-1] == os.path.expanduser('~/.local/bin')", "True", ""},
		{"\n%%writefile /tmp/written\na\n\nb", "", "Writing /tmp/written\n"},
		{"%%writefile -a /tmp/written\nc\n", "", "Appending to /tmp/written\n"},
		{"!cat /tmp/written", "", "a\n\nb\nc\n"},
		{"%%html\n<b>x</b>", "<IPython.core.display.HTML object>", ""},
		{"get_ipython().run_line_magic('pwd', ''), get_ipython().system('echo from'), get_ipython().getoutput('echo there')", "('/', None, ['there'])", "from\n"},
		{"# why?\ndef double(n):\n    'about double'\ndouble?\n?nonesuch", "", "Signature:   double(n)\nType:        function\nDocstring:   about double\nObject `nonesuch` not found.\n"},
		{"!true\n\"\"\"\n!echo no\n%no\n\"\"\"", "'\\n!echo no\\n%no\\n'", ""},
	} {
		got := runs(t, sb, step.source)
		if !got.Success() || got.text() != step.text || got.stdout != step.stdout {
			t.Errorf("%q: %+v, error %+v", step.source, got, got.Error)
		}
	}
	for source, want := range map[string]struct{ text, stdout string }{
		"%time 1 + 1":    {"2", `CPU times: user .*, sys: .*, total: .*\nWall time: .*\n`},
		"%time t = 3\nt": {"3", `CPU times: .*\nWall time: .*\n`},
		"%%time\nimport asyncio\n!echo in\nawait asyncio.sleep(0.05, 4)": {"4", `in\nCPU times: .*\nWall time: \d+(\.\d+)? m?s\n`},
		"%timeit -n 10 -r 3 x + 1":                                       {"", `.* ± .* per loop \(mean ± std\. dev\. of 3 runs, 10 loops each\)\n`},
		"%%timeit -n1 -r1 k = [1]\nk.pop()\n":                            {"", `.* ± 0 ns per loop \(mean ± std\. dev\. of 1 run, 1 loop each\)\n`},
	} {
		got := runs(t, sb, source)
		if whole := regexp.MustCompile("^" + want.stdout + "$"); !got.Success() || got.text() != want.text || !whole.MatchString(got.stdout) {
			t.Errorf("%q: %+v, error %+v", source, got, got.Error)
		}
	}
	// Errors have the lines of the block, and no others.
	places := regexp.MustCompile(`(?m)^  File "(?:<run \d+>", line (\d+))?|^(\S*Error: .*)$`)
	for source, want := range map[string]string{
		"y = 1\n%time 1/0":                          "2 2 ZeroDivisionError: division by zero",
		"\n%%time\ny = 1\n1/0":                      "2 4 ZeroDivisionError: division by zero",
		"!echo \\\n  a\n# '\n1/0":                   "4 ZeroDivisionError: division by zero",
		"%%bash\nexit 3":                            "1 subprocess.CalledProcessError: Command 'bash' returned non-zero exit status 3.",
		"y = 1\nget_ipython().run_line_magic('no')": "2 UsageError: the magic %no is not supported: use plain Python",
		"%env NO_SUCH":                              "1 UsageError: Environment does not have key: NO_SUCH",
	} {
		got := runs(t, sb, source)
		var said []string
		for _, m := range places.FindAllStringSubmatch(got.CodeResult.Error.Traceback, -1) {
			said = append(said, m[1]+m[2])
		}
		if all := strings.Join(said, " "); !strings.HasPrefix(all, want) {
			t.Errorf("%q: the error is %q, want %q", source, all, want)
		}
	}
	if got := runs(t, sb, "import subprocess\nsubprocess.getoutput('echo $PIP_BREAK_SYSTEM_PACKAGES')"); got.text() != "'1'" {
		t.Errorf("pip of programs: %+v, error %+v", got, got.Error)
	}
	if got := runs(t, sb, "%pip --version\n_exit_code"); got.text() == "0" != strings.HasPrefix(got.stdout, "pip ") || got.Error != nil {
		t.Errorf("%%pip: %+v, error %+v", got, got.Error)
	}
	if got := runs(t, sb, "x = 1\npip list --no-such-option 2>/dev/null\n_exit_code == 0"); got.text() != "False" || got.Error != nil {
		t.Errorf("pip without a mark: %+v, error %+v", got, got.Error)
	}
	for source, in := range map[string]string{
		"print('not')\n%sql 1":    "the magic %sql is not supported: use plain Python, !command, or one of %autoreload %cd ",
		"%%sql\nif true; then :":  "the magic %%sql is not supported: use plain Python, !command, or one of %%bash ",
		"print('not')\nx = 5\n%b": "the magic %b is not supported",
		"!echo not\n1 +":          "invalid syntax",
		"(\n!echo not\n":          "",
	} {
		got := runs(t, sb, source)
		if er := got.Error; er == nil || er.Name != "SyntaxError" || !strings.Contains(er.Value, in) || got.stdout != "" || strings.Contains(er.Traceback, "<magics>") {
			t.Errorf("%q: %+v, error %+v", source, got, er)
		}
	}
}

func testCodeIPython(t *testing.T, e *env) {
	sb := coder(t, e)
	const forget = "import sys\nfor name in [n for n in sys.modules if n.partition('.')[0] == 'IPython']: del sys.modules[name]\n"
	all := []sandpit.CodeOutput{
		{HTML: "<b>x</b>", Text: "<IPython.core.display.HTML object>"},
		{Markdown: "# m", Text: "<IPython.core.display.Markdown object>"},
		{SVG: "<svg/>", Text: "<IPython.core.display.SVG object>"},
		{LaTeX: "$x$", Text: "<IPython.core.display.Latex object>"},
		{LaTeX: "$\\displaystyle y$", Text: "<IPython.core.display.Math object>"},
		{JavaScript: "1", Text: "<IPython.core.display.Javascript object>"},
		{JSON: []byte(`{"a":[1]}`), Text: "<IPython.core.display.JSON object>"},
		{JSON: []byte(`{"a":[1]}`), Text: "<IPython.core.display.JSON object>"},
		{PNG: []byte("\x89PNG\r\n\x1a\n"), Text: "<IPython.core.display.Image object>"},
		{JPEG: []byte("\xff\xd8j"), Text: "<IPython.core.display.Image object>"},
		{Extra: map[string]string{"image/gif": "R0lGODg="}, Text: "<IPython.core.display.Image object>"},
		{HTML: `<img src="http://x.example/?a&amp;&quot;" width="3"/>`, Text: "<IPython.core.display.Image object>"},
		{HTML: "<i>", Text: "<IPython.core.display.HTML object>"},
		{HTML: "raw"},
		{Text: "'again'"},
		{Text: "'updated'"},
		{Main: true, Text: "(True, True, True)"},
	}
	got := runs(t, sb, forget+`
open('/tmp/a.jpg', 'wb').write(b'\xff\xd8j'); open('/tmp/a.html', 'w').write('<i>')
import IPython, pathlib
from IPython import display as module, get_ipython
from IPython.display import display, HTML, Markdown, Image, SVG, JSON, Latex, Math, Javascript, clear_output
display(HTML('<b>x</b>'), Markdown('# m'), SVG(b'<svg/>'), Latex('$x$'), Math('y'), Javascript('1'), JSON({'a': [1]}), JSON('{"a": [1]}'))
display(Image(b'\x89PNG\r\n\x1a\n'), Image('/tmp/a.jpg'), Image(data=b'GIF88', format='gif'), Image(url='http://x.example/?a&"', width=3))
clear_output(wait=True)
display(HTML(filename=pathlib.Path('/tmp/a.html')))
IPython.display.publish_display_data({'text/html': 'raw'})
module.display('again', display_id=True).update('updated')
get_ipython() is IPython.get_ipython(), module.HTML is HTML, IPython.display is module`)
	if !got.Success() || got.stdout+got.stderr != "" {
		t.Fatalf("%+v, error %+v", got.CodeResult, got.Error)
	}
	for i, o := range got.outputs {
		got.outputs[i].JSON = bytes.ReplaceAll(o.JSON, []byte(": "), []byte(":"))
	}
	if diff := cmp.Diff(all, got.outputs, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("displayed (-want +got):\n%s", diff)
	}
	for _, source := range []string{"from IPython.display import no_such_name", "import IPython.no_such_module"} {
		if got := runs(t, sb, source); got.Error == nil || got.Error.Name != "ImportError" && got.Error.Name != "ModuleNotFoundError" {
			t.Errorf("%q: %+v, error %+v", source, got.CodeResult, got.Error)
		}
	}
	// What is installed wins. Only what it would tell its shell is displayed.
	got = runs(t, sb, forget+`
import os
os.makedirs('/tmp/own/IPython/core')
open('/tmp/own/IPython/__init__.py', 'w').write('own = 42')
open('/tmp/own/IPython/display.py', 'w').write('from IPython.core.display_functions import *')
open('/tmp/own/IPython/core/__init__.py', 'w').close()
open('/tmp/own/IPython/core/display_functions.py', 'w').write('def display(*values): print(*values)\ndef other(): return 43')
sys.path.insert(0, '/tmp/own')
import IPython.display
IPython.display.display('shown')
IPython.own, IPython.display.other()`)
	if got.text() != "'shown'|(42, 43)" || got.stdout != "" {
		t.Errorf("with a package of that name: %+v, error %+v", got, got.Error)
	}
	if got := runs(t, sb, "import IPython.core.display"); got.Error == nil || got.Error.Name != "ModuleNotFoundError" {
		t.Errorf("a module that the package does not have: %+v, error %+v", got, got.Error)
	}
}

func testCodeEnds(t *testing.T, e *env) {
	n := python(t, e)
	sb := n.sb
	n.ends(t, "x = 1", "'x' in globals()", "False", []end{
		{"import os\nos.write(1, b'last')\nos._exit(4)", "the interpreter exited with code 4"},
		{"import os, signal\nos.write(1, b'last')\nos.kill(os.getpid(), signal.SIGSEGV)", "the interpreter was killed by signal 11 (segmentation fault)"},
		{"import os\nif os.fork() == 0:\n  import time\n  time.sleep(1000)\nos.write(1, b'last')\nos._exit(5)", "the interpreter exited with code 5"},
	})
	// A child that comes back from the code does not go on as the interpreter.
	got := runs(t, sb, "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('parent' if pid else 'child')")
	if !got.Success() || got.stdout != "child\nparent\n" {
		t.Errorf("fork: %+v", got)
	}
	if got := runs(t, sb, "pid > 0"); got.text() != "True" || got.StateLost != "" {
		t.Errorf("after fork: %+v", got)
	}
}

func testCodeMemory(t *testing.T, e *env) {
	sb := python(t, e).memory(t, e, "x = 1", "print('last', flush=True)\ny = b'x' * (1 << 30)", "'x' in globals()", "False").sb
	// A child that is killed is the code's own matter.
	got := runs(t, sb, "import subprocess\nsubprocess.run(['tail', '/dev/zero']).returncode")
	if !got.Success() || got.text() != "-9" {
		t.Errorf("of a child: %+v", got)
	}
}

func testCodeTimeout(t *testing.T, e *env) {
	n := python(t, e)
	n.run(t, "x = 1\nimport os, time")
	for _, source := range []string{"while True: pass", "time.sleep(1000)", "os.system('sleep 1000')", "import asyncio\nawait asyncio.sleep(1000)"} {
		n.late(t, source)
	}
	if got := n.run(t, "x"); got.text() != "1" {
		t.Errorf("after interrupts x is %q", got.text())
	}
}

func testCodeLeft(t *testing.T, e *env) {
	sb := coder(t, e)
	runs(t, sb, "x = 1\nimport os, threading, time")
	for _, source := range []string{
		"while True: pass", "time.sleep(1000)", "os.system('sleep 1000')", "threading.Event().wait()", "import asyncio\nawait asyncio.sleep(1000)",
		"while True: print('x' * 1000)",
	} {
		ctx, cancel := context.WithCancel(guarded(t))
		var out written
		go func() {
			for !strings.Contains(out.String(), "begun") && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		_, err := sb.RunCode(ctx, sandpit.Code{Source: "print('begun', flush=True)\n" + source, Stdout: &out})
		wantKind(t, err, context.Canceled)
		if got := runs(t, sb, "x"); got.text() != "1" || got.StateLost != "" {
			t.Errorf("%q: after that x is %q: %+v", source, got.text(), got)
		}
	}
}

func testCodeQueue(t *testing.T, e *env) {
	sb := coder(t, e)
	runs(t, sb, "all = []")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			got, err := runCode(guarded(t), sb, sandpit.Code{Source: "import time\nn = len(all)\ntime.sleep(0.01)\nall.append(n)\nprint(n)"})
			if err != nil || !got.Success() || len(got.stdout) != 2 {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	wg.Wait()
	if got := runs(t, sb, "all"); got.text() != "[0, 1, 2, 3, 4, 5, 6, 7]" {
		t.Errorf("they ran as %s", got.text())
	}
	// A run that waits is told so, and how many are before it: the first one ends when that was heard.
	begun, heard := make(chan struct{}), make(chan int, 1)
	wg.Go(func() {
		_, err := sb.RunCode(guarded(t), sandpit.Code{
			Source: "import os, time\nprint('begun')\nwhile not os.path.exists('/tmp/heard'): time.sleep(0.01)", Stdout: once(sync.OnceFunc(func() { close(begun) })),
			Waits: func(int) { t.Error("a run waits that is the only one") },
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-begun
	_, err := sb.RunCode(guarded(t), sandpit.Code{Source: "1", Waits: func(before int) {
		heard <- before
		put(t, sb, "/tmp/heard", "")
	}})
	if err != nil {
		t.Error(err)
	}
	wg.Wait()
	if before := <-heard; before != 1 {
		t.Errorf("it waits for %d runs", before)
	}
	// Two contexts that wait for each other end only if they run at the same time.
	for _, pair := range [][2]string{{"a", "b"}, {"b", "a"}} {
		wg.Go(func() {
			source := "import os, time\nopen('/tmp/" + pair[0] + "', 'w').close()\nwhile not os.path.exists('/tmp/" + pair[1] + "'): time.sleep(0.01)"
			if _, err := sb.CreateContext(guarded(t), sandpit.NewContext{ID: pair[0]}); err != nil {
				t.Error(err)
				return
			}
			if got, err := runCode(guarded(t), sb, sandpit.Code{Source: source, Context: pair[0]}); err != nil || !got.Success() {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	wg.Wait()
}

func testContexts(t *testing.T, e *env) {
	sb := coder(t, e)
	if all, err := sb.Contexts(guarded(t)); err != nil || len(all) != 0 {
		t.Errorf("at first there are %+v, %v", all, err)
	}
	runs(t, sb, "x = 1")
	made, err := sb.CreateContext(guarded(t), sandpit.NewContext{ID: "own", Language: sandpit.Python, Dir: "/tmp", Env: []string{"A=b"}})
	must(t, err)
	if made.ID != "own" || made.Language != sandpit.Python || made.Dir != "/tmp" || made.Process == "" || made.CreatedAt.IsZero() {
		t.Errorf("made %+v", made)
	}
	other, err := sb.CreateContext(guarded(t), sandpit.NewContext{})
	must(t, err)
	_, err = sb.CreateContext(guarded(t), sandpit.NewContext{ID: "own"})
	wantKind(t, err, sandpit.ErrExists)
	own := func(source string) coded {
		t.Helper()
		return runsIn(t, sb, sandpit.Code{Source: source, Context: "own"})
	}
	if got := own("import os\nx = 2\nos.getcwd(), os.environ['A']"); got.text() != "('/tmp', 'b')" || got.Context != "own" {
		t.Errorf("%+v", got)
	}
	if got := runs(t, sb, "x"); got.text() != "1" {
		t.Errorf("the other context has x = %s", got.text())
	}
	all, err := sb.Contexts(guarded(t))
	must(t, err)
	if len(all) != 3 || all[0].ID != sandpit.Python || all[1].ID != "own" || all[2].ID != other.ID || all[1].Process != made.Process || all[1].Busy {
		t.Errorf("listed are %+v", all)
	}
	// An interrupt ends the run and keeps the state.
	must(t, sb.InterruptContext(guarded(t), "own")) // there is none yet
	var out written
	ended := make(chan coded, 1)
	go func() {
		var c coded
		var err error
		if c.CodeResult, err = sb.RunCode(guarded(t), sandpit.Code{Source: "print('begun')\nwhile True: pass", Context: "own", Stdout: &out}); err != nil {
			t.Error(err)
		}
		ended <- c
	}()
	eventually(t, "the run has begun", func() bool { return strings.Contains(out.String(), "begun") })
	all, err = sb.Contexts(guarded(t))
	if err != nil || !all[1].Busy {
		t.Errorf("during the run there are %+v, %v", all, err)
	}
	must(t, sb.InterruptContext(guarded(t), "own"))
	if got := <-ended; got.Error == nil || got.Error.Name != "KeyboardInterrupt" || strings.Contains(got.Error.Traceback, "on_interrupt") || !strings.Contains(got.Error.Traceback, "while True") || got.TimedOut || got.InterpreterEnd != "" {
		t.Errorf("interrupted: %+v", got)
	}
	if got := own("x"); got.text() != "2" {
		t.Errorf("then x is %q", got.text())
	}
	// A restart ends the run and loses the state, and keeps the directory and the variables.
	out = written{}
	go func() {
		var c coded
		var err error
		if c.CodeResult, err = sb.RunCode(guarded(t), sandpit.Code{Source: "print('begun')\nwhile True: pass", Context: "own", Stdout: &out}); err != nil {
			t.Error(err)
		}
		ended <- c
	}()
	eventually(t, "the run has begun", func() bool { return strings.Contains(out.String(), "begun") })
	must(t, sb.RestartContext(guarded(t), "own"))
	if got := <-ended; got.InterpreterEnd != "the context was restarted" {
		t.Errorf("restarted: %+v", got)
	}
	if got := own("import os\nos.getcwd(), os.environ['A'], 'x' in globals()"); got.text() != "('/tmp', 'b', False)" || got.StateLost != "" {
		t.Errorf("after that: %+v, which says what was asked for", got)
	}
	must(t, sb.RemoveContext(guarded(t), "own"))
	_, err = sb.RunCode(guarded(t), sandpit.Code{Source: "1", Context: "own"})
	wantKind(t, err, sandpit.ErrNotFound)
	for _, f := range []func(context.Context, string) error{sb.RemoveContext, sb.RestartContext, sb.InterruptContext} {
		wantKind(t, f(guarded(t), "own"), sandpit.ErrNotFound)
	}
	infos, err := sb.Processes(guarded(t))
	must(t, err)
	for _, p := range infos {
		if p.ID == made.Process && p.Result == nil {
			t.Errorf("the interpreter of the removed context runs: %+v", p)
		}
	}
}

func testCodeChannel(t *testing.T, e *env) {
	sb := coder(t, e)
	runs(t, sb, "1")
	for source, ended := range map[string]bool{
		"import os\nos.close(1); os.close(2)":                                                                       false,
		"import os\nos.dup2(os.open('/dev/null', os.O_RDWR), 1)":                                                    false,
		"import sys\nsys.stdout = sys.stderr = None":                                                                false,
		"import sys\ndel sys.stdout, sys.stderr":                                                                    false,
		"import json, os, select, signal\njson.dumps = os.getpid = os.write = select.select = signal.signal = None": false,
		"import sys\nsys.modules.clear()":                                                                           false,
		"import builtins\ndel builtins.print":                                                                       false,
		"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)":                                               false,
		"import os, sys\nfor fd in range(3, 20):\n  try: os.write(fd, b'\\x00{}\\n[[\\n')\n  except OSError: pass":  true,
	} {
		must(t, sb.RestartContext(guarded(t), sandpit.Python))
		got, err := runCode(guarded(t), sb, sandpit.Code{Source: source})
		if err != nil || (got.InterpreterEnd != "") != ended {
			t.Errorf("%q: %+v, error %+v, %v", source, got, got.Error, err)
		}
		if ended && got.InterpreterEnd != "the interpreter was killed because the code wrote to the connection of its interpreter" {
			t.Errorf("%q: it ended as %q", source, got.InterpreterEnd)
		}
		if got := runs(t, sb, "6 * 7"); got.text() != "42" || (got.StateLost != "") != ended {
			t.Errorf("after %q: %+v, error %+v", source, got, got.Error)
		}
	}
	must(t, sb.RestartContext(guarded(t), sandpit.Python))
	runs(t, sb, "import os\nos.close(1); os.close(0)")
	if got := runs(t, sb, "print(42)\ninput()"); got.stdout != "42\n" || got.Error == nil || got.Error.Name != "EOFError" {
		t.Errorf("after it has closed its output: %+v, error %+v", got, got.Error)
	}
}

func testCodeLog(t *testing.T, e *env) {
	sb := coder(t, e)
	for language, l := range map[string]struct{ program, source string }{
		sandpit.Python:     {"python3", "import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('x' * 2000)"},
		sandpit.JavaScript: {"node", "console.log('out'); console.error('err'); console.log('x'.repeat(2000))"},
		sandpit.Bash:       {"bash", "echo out; echo err >&2; printf '%02000d\n' 0 | tr 0 x"},
		sandpit.R:          {"Rscript", "cat('out\n'); message('err'); cat(strrep('x', 2000), '\n', sep = '')"},
	} {
		if !run(t, sb, sandpit.Command{Script: "command -v " + l.program}).Success() {
			continue
		}
		for range 2 {
			if got := runsIn(t, sb, sandpit.Code{Source: l.source, Language: language}); !got.Success() {
				t.Fatalf("%s: %+v, error %+v", language, got.CodeResult, got.Error)
			}
		}
		all, err := sb.Contexts(guarded(t))
		must(t, err)
		i := slices.IndexFunc(all, func(c sandpit.CodeContext) bool { return c.ID == language })
		once := "out\n" + strings.Repeat("x", 2000) + "\n"
		var stdout, stderr string
		eventually(t, "the log has all", func() bool {
			stdout, stderr = "", ""
			for _, entry := range logs(t, sb, sandpit.LogQuery{Process: all[i].Process}) {
				if entry.Stream == "stdout" {
					stdout += string(entry.Data)
				} else {
					stderr += string(entry.Data)
				}
			}
			return strings.Count(stdout, "\n") >= 4 && strings.Count(stderr, "\n") >= 2
		})
		if stdout != once+once || stderr != "err\nerr\n" {
			t.Errorf("the log of %s has %.200q and %q", language, stdout, stderr)
		}
		var out, errs strings.Builder
		p, err := sb.Attach(guarded(t), all[i].Process, sandpit.AttachOptions{Stdout: &out, Stderr: &errs})
		must(t, err)
		must(t, sb.RemoveContext(guarded(t), language))
		_, err = p.Wait(guarded(t))
		must(t, err)
		if out.String() != stdout || errs.String() != stderr {
			t.Errorf("who attaches to %s gets %.200q and %q", language, out.String(), errs.String())
		}
	}
}

func testCodeNoTime(t *testing.T, e *env) {
	sb := coder(t, e)
	runs(t, sb, "x = 1")
	for range 20 {
		if got := runsIn(t, sb, sandpit.Code{Source: "while True: pass", Timeout: time.Nanosecond}); !got.TimedOut || got.Success() || got.InterpreterEnd != "" {
			t.Fatalf("%+v, error %+v", got.CodeResult, got.Error)
		}
	}
	if got := runs(t, sb, "x"); got.text() != "1" || got.StateLost != "" {
		t.Errorf("after that: %+v, error %+v", got, got.Error)
	}
}

func testBadCode(t *testing.T, e *env) {
	sb := coder(t, e)
	runs(t, sb, "x = 1")
	for _, bad := range []struct {
		code sandpit.Code
		kind error
	}{
		{sandpit.Code{Source: "1", Language: "cobol"}, sandpit.ErrInvalid},
		{sandpit.Code{Source: "1", Context: "none"}, sandpit.ErrNotFound},
		{sandpit.Code{Source: "1", Context: sandpit.Python, Language: "cobol"}, sandpit.ErrInvalid},
		{sandpit.Code{Source: "'\xff'"}, sandpit.ErrInvalid},
		{sandpit.Code{Source: strings.Repeat(" ", sandpit.MaxCode+1)}, sandpit.ErrInvalid},
		{sandpit.Code{Source: "1", Env: []string{"=b"}}, sandpit.ErrInvalid},
		{sandpit.Code{Source: "1", Timeout: -time.Second}, sandpit.ErrInvalid},
	} {
		_, err := sb.RunCode(guarded(t), bad.code)
		wantKind(t, err, bad.kind)
	}
	for _, bad := range []sandpit.NewContext{{ID: "../x"}, {ID: "."}, {ID: strings.Repeat("a", 65)}, {Language: "cobol"}, {Env: []string{"x"}}} {
		_, err := sb.CreateContext(guarded(t), bad)
		wantKind(t, err, sandpit.ErrInvalid)
	}
	if _, err := sb.CreateContext(guarded(t), sandpit.NewContext{Dir: "/nonexistent"}); err == nil {
		t.Error("a context in a missing directory is created")
	}
	if all, err := sb.Contexts(guarded(t)); err != nil || len(all) != 1 {
		t.Errorf("there are %+v, %v", all, err)
	}
	must(t, sb.Remove(guarded(t)))
	_, err := sb.RunCode(guarded(t), sandpit.Code{Source: "1"})
	wantKind(t, err, sandpit.ErrClosed)
}
