package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestCodePrompt has a person type code at the prompt.
func TestCodePrompt(t *testing.T) {
	testkit.NeedProgram(t, "python3") // and so in the host image
	withSandbox(t)
	s := startSession(t, "sandpit", "code", "box")
	// prompt waits for a prompt that has come since the last one.
	seen := 0
	prompt := func(text string) {
		t.Helper()
		s.until("the prompt "+text, func() bool {
			at := strings.Index(s.output()[seen:], text)
			if at >= 0 && s.isRaw() {
				seen += at + len(text)
				return true
			}
			return false
		})
	}
	prompt(">>> ")
	s.expect("python in box: ^C interrupts, ^D leaves")
	s.write("x = 6\r")
	prompt(">>> ")
	s.write("for i in range(2):\r")
	prompt("... ")
	s.write("  print('line', i)\r")
	prompt("... ")
	s.write("\r")
	prompt(">>> ")
	s.expect("line 0\r\nline 1\r\n")
	s.write("x * 7\r")
	prompt(">>> ")
	s.expect("42\r\n")
	s.write("1 / 0\r")
	prompt(">>> ")
	s.expect("ZeroDivisionError: division by zero")
	// ^C discards what is typed, and interrupts what runs; the state stays.
	s.write("if x:\r")
	prompt("... ")
	s.write("nonsense\x03")
	prompt(">>> ")
	s.write("import time; print('be' + 'gun'); time.sleep(1000)\r")
	s.expect("begun")
	s.write("\x03")
	prompt(">>> ")
	s.expect("interrupted")
	s.write("x, 'kept'\r")
	prompt(">>> ")
	s.expect("(6, 'kept')")
	// Pasted blocks may have empty lines.
	s.write("\x1b[200~def f():\r  a = 1\r\r  return a + 1\r\x1b[201~")
	for range 4 {
		prompt("... ")
	}
	s.write("\r")
	prompt(">>> ")
	s.write("f(), 'pasted'\r")
	prompt(">>> ")
	s.expect("(2, 'pasted')")
	s.write("import os; os._exit(3)\r")
	prompt(">>> ")
	s.expect("the interpreter exited with code 3; its state is lost")
	s.write("\x1b[A\x1b[A\r") // two lines back
	prompt(">>> ")
	s.expect("sandpit: the interpreter was started again without its state")
	s.expect("NameError: name 'f' is not defined")
	s.write("\x04")
	if got := s.exitCode(); got != 0 || s.settings() != s.before {
		t.Errorf("exit code %d; the terminal is as it was: %t", got, s.settings() == s.before)
	}
	for _, word := range []string{"exit", "quit", "exit()", " quit() "} {
		s = startSession(t, "sandpit", "code", "box")
		s.expect(">>> ")
		s.write(word + "\r")
		if got := s.exitCode(); got != 0 || s.settings() != s.before {
			t.Errorf("after %q: exit code %d; the terminal is as it was: %t", word, got, s.settings() == s.before)
		}
	}

	s = startSession(t, "sandpit", "code", "box")
	s.expect(">>> ")
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := s.exitCode(); got != 128+int(syscall.SIGTERM) || s.settings() != s.before {
		t.Errorf("after SIGTERM: exit code %d; the terminal is as it was: %t", got, s.settings() == s.before)
	}
}

// TestCodePromptOfPrograms has a person type programs of a language without state, which an empty line ends. The
// prompt ends when the sandbox has been removed.
func TestCodePromptOfPrograms(t *testing.T) {
	testkit.NeedProgram(t, "perl") // and so in the host image
	_, sb := withSandbox(t)
	s := startSession(t, "sandpit", "code", "-l", "perl", "box")
	s.expect(">>> ")
	s.expect("perl in box: an empty line runs the code, which keeps no state; ^C interrupts, ^D leaves")
	for _, word := range []string{"one", "two"} {
		s.write("print join '-',\r")
		s.write("  qw(" + word + " end);\r\r")
		s.expect(word + "-end\r\n\x1b[?2004h>>> ")
	}
	if n := strings.Count(s.output(), "keeps no state"); n != 1 {
		t.Errorf("it says %d times that it keeps no state", n)
	}
	unknown := startSession(t, "sandpit", "code", "-l", "cobol", "box")
	if got := unknown.exitCode(); got != 125 || !strings.Contains(unknown.output(), `unknown language "cobol"`) || strings.Contains(unknown.output(), ">>>") {
		t.Errorf("an unknown language: %d, %q", got, unknown.output())
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.write("print 1\r\r")
	s.expect(`sandpit: sandbox "box" was removed`)
	if got := s.exitCode(); got != 125 || s.settings() != s.before {
		t.Errorf("exit code %d; the terminal is as it was: %t", got, s.settings() == s.before)
	}
}

// TestCodeOutlivesAKilledServer kills the server with -9 while code runs. The run is lost to its caller,
// which is told, and goes on: its output is in the log, and the next server finds its state.
func TestCodeOutlivesAKilledServer(t *testing.T) {
	testkit.NeedProgram(t, "python3") // and so in the host image
	s, sb := withSandbox(t)
	code := commandLine(t, "sandpit", "code", "box", "-")
	code.Stdin = strings.NewReader("import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nprint('went on')\nx = 'kept'")
	out := new(testkit.Buffer)
	code.Stdout, code.Stderr = out, out
	if err := code.Start(); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(out.String(), "begun") {
		time.Sleep(time.Millisecond)
	}
	signalServer(t, serverPID(t, s.home), syscall.SIGKILL)
	if got := exitCode(t, code); got != 125 || !strings.Contains(out.String(), "sandpit: ") {
		t.Errorf("exit code %d: %s", got, out)
	}
	s = startService(t, s.home, nil)
	sb, err := s.client().Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sandpit.Shell(t.Context(), sb, "touch /tmp/go"); err != nil {
		t.Fatal(err)
	}
	code = commandLine(t, "sandpit", "code", "box", "-")
	code.Stdin = strings.NewReader("x")
	if got, err := code.CombinedOutput(); err != nil || string(got) != "'kept'\n" {
		t.Errorf("the next run: %s, %v", got, err)
	}
	if got, err := commandLine(t, "sandpit", "logs", "box").Output(); err != nil || !strings.Contains(string(got), "went on\n") {
		t.Errorf("the log has %q, %v", got, err)
	}
}
