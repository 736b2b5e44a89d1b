package guest_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cmdline"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// run runs a command to its end.
func run(t testing.TB, c *client.Client, cmd sandpit.Command) (res sandpit.Result, stdout, stderr string) {
	t.Helper()
	var o, e bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &o
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &e
	}
	ctx := within(t, 2*time.Minute)
	p, err := c.Start(ctx, cmd)
	if err != nil {
		t.Fatal(err)
	}
	res, err = p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return res, o.String(), e.String()
}

// notStarted starts a command whose program can't be started.
func notStarted(t testing.TB, c *client.Client, cmd sandpit.Command) sandpit.StartError {
	t.Helper()
	_, err := c.Start(within(t, 2*time.Minute), cmd)
	var failed *sandpit.StartError
	if !errors.As(err, &failed) {
		t.Fatalf("got %v, want a StartError", err)
	}
	return *failed
}

// begin starts a command and returns when it has written a line.
func begin(t testing.TB, c *client.Client, cmd sandpit.Command) (sandpit.Process, *lines) {
	t.Helper()
	l := &lines{ch: make(chan string, 100)}
	cmd.Stdout = l
	p, err := c.Start(within(t, time.Minute), cmd)
	if err != nil {
		t.Fatal(err)
	}
	return p, l
}

// lines is a writer that hands lines on.
type lines struct {
	rest string
	ch   chan string
}

func (l *lines) Write(b []byte) (int, error) {
	l.rest += string(b)
	for {
		line, rest, ok := strings.Cut(l.rest, "\n")
		if !ok {
			return len(b), nil
		}
		l.ch <- strings.TrimSuffix(line, "\r")
		l.rest = rest
	}
}

func (l *lines) next(t testing.TB) string {
	t.Helper()
	select {
	case s := <-l.ch:
		return s
	case <-time.After(time.Minute):
		t.Fatal("no output for a minute")
		return ""
	}
}

