package sandpittest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

var processProperties = []property{
	{"a non-zero exit is a value", testExitCodes},
	{"death by a signal is reported", testSignals},
	{"a signal reaches the process, and its group", testSignalGroup},
	{"a missing program is 127", testMissingProgram},
	{"a program that can't be executed is 126", testNotExecutable},
	{"a program is looked for in the PATH of the process", testPath},
	{"a missing working directory is 126", testMissingDir},
	{"relative working directories begin at the sandbox's", testDir},
	{"without Stdin the input is empty", testNoStdin},
	{"Stdin is passed on and can be closed", testStdin},
	{"Stdin pushes back and fails after the exit", testStdinPushBack},
	{"1 MiB of arguments arrives", testLargeArguments},
	{"arguments beyond the limit are refused clearly", testTooLargeArguments},
	{"arguments are bytes", testOddArguments},
	{"the environment has odd values", testEnvironment},
	{"an invalid environment variable is ErrInvalid", testBadEnvironment},
	{"what a process had in its environment is not found after its end", testEnvironmentIsGone},
	{"a Command that makes no sense is ErrInvalid", testBadCommands},
	{"FromImage and Entrypoint work as in Docker", testEntrypoint},
	{"Wait may be called many times, by many", testWaitByMany},
	{"Wait ends with its context, and the process goes on", testWaitContext},
	{"Start with a context that has ended starts nothing", testStartContext},
	{"the context of Start has no effect afterwards", testStartContextAfterwards},
	{"100 processes run at once", testHundredAtOnce},
	{"a child that holds the output open does not delay the exit", testBackgroundChild},
	{"orphans are reaped, and exit codes are never lost", testOrphans},
	{"wall time, processor time and memory are told", testUsage},
	{"descriptors are exactly 0, 1 and 2", testDescriptors},
	{"the standard streams can be opened by name, by every user", testStreamsByName},
}

func testExitCodes(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	for _, code := range []int{0, 1, 2, 77, 125, 126, 127, 128, 137, 255} {
		out := run(t, sb, sandpit.Command{Script: "exit " + strconv.Itoa(code)})
		if out.ExitCode != code || out.Signal != 0 || out.TimedOut || out.OOMKilled || out.Success() != (code == 0) {
			t.Errorf("exit %d gives %+v", code, out.Result)
		}
	}
}

