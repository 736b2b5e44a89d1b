package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// endOfRun is what RunCode has returned.
type endOfRun struct {
	sandpit.CodeResult
	err error
}

// begin runs code that prints "begun", and returns when it has. The result comes later.
func begin(t *testing.T, sb sandpit.Sandbox, code sandpit.Code) <-chan endOfRun {
	t.Helper()
	begun, ended := make(chan struct{}), make(chan endOfRun, 1)
	code.Source, code.Stdout = "print('begun', flush=True)\n"+code.Source, closer(begun)
	go func() {
		got, err := sb.RunCode(t.Context(), code)
		ended <- endOfRun{got, err}
	}()
	<-begun
	return ended
}

// value runs code and returns its result and the texts of what it displays.
func value(t *testing.T, sb sandpit.Sandbox, source string) (got sandpit.CodeResult, text, out string) {
	t.Helper()
	var printed bytes.Buffer
	got, err := sb.RunCode(t.Context(), sandpit.Code{Source: source, Stdout: &printed, Output: func(o sandpit.CodeOutput) { text += o.Text }})
	if err != nil {
		t.Fatalf("%q: %v", source, err)
	}
	return got, text, printed.String()
}

// What the code sends on its channel beside the truth neither ends its run nor another's, and fills no memory.
func TestForgedMessages(t *testing.T) {
	testkit.NeedProgram(t, "python3") // and so in the host image
	sb := create(t, newEngine(t), sandpit.Spec{})
	const find = `
import os, socket, stat, time
def channel():
  for fd in range(3, 64):
    try:
      if stat.S_ISSOCK(os.fstat(fd).st_mode):
        s = socket.socket(fileno=os.dup(fd))
        s.getpeername()
        return s
    except OSError: pass
s = channel()
`
	for name, c := range map[string]struct {
		source, ended string
		truncated     bool
	}{
		"another nonce": {`s.sendall(b'{"done":"00112233445566778899aabbccddeeff","count":9,"marked":3}\n')`, "", false},
		"many messages": {`for i in range(100): s.sendall(b'{}\n' * 10000)`, "", true},
		"many outputs":  {`for i in range(100): s.sendall(b'{"output":{"text":"x"}}\n' * 1000)`, "", true},
		"long messages": {`s.sendall(b'{}\n' * 1001 + (b'{"output":{"text":"' + b'y' * (1 << 20) + b'"}}\n') * 5)`, "", true},
		"a known nonce": {`import sys
frame = sys._getframe()
while "request" not in frame.f_locals: frame = frame.f_back
s.sendall(b'{}\n' * 1001 + b'{"x":"%s"}\n' % frame.f_locals["request"]["run"].encode())
time.sleep(1000)`, "wrote to the connection", true},
		"many mains":     {`for i in range(900): s.sendall(b'{"output":{"main":true,"text":"x"}}\n')`, "", false},
		"half a message": {`s.sendall(b'{"output":')`, "wrote to the connection", false},
		"a long message": {`s.sendall(b'{"output":{"text":"' + b'x' * (9 << 20) + b'"}}\n')`, "", true},
		"deep messages":  {`s.sendall(b'{"output":{"json":' + b'[' * 100000 + b'\n')`, "wrote to the connection", false},
		"a closed end":   {`s.shutdown(socket.SHUT_RDWR); time.sleep(1000)`, "its channel broke", false},
		"a false error":  {`s.sendall(b'{"done":"x","error":{"name":"' + b'n' * (2 << 20) + b'"}}\n')`, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			id := strings.ReplaceAll(name, " ", "-")
			if _, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: id}); err != nil {
				t.Fatal(err)
			}
			text := ""
			got, err := sb.RunCode(t.Context(), sandpit.Code{Source: find + c.source + "\n'last'", Context: id, Output: func(o sandpit.CodeOutput) { text = o.Text }})
			if err != nil || !strings.Contains(got.InterpreterEnd, c.ended) || (got.InterpreterEnd == "") != (c.ended == "") || got.Truncated != c.truncated {
				t.Errorf("%+v, %v", got, err)
			}
			if got.InterpreterEnd == "" && (got.Run != 1 || !got.Success() || (text != "'last'") != c.truncated && name != "a long message") {
				t.Errorf("%+v with %.100q", got, text)
			}
			if err := sb.RemoveContext(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
}

// What is left of a run prints into the next one, or into the log, and disturbs neither.
func TestLeftoversOfRuns(t *testing.T) {
	testkit.NeedProgram(t, "python3") // and so in the host image
	sb := create(t, newEngine(t), sandpit.Spec{})
	value(t, sb, `
import os, subprocess, threading, time
child = subprocess.Popen(["sh", "-c", "while :; do echo child; sleep 0.01; done"])
def chatter():
  while True:
    print("thread"); time.sleep(0.01)
threading.Thread(target=chatter, daemon=True).start()
if os.fork() == 0:
  while True:
    os.write(2, b"fork\n"); time.sleep(0.01)
x = 1`)
	got, text, out := value(t, sb, "for i in range(10): time.sleep(0.01); print('own', i)\nx")
	if !got.Success() || text != "1" || strings.Count(out, "own") != 10 || !strings.Contains(out, "own 9\n") {
		t.Errorf("%+v, %q, %q", got, text, out)
	}
	if err := sb.RestartContext(t.Context(), sandpit.Python); err != nil {
		t.Fatal(err)
	}
	got, _, out = value(t, sb, "import time\ntime.sleep(0.1)\nprint('alone')")
	if !got.Success() || out != "alone\n" {
		t.Errorf("after a restart: %+v, %q", got, out)
	}
}

// A run is told that its context was removed; those that wait for it fail, and so do those beyond the bound.
func TestRemovedContextsAndLongQueues(t *testing.T) {
	testkit.NeedProgram(t, "python3") // and so in the host image
	sb := create(t, newEngine(t), sandpit.Spec{})
	ended := begin(t, sb, sandpit.Code{Source: "import time\ntime.sleep(1000)"})
	const extra = 20
	errs := make(chan error, sandpit.MaxCodeRuns+extra)
	for range sandpit.MaxCodeRuns + extra {
		go func() {
			_, err := sb.RunCode(t.Context(), sandpit.Code{Source: "x = 1"})
			errs <- err
		}()
	}
	for range extra {
		if err := <-errs; !errors.Is(err, sandpit.ErrExhausted) {
			t.Errorf("beyond the bound: %v", err)
		}
	}
	if err := sb.RemoveContext(t.Context(), sandpit.Python); err != nil {
		t.Fatal(err)
	}
	if got := <-ended; got.InterpreterEnd != "the context was removed" {
		t.Errorf("%+v", got)
	}
	for range sandpit.MaxCodeRuns {
		if err := <-errs; !errors.Is(err, sandpit.ErrNotFound) {
			t.Errorf("one that waits: %v", err)
		}
	}
	if got, text, _ := value(t, sb, "'x' in globals()"); text != "False" || got.Run != 1 {
		t.Errorf("the next context: %+v, %s", got, text)
	}
	// As many runs as are allowed come one after the other.
	var all sync.WaitGroup
	for range sandpit.MaxCodeRuns {
		all.Go(func() { value(t, sb, "n = globals().get('n', 0) + 1") })
	}
	all.Wait()
	if _, text, _ := value(t, sb, "n"); text != fmt.Sprint(sandpit.MaxCodeRuns) {
		t.Errorf("%s of %d runs", text, sandpit.MaxCodeRuns)
	}
}

// A run goes on when its paused sandbox is resumed. After a stop contexts come back without their state.
func TestCodeInStoppedSandboxes(t *testing.T) {
	testkit.NeedProgram(t, "python3") // and so in the host image
	sb := create(t, newEngine(t), sandpit.Spec{})
	if _, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: "other"}); err != nil {
		t.Fatal(err)
	}
	ended := begin(t, sb, sandpit.Code{Source: "import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nx = 2"})
	if err := sb.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-ended:
		t.Errorf("in a paused sandbox ends %+v", got)
	default:
	}
	// A request for code resumes it, as others do.
	if _, err := sb.RunCode(t.Context(), sandpit.Code{Source: "x = 3", Context: "other"}); err != nil {
		t.Errorf("in a paused sandbox: %v", err)
	}
	shell(t, sb, "touch /tmp/go")
	if got := <-ended; got.err != nil || !got.Success() {
		t.Errorf("%+v", got)
	}
	if _, text, _ := value(t, sb, "x"); text != "2" {
		t.Errorf("after the pause x is %s", text)
	}
	if _, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: "own", Dir: "/usr", Env: []string{"A=b"}}); err != nil {
		t.Fatal(err)
	}
	ended = begin(t, sb, sandpit.Code{Source: "import time\ntime.sleep(1000)"})
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if got := <-ended; got.err == nil && got.InterpreterEnd == "" {
		t.Errorf("a run in a sandbox that is stopped ends with %+v", got)
	}
	if _, err := sb.RunCode(t.Context(), sandpit.Code{Source: "x"}); !errors.Is(err, sandpit.ErrState) {
		t.Errorf("in a stopped sandbox: %v", err)
	}
	if err := sb.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, text, _ := value(t, sb, "'x' in globals()")
	if text != "False" || got.StateLost != "the interpreter was started again without its state: the sandbox was stopped" {
		t.Errorf("after a start: %+v, %s", got, text)
	}
	text = ""
	got, err := sb.RunCode(t.Context(), sandpit.Code{Source: "import os\nos.getcwd(), os.environ['A']", Context: "own", Output: func(o sandpit.CodeOutput) { text = o.Text }})
	if err != nil || text != "('/usr', 'b')" || got.StateLost == "" {
		t.Errorf("after a start: %+v, %s, %v", got, text, err)
	}
}

