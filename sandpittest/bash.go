package sandpittest

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

var bashProperties = []property{
	{"bash keeps variables, functions and the working directory", testBashState},
	{"the result has the exit code of the last command of bash", testBashStatus},
	{"bash that ends says why, and the next run begins afresh", testBashEnds},
	{"bash that is out of memory says so, and the next run begins afresh", testBashMemory},
	{"a timeout interrupts bash, which keeps the state", testBashTimeout},
	{"a language without contexts runs code and says that it keeps no state", testStateless},
	{"what bash does to its outputs and its input does not hold RunCode up", testBashOutputs},
}

func testBashState(t *testing.T, e *env) {
	n := program(t, e, "bash", sandpit.Bash)
	for i, step := range []struct{ source, stdout, stderr string }{
		{"x='a b'\ndeclare -A m=([k]=v)\nf() {\n  local x=1\n  echo \"f $1 ü\"\n}\nalias hi='echo hello'", "", ""},
		{"echo \"$x ${m[k]}\"; f '$y'", "a b v\nf $y ü\n", ""},
		{"cd /tmp; export E=e", "", ""},
		{"pwd; sh -c 'echo $E; echo warn >&2'; hi", "/tmp\ne\nhello\n", "warn\n"},
		{"", "", ""},
		{"# only a comment", "", ""},
		{"cat <<'END'\n$x \\ \" ' `\n!!\nEND\nprintf '%s|' 'a\tb' $'c\\n' \"$#\" \"$-\" | tr -d chisBE", "$x \\ \" ' `\n!!\na\tb|\n|0||", ""},
		{"cat; read line; echo \"$? <$line>\"", "1 <>\n", ""},
		{"set -ex; true", "", "++ true\n"},
		{"false; echo on", "on\n", ""},
		{"{ sleep 0; echo child; } & wait $!; for i in 1 2; do echo -n $i; done", "child\n12", ""},
		{"alias for=false set=false printf=false eval=false", "", ""},
		{"echo on", "on\n", ""},
		{"exec 2>&1; echo one >&2", "one\n", ""},
	} {
		got := n.run(t, step.source)
		stderr := got.stderr
		if strings.Contains(step.source, "&") && strings.HasPrefix(stderr, "[1] ") { // as an interactive shell tells of a job
			stderr = ""
		}
		if !got.Success() || got.stdout != step.stdout || stderr != step.stderr || got.Run != i+1 || got.Context != sandpit.Bash || got.StateLost != "" || len(got.outputs) > 0 {
			t.Errorf("%q: %+v, error %+v", step.source, got, got.Error)
		}
	}
	got := runsIn(t, n.sb, sandpit.Code{Source: "echo \"$A\"; sh -c 'echo \"$A\"'", Env: []string{"A=b=c 'd'\n"}, Language: n.language})
	if got.stdout != "b=c 'd'\n\nb=c 'd'\n\n" {
		t.Errorf("with a variable: %+v", got)
	}
	if got := n.run(t, "echo $A"); got.stdout != "\n" {
		t.Errorf("after that run the variable is %q", got.stdout)
	}
	n.long(t, "head -c 8388608 /dev/zero | tr '\\0' x")
}

func testBashStatus(t *testing.T, e *env) {
	n := program(t, e, "bash", sandpit.Bash)
	for source, want := range map[string]struct {
		exitCode int
		stderr   string
	}{
		"echo a; false":            {1, ""},
		"(exit 7)":                 {7, ""},
		"f() { return 9; }; f":     {9, ""},
		"no-such-command":          {127, "not found"},
		"echo 'open":               {2, "EOF"},
		"for i in 1; do":           {2, "syntax error"},
		"echo ${x:?missing}; a":    {1, "missing"},
		"set -u; echo $missing; a": {1, "missing"},
	} {
		got := n.run(t, source)
		if got.Error != nil || got.ExitCode != want.exitCode || !strings.Contains(got.stderr, want.stderr) || got.InterpreterEnd != "" {
			t.Errorf("%q: %+v, error %+v", source, got, got.Error)
		}
	}
	for _, bad := range []sandpit.Code{{Source: "a\x00b"}, {Source: "a", Env: []string{"a b=c"}}, {Source: "a", Env: []string{"1=c"}}} {
		bad.Language = n.language
		_, err := n.sb.RunCode(guarded(t), bad)
		wantKind(t, err, sandpit.ErrInvalid)
	}
}