func testSignals(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL, syscall.SIGUSR1, syscall.SIGTERM, syscall.SIGPIPE, syscall.SIGSEGV} {
		out := run(t, sb, sandpit.Command{Script: fmt.Sprintf("kill -%d $$; sleep 60", sig)})
		if out.Signal != int(sig) || out.ExitCode != 128+int(sig) || out.Success() || out.TimedOut || out.OOMKilled {
			t.Errorf("death by %v gives %+v", sig, out.Result)
		}
	}
	// Every signal has its default action and none is blocked.
	p := start(t, sb, sandpit.Command{Argv: []string{"sleep", "1000"}})
	if p.PID() <= 1 {
		t.Errorf("the pid is %d", p.PID())
	}
	if err := p.Signal(t.Context(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if res := wait(t, p); res.Signal != int(syscall.SIGTERM) || res.ExitCode != 143 {
		t.Errorf("got %+v", res)
	}
	wantKind(t, p.Signal(t.Context(), syscall.SIGTERM), sandpit.ErrNotFound)
	if err := p.Kill(t.Context()); err != nil {
		t.Errorf("killing what has exited: %v", err)
	}
	// A signal that is caught.
	var out written
	p = start(t, sb, sandpit.Command{Script: `trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.05; done`, Stdout: &out})
	out.until(t, "ready")
	for _, bad := range []syscall.Signal{-1, 65, 1000} {
		wantKind(t, p.Signal(t.Context(), bad), sandpit.ErrInvalid)
	}
	if err := p.Signal(t.Context(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if res := wait(t, p); res.ExitCode != 7 || res.Signal != 0 || out.String() != "ready\ncaught\n" {
		t.Errorf("got %+v, %q", res, out.String())
	}
}

func testSignalGroup(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	var out written
	p := start(t, sb, sandpit.Command{Script: `trap '' TERM; sh -c 'trap - TERM; echo ready; exec sleep 86421'; echo "child $?"`, Stdout: &out})
	g, ok := p.(sandpit.GroupSignaler)
	if !ok {
		t.Skip("this client does not signal groups")
	}
	out.until(t, "ready")
	// An ignored signal stays ignored over exec, so the child dies of INT only.
	if err := g.SignalGroup(t.Context(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if res := wait(t, p); res.Signal != int(syscall.SIGKILL) {
		t.Errorf("got %+v", res)
	}
	allDead(t, sb, "86421")
	wantKind(t, g.SignalGroup(t.Context(), syscall.SIGKILL), sandpit.ErrNotFound)
}

func testMissingProgram(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	for _, name := range []string{"no-such-program-here", "/no/such/program", "./no-such-program", "/etc/passwd/program"} {
		// With a terminal, with standard input and in the background it is no different.
		for _, cmd := range []sandpit.Command{{}, {Terminal: &sandpit.TerminalSize{Rows: 24, Cols: 80}}, {Stdin: true}, {Background: true}} {
			cmd.Argv = []string{name}
			if failed := notStarted(t, sb, cmd); failed.ExitCode != 127 || !strings.Contains(failed.Reason, name) || failed.Stage != sandpit.StageProgram {
				t.Errorf("%s gives %+v", name, failed)
			}
		}
	}
	if failed := notStarted(t, sb, sandpit.Command{Argv: []string{""}}); failed.ExitCode != 127 || failed.Reason != "the program's name is empty" {
		t.Errorf("an empty name gives %+v", failed)
	}
	// What was not started is not a process.
	if all, err := sb.Processes(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("listed: %+v, %v", all, err)
	}
}

func testNotExecutable(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	shell(t, sb, `printf 'garbage\001' >/tmp/garbage; chmod +x /tmp/garbage; mkdir -p /tmp/dir`)
	for name, errno := range map[string]syscall.Errno{"/etc/passwd": syscall.EACCES, "/tmp/dir": syscall.EACCES, "/tmp/garbage": syscall.ENOEXEC} {
		failed := notStarted(t, sb, sandpit.Command{Argv: []string{name}})
		if failed.ExitCode != 126 || !strings.Contains(failed.Reason, name) || failed.Stage != sandpit.StageProgram || failed.Errno != int(errno) {
			t.Errorf("%s gives %+v", name, failed)
		}
	}
	// Found in PATH, but not to be executed: 126 and not 127.
	shell(t, sb, `mkdir /tmp/bin; echo >/tmp/bin/prog-here`)
	failed := notStarted(t, sb, sandpit.Command{Argv: []string{"prog-here"}, Env: []string{"PATH=/tmp/bin:/usr/bin"}})
	if failed.ExitCode != 126 || failed.Reason == "" {
		t.Errorf("in PATH: %+v", failed)
	}
}

func testPath(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	shell(t, sb, `mkdir /tmp/a /tmp/b; for d in a b; do printf '#!/bin/sh\necho '$d' "$0"\n' >/tmp/$d/prog-here; chmod +x /tmp/$d/prog-here; done; chmod -x /tmp/a/prog-here`)
	if got := command(t, sb, sandpit.Command{Argv: []string{"prog-here"}, Env: []string{"PATH=/nowhere:/tmp/a:/tmp/b"}}); got != "b /tmp/b/prog-here" {
		t.Errorf("got %q", got)
	}
	if failed := notStarted(t, sb, sandpit.Command{Argv: []string{"sh"}, Env: []string{"PATH=/nowhere"}}); failed.ExitCode != 127 {
		t.Errorf("got %+v", failed)
	}
}

func testMissingDir(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	for dir, errno := range map[string]syscall.Errno{"/no/such/dir": syscall.ENOENT, "/etc/passwd": syscall.ENOTDIR, "no-such-dir": syscall.ENOENT} {
		failed := notStarted(t, sb, sandpit.Command{Script: "pwd", Dir: dir})
		if failed.ExitCode != 126 || !strings.Contains(failed.Reason, dir) || failed.Stage != sandpit.StageDirectory || failed.Errno != int(errno) {
			t.Errorf("%s gives %+v", dir, failed)
		}
	}
	_, err := sb.Start(t.Context(), sandpit.Command{Script: "pwd", Dir: "/tmp\x00"})
	wantKind(t, err, sandpit.ErrInvalid)
	if stage := sandpit.StageOf(err); stage != "" {
		t.Errorf("a directory that can't be one fails at the stage %q", stage)
	}
}

func testDir(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{WorkDir: "/tmp"})
	shell(t, sb, "mkdir -p /tmp/one/two; ln -s one /tmp/link")
	for dir, want := range map[string]string{"": "/tmp", "one": "/tmp/one", "one/two/..": "/tmp/one", "/": "/", "link/two": "/tmp/one/two"} {
		if got := command(t, sb, sandpit.Command{Script: "pwd -P", Dir: dir}); got != want {
			t.Errorf("%q is %q, want %q", dir, got, want)
		}
	}
	home := e.sandbox(t, sandpit.Spec{})
	if got := shell(t, home, `[ "$PWD" = "$HOME" ] || [ ! -d "$HOME" ] && pwd`); !strings.HasPrefix(got, "/") {
		t.Errorf("the default directory is %q", got)
	}
}

func testNoStdin(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	p := start(t, sb, sandpit.Command{Script: "cat; echo end"})
	if p.Stdin() != nil {
		t.Error("Stdin is not nil")
	}
	if res := wait(t, p); res.ExitCode != 0 || res.StdoutBytes != 4 {
		t.Errorf("got %+v", res)
	}
}

func testStdin(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	data := noise(8 << 20)
	got := sha256.New()
	p := start(t, sb, sandpit.Command{Argv: []string{"cat"}, Stdin: true, Stdout: got})
	if _, err := io.Copy(p.Stdin(), bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdin().Close(); err != nil {
		t.Fatal(err)
	}
	res := wait(t, p)
	if want := sha256.Sum256(data); !res.Success() || res.StdoutBytes != int64(len(data)) || !bytes.Equal(got.Sum(nil), want[:]) {
		t.Errorf("what comes back differs: %+v", res)
	}
	// Open until it is closed: a process reads line by line.
	var out written
	p = start(t, sb, sandpit.Command{Script: `while read l; do echo "got $l"; done; echo end`, Stdin: true, Stdout: &out})
	for _, word := range []string{"one", "two"} {
		if _, err := io.WriteString(p.Stdin(), word+"\n"); err != nil {
			t.Fatal(err)
		}
		out.until(t, "got "+word+"\n")
	}
	if err := p.Stdin().Close(); err != nil {
		t.Fatal(err)
	}
	if res := wait(t, p); !res.Success() || out.String() != "got one\ngot two\nend\n" {
		t.Errorf("got %+v, %q", res, out.String())
	}
	if _, err := p.Stdin().Write([]byte("x")); err == nil {
		t.Error("writing after Close succeeds")
	}
}

func testStdinPushBack(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	p := start(t, sb, sandpit.Command{Script: "read go; sleep 1000", Stdin: true})
	wrote := make(chan error, 1)
	var n int
	go func() {
		var err error
		n, err = p.Stdin().Write(make([]byte, 64<<20))
		wrote <- err
	}()
	select {
	case err := <-wrote:
		t.Fatalf("64 MiB were taken by a process that does not read: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	// Other calls go on meanwhile.
	if got := shell(t, sb, "echo other"); got != "other" {
		t.Errorf("got %q", got)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err == nil || n == 64<<20 {
		t.Errorf("writing %d bytes to a dead process returned %v", n, err)
	}
	if res := wait(t, p); res.Signal != int(syscall.SIGKILL) {
		t.Errorf("got %+v", res)
	}
	// One that closes its input, and lives on.
	p = start(t, sb, sandpit.Command{Script: "exec <&-; sleep 0.2; exit 4", Stdin: true})
	if _, err := p.Stdin().Write(make([]byte, 64<<20)); err == nil {
		t.Error("64 MiB were taken by a process without an input")
	}
	if res := wait(t, p); res.ExitCode != 4 {
		t.Errorf("got %+v", res)
	}
}

func testLargeArguments(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	const each, n = 127 << 10, 8
	argv := []string{"sh", "-c", `for a; do printf %s "$a"; done | wc -c; echo $#`, "sh"}
	for i := range n {
		argv = append(argv, strings.Repeat(string(rune('a'+i)), each))
	}
	for range 1 << 20 / 8 / 16 { // many short ones
		argv = append(argv, "")
	}
	want := fmt.Sprintf("%d\n%d", each*n, len(argv)-4)
	if got := command(t, sb, sandpit.Command{Argv: argv}); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	script := "# " + strings.Repeat("x", 120<<10) + "\necho end"
	if got := shell(t, sb, script); got != "end" {
		t.Errorf("got %q", got)
	}
}

func testTooLargeArguments(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	many := []string{"true"}
	for range 80 {
		many = append(many, strings.Repeat("x", 127<<10))
	}
	for name, cmd := range map[string]sandpit.Command{
		"one of 200 KiB":    {Argv: []string{"true", strings.Repeat("x", 200<<10)}},
		"10 MiB in all":     {Argv: many},
		"a script too long": {Script: "# " + strings.Repeat("x", 200<<10) + "\ntrue"},
		"a variable":        {Argv: []string{"true"}, Env: []string{"A=" + strings.Repeat("x", 200<<10)}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := sb.Start(t.Context(), cmd)
			var failed *sandpit.StartError
			if !errors.As(err, &failed) {
				wantKind(t, err, sandpit.ErrInvalid)
			} else if failed.ExitCode != 126 || !strings.Contains(failed.Reason, "too long") || failed.Errno != int(syscall.E2BIG) {
				t.Errorf("got %+v", failed)
			}
		})
	}
	if got := shell(t, sb, "echo alive"); got != "alive" {
		t.Errorf("got %q", got)
	}
}

func testOddArguments(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	args := []string{"", " ", "a b", "\n", "\xff\xfe", "-n", "'", `"`, "$HOME", "*", "ü", "\x01\x7f\x1b[31m", "--"}
	out := run(t, sb, sandpit.Command{Argv: append([]string{"printf", `%s\0`}, args...)})
	got := strings.Split(strings.TrimSuffix(string(out.Stdout), "\x00"), "\x00")
	if !slices.Equal(got, args) {
		t.Errorf("got %q\nwant %q", got, args)
	}
}

func testEnvironment(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{Env: []string{"BOTH=spec", "SPEC=spec"}})
	vars := []string{"BOTH=command", "EMPTY=", "EQUALS=a=b==c", "LINES=one\ntwo\n", "BINARY=\xff\xfe\x01", "WITH SPACE=1", "Ü=ü", "TWICE=1", "TWICE=2"}
	out := run(t, sb, sandpit.Command{Argv: []string{"env", "-0"}, Env: vars})
	got := strings.Split(strings.TrimSuffix(string(out.Stdout), "\x00"), "\x00")
	for _, want := range append([]string{"SPEC=spec"}, slices.DeleteFunc(vars, func(v string) bool { return v == "TWICE=1" })...) {
		if !slices.Contains(got, want) {
			t.Errorf("%q is missing from %q", want, got)
		}
	}
	names := map[string]bool{}
	for _, v := range got {
		name, _, _ := strings.Cut(v, "=")
		if names[name] {
			t.Errorf("%s is there twice", name)
		}
		names[name] = true
	}
	for _, name := range []string{"PATH", "HOME"} {
		if !names[name] {
			t.Errorf("%s is missing", name)
		}
	}
}

// testEnvironmentIsGone looks in the places where a later process finds what an earlier one has had.
func testEnvironmentIsGone(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	const canary = "canary of an environment"
	run(t, sb, sandpit.Command{Argv: []string{"bash", "-ic", "exit"}, Env: []string{"HAD=" + canary}})
	seen := shell(t, sb, `cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; env; find / -xdev -name '.*history' -newer /proc/1/stat -exec cat {} +; cat /tmp/* /dev/shm/* 2>/dev/null; true`)
	if !strings.Contains(seen, "PATH=") || strings.Contains(seen, canary) {
		t.Errorf("a later process sees %q", seen)
	}
}

func testBadEnvironment(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	for _, bad := range []string{"NOEQUALS", "", "=x", "NUL=\x00", "N\x00=1"} {
		_, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"true"}, Env: []string{bad}})
		wantKind(t, err, sandpit.ErrInvalid)
	}
}

func testBadCommands(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	for name, cmd := range map[string]sandpit.Command{
		"nothing":          {},
		"both":             {Argv: []string{"true"}, Script: "true"},
		"NUL in argument":  {Argv: []string{"echo", "a\x00b"}},
		"NUL in program":   {Argv: []string{"ec\x00ho"}},
		"NUL in script":    {Script: "echo \x00"},
		"negative timeout": {Argv: []string{"true"}, Timeout: -1},
		"negative output":  {Argv: []string{"true"}, OutputLimit: -1},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := sb.Start(t.Context(), cmd)
			wantKind(t, err, sandpit.ErrInvalid)
		})
	}
}

func testEntrypoint(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	if got := command(t, sb, sandpit.Command{Entrypoint: []string{"echo", "a"}, Argv: []string{"b"}}); got != "a b" {
		t.Errorf("got %q", got)
	}
	if got := command(t, sb, sandpit.Command{Entrypoint: []string{"echo", "a"}}); got != "a" {
		t.Errorf("got %q", got)
	}
	if got := command(t, sb, sandpit.Command{Entrypoint: []string{}, Argv: []string{"echo", "c"}}); got != "c" {
		t.Errorf("got %q", got)
	}
	for name, cmd := range map[string]sandpit.Command{
		"nothing is left to run":     {Entrypoint: []string{}},
		"a script has no entrypoint": {Script: "true", FromImage: true},
		"nor one of its own":         {Script: "true", Entrypoint: []string{"echo"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := sb.Start(t.Context(), cmd)
			wantKind(t, err, sandpit.ErrInvalid)
		})
	}
}

func testWaitByMany(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	p := start(t, sb, sandpit.Command{Script: "echo out; sleep 0.1; exit 5"})
	var wg sync.WaitGroup
	results := make([]sandpit.Result, 10)
	for i := range results {
		wg.Go(func() {
			var err error
			if results[i], err = p.Wait(guarded(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	results = append(results, wait(t, p), wait(t, p))
	for _, r := range results {
		if r != results[0] || r.ExitCode != 5 {
			t.Errorf("results differ: %+v and %+v", r, results[0])
		}
	}
}

func testWaitContext(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	p := start(t, sb, sandpit.Command{Script: "read go; exit 6", Stdin: true})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Wait returns %v", err)
	}
	if _, err := io.WriteString(p.Stdin(), "go\n"); err != nil {
		t.Fatal(err)
	}
	if res := wait(t, p); res.ExitCode != 6 {
		t.Errorf("got %+v", res)
	}
	// One that has ended is told even so, or the context's error.
	if res, err := p.Wait(ctx); err == nil && res.ExitCode != 6 {
		t.Errorf("got %+v", res)
	}
}

func testStartContext(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sb.Start(ctx, sandpit.Command{Argv: []string{"sleep", "86431"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("Start returns %v", err)
	}
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*50*time.Microsecond)
		p, err := sb.Start(ctx, sandpit.Command{Argv: []string{"sleep", "86431"}})
		cancel()
		if err == nil {
			if err := p.Kill(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	allDead(t, sb, "86431")
}

func testStartContextAfterwards(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	ctx, cancel := context.WithCancel(t.Context())
	p, err := sb.Start(ctx, sandpit.Command{Script: "read go; echo went", Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.WriteString(p.Stdin(), "go\n"); err != nil {
		t.Fatal(err)
	}
	if res := wait(t, p); res.ExitCode != 0 || res.StdoutBytes != 5 {
		t.Errorf("got %+v", res)
	}
}

func testHundredAtOnce(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	const n = 100
	procs := make([]sandpit.Process, n)
	outs := make([]written, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			p, err := sb.Start(guarded(t), sandpit.Command{Script: `read go; echo "$go $N"; exit $N`, Env: []string{"N=" + strconv.Itoa(i)}, Stdin: true, Stdout: &outs[i]})
			if err != nil {
				t.Error(err)
				return
			}
			procs[i] = p
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	pids := map[int]bool{}
	for _, p := range procs {
		pids[p.PID()] = true
	}
	if len(pids) != n {
		t.Errorf("%d different pids", len(pids))
	}
	for i, p := range procs {
		wg.Go(func() {
			if _, err := io.WriteString(p.Stdin(), "go\n"); err != nil {
				t.Error(err)
			}
			res := wait(t, p)
			if want := fmt.Sprintf("go %d\n", i); res.ExitCode != i || outs[i].String() != want {
				t.Errorf("process %d: %+v, %q", i, res, outs[i].String())
			}
		})
	}
	wg.Wait()
}

func testBackgroundChild(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	for name, script := range map[string]string{
		"quiet child":   "sleep 86441 & echo done; exit 3",
		"chatty child":  "(while :; do echo 86441; sleep 0.01; done) & echo done; exit 3",
		"child of init": "(setsid sleep 86441 &); echo done; exit 3",
	} {
		t.Run(name, func(t *testing.T) {
			sb := e.sandbox(t, sandpit.Spec{})
			out := run(t, sb, sandpit.Command{Script: script})
			if out.ExitCode != 3 || !strings.Contains(string(out.Stdout), "done\n") {
				t.Errorf("got %+v, %s", out.Result, brief(out.Stdout))
			}
			if name != "chatty child" {
				survives(t, sb, "sleep 86441")
			}
		})
	}
	// What was written before the exit is there, also when it is much.
	out := run(t, sb, sandpit.Command{Script: "sleep 86441 & head -c 5000000 /dev/zero"})
	if len(out.Stdout) != 5000000 || out.StdoutBytes != 5000000 {
		t.Errorf("%d bytes arrived, %d are told", len(out.Stdout), out.StdoutBytes)
	}
	// Kill takes the child too, also when the process itself has exited.
	p := start(t, sb, sandpit.Command{Script: "sleep 86442 & echo done"})
	wait(t, p)
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	allDead(t, sb, "86442")
}

func testOrphans(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	n := 500
	if e.opt.Long {
		n = 10000
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		// Each subshell leaves a child that loses its parent and ends later.
		run(t, sb, sandpit.Command{Script: fmt.Sprintf(`i=0; while [ $i -lt %d ]; do (sh -c 'exit 9' &); i=$((i+1)); done`, n)})
	})
	for i := range 50 {
		if out := run(t, sb, sandpit.Command{Script: "exit " + strconv.Itoa(i)}); out.ExitCode != i {
			t.Errorf("exit %d gives %+v", i, out.Result)
		}
	}
	wg.Wait()
	eventually(t, "no zombie is left", func() bool {
		return shell(t, sb, `grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l`) == "0"
	})
}

func testUsage(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	res := run(t, sb, sandpit.Command{Script: `dd if=/dev/zero of=/dev/null bs=64M count=1 2>/dev/null; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 0.2`}).Result
	if res.Wall < 200*time.Millisecond || res.UserCPU+res.SystemCPU <= 0 || res.UserCPU > res.Wall || res.PeakMemory < 64<<20 {
		t.Errorf("got %+v", res)
	}
}

func testDescriptors(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	// ls itself opens the directory: that is 3.
	size := &sandpit.TerminalSize{Rows: 24, Cols: 80}
	notStarted(t, sb, sandpit.Command{Argv: []string{"no-such-program-here"}})
	for name, cmd := range map[string]sandpit.Command{
		"plain":    {Argv: []string{"ls", "-1", "/proc/self/fd"}},
		"stdin":    {Argv: []string{"ls", "-1", "/proc/self/fd"}, Stdin: true},
		"terminal": {Argv: []string{"ls", "-1", "/proc/self/fd"}, Terminal: size},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Fields(command(t, sb, cmd)); !slices.Equal(got, []string{"0", "1", "2", "3"}) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// Linux opens a pipe again, by its name in /proc, only for the owner of the pipe.
func testStreamsByName(t *testing.T, e *env) {
	const script = "cat /dev/stdin && echo out >/dev/stdout && echo err >/dev/stderr"
	check := func(t *testing.T, spec sandpit.Spec, user string) {
		var out, errs written
		p := start(t, e.sandbox(t, spec), sandpit.Command{Script: script, User: user, Stdin: true, Stdout: &out, Stderr: &errs})
		if _, err := io.WriteString(p.Stdin(), "in\n"); err != nil {
			t.Error(err)
		}
		if err := p.Stdin().Close(); err != nil {
			t.Error(err)
		}
		if res := wait(t, p); !res.Success() || out.String() != "in\nout\n" || errs.String() != "err\n" {
			t.Errorf("got %q and %q, %+v", &out, &errs, res)
		}
	}
	check(t, sandpit.Spec{}, "")
	for _, user := range []string{"root", "nobody", "1234:56"} {
		t.Run(user, func(t *testing.T) {
			e.need(t, feature.Users)
			check(t, sandpit.Spec{User: user}, "")
			check(t, sandpit.Spec{User: "root"}, user)
		})
	}
}

// noise returns n bytes that do not repeat soon.
func noise(n int) []byte {
	b := make([]byte, n)
	fillNoise(b, 0)
	return b
}