// The policy bounds the contexts of a sandbox. Those that there are stay when it is tightened.
func TestContextsAreBounded(t *testing.T) {
	testkit.NeedProgram(t, "python3") // and so in the host image
	e := newEngine(t)
	allowing := func(n int) sandpit.Client {
		p := policy.ServerDefault()
		p.Rules.Contexts = n
		return e.As("tenant", p)
	}
	sb := create(t, allowing(2), sandpit.Spec{Name: "box"})
	for _, id := range []string{"one", "two"} {
		if _, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: id, Env: []string{"A=" + strings.Repeat("x", 100_000)}}); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(kind error, what string) {
		t.Helper()
		_, err := sb.CreateContext(t.Context(), sandpit.NewContext{})
		if !errors.Is(err, kind) || !strings.Contains(err.Error(), what) {
			t.Errorf("a context: %v", err)
		}
		if _, err = sb.RunCode(t.Context(), sandpit.Code{Source: "1"}); !errors.Is(err, kind) || !strings.Contains(err.Error(), what) {
			t.Errorf("a run that needs one: %v", err)
		}
	}
	refused(sandpit.ErrQuota, "the limit of 2 contexts of a sandbox is reached")
	if err := sb.RemoveContext(t.Context(), "two"); err != nil {
		t.Fatal(err)
	}
	value(t, sb, "1")
	var err error
	if sb, err = allowing(0).Get(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := value(t, sb, "1"); !got.Success() {
		t.Errorf("a context that is there: %+v", got)
	}
	if err := sb.RemoveContext(t.Context(), sandpit.Python); err != nil {
		t.Fatal(err)
	}
	refused(sandpit.ErrForbidden, "contexts to run code are not allowed")
}