func testBashEnds(t *testing.T, e *env) {
	program(t, e, "bash", sandpit.Bash).ends(t, "x=1", "echo -n \"<$x>\"", "<>", []end{
		{"echo -n last; exit 3", "the interpreter exited with code 3"},
		{"set -e; echo -n last; (exit 4); echo not", "the interpreter exited with code 4"},
		{"echo -n last; exec sh -c 'exit 5'", "the interpreter exited with code 5"},
		{"echo -n last; kill -SEGV $$", "the interpreter was killed by signal 11 (segmentation fault)"},
		{"echo -n last; exec 198>&- 199>&-", "the interpreter was killed by signal 9 (killed)"}, // without them, no run would end
		{"set -m; sleep 1000 & kill -STOP $!; trap 'sleep 1000' EXIT; echo -n last; exec 199>&-", "the interpreter was killed by signal 9 (killed)"},
	})
}

func testBashMemory(t *testing.T, e *env) {
	program(t, e, "bash", sandpit.Bash).memory(t, e, "x=1", "echo last; y=$(head -c 1073741824 /dev/zero | tr '\\0' y)", "echo -n \"<$x>\"", "<>")
}

func testBashTimeout(t *testing.T, e *env) {
	n := program(t, e, "bash", sandpit.Bash)
	n.run(t, "x=1")
	for _, source := range []string{"while true; do :; done", "sleep 1000", "f() { while true; do sleep 1000; done; }; f", "sleep 1000 & wait"} {
		if got := n.late(t, source); got.Error != nil || got.ExitCode != 130 {
			t.Errorf("%q: %+v, error %+v", source, got, got.Error)
		}
	}
	if got := n.run(t, "echo $x"); got.stdout != "1\n" || got.StateLost != "" {
		t.Errorf("after interrupts: %+v", got)
	}
	got := runsIn(t, n.sb, sandpit.Code{Source: "trap '' INT; while true; do :; done", Timeout: 200 * time.Millisecond, Language: n.language})
	if !got.TimedOut || !strings.Contains(got.InterpreterEnd, "it went on after it had been interrupted") {
		t.Errorf("%+v", got)
	}
}

func testBashOutputs(t *testing.T, e *env) {
	n := program(t, e, "bash", sandpit.Bash)
	for source, stdout := range map[string]string{
		"exec >/dev/null 2>&1; echo a":                               "",
		"exec >&- 2>&-; echo a":                                      "",
		"PROMPT_COMMAND=; PS1='prompt> '; echo a":                    "a\n",
		"return; break; echo a":                                      "a\n",
		"exec </dev/zero; echo a":                                    "a\n",
		"printf '\\036x\\0361 1\\036'; set -x; set -u":               "\x1ex\x1e1 1\x1e",
		"unset __sandpit_run __sandpit_greeting; echo a":             "a\n",
		"alias eval=false printf=false; printf() { false; }; echo a": "a\n",
		"builtin() { false; }; echo a":                               "a\n",
		"unset() { echo b; false; }; set -e; IFS=0123456789; echo a": "a\n",
		"for f in printf set exec command : [ test cd trap return kill declare; do builtin eval \"$f() { false; }\"; done; eval() { false; }; echo a": "a\n",
	} {
		n.run(t, "true")
		must(t, n.sb.RestartContext(guarded(t), sandpit.Bash))
		got := n.run(t, source)
		if strings.Contains(source, "echo a") && got.stdout != stdout || got.InterpreterEnd != "" {
			t.Errorf("%q: %+v, error %+v", source, got, got.Error)
		}
		if got := n.run(t, "echo b >/proc/$$/fd/198"); got.InterpreterEnd != "" || got.StateLost != "" {
			t.Errorf("after %q: %+v, error %+v", source, got, got.Error)
		}
		if got := n.run(t, "/bin/echo c; (exit 3)"); got.Error != nil || got.ExitCode != 3 || got.stdout != "c\n" && !strings.Contains(source, "exec >") {
			t.Errorf("after %q: %+v, error %+v", source, got, got.Error)
		}
	}
}

