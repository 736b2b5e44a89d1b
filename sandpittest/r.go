package sandpittest

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

var rProperties = []property{
	{"R keeps variables, packages and the working directory", testRState},
	{"R displays values, data frames and plots", testRDisplay},
	{"errors of R have their class, message and the lines of the code", testRErrors},
	{"R that ends says why, and the next run begins afresh", testREnds},
	{"R out of memory says so", testRMemory},
	{"a timeout interrupts R, which keeps the state", testRTimeout},
	{"what R does to its outputs and its input does not hold RunCode up", testROutputs},
}

func testRState(t *testing.T, e *env) {
	n := program(t, e, "Rscript", sandpit.R)
	for i, step := range []struct{ source, stdout, stderr string }{
		{"x <- 'a b'\nf <- function(y) {\n  x <- 1\n  paste('f', y, 'ü')\n}\nlibrary(stats4)", "", ""},
		{"cat(x, f('\\\\y\"'), '\\n'); 1 + 1; invisible(3)", "a b f \\y\" ü \n[1] 2\n", ""},
		{"setwd('/tmp'); message('warn'); 'package:stats4' %in% search(); invisible()", "[1] TRUE\n", "warn\n"},
		{"cat(getwd(), ''); system('echo child; echo err >&2'); cat('end')", "/tmp child\nend", "err\n"},
		{"", "", ""},
		{"# only a comment", "", ""},
		{"cat(length(readLines(file('stdin'))), nchar(readline()), length(scan(quiet = TRUE)))", "\n0 0 0", ""},
		{"invisible(system('cat; echo $?'))", "0\n", ""},
		{"warning('careful'); invisible()", "", "Warning: careful\n"},
	} {
		got := n.run(t, step.source)
		if !got.Success() || got.stdout != step.stdout || got.stderr != step.stderr || got.Run != i+1 || got.Context != sandpit.R || got.StateLost != "" || len(got.outputs) > 0 {
			t.Errorf("%q: %+v, error %+v", step.source, got, got.Error)
		}
	}
	got := runsIn(t, n.sb, sandpit.Code{Source: "cat(Sys.getenv('A')); invisible(system('echo \"$A\"'))", Env: []string{"A=b=c 'd\"'\n"}, Language: n.language})
	if got.stdout != "b=c 'd\"'\nb=c 'd\"'\n\n" {
		t.Errorf("with a variable: %+v", got)
	}
	if got := n.run(t, "Sys.getenv('A', NA)"); got.text() != "[1] NA" {
		t.Errorf("after that run the variable is %q", got.text())
	}
	_, err := n.sb.RunCode(guarded(t), sandpit.Code{Source: "a\x00b", Language: n.language})
	wantKind(t, err, sandpit.ErrInvalid)
}

func testRDisplay(t *testing.T, e *env) {
	n := program(t, e, "Rscript", sandpit.R)
	for source, text := range map[string]string{"1:3": "[1] 1 2 3", "NULL": "NULL", "x <- 1": "", "'ü\"\\\\'": `[1] "ü\"\\"`, "cat('a')": "", "(function() 1)()": "[1] 1"} {
		if got := n.run(t, source); got.text() != text || !got.Success() {
			t.Errorf("%q: %q, %+v", source, got.text(), got)
		}
	}
	got := n.run(t, "display(1); display(raw = list('text/html' = '<b>', 'x/y' = 'z')); data.frame(a = c(1, NA), b = c('x', 'y\"'), c = c(TRUE, FALSE))")
	if len(got.outputs) != 3 || got.outputs[0].Text != "[1] 1" || got.outputs[1].HTML != "<b>" || got.outputs[1].Extra["x/y"] != "z" ||
		string(got.outputs[2].Data) != `{"a":[1,null],"b":["x","y\""],"c":[true,false]}` || !got.outputs[2].Main || !strings.Contains(got.outputs[2].Text, "a  b") {
		t.Errorf("%+v, error %+v", got, got.Error)
	}
	if got = n.run(t, "print.own <- function(x, ...) cat('mine\\n')\nstructure(1, class = 'own')"); got.text() != "mine" {
		t.Errorf("%+v, error %+v", got, got.Error)
	}
	for range 2 {
		got = n.run(t, "plot(1:3); hist(c(1, 2))")
		if len(got.outputs) != 2 || !bytes.HasPrefix(got.outputs[0].PNG, []byte("\x89PNG")) || !bytes.HasPrefix(got.outputs[1].PNG, []byte("\x89PNG")) || bytes.Equal(got.outputs[0].PNG, got.outputs[1].PNG) {
			t.Errorf("%+v, error %+v", got, got.Error)
		}
	}
	if got = n.run(t, "plot(1); stop('later')"); len(got.outputs) != 1 || got.Error == nil {
		t.Errorf("%+v, error %+v", got, got.Error)
	}
	if got = n.run(t, "for (i in 1:3) display(strrep('x', 1.5e6)); 'last'"); !got.Truncated || !got.Success() || len(got.outputs) != 4 || len(got.outputs[1].Text) < 1.5e6 || !strings.Contains(got.outputs[2].Text, "too large") || got.outputs[3].Text != `[1] "last"` {
		t.Errorf("%d outputs, %+v, error %+v", len(got.outputs), got.CodeResult, got.Error)
	}
}

