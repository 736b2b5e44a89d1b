package interpreter

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// If the shell that starts an interpreter is missing, the error names the interpreter.
func TestMissingInterpreters(t *testing.T) {
	for _, l := range languages() {
		err := missing(&sandpit.StartError{ExitCode: 127}, l.absent())
		want := l.argv[0]
		if l.name == sandpit.R {
			want = "Rscript"
		}
		if !errors.Is(err, sandpit.ErrNotFound) || !strings.Contains(err.Error(), fmt.Sprintf("%q was not found", want)) {
			t.Errorf("%s: %v", l.name, err)
		}
	}
}

// An interrupt that comes before the run has begun is not lost, and does not concern the next run.
func TestEarlyInterrupts(t *testing.T) {
	python := testkit.NeedProgram(t, "python3")
	l, err := languageOf(sandpit.Python)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	source, err := l.source(setup{Socket: socket, Nonce: "ready", Stale: []string{}, MaxLine: maxLine, Env: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, l.argv[1:]...)
	cmd.Stdin = strings.NewReader(source)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if _, err := io.ReadFull(out, make([]byte, len(markOf("ready", false)))); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	for _, early := range []bool{true, false} {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(conn)
		if _, err := in.ReadString('\n'); err != nil { // the greeting
			t.Fatal(err)
		}
		if early {
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		}
		line, _ := json.Marshal(request{Begin: "b", Run: "r", Code: "1"})
		if _, err := conn.Write(append(line, '\n')); err != nil {
			t.Fatal(err)
		}
		interrupted := false
		for {
			answer, err := in.ReadBytes('\n')
			var m message
			if err != nil || json.Unmarshal(answer, &m) != nil {
				t.Fatalf("%q, %v", answer, err)
			}
			if m.Done == "" {
				continue
			}
			interrupted = m.Error != nil && m.Error.Name == "KeyboardInterrupt"
			break
		}
		if interrupted != early {
			t.Errorf("the run is interrupted: %t, want %t", interrupted, early)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// local starts interpreters as children of the test.
type local struct {
	dir     string
	origins []Origin
	argv    [][]string
	started []*child
}

type child struct {
	sandpit.Process // of which nothing else is used
	cmd             *exec.Cmd
	stdin           io.WriteCloser
	outputs         [2]io.Reader
	ended           chan struct{}
}

func (c *child) ID() string            { return strconv.Itoa(c.cmd.Process.Pid) }
func (c *child) Stdin() io.WriteCloser { return c.stdin }
func (c *child) Kill(context.Context) error {
	_ = c.cmd.Process.Kill()
	return nil
}

func (c *child) Wait(context.Context) (sandpit.Result, error) {
	<-c.ended
	return sandpit.Result{ExitCode: c.cmd.ProcessState.ExitCode()}, nil
}

func (l *local) Start(_ context.Context, cmd sandpit.Command, o Origin) (sandpit.Process, error) {
	l.origins, l.argv = append(l.origins, o), append(l.argv, cmd.Argv)
	c := &child{cmd: exec.Command(cmd.Argv[0], cmd.Argv[1:]...), ended: make(chan struct{})}
	c.cmd.Dir = l.dir
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	for i, to := range []*io.Writer{&c.cmd.Stdout, &c.cmd.Stderr} {
		c.outputs[i], *to = io.Pipe()
	}
	l.started = append(l.started, c)
	return c, c.cmd.Start()
}

func (l *local) Follow(_ string, stdout, stderr io.Writer) (done <-chan struct{}, leave func(), err error) {
	c := l.started[len(l.started)-1]
	var passed sync.WaitGroup
	for i, to := range []io.Writer{stdout, stderr} {
		passed.Go(func() { _, _ = io.Copy(to, c.outputs[i]) })
	}
	go func() {
		_ = c.cmd.Wait()
		for _, to := range []io.Writer{c.cmd.Stdout, c.cmd.Stderr} {
			_ = to.(io.Closer).Close()
		}
		passed.Wait()
		close(c.ended)
	}()
	return c.ended, func() {}, nil
}

// The default context is forked from a zygote, unless the modules have started threads: then it has imported them itself.
func TestWarmIsForkedOrUsed(t *testing.T) {
	testkit.NeedProgram(t, "python3")
	for module, origins := range map[string][]Origin{"wave": {Zygote, Fork}, "threaded": {Zygote, Cold}} {
		l := &local{dir: t.TempDir()}
		if err := os.WriteFile(filepath.Join(l.dir, "threaded.py"), []byte("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		made, err := Warm(t.Context(), l, sandpit.Python, []string{module})
		if err != nil {
			t.Fatal(err)
		}
		left := l.started
		if module == "threaded" {
			left = l.started[1:]
		}
		if !slices.EqualFunc(made, left, func(p sandpit.Process, c *child) bool { return p == c }) || !slices.Equal(l.origins, origins) {
			t.Errorf("with the module %s the origins are %v, and %d processes are returned", module, l.origins, len(made))
		}
		is, ok := parseCommand(l.argv[len(l.argv)-1])
		if !ok || is.tag != readyTag || is.id != sandpit.Python {
			t.Errorf("with the module %s the last one is the context %+v", module, is)
		}
		for _, c := range l.started {
			_ = c.Kill(t.Context())
			_, _ = c.Wait(t.Context())
		}
		_ = os.Remove(is.socket)
	}
}

// A program that needs a file gets its source there and an input that is at its end. The shell ends as the program does, and
// leaves no file behind.
func TestOnceOfFile(t *testing.T) {
	bin, tmp := t.TempDir(), t.TempDir()
	for name, want := range map[string]string{"exit 127": "exit status 127", "kill -TERM $$": "signal: terminated", "kill -KILL $$": "signal: killed", "exit 255": "exit status 255", "true": "<nil>"} {
		if err := os.WriteFile(filepath.Join(bin, "java"), []byte("#!/bin/sh\ncat \"$1\" && cat\n"+name), 0o755); err != nil {
			t.Fatal(err)
		}
		o, _ := onceOf("java")
		cmd := exec.Command(o.argv[0], o.argv[1:]...)
		cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "TMPDIR=" + tmp}
		const class = "class A { static void main(String[] args) {} }"
		cmd.Stdin = strings.NewReader(class)
		out, err := cmd.Output()
		if string(out) != class || fmt.Sprint(err) != want {
			t.Errorf("%s: %q, %v, want %s", name, out, err, want)
		}
		if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
			t.Errorf("%s: %v is left, %v", name, left, err)
		}
	}
}

// Java code without a method main is run where there is jshell, with the lines of the code in errors. It fails if an exception or an
// error ends it.
func TestLooseJava(t *testing.T) {
	testkit.NeedProgram(t, "jshell")
	testkit.NeedFull(t, "each run of Java takes seconds")
	o, _ := onceOf("java")
	for code, want := range map[string]struct{ out, err, end string }{
		"System.out.println(1+1);": {"2\n", "", "<nil>"},
		"import java.time.*;\nint f(int x) {\n\treturn 10 / x;\n}\nclass A { int g() { return f(0); } }\n\nSystem.out.println(List.of(f(2)));\nnew A().g();\nSystem.out.println(\"no\");": {
			"[5]\n", "Exception in thread \"main\" java.lang.ArithmeticException: / by zero\n\tat line 3\n\tat line 5\n\tat line 8\n", "exit status 1",
		},
		"System.out.print(1);\n// comment\nundefined(3);": {"1", "line 3: error: cannot find symbol\n  symbol:   method undefined(int)\n  location: class \n", "exit status 1"},
		"int y =":                        {"", "line 1: error: reached end of file while parsing\n", "exit status 1"},
		"System.exit(System.in.read());": {"", "", "exit status 255"}, // at the end of its input
		"\nclass B extends Nothing {}":   {"", "line 2: error: cannot find class Nothing\n", "exit status 1"},
		"Thread main = Thread.currentThread(); new Thread(() -> { try { main.join(300); } catch (Exception e) {} System.out.println(2); }).start();": {"2\n", "", "<nil>"},
		"class A {\n\tpublic static void  main (String[] a) { System.exit(5); }\n}":                                                                  {"", "", "exit status 5"},
		"class A {\n\tpublic static void main(String[] a) { System.exit(4); }\n}":                                                                    {"", "", "exit status 4"},
	} {
		cmd := exec.Command(o.argv[0], o.argv[1:]...)
		cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
		cmd.Stdin = strings.NewReader(code)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if out, err := cmd.Output(); string(out) != want.out || stderr.String() != want.err || fmt.Sprint(err) != want.end {
			t.Errorf("%s: %q, %q, %v, want %q", code, out, &stderr, err, want)
		}
	}
}