func testStateless(t *testing.T, e *env) {
	for name, c := range map[string]struct{ first, second string }{
		"perl": {`$| = 1; print "$ENV{A} ", defined(<STDIN>) ? 1 : 0; print STDERR "warn"; our $x = 1; exit 3`, `print defined($x) ? 1 : 0`},
		"ruby": {`print ENV["A"], " ", $stdin.read.length; $stderr.print "warn"; $x = 1; exit 3`, `print $x ? 1 : 0`},
		"php":  {`<?php echo getenv("A"), " ", strlen(file_get_contents("php://stdin")); fwrite(fopen("php://stderr", "w"), "warn"); $x = 1; exit(3);`, `<?php echo isset($x) ? 1 : 0;`},
		"lua":  {`io.write(os.getenv("A"), " ", #io.read("a")); io.stderr:write("warn"); x = 1; os.exit(3)`, `io.write(x and 1 or 0)`},
		"go": {
			`package main; import ("fmt"; "io"; "os"); func main() { b, _ := io.ReadAll(os.Stdin); fmt.Print(os.Getenv("A"), " ", len(b)); fmt.Fprint(os.Stderr, "warn"); os.Exit(3) }`,
			`package main; import "os"; func main() { os.Stdout.WriteString("0") }`,
		},
		"java": {
			`class A { public static void main(String[] a) throws Exception { System.out.print(System.getenv("A") + " " + System.in.readAllBytes().length); System.err.print("warn"); System.exit(3); } }`,
			`class A { public static void main(String[] a) { System.out.print(0); } }`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := program(t, e, name, name)
			got := runsIn(t, n.sb, sandpit.Code{Source: c.first, Language: n.language, Env: []string{"A=b c"}})
			if got.stdout != "b c 0" || got.stderr != "warn" || !got.Stateless || got.Context != "" || got.Error != nil || got.ExitCode != 3 || got.Success() {
				t.Errorf("%+v, error %+v", got, got.Error)
			}
			if got := n.run(t, c.second); got.stdout != "0" || !got.Success() {
				t.Errorf("%+v, error %+v", got, got.Error)
			}
		})
	}
	t.Run("what is missing is named", func(t *testing.T) {
		for language, program := range map[string]string{"java": "java", "ruby": "ruby"} {
			_, err := e.sandbox(t, sandpit.Spec{}).RunCode(guarded(t), sandpit.Code{Source: "1", Language: language, Env: []string{"PATH=/nowhere"}})
			wantKind(t, err, sandpit.ErrNotFound)
			if err != nil && !strings.Contains(err.Error(), strconv.Quote(program)+" was not found") {
				t.Errorf("%s: %v", language, err)
			}
		}
	})
	n := program(t, e, "perl", "perl")
	if got := n.run(t, `kill 9, $$`); got.InterpreterEnd != "the interpreter was killed by signal 9 (killed)" {
		t.Errorf("%+v, error %+v", got, got.Error)
	}
	if got := runsIn(t, n.sb, sandpit.Code{Source: `$| = 1; print "begun"; sleep 1000`, Language: n.language, Timeout: 500 * time.Millisecond}); !got.TimedOut || got.Success() {
		t.Errorf("%+v, error %+v", got, got.Error)
	}
	ctx, cancel := context.WithCancel(guarded(t))
	_, err := n.sb.RunCode(ctx, sandpit.Code{Source: `$| = 1; print "begun"; sleep 1000`, Language: n.language, Stdout: once(cancel)})
	wantKind(t, err, context.Canceled)
	_, err = n.sb.CreateContext(guarded(t), sandpit.NewContext{Language: n.language})
	wantKind(t, err, sandpit.ErrInvalid)
	if all, err := n.sb.Contexts(guarded(t)); err != nil || len(all) != 0 {
		t.Errorf("there are %+v, %v", all, err)
	}
}

// once calls itself at each write.
type once func()

func (f once) Write(b []byte) (int, error) {
	f()
	return len(b), nil
}