func testRErrors(t *testing.T, e *env) {
	n := program(t, e, "Rscript", sandpit.R)
	for source, want := range map[string]struct{ name, value, trace string }{
		"f <- function() {\n  stop('bad ', 7)\n}\nf()": {"simpleError", "bad 7", ", line 5: f()"},
		"1 +":       {"simpleError", "unexpected end of input", ""},
		"missing.x": {"simpleError", "object 'missing.x' not found", ""},
		"stop(structure(class = c('own', 'error', 'condition'), list(message = 'm', call = NULL)))": {"own", "m", ""},
		"library(no.such.package)": {"packageNotFoundError", "no.such.package", ""},
	} {
		got := n.run(t, "cat('before\\n')\n"+source)
		if er := got.Error; er == nil || er.Name != want.name || !strings.Contains(er.Value, want.value) || !strings.Contains(er.Traceback, want.trace) || got.InterpreterEnd != "" ||
			strings.Contains(er.Traceback, "withVisible") || strings.Contains(er.Traceback, "sys.calls") {
			t.Errorf("%q: %+v, error %+v", source, got, got.Error)
		}
	}
}

func testREnds(t *testing.T, e *env) {
	n := program(t, e, "Rscript", sandpit.R)
	n.ends(t, "x <- 1", "exists('x')", "[1] FALSE", []end{
		{"cat('last'); quit(status = 3)", "the interpreter exited with code 3"},
		{"cat('last'); tools::pskill(Sys.getpid(), 9)\nSys.sleep(1000)", "the interpreter was killed by signal 9 (killed)"},
	})
	got := n.run(t, "p <- parallel::mcparallel({ cat('child\\n'); 7 })\nparallel::mccollect(p)[[1]]")
	if got.text() != "[1] 7" || !got.Success() || got.StateLost != "" {
		t.Errorf("after a fork: %+v, error %+v", got, got.Error)
	}
}

func testRMemory(t *testing.T, e *env) {
	program(t, e, "Rscript", sandpit.R).memory(t, e, "x <- 1", "cat('last\\n'); y <- rep(1, 1e9)", "exists('x')", "[1] FALSE")
}

func testRTimeout(t *testing.T, e *env) {
	n := program(t, e, "Rscript", sandpit.R)
	n.run(t, "x <- 1")
	for _, source := range []string{"while (TRUE) {}", "repeat Sys.sleep(1000)", "f <- function(n) if (n > 0) f(n - 1) else repeat Sys.sleep(0.01)\nf(50)"} {
		if got := n.late(t, source); got.Error == nil || got.Error.Name != "interrupt" {
			t.Errorf("%q: %+v, error %+v", source, got, got.Error)
		}
		if got := n.run(t, "x"); got.text() != "[1] 1" || got.StateLost != "" {
			t.Errorf("after %q: %+v, error %+v", source, got, got.Error)
		}
	}
	got := runsIn(t, n.sb, sandpit.Code{Source: "repeat suspendInterrupts(Sys.sleep(0.1))", Timeout: 300 * time.Millisecond, Language: n.language})
	if !got.TimedOut {
		t.Errorf("%+v", got)
	}
	got = runsIn(t, n.sb, sandpit.Code{Source: "suspendInterrupts(repeat 1)", Timeout: 300 * time.Millisecond, Language: n.language})
	if !got.TimedOut || !strings.Contains(got.InterpreterEnd, "it went on after it had been interrupted") {
		t.Errorf("%+v", got)
	}
	n.run(t, "x <- 2")
	ctx, cancel := context.WithCancel(guarded(t))
	_, err := n.sb.RunCode(ctx, sandpit.Code{Source: "cat('begun')\nrepeat 1", Language: n.language, Stdout: once(cancel)})
	wantKind(t, err, context.Canceled)
	if got := n.run(t, "x"); got.text() != "[1] 2" {
		t.Errorf("after its caller has left: %+v, error %+v", got, got.Error)
	}
}

func testROutputs(t *testing.T, e *env) {
	n := program(t, e, "Rscript", sandpit.R)
	for source, stdout := range map[string]string{
		"sink('/tmp/sunk'); cat('a')":                                            "",
		"cat('\\036x\\036{}\\036')":                                              "\x1ex\x1e{}\x1e",
		"closeAllConnections(); cat('a')":                                        "a",
		"rm(list = ls(all.names = TRUE)); detach('tools:sandpit')":               "",
		"print <- cat <- paste <- c <- function(...) stop('mine')\nlist(1)[[1]]": "",
		"options(device = NULL, warn = 2, error = quote(q('no', 9)))":            "",
		"unlink(tempdir(), recursive = TRUE); cat('a')":                          "a",
		"invisible(file.symlink('/dev/zero', paste0(list.files('/tmp', '^[.]sandpit', all.files = TRUE, full.names = TRUE), '.out')))": "",
	} {
		n.run(t, "1")
		must(t, n.sb.RestartContext(guarded(t), sandpit.R))
		if got := n.run(t, source); got.stdout != stdout || got.Error != nil {
			t.Errorf("%q: %+v, error %+v", source, got, got.Error)
		}
		if got := n.run(t, "2"); got.InterpreterEnd != "" && got.Error == nil {
			t.Errorf("after %q: %+v, error %+v", source, got, got.Error)
		}
	}
}
