package sandpittest

import (
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

var terminalProperties = []property{
	{"the process has a terminal of the size asked for, on all three streams", testTerminal},
	{"Resize changes the size and tells the process", testResize},
	{"Resize of what has no terminal is ErrInvalid", testResizeNoTerminal},
	{"Ctrl-C interrupts the foreground, and is a byte in raw mode", testInterrupt},
	{"Ctrl-Z and Ctrl-D are what they are at a terminal", testEndOfFile},
	{"a signal goes to the foreground process group", testTerminalSignal},
	{"the end of the session hangs up", testHangUp},
	{"a large paste arrives", testPaste},
	{"a process that closes its terminal goes on, and may open it again", testClosedTerminal},
	{"a terminal is a new one, and its own", testOwnTerminal},
	{"Kill and timeout work as without a terminal", testTerminalKill},
}

var normal = &sandpit.TerminalSize{Rows: 24, Cols: 80}

// lines makes of a terminal's output the lines that were printed.
func lines(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }

func testTerminal(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	for _, size := range []sandpit.TerminalSize{*normal, {Rows: 1, Cols: 1}, {Rows: 0, Cols: 0}, {Rows: 65535, Cols: 65535}} {
		out := run(t, sb, sandpit.Command{Script: `stty size; for i in 0 1 2; do [ -t $i ] || echo "$i is none"; done; echo err >&2`, Terminal: &size})
		if want := fmt.Sprintf("%d %d\nerr\n", size.Rows, size.Cols); lines(string(out.Stdout)) != want || len(out.Stderr) > 0 {
			t.Errorf("got %q and %q, want %q", out.Stdout, out.Stderr, want)
		}
	}
	if out := run(t, sb, sandpit.Command{Script: `for i in 0 1 2; do [ -t $i ] && echo $i; done; :`}); len(out.Stdout) > 0 {
		t.Errorf("without a terminal these are one: %q", out.Stdout)
	}
	// It is the controlling one, of a session of the process's own.
	if got := command(t, sb, sandpit.Command{Script: `echo ok >/dev/tty`, Terminal: normal}); got != "ok" {
		t.Errorf("got %q", got)
	}
	if got := command(t, sb, sandpit.Command{Script: `[ -n "$TERM" ] && echo ok`, Terminal: normal}); got != "ok" {
		t.Errorf("got %q", got)
	}
}

func testResize(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	var out written
	p := start(t, sb, sandpit.Command{Script: `trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done`, Terminal: normal, Stdout: &out})
	out.until(t, "ready")
	for _, size := range []sandpit.TerminalSize{{Rows: 50, Cols: 132}, {Rows: 65535, Cols: 1}, {Rows: 0, Cols: 0}, {Rows: 25, Cols: 80}} {
		if err := p.Resize(t.Context(), size); err != nil {
			t.Fatal(err)
		}
		out.until(t, fmt.Sprintf("\n%d %d\r\n", size.Rows, size.Cols))
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait(t, p)
	if err := p.Resize(t.Context(), *normal); err != nil {
		wantKind(t, err, sandpit.ErrNotFound)
	}
}

func testResizeNoTerminal(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	p := start(t, sb, sandpit.Command{Argv: []string{"cat"}, Stdin: true})
	wantKind(t, p.Resize(t.Context(), *normal), sandpit.ErrInvalid)
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func testInterrupt(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	var out written
	p := start(t, sb, sandpit.Command{Script: "echo ready; exec sleep 1000", Terminal: normal, Stdout: &out})
	out.until(t, "ready")
	if p.Stdin() == nil {
		t.Fatal("a process with a terminal has no Stdin")
	}
	if _, err := io.WriteString(p.Stdin(), "\x03"); err != nil {
		t.Fatal(err)
	}
	if res := wait(t, p); res.Signal != int(syscall.SIGINT) || res.ExitCode != 130 {
		t.Errorf("got %+v", res)
	}

	out = written{}
	p = start(t, sb, sandpit.Command{Script: `stty raw -echo; echo ready; dd bs=1 count=2 2>/dev/null | od -An -tx1`, Terminal: normal, Stdout: &out})
	out.until(t, "ready")
	if _, err := io.WriteString(p.Stdin(), "\x03\x1a"); err != nil {
		t.Fatal(err)
	}
	if res := wait(t, p); !res.Success() || !strings.Contains(out.String(), "03 1a") {
		t.Errorf("got %+v, %q", res, out.String())
	}
}

func testEndOfFile(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	for name, end := range map[string]func(io.WriteCloser) error{
		"typed":  func(w io.WriteCloser) error { _, err := io.WriteString(w, "\x04"); return err },
		"closed": io.WriteCloser.Close,
	} {
		for what, text := range map[string]string{"after a line": "line\n", "in a line": "part", "at once": ""} {
			if name == "typed" && what == "in a line" {
				continue // there Ctrl-D only sends what was typed
			}
			t.Run(name+" "+what, func(t *testing.T) {
				var out written
				p := start(t, sb, sandpit.Command{Script: "stty -echo; echo ready; wc -c", Terminal: normal, Stdout: &out})
				out.until(t, "ready")
				if text != "" {
					if _, err := io.WriteString(p.Stdin(), text); err != nil {
						t.Fatal(err)
					}
				}
				if err := end(p.Stdin()); err != nil {
					t.Fatal(err)
				}
				if res := wait(t, p); !res.Success() || lines(out.String()) != fmt.Sprintf("ready\n%d\n", len(text)) {
					t.Errorf("got %+v, %q", res, out.String())
				}
			})
		}
	}
	// Ctrl-Z stops the foreground.
	p := start(t, sb, sandpit.Command{Script: `set -m; sleep 86501 & jobs; fg >/dev/null; jobs >/tmp/jobs; echo back >>/tmp/jobs`, Terminal: normal})
	eventually(t, "the job is in the foreground", func() bool {
		return shell(t, sb, `for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline | grep -q '^sleep 865''01' && awk '{ print ($5 == $8) }' $p/stat; done 2>/dev/null; :`) == "1"
	})
	// One that comes before the shell has let the job go on is lost. Each discards output that waits in the terminal.
	jobs := ""
	eventually(t, "the job is stopped", func() bool {
		_, _ = io.WriteString(p.Stdin(), "\x1a")
		jobs = shell(t, sb, "cat /tmp/jobs 2>/dev/null; :")
		return strings.Contains(jobs, "back")
	})
	if !strings.Contains(jobs, "Stopped") {
		t.Errorf("got %q", jobs)
	}
	wait(t, p)
}

func testTerminalSignal(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	var out written
	p := start(t, sb, sandpit.Command{Script: `trap 'echo parent' TERM; sh -c 'trap "echo child; exit" TERM; echo ready; while :; do sleep 0.05; done'; echo end`, Terminal: normal, Stdout: &out})
	out.until(t, "ready")
	if err := p.Signal(t.Context(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if res := wait(t, p); !res.Success() || !strings.Contains(out.String(), "child") || !strings.Contains(out.String(), "parent") || !strings.HasSuffix(lines(out.String()), "end\n") {
		t.Errorf("got %+v, %q", res, out.String())
	}
}

func testHangUp(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	// Without job control the child is in the foreground group.
	out := run(t, sb, sandpit.Command{Script: `sleep 86511 & echo started; exit 0`, Terminal: normal})
	if !out.Success() || !strings.Contains(string(out.Stdout), "started") {
		t.Errorf("got %+v, %q", out.Result, out.Stdout)
	}
	allDead(t, sb, "86511")
	// One that asked to live on does, and the terminal being gone is its loss.
	out = run(t, sb, sandpit.Command{
		Script:   `nohup sleep 86512 >/dev/null 2>&1 & until grep -qx sleep /proc/$!/comm; do sleep 0.02; done; exit 0`,
		Terminal: normal,
	})
	if !out.Success() {
		t.Errorf("got %+v", out.Result)
	}
	survives(t, sb, "sleep 86512")
}

func testPaste(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	const size = 1 << 20
	var out written
	p := start(t, sb, sandpit.Command{Script: fmt.Sprintf(`stty raw -echo; echo ready; head -c %d | cksum`, size), Terminal: normal, Stdout: &out})
	out.until(t, "ready")
	if n, err := p.Stdin().Write(noise(size)); err != nil || n != size {
		t.Fatalf("%d bytes were taken: %v", n, err)
	}
	if res := wait(t, p); !res.Success() {
		t.Errorf("got %+v", res)
	}
	if _, err := sb.Files().Write(t.Context(), "/tmp/paste", &noiseReader{n: size}, sandpit.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if want := shell(t, sb, "cksum </tmp/paste"); !strings.Contains(out.String(), want) {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func testClosedTerminal(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	// As cat does, which closes its files and then exits: what is in between is no reason to be killed.
	out := run(t, sb, sandpit.Command{Script: `echo begun; exec <&- >&- 2>&-; sleep 0.05; exit 7`, Terminal: normal})
	if out.ExitCode != 7 || out.Signal != 0 || lines(string(out.Stdout)) != "begun\n" {
		t.Errorf("closed: exit code %d, signal %d, %q", out.ExitCode, out.Signal, out.Stdout)
	}
	out = run(t, sb, sandpit.Command{Script: `exec <&- >&- 2>&-; sleep 0.05; echo again >/dev/tty; sleep 0.05; echo more >/dev/tty; exit 8`, Terminal: normal})
	if out.ExitCode != 8 || lines(string(out.Stdout)) != "again\nmore\n" {
		t.Errorf("opened again: exit code %d, signal %d, %q", out.ExitCode, out.Signal, out.Stdout)
	}
}

func testOwnTerminal(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	var out written
	p := start(t, sb, sandpit.Command{Script: "tty; sleep 1000", Terminal: normal, Stdout: &out})
	out.until(t, "\n")
	other := command(t, sb, sandpit.Command{Script: "tty", Terminal: normal})
	if first := strings.TrimSpace(out.String()); first == other || !strings.HasPrefix(first, "/dev/pts/") {
		t.Errorf("the terminals are %s and %s", first, other)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait(t, p)
	// The user owns it, as programs expect.
	if got := command(t, sb, sandpit.Command{Script: `[ -O "$(tty)" ] && [ -w "$(tty)" ] && echo own`, Terminal: normal}); got != "own" {
		t.Errorf("got %q", got)
	}
}

func testTerminalKill(t *testing.T, e *env) {
	for name, script := range trees {
		t.Run(name, func(t *testing.T) {
			sb := e.sandbox(t, sandpit.Spec{})
			var out written
			p := start(t, sb, sandpit.Command{Script: script, Terminal: normal, Stdout: &out})
			out.until(t, "ready")
			if err := p.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if res := wait(t, p); res.Signal != int(syscall.SIGKILL) {
				t.Errorf("got %+v", res)
			}
			allDead(t, sb, "86461")
		})
	}
}