// Another user inside can't connect to an interpreter's socket, although the name can be found.
func TestOtherUsersReachNoInterpreter(t *testing.T) {
	testkit.NeedProgram(t, "python3") // and so in the host image
	sb := create(t, newEngine(t), sandpit.Spec{User: "root"})
	value(t, sb, "x = 1")
	const connect = "import glob, socket\nfor name in glob.glob('/tmp/.sandpit-*'):\n  s = socket.socket(socket.AF_UNIX)\n  try: s.connect(name); print('connected')\n  except PermissionError: print('refused')"
	for user, want := range map[string]string{"1234:2345": "refused\n", "root": "connected\n"} {
		out, err := sandpit.Run(t.Context(), sb, sandpit.Command{Argv: []string{"python3", "-c", connect}, User: user})
		if err != nil || string(out.Stdout) != want {
			t.Errorf("%s: %s%s, %v", user, out.Stdout, out.Stderr, err)
		}
	}
	if _, text, _ := value(t, sb, "x"); text != "1" {
		t.Errorf("then x is %s", text)
	}
}

// While the guest does not answer one caller, the others of its contexts wait no longer than they want to.
func TestHungGuestHoldsNoOtherCallers(t *testing.T) {
	testkit.NeedProgram(t, "python3") // and so in the host image
	srv := newSurvivor(t)
	sb := made(t, srv.open(t), sandpit.Spec{}).(interface {
		sandpit.Sandbox
		sandpit.Coder
	})
	ended := begin(t, sb, sandpit.Code{Source: "import time\ntime.sleep(1000)"})
	signal(t, srv, sb.ID(), syscall.SIGSTOP)
	defer signal(t, srv, sb.ID(), syscall.SIGCONT)
	first := make(chan error, 1)
	go func() { first <- sb.InterruptContext(t.Context(), sandpit.Python) }()
	calls := map[string]func(context.Context) error{
		"list":      func(ctx context.Context) error { _, err := sb.Contexts(ctx); return err },
		"interrupt": func(ctx context.Context) error { return sb.InterruptContext(ctx, sandpit.Python) },
		"restart":   func(ctx context.Context) error { return sb.RestartContext(ctx, sandpit.Python) },
		"create": func(ctx context.Context) error {
			_, err := sb.CreateContext(ctx, sandpit.NewContext{ID: "other"})
			return err
		},
		"run":    func(ctx context.Context) error { _, err := sb.RunCode(ctx, sandpit.Code{Source: "1"}); return err },
		"remove": func(ctx context.Context) error { return sb.RemoveContext(ctx, "nonesuch") },
	}
	for range 3 { // in the first round the first caller may not wait yet
		for name, f := range calls {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			over := make(chan error, 1)
			go func() { over <- f(ctx) }()
			select {
			case <-over:
			case <-time.After(10 * time.Second):
				t.Fatalf("%s goes on when its caller has left", name)
			}
			cancel()
		}
	}
	select {
	case err := <-first:
		t.Errorf("the first call has ended: %v", err)
	default:
	}
	signal(t, srv, sb.ID(), syscall.SIGCONT)
	if err := <-first; err != nil && !errors.Is(err, sandpit.ErrNotFound) {
		t.Error(err)
	}
	<-ended
}