func wait(t testing.TB, p sandpit.Process) sandpit.Result {
	t.Helper()
	res, err := p.Wait(within(t, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// gone waits until no process has the marker in its command line.
func gone(t testing.TB, marker string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		left := find(marker)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("still alive: %q", left)
			return
		}
	}
}

// find returns the processes that have the marker in their command line.
func find(marker string) (out []string) {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range paths {
		if b, err := os.ReadFile(p); err == nil && bytes.Contains(b, []byte(marker)) {
			out = append(out, p+" "+string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
		}
	}
	return out
}

// marker is a number of seconds that nobody else sleeps for.
func marker(t testing.TB) string {
	sum := sha256.Sum256([]byte(t.Name() + strconv.Itoa(os.Getpid())))
	return fmt.Sprintf("7%d.%d", 1000+int(sum[0])*256+int(sum[1]), 1000+int(sum[2])*256+int(sum[3]))
}

func TestOutputAndExitCode(t *testing.T) {
	c := start(t)
	res, stdout, stderr := run(t, c, sandpit.Command{Script: "echo out; echo err >&2; exit 3"})
	if stdout != "out\n" || stderr != "err\n" || res.ExitCode != 3 || res.StdoutBytes != 4 || res.StderrBytes != 4 {
		t.Errorf("got %q, %q, %+v", stdout, stderr, res)
	}
	if res.Wall <= 0 || res.PeakMemory <= 0 {
		t.Errorf("no wall time or peak memory: %+v", res)
	}
}

func TestHowProgramsEnd(t *testing.T) {
	c := start(t)
	dir := t.TempDir()
	plain, text := dir+"/plain", dir+"/text"
	for path, mode := range map[string]os.FileMode{plain: 0o644, text: 0o755} {
		if err := os.WriteFile(path, []byte("\x00no program"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name        string
		cmd         sandpit.Command
		code, sig   int
		why         string
		programOnly bool
	}{
		{name: "zero", cmd: sandpit.Command{Argv: []string{"true"}}},
		{name: "255", cmd: sandpit.Command{Script: "exit 255"}, code: 255},
		{name: "killed", cmd: sandpit.Command{Script: "kill -9 $$"}, code: 137, sig: 9},
		{name: "terminated", cmd: sandpit.Command{Script: "kill $$"}, code: 143, sig: 15},
		{name: "not in PATH", cmd: sandpit.Command{Argv: []string{"no-such-program"}}, code: 127, why: "not found in PATH"},
		{name: "no such path", cmd: sandpit.Command{Argv: []string{"/no/such/program"}}, code: 127, why: "no such file"},
		{name: "not executable", cmd: sandpit.Command{Argv: []string{plain}}, code: 126, why: "permission denied"},
		{name: "no format", cmd: sandpit.Command{Argv: []string{text}}, code: 126, why: "exec format"},
		{name: "a directory", cmd: sandpit.Command{Argv: []string{"/usr"}}, code: 126, why: "permission denied"},
		{name: "no working directory", cmd: sandpit.Command{Argv: []string{"true"}, Dir: "/nowhere/at/all"}, code: 126, why: "/nowhere/at/all"},
		{name: "one argument too long", cmd: sandpit.Command{Argv: []string{"true", strings.Repeat("x", 200<<10)}}, code: 126, why: "too long"},
		{name: "all arguments too long", cmd: sandpit.Command{Argv: append([]string{"true"}, manyArgs(7<<20)...)}, code: 126, why: "too long"},
		{name: "longer than a request", cmd: sandpit.Command{Argv: append([]string{"true"}, manyArgs(9<<20)...)}, code: 126, why: "too long"},
		{name: "1 MiB of arguments", cmd: sandpit.Command{Argv: append([]string{"true"}, manyArgs(1<<20)...)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.why != "" {
				if failed := notStarted(t, c, tc.cmd); failed.ExitCode != tc.code || !strings.Contains(failed.Reason, tc.why) {
					t.Errorf("got %+v", failed)
				}
				return
			}
			if res, _, _ := run(t, c, tc.cmd); res.ExitCode != tc.code || res.Signal != tc.sig {
				t.Errorf("got %+v", res)
			}
		})
	}
}

func manyArgs(bytes int) []string {
	const size = 100 << 10
	var out []string
	for ; bytes > 0; bytes -= size {
		out = append(out, strings.Repeat("a", min(size, bytes)))
	}
	return out
}

// An output that nobody takes holds up itself alone.
func TestOutputsAreApart(t *testing.T) {
	c := start(t)
	open := make(chan struct{})
	var got atomic.Int64
	stuck := writerFunc(func(b []byte) (int, error) {
		<-open
		got.Add(int64(len(b)))
		return len(b), nil
	})
	const much = 8 << 20
	free := make(chan struct{})
	var n int
	other := writerFunc(func(b []byte) (int, error) {
		if n += len(b); n == much {
			close(free)
		}
		return len(b), nil
	})
	ctx := within(t, 2*time.Minute)
	p, err := c.Start(ctx, sandpit.Command{Script: fmt.Sprintf("head -c %d /dev/zero & head -c %d /dev/zero >&2; wait", much, much), Stdout: stuck, Stderr: other})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-free:
	case <-ctx.Done():
		t.Fatal("it holds up the other one")
	}
	close(open)
	if res, err := p.Wait(ctx); err != nil || !res.Success() || got.Load() != much {
		t.Errorf("got %+v, %v, %d bytes", res, err, got.Load())
	}
}

// An output with a window waits until it was passed on, and no longer once all is.
func TestDetachedWindows(t *testing.T) {
	c := start(t)
	ctx := within(t, 2*time.Minute)
	const much = 8 << 20
	var stdout, stderr atomic.Int64
	count := func(n *atomic.Int64) writerFunc {
		return func(b []byte) (int, error) {
			n.Add(int64(len(b)))
			return len(b), nil
		}
	}
	p, err := c.StartDetached(ctx, sandpit.Command{
		Script: fmt.Sprintf("head -c %d /dev/zero & head -c %d /dev/zero >&2; wait", much, client.PassWindow),
		Stdout: count(&stdout), Stderr: count(&stderr),
	}, client.Detach{Hold: true, Windows: true})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "one has come, and the other as far as it may", func() bool {
		return stderr.Load() == client.PassWindow && stdout.Load() >= client.PassWindow
	})
	p.Passed(false, client.PassWindow)
	testkit.Until(t, "as much comes again", func() bool { return stdout.Load() >= 2*client.PassWindow })
	if n := stdout.Load(); n > client.PassWindow+client.MaxUnpassed {
		t.Errorf("%d bytes came", n)
	}
	p.PassedAll()
	if res, err := p.Wait(ctx); err != nil || !res.Success() || stdout.Load() != much || stderr.Load() != client.PassWindow {
		t.Errorf("got %+v, %v, %d and %d bytes", res, err, stdout.Load(), stderr.Load())
	}

	// Without its host it waits for nobody.
	p, err = c.StartDetached(ctx, sandpit.Command{Script: fmt.Sprintf("head -c %d /dev/zero", much), Stdout: count(&stdout)}, client.Detach{Hold: true, Windows: true})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "as much comes as may", func() bool { return stdout.Load() >= much+client.PassWindow })
	p.Detach()
	again, err := c.Attach(ctx, p.Ref(), 0, client.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := again.Wait(ctx); err != nil || !res.Success() || res.StdoutBytes != much {
		t.Errorf("got %+v, %v", res, err)
	}
}

func TestWhatMakesNoSense(t *testing.T) {
	c := start(t)
	for name, cmd := range map[string]sandpit.Command{
		"nothing":              {},
		"both":                 {Argv: []string{"true"}, Script: "true"},
		"NUL in an argument":   {Argv: []string{"echo", "a\x00b"}},
		"NUL in the directory": {Argv: []string{"true"}, Dir: "/\x00"},
		"no equals sign":       {Argv: []string{"true"}, Env: []string{"A"}},
		"no name":              {Argv: []string{"true"}, Env: []string{"=A"}},
		"NUL in a variable":    {Argv: []string{"true"}, Env: []string{"A=\x00"}},
		"unknown user":         {Argv: []string{"true"}, User: "no-such-user"},
		"odd user":             {Argv: []string{"true"}, User: "1:"},
		"a huge uid":           {Argv: []string{"true"}, User: "4294967295"},
		"negative timeout":     {Argv: []string{"true"}, Timeout: -1},
	} {
		if _, err := c.Start(t.Context(), cmd); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	if _, err := c.Start(t.Context(), sandpit.Command{Argv: []string{"true"}, User: "no-such-user"}); err == nil || !strings.Contains(err.Error(), `"no-such-user"`) {
		t.Errorf("got %v", err)
	}
}

func TestEnvironment(t *testing.T) {
	g := newGuest(t)
	conf := config()
	conf.Env = []string{"A=1", "B=1", "HOME=/somewhere"}
	c := g.client(client.Options{Config: conf})
	odd := "C= x\ny=\xff'\"$"
	_, out, _ := run(t, c, sandpit.Command{Argv: []string{"env", "-0"}, Env: []string{"B=2", odd, "B=3", "EMPTY="}})
	got := map[string]string{}
	for e := range strings.SplitSeq(strings.TrimSuffix(out, "\x00"), "\x00") {
		k, v, _ := strings.Cut(e, "=")
		if _, twice := got[k]; twice {
			t.Errorf("%s is there twice", k)
		}
		got[k] = v
	}
	for k, v := range map[string]string{"A": "1", "B": "3", "C": odd[2:], "EMPTY": "", "HOME": "/somewhere", "LANG": "C.UTF-8"} {
		if w, ok := got[k]; !ok || w != v {
			t.Errorf("%s = %q, want %q", k, w, v)
		}
	}
	if _, ok := got["TERM"]; ok || got["PATH"] == "" || got["USER"] == "" {
		t.Errorf("got %q", got)
	}
	// The program is looked for in the PATH of the process.
	if failed := notStarted(t, c, sandpit.Command{Argv: []string{"true"}, Env: []string{"PATH=/nowhere"}}); failed.ExitCode != 127 {
		t.Errorf("got %+v, want 127", failed)
	}
}

func TestWorkingDirectory(t *testing.T) {
	g := newGuest(t)
	conf := config()
	conf.Dir = "/usr"
	c := g.client(client.Options{Config: conf})
	for dir, want := range map[string]string{"": "/usr", "/tmp": "/tmp", "bin": "/usr/bin"} {
		if _, out, _ := run(t, c, sandpit.Command{Argv: []string{"/bin/pwd", "-L"}, Dir: dir}); strings.TrimSpace(out) != want {
			t.Errorf("in %q: got %q, want %q", dir, out, want)
		}
	}
}

func TestStdin(t *testing.T) {
	c := start(t)
	if res, out, _ := run(t, c, sandpit.Command{Argv: []string{"cat"}}); out != "" || res.ExitCode != 0 {
		t.Errorf("without input: got %q, %+v", out, res)
	}

	// Much more than fits into all the buffers on the way, both ways at once.
	var out bytes.Buffer
	p, err := c.Start(t.Context(), sandpit.Command{Argv: []string{"cat"}, Stdin: true, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<19)
	if n, err := io.Copy(p.Stdin(), bytes.NewReader(want)); err != nil || n != int64(len(want)) {
		t.Fatal(n, err)
	}
	if err := p.Stdin().Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdin().Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if _, err := p.Stdin().Write([]byte("x")); err == nil {
		t.Error("a write after close succeeds")
	}
	if res := wait(t, p); res.ExitCode != 0 || !bytes.Equal(out.Bytes(), want) {
		t.Errorf("got %d bytes, %+v", out.Len(), res)
	}
}

func TestStdinOfOneWhoDoesNotRead(t *testing.T) {
	c := start(t)
	p, l := begin(t, c, sandpit.Command{Script: "exec <&-; echo closed; sleep 60", Stdin: true})
	l.next(t)
	for {
		if _, err := p.Stdin().Write(make([]byte, 4096)); err != nil {
			if !errors.Is(err, syscall.EPIPE) {
				t.Errorf("got %v, want EPIPE", err)
			}
			break
		}
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}

	// A write that waits ends with the process.
	p, _ = begin(t, c, sandpit.Command{Script: "sleep 0.3", Stdin: true})
	for {
		if _, err := p.Stdin().Write(make([]byte, 64<<10)); err != nil {
			break
		}
	}
	wait(t, p)
}

func TestOrderAndCompleteness(t *testing.T) {
	c := start(t)
	var out bytes.Buffer
	slow := writerFunc(func(b []byte) (int, error) {
		if out.Len()%(1<<20) < len(b) {
			time.Sleep(5 * time.Millisecond)
		}
		return out.Write(b)
	})
	res, _, stderr := run(t, c, sandpit.Command{
		Script: "i=0; while [ $i -lt 2000 ]; do echo line $i; echo $i >&2; i=$((i+1)); done; seq 1000000",
		Stdout: slow,
	})
	var want, wantErr strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&want, "line %d\n", i)
		fmt.Fprintf(&wantErr, "%d\n", i)
	}
	for i := range 1_000_000 {
		fmt.Fprintln(&want, i+1)
	}
	if out.String() != want.String() || stderr != wantErr.String() || res.StdoutBytes != int64(want.Len()) {
		t.Errorf("output is not what was written: %d bytes of %d, %d of %d", out.Len(), want.Len(), len(stderr), wantErr.Len())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestBinaryOutput(t *testing.T) {
	c := start(t)
	_, out, _ := run(t, c, sandpit.Command{Script: `printf '\000\377\376\033[31m\r\n\n\200'`})
	if want := "\x00\xff\xfe\x1b[31m\r\n\n\x80"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

func TestFailingWriterDoesNotStopTheProcess(t *testing.T) {
	c := start(t)
	res, _, stderr := run(t, c, sandpit.Command{
		Script: "seq 1000000; echo end >&2",
		Stdout: writerFunc(func([]byte) (int, error) { return 0, io.ErrShortWrite }),
	})
	if res.ExitCode != 0 || stderr != "end\n" || res.StdoutBytes != 6888896 {
		t.Errorf("got %+v, %q", res, stderr)
	}
}

func TestOutputLimit(t *testing.T) {
	g := newGuest(t)
	conf := config()
	conf.Output = 1000
	c := g.client(client.Options{Config: conf})
	for _, tc := range []struct{ asked, kept int64 }{{0, 1000}, {10, 10}, {5000, 1000}} {
		res, out, stderr := run(t, c, sandpit.Command{Script: "head -c 100000 /dev/zero; echo done >&2; exit 4", OutputLimit: tc.asked})
		kept := int64(len(out) + len(stderr))
		if kept != tc.kept || !res.Truncated || res.StdoutBytes != 100000 || res.StderrBytes != 5 || res.DroppedBytes != 100005-kept || res.ExitCode != 4 {
			t.Errorf("limit %d: kept %d, %+v", tc.asked, kept, res)
		}
	}
	if res, out, _ := run(t, c, sandpit.Command{Script: "head -c 1000 /dev/zero"}); len(out) != 1000 || res.Truncated {
		t.Errorf("exactly the limit: %d, %+v", len(out), res)
	}
}

func TestExitIsReportedAtOnce(t *testing.T) {
	c := start(t)
	m := marker(t)
	p, l := begin(t, c, sandpit.Command{Script: "sleep " + m + " & echo started; exit 5"})
	if l.next(t) != "started" {
		t.Error("no output")
	}
	if res := wait(t, p); res.ExitCode != 5 {
		t.Errorf("got %+v", res)
	}
	if len(find(m)) == 0 {
		t.Error("the child has not survived")
	}
	// It is killed together with what started it, which has exited.
	if err := p.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	gone(t, m)
	if err := p.Kill(t.Context()); err != nil {
		t.Errorf("second kill: %v", err)
	}
	if err := p.Signal(t.Context(), syscall.SIGTERM); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("signal after exit: got %v, want ErrNotFound", err)
	}
}

func TestEndlessChildDoesNotHoldUpTheExit(t *testing.T) {
	c := start(t)
	file := t.TempDir() + "/alive"
	res, _, _ := run(t, c, sandpit.Command{Script: "{ yes | head -c 100000000; echo x >" + file + "; } & sleep 0.1; exit 6"})
	if res.ExitCode != 6 {
		t.Errorf("got %+v", res)
	}
	// Nobody listens to the child any more, but it does not die of it.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the child was stopped by its output")
		}
	}
}

// What a program may do to escape its kill. Each prints a line when it is ready.
func fugitives(m string) map[string]string {
	return map[string]string{
		"plain":          "echo ready; sleep " + m,
		"ignores TERM":   "trap '' TERM HUP INT; echo ready; while :; do sleep " + m + "; done",
		"new session":    "setsid sh -c 'echo ready; exec sleep " + m + "'",
		"double fork":    "(setsid sh -c 'sleep " + m + " & sleep " + m + " & wait' >/dev/null 2>&1 &) ; echo ready; sleep " + m,
		"nohup":          "nohup sleep " + m + " >/dev/null 2>&1 & echo ready; wait",
		"stopped":        "sh -c 'sleep " + m + " & kill -STOP $$' & sleep 0.1; echo ready; kill -STOP $$",
		"keeps spawning": "spawn() { while :; do sleep " + m + " & setsid sleep " + m + " & wait -n 2>/dev/null || sleep 0.01; done; }; n=0; while [ $n -lt 20 ]; do sleep " + m + " & n=$((n+1)); done; echo ready; (while :; do (sleep " + m + " &) ; sleep 0.005; done)",
	}
}

func TestTimeoutKillsTheWholeTree(t *testing.T) {
	testkit.NeedFull(t, "it waits for five seconds")
	c := start(t)
	m := marker(t)
	for name, script := range fugitives(m) {
		t.Run(name, func(t *testing.T) {
			// A busy machine may not let it come to its tricks at first.
			ready := false
			for timeout := 700 * time.Millisecond; !ready && timeout < time.Minute; timeout *= 3 {
				res, out, stderr := run(t, c, sandpit.Command{Script: script, Timeout: timeout})
				if !res.TimedOut || res.Signal != 9 || res.ExitCode != 124 {
					t.Errorf("got %+v, %q, %q", res, out, stderr)
				}
				gone(t, m)
				ready = strings.Contains(out, "ready")
			}
			if !ready {
				t.Error("it was never ready")
			}
		})
	}
	if res, _, _ := run(t, c, sandpit.Command{Argv: []string{"true"}, Timeout: time.Minute}); res.TimedOut {
		t.Errorf("got %+v", res)
	}
}

func TestKillKillsTheWholeTree(t *testing.T) {
	c := start(t)
	m := marker(t)
	for name, script := range fugitives(m) {
		t.Run(name, func(t *testing.T) {
			p, l := begin(t, c, sandpit.Command{Script: script})
			l.next(t)
			if err := p.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			gone(t, m)
			if res := wait(t, p); res.Signal != 9 || res.TimedOut {
				t.Errorf("got %+v", res)
			}
		})
	}
}

// A zygote leaves what it starts to the guest, which has no helper for it: only the end of everything ends that.
func TestKillAll(t *testing.T) {
	for name, start := range map[string]func(testing.TB) *testGuest{"first process": newPID1, "another process": newGuest} {
		t.Run(name, func(t *testing.T) {
			c := start(t).client(client.Options{Config: config()})
			m := marker(t)
			if err := c.KillAll(t.Context()); err != nil {
				t.Errorf("without a process: %v", err)
			}
			p, err := c.StartDetached(t.Context(), sandpit.Command{Script: "(setsid sh -c 'trap \"\" TERM; sleep " + m + "; :' &); sleep " + m}, client.Detach{Zygote: true})
			if err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(time.Minute); len(find("\x00"+m+"\x00")) < 2 && time.Now().Before(deadline); {
				time.Sleep(10 * time.Millisecond)
			}
			if err := p.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(find(m)) == 0 {
				t.Error("there is nothing that a kill of the process leaves")
			}
			if err := c.KillAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			if left := find(m); len(left) > 0 {
				t.Errorf("still alive: %q", left)
			}
			if res, _, _ := run(t, c, sandpit.Command{Argv: []string{"true"}}); !res.Success() {
				t.Errorf("a command afterwards: %+v", res)
			}
		})
	}
}

func TestSignals(t *testing.T) {
	c := start(t)
	p, l := begin(t, c, sandpit.Command{Script: "trap 'echo usr1' USR1; echo ready; while :; do sleep 0.01; done"})
	l.next(t)
	if err := p.Signal(t.Context(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if got := l.next(t); got != "usr1" {
		t.Errorf("got %q", got)
	}
	for _, sig := range []syscall.Signal{0, -1, 65} {
		if err := p.Signal(t.Context(), sig); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("signal %d: got %v, want ErrInvalid", sig, err)
		}
	}
	if err := p.Resize(t.Context(), sandpit.TerminalSize{Rows: 1, Cols: 1}); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("resize without a terminal: got %v, want ErrInvalid", err)
	}
	if err := p.Signal(t.Context(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if res := wait(t, p); res.Signal != 15 {
		t.Errorf("got %+v", res)
	}

	// A whole job, as Ctrl-C reaches it.
	p, l = begin(t, c, sandpit.Command{Script: "sh -c 'trap \"echo inner; exit\" INT; echo ready; while :; do sleep 0.01; done'; echo after"})
	l.next(t)
	if err := p.(sandpit.GroupSignaler).SignalGroup(t.Context(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if got := l.next(t); got != "inner" {
		t.Errorf("got %q", got)
	}
	wait(t, p)
}

func TestTerminal(t *testing.T) {
	c := start(t)
	p, l := begin(t, c, sandpit.Command{
		Script:   "tty | sed 's/[0-9]*$//'; stty size; trap 'stty size' WINCH; trap 'echo int; exit 7' INT; echo $TERM; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; while :; do sleep 0.01; done",
		Terminal: &sandpit.TerminalSize{Rows: 33, Cols: 101},
	})
	for _, want := range []string{"/dev/pts/", "33 101", "xterm-256color", "all"} {
		if got := l.next(t); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if err := p.Resize(t.Context(), sandpit.TerminalSize{Rows: 65535, Cols: 0}); err != nil {
		t.Fatal(err)
	}
	if got := l.next(t); got != "65535 0" {
		t.Errorf("got %q after the resize", got)
	}
	if _, err := p.Stdin().Write([]byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	for got := l.next(t); got != "^Cint" && got != "int"; got = l.next(t) {
		t.Logf("then %q", got)
	}
	if res := wait(t, p); res.ExitCode != 7 || res.StderrBytes != 0 {
		t.Errorf("got %+v", res)
	}
}

func TestTerminalEndOfInput(t *testing.T) {
	c := start(t)
	for input, want := range map[string]string{"": "0", "a line\n": "7", "no newline": "10"} {
		p, l := begin(t, c, sandpit.Command{Script: "stty -echo; echo ready; wc -c", Terminal: &sandpit.TerminalSize{Rows: 24, Cols: 80}})
		l.next(t)
		if _, err := io.WriteString(p.Stdin(), input); err != nil {
			t.Fatal(err)
		}
		p.Stdin().Close()
		if got := l.next(t); got != want {
			t.Errorf("%q: got %q, want %q", input, got, want)
		}
		wait(t, p)
	}
}

func TestTerminalSignalGoesToTheForeground(t *testing.T) {
	c := start(t)
	p, l := begin(t, c, sandpit.Command{
		Argv:     []string{"bash", "-c", "set -m; trap 'echo shell' TERM; bash -c 'trap \"echo job; exit\" TERM; echo ready; while :; do sleep 0.01; done'; echo end"},
		Terminal: &sandpit.TerminalSize{Rows: 24, Cols: 80},
	})
	l.next(t)
	if err := p.Signal(t.Context(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for got := ""; got != "job"; { // bash also tells what became of its own child
		if got = l.next(t); got == "shell" || got == "end" {
			t.Fatalf("got %q, want the job in the foreground to have the signal", got)
		}
	}
	wait(t, p)
}

func TestUsers(t *testing.T) {
	testkit.NeedRoot(t, "to become other users")
	c := start(t)
	const ids = "id -u; id -g; id -G; echo $HOME; grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | sort -u -k2 | cut -f2"
	for _, tc := range []struct{ user, want string }{
		{"daemon", "1\n1\n1\n/usr/sbin\n"},
		{"daemon:0", "1\n0\n0\n/usr/sbin\n"},
		{"12345", "12345\n0\n0\n/\n"},
		{"12345:54321", "12345\n54321\n54321\n/\n"},
	} {
		_, out, stderr := run(t, c, sandpit.Command{Script: ids, User: tc.user, Env: []string{"PATH=/usr/bin:/bin"}})
		if !strings.HasPrefix(out, tc.want) {
			t.Errorf("%s: got %q, want %q (%s)", tc.user, out, tc.want, stderr)
		}
	}
	_, out, _ := run(t, c, sandpit.Command{Script: "grep -E 'Cap(Inh|Prm|Eff|Amb)|NoNewPrivs' /proc/self/status | tr -s '\\t\\n' '  '", User: "12345"})
	const zero = "0000000000000000"
	if want := "CapInh: " + zero + " CapPrm: " + zero + " CapEff: " + zero + " CapAmb: " + zero + " NoNewPrivs: 1 "; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

func TestDescriptorsOfAProcess(t *testing.T) {
	c := start(t)
	for name, cmd := range map[string]sandpit.Command{
		"plain":    {},
		"stdin":    {Stdin: true},
		"terminal": {Terminal: &sandpit.TerminalSize{Rows: 1, Cols: 1}},
	} {
		cmd.Argv = []string{"sh", "-c", "ls /proc/$$/fd; true"}
		if _, out, _ := run(t, c, cmd); strings.Join(strings.Fields(out), " ") != "0 1 2" {
			t.Errorf("%s: got %q, want descriptors 0, 1 and 2", name, out)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	c := start(t)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			var out bytes.Buffer
			p, err := c.Start(t.Context(), sandpit.Command{Script: fmt.Sprintf("echo %d; exit %d", i, i), Stdout: &out})
			if err != nil {
				t.Error(err)
				return
			}
			if res, err := p.Wait(t.Context()); err != nil || res.ExitCode != i || out.String() != fmt.Sprintf("%d\n", i) {
				t.Errorf("%d: got %+v, %q, %v", i, res, out.String(), err)
			}
		})
	}
	wg.Wait()
	ps, err := c.Processes(t.Context())
	if err != nil || len(ps) != 100 {
		t.Errorf("%d results are kept, %v", len(ps), err)
	}
	for _, p := range ps {
		if want := fmt.Sprintf("echo %d; exit %d", p.Result.ExitCode, p.Result.ExitCode); !p.Exited || p.Command[2] != want {
			t.Errorf("got %+v", p)
		}
	}
}

func TestBackgroundProcess(t *testing.T) {
	g := newGuest(t)
	c := g.client(client.Options{Config: config()})
	p, err := c.StartDetached(t.Context(), sandpit.Command{
		Script: "echo early; echo error >&2; while read -r line; do echo got $line; done; exit 9", Stdin: true,
	}, client.Detach{})
	if err != nil {
		t.Fatal(err)
	}
	ref, pid := p.Ref(), p.PID()
	c.Close()
	if _, err := p.Wait(t.Context()); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("wait on a closed connection: got %v, want ErrClosed", err)
	}

	c = g.client(client.Options{})
	ps, err := c.Processes(t.Context())
	if err != nil || len(ps) != 1 || ps[0].Ref != ref || ps[0].PID != pid || !ps[0].Background || ps[0].Exited || ps[0].Command[0] != "/bin/sh" {
		t.Fatalf("got %+v, %v", ps, err)
	}
	var stderr bytes.Buffer
	l := &lines{ch: make(chan string, 100)}
	again, err := c.Attach(t.Context(), 0, pid, client.AttachOptions{AttachOptions: sandpit.AttachOptions{Stdin: true, Stdout: l, Stderr: &stderr}})
	if err != nil {
		t.Fatal(err)
	}
	if got := l.next(t); got != "early" {
		t.Errorf("got %q", got)
	}
	if _, err := io.WriteString(again.Stdin(), "a word\n"); err != nil {
		t.Fatal(err)
	}
	if got := l.next(t); got != "got a word" {
		t.Errorf("got %q", got)
	}
	again.Stdin().Close()
	if res := wait(t, again); res.ExitCode != 9 || stderr.String() != "error\n" {
		t.Errorf("got %+v, %q", res, stderr.String())
	}

	// After its end it can still be found, with its output.
	var out bytes.Buffer
	last, err := c.Attach(t.Context(), ref, 0, client.AttachOptions{AttachOptions: sandpit.AttachOptions{Stdout: &out}})
	if err != nil {
		t.Fatal(err)
	}
	if res := wait(t, last); res.ExitCode != 9 || out.String() != "early\ngot a word\n" {
		t.Errorf("got %+v, %q", res, out.String())
	}
	if ps, err := c.Processes(t.Context()); err != nil || len(ps) != 1 || !ps[0].Exited || ps[0].Result.ExitCode != 9 {
		t.Errorf("got %+v, %v", ps, err)
	}
	if _, err := c.Attach(t.Context(), ref+1, 0, client.AttachOptions{}); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

func TestBackgroundOutputIsBounded(t *testing.T) {
	c := start(t)
	p, err := c.StartDetached(t.Context(), sandpit.Command{Script: "seq 1000000; echo the end"}, client.Detach{Keep: 10000})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if ps, err := c.Processes(t.Context()); err != nil || len(ps) == 1 && ps[0].Exited {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a process that nobody listens to does not end")
		}
	}
	var out bytes.Buffer
	again, err := c.Attach(t.Context(), p.Ref(), 0, client.AttachOptions{AttachOptions: sandpit.AttachOptions{Stdout: &out}})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, again)
	if got := out.String(); !strings.HasSuffix(got, "\n1000000\nthe end\n") || len(got) > 10000 || len(got) < 2000 {
		t.Errorf("got %d bytes", len(got))
	}
}

func TestForegroundDiesWithItsConnection(t *testing.T) {
	g := newGuest(t)
	m := marker(t)
	c := g.client(client.Options{Config: config()})
	_, l := begin(t, c, sandpit.Command{Script: fugitives(m)["double fork"]})
	l.next(t)
	c.Close()
	gone(t, m)
}

func TestEverythingDiesWithTheOwner(t *testing.T) {
	g := newGuest(t)
	m := marker(t)
	c := g.client(client.Options{Config: config()})
	p, err := c.StartDetached(t.Context(), sandpit.Command{Script: fugitives(m)["double fork"]}, client.Detach{})
	if err != nil {
		t.Fatal(err)
	}
	g.boot.Close()
	gone(t, m)
	// The last that is heard of it may be its death, or that of the guest.
	if res, err := p.Wait(within(t, time.Minute)); !errors.Is(err, sandpit.ErrClosed) && res.Signal != 9 {
		t.Errorf("got %+v, %v", res, err)
	}
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Error("the guest lives on")
	}
}

func TestStartThatIsCalledOff(t *testing.T) {
	c := start(t)
	m := marker(t)
	for d := time.Duration(0); d < 3*time.Millisecond; d += 100 * time.Microsecond {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		p, err := c.Start(ctx, sandpit.Command{Argv: []string{"sleep", m}})
		cancel()
		if err == nil {
			if err := p.Kill(t.Context()); err != nil {
				t.Error(err)
			}
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	}
	gone(t, m)
}

func TestWaitIsRepeatable(t *testing.T) {
	var calls int
	g := newGuest(t)
	c := g.client(client.Options{Config: config(), OnExit: func(r *sandpit.Result) { calls++; r.OOMKilled = true }})
	p, l := begin(t, c, sandpit.Command{Script: "echo x; read -r x; exit 2", Stdin: true})
	l.next(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	p.Stdin().Close()
	for range 3 {
		if res := wait(t, p); res.ExitCode != 2 || !res.OOMKilled {
			t.Errorf("got %+v", res)
		}
	}
	if calls != 1 {
		t.Errorf("OnExit was called %d times", calls)
	}
}

// TestPID1 tries what can be done to the first process from inside.
func TestPID1(t *testing.T) {
	g := newPID1(t)
	c := g.client(client.Options{Config: config()})
	info, err := c.Info(t.Context())
	if err != nil || info.PID != 1 {
		t.Fatalf("got %+v, %v", info, err)
	}
	t.Run("signals", func(t *testing.T) {
		// None is left to its default, which ends pid 1 when its first thread blocks
		// the signal at that moment.
		_, out, _ := run(t, c, sandpit.Command{Script: "grep -E 'SigIgn|SigCgt' /proc/1/status"})
		var kept uint64
		for line := range strings.Lines(out) {
			_, mask, _ := strings.Cut(line, ":")
			n, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			kept |= n
		}
		if want := ^uint64(1<<(unix.SIGKILL-1) | 1<<(unix.SIGSTOP-1)); kept != want {
			t.Errorf("these signals are left to their default: %x", want&^kept)
		}
		// As root, with every signal there is, several times.
		res, out, stderr := run(t, c, sandpit.Command{Argv: []string{"bash", "-c", "for n in 1 2; do for s in {1..64}; do kill -$s 1; done; done; echo done"}})
		if out != "done\n" {
			t.Fatalf("got %+v, %q, %q", res, out, stderr)
		}
		if err := c.Ping(within(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("zombies", func(t *testing.T) {
		res, _, stderr := run(t, c, sandpit.Command{Argv: []string{"bash", "-c", "for i in {1..1000}; do (true & ) ; done; exit 8"}})
		if res.ExitCode != 8 {
			t.Errorf("got %+v, %s", res, stderr)
		}
		// What has just ended is a zombie until it is waited for, so one look
		// says nothing. All these looks are within one program, whose children
		// are its shell's: the guest hears of no death in between that could
		// hide one that it has missed.
		res, out, stderr := run(t, c, sandpit.Command{
			Script:  "while grep -h ') Z ' /proc/[0-9]*/stat 2>/dev/null; do sleep 0.05; done",
			Timeout: time.Minute,
		})
		if res.ExitCode != 0 {
			t.Errorf("zombies stay: %+v, %s\n%s", res, stderr, out[max(0, len(out)-1000):])
		}
	})
	t.Run("helper killed", func(t *testing.T) {
		m := marker(t)
		p, l := begin(t, c, sandpit.Command{Script: "setsid sleep " + m + " & sleep 0.1; echo ready; kill -9 $PPID; sleep " + m})
		l.next(t)
		if res := wait(t, p); res.Signal != 9 {
			t.Errorf("got %+v", res)
		}
		gone(t, m)
	})
	t.Run("helper killed at once", func(t *testing.T) {
		// Before it could say that the program runs, or just after.
		for range 50 {
			m := marker(t)
			res, _, _ := run(t, c, sandpit.Command{Argv: []string{"sh", "-c", "kill -9 $PPID; exec sleep " + m}})
			if res.Signal != 9 || res.ExitCode != 137 {
				t.Fatalf("got %+v", res)
			}
			gone(t, m)
		}
	})
	t.Run("helper stopped", func(t *testing.T) {
		res, _, _ := run(t, c, sandpit.Command{Script: "kill -STOP $PPID; exit 1", Timeout: 300 * time.Millisecond})
		if res.ExitCode == 0 {
			t.Errorf("got %+v", res)
		}
	})
	t.Run("the memory of the guest", func(t *testing.T) {
		// Its threads, and the helper of a process, which shares its memory.
		p, l := begin(t, c, sandpit.Command{Script: "echo $$; echo $PPID; ls /proc/1/task; echo end; read x", Stdin: true})
		defer p.Stdin().Close()
		command := "/proc/" + l.next(t)
		paths := []string{"/proc/1/mem", "/proc/self/mem", "/proc/self/environ", "/proc/thread-self/maps"}
		for id := l.next(t); id != "end"; id = l.next(t) {
			paths = append(paths, "/proc/"+id+"/mem", "/proc/"+id+"/maps")
		}
		for _, path := range paths {
			if _, err := c.Files().Open(t.Context(), path, 0, 100); !errors.Is(err, os.ErrPermission) {
				t.Errorf("%s: got %v, want a refusal", path, err)
			}
		}
		// Nor that of a command, which it shared until it ran its program. The rest of a command is not the guest's.
		if _, err := c.Files().Write(t.Context(), command+"/mem", strings.NewReader("x"), sandpit.WriteOptions{InPlace: true, Offset: 1 << 20}); !errors.Is(err, os.ErrPermission) {
			t.Errorf("writing %s/mem: got %v, want a refusal", command, err)
		}
		if r, err := c.Files().Open(t.Context(), command+"/status", 0, 100); err != nil {
			t.Errorf("%s/status: %v", command, err)
		} else {
			r.Close()
		}
		for _, user := range []string{"", "12345"} {
			_, out, _ := run(t, c, sandpit.Command{Script: "cat /proc/1/environ /proc/1/mem /proc/1/maps 2>/dev/null | wc -c; ls /proc/1/fd 2>/dev/null | wc -l", User: user})
			if user != "" && out != "0\n0\n" {
				t.Errorf("user %q: got %q", user, out)
			}
		}
	})
	t.Run("dumpable", func(t *testing.T) {
		var st unix.Stat_t
		if err := unix.Stat(fmt.Sprintf("/proc/%d/environ", g.cmd.Process.Pid), &st); err != nil || st.Uid != 0 {
			t.Errorf("got %+v, %v", st, err)
		}
	})
}

// Command lines are as long as they may be, and the list still comes in frames
// that may be sent.
func TestLongList(t *testing.T) {
	c := start(t)
	argv := []string{"sh", "-c", "exit 0"}
	for range 32 {
		argv = append(argv, strings.Repeat("a", 1000))
	}
	for range 200 {
		p, err := c.StartDetached(t.Context(), sandpit.Command{Argv: argv}, client.Detach{})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, p)
	}
	ps, err := c.Processes(t.Context())
	if err != nil || len(ps) != 200 {
		t.Errorf("%d processes, %v", len(ps), err)
	}
	listed, _ := cmdline.Clip(argv)
	for _, p := range ps {
		if !p.Exited || !p.Cut || !slices.Equal(p.Command, listed) {
			t.Fatalf("got %+v", p)
		}
	}
}
