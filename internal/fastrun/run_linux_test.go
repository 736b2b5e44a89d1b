package fastrun_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func TestResults(t *testing.T) { bothWays(t, testResults) }

func testResults(t *testing.T, s *place) {
	for name, tt := range map[string]struct {
		cmd            sandpit.Command
		code, signal   int
		stdout, stderr string
		startError     bool
	}{
		"success":     {cmd: sandpit.Command{Argv: []string{"true"}}},
		"exit code":   {cmd: sandpit.Command{Script: "echo out; echo err >&2; exit 3"}, code: 3, stdout: "out\n", stderr: "err\n"},
		"a signal":    {cmd: sandpit.Command{Script: "kill -TERM $$"}, code: 143, signal: 15},
		"not found":   {cmd: sandpit.Command{Argv: []string{"no-such-program"}}, code: 127, startError: true},
		"not allowed": {cmd: sandpit.Command{Argv: []string{"/etc/passwd"}}, code: 126, startError: true},
		"environment": {cmd: sandpit.Command{Script: "echo $A", Env: []string{"A=b c"}}, stdout: "b c\n"},
		"no input":    {cmd: sandpit.Command{Argv: []string{"wc", "-c"}}, stdout: "0\n"},
		"a terminal":  {cmd: sandpit.Command{Script: "test -t 1 && stty size", Terminal: &sandpit.TerminalSize{Rows: 33, Cols: 77}}, stdout: "33 77\r\n"},
		"out of time": {cmd: sandpit.Command{Argv: []string{"sleep", "1000"}, Timeout: 50 * time.Millisecond}, code: 124, signal: 9},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			tt.cmd.Stdout, tt.cmd.Stderr = &stdout, &stderr
			if tt.startError {
				var failed *sandpit.StartError
				if _, err := s.open().Start(t.Context(), tt.cmd); !errors.As(err, &failed) || failed.ExitCode != tt.code || failed.Reason == "" {
					t.Errorf("got %v", err)
				}
				return
			}
			p := s.start(tt.cmd)
			if told := s.box != ""; (p.ID() != "") != told || (p.PID() != 0) != told {
				t.Errorf("its id is %q and its pid %d", p.ID(), p.PID())
			}
			res := wait(t, p)
			if res.ExitCode != tt.code || res.Signal != tt.signal || res.TimedOut != (tt.cmd.Timeout > 0) {
				t.Errorf("got %+v", res)
			}
			if stdout.String() != tt.stdout || stderr.String() != tt.stderr {
				t.Errorf("got %q and %q", stdout.String(), stderr.String())
			}
			if again, err := p.Wait(t.Context()); again != res || err != nil {
				t.Errorf("asked again: %+v %v", again, err)
			}
		})
	}
}

// TestFramesAreThoseOfTheAPI reads what the server says as a client of /v1 does, which knows no
// frames of types from 32 on: the start, output, a result and an end, or an end with an error.
func TestFramesAreThoseOfTheAPI(t *testing.T) {
	s := serve(t)
	s.create("box")
	place, err := fastrun.Place()
	if err != nil {
		t.Fatal(err)
	}
	run := "GET " + fastrun.RunPath + " HTTP/1.1\r\n" + fastrun.HeaderPlace + ": " + place + "\r\n"
	exec := "GET " + fastrun.ExecPath("box") + " HTTP/1.1\r\n"
	for name, tt := range map[string]struct {
		head, request string
		kinds         []byte
		code          string
	}{
		"run":         {run, `{"spec":{},"command":{"script":"echo out; exit 3"},"report":true}`, []byte{v1.FrameStarted, v1.FrameStdout, v1.FrameResult, v1.FrameEnd}, ""},
		"exec":        {exec, `{"command":{"script":"echo out; exit 3"},"report":true}`, []byte{v1.FrameStarted, v1.FrameStdout, v1.FrameResult, v1.FrameEnd}, ""},
		"failed run":  {run, `{"spec":{},"command":{"argv":["/no/such/program"]}}`, []byte{v1.FrameEnd}, "start_failed"},
		"failed exec": {exec, `{"command":{"argv":["/no/such/program"]}}`, []byte{v1.FrameEnd}, "start_failed"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("unix", filepath.Join(s.home, "server.sock"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			head := tt.head + "Host: unix\r\nConnection: Upgrade\r\nUpgrade: " + fastrun.Protocol + "\r\n" + fastrun.HeaderVersion + ": test\r\n\r\n"
			if _, err := conn.Write(v1.AppendFrame([]byte(head), fastrun.FrameRequest, []byte(tt.request))); err != nil {
				t.Fatal(err)
			}
			in := bufio.NewReader(conn)
			for line := ""; line != "\r\n"; {
				if line, err = in.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			var kinds []byte
			got := map[byte]string{}
			for {
				kind, payload, err := v1.ReadFrame(in, nil, v1.MaxFrame)
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if kind < 32 {
					kinds = append(kinds, kind)
					got[kind] = string(payload)
				}
			}
			var end v1.End
			if err := json.Unmarshal([]byte(got[v1.FrameEnd]), &end); err != nil || !bytes.Equal(kinds, tt.kinds) {
				t.Fatalf("the frames are %v, with the end %q", kinds, got[v1.FrameEnd])
			}
			if tt.code != "" {
				if end.Reason != v1.EndError || end.Error == nil || end.Error.Code != tt.code {
					t.Errorf("it ends with %+v", end)
				}
				return
			}
			var p v1.Process
			var res v1.Result
			err = errors.Join(json.Unmarshal([]byte(got[v1.FrameStarted]), &p), json.Unmarshal([]byte(got[v1.FrameResult]), &res))
			if err != nil || p.PID == 0 || got[v1.FrameStdout] != "out\n" || res.ExitCode != 3 || end.Reason != v1.EndEnded || end.Error != nil {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestReport(t *testing.T) {
	s := serve(t)
	r := &fastrun.Run{Home: s.home, Version: "test", Report: true, Spec: sandpit.Spec{Name: "box", Limits: sandpit.Limits{Disk: 8 << 20}}}
	defer r.Close()
	p, err := r.Start(t.Context(), sandpit.Command{Argv: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	info, err := r.Info(t.Context())
	if err != nil || info.Name != "box" || info.Limits.Disk != 8<<20 {
		t.Errorf("got %+v, %v", info, err)
	}
	if _, err := r.Metrics(t.Context()); err != nil {
		t.Error(err)
	}
	silent := s.start(sandpit.Command{Argv: []string{"true"}})
	wait(t, silent)
	if _, err := silent.run.Info(t.Context()); !errors.Is(err, sandpit.ErrProtocol) {
		t.Errorf("what was not asked for: %v", err)
	}
	if _, err := silent.run.Metrics(t.Context()); !errors.Is(err, sandpit.ErrUnsupported) {
		t.Errorf("what was not asked for: %v", err)
	}
}

// What the engine refuses is refused with its own words, also by the server.
func TestRefusals(t *testing.T) {
	s := serve(t)
	for name, tt := range map[string]struct {
		spec    sandpit.Spec
		workdir bool
		kind    error
	}{
		"no such image":             {spec: sandpit.Spec{Image: "dir:/no/such/directory"}, kind: sandpit.ErrNotFound},
		"too little memory":         {spec: sandpit.Spec{Limits: sandpit.Limits{Memory: 1}}, kind: sandpit.ErrInvalid},
		"no working directory":      {spec: sandpit.Spec{WorkDir: "/no/such/directory"}, workdir: true, kind: fastrun.ErrNoWorkDir},
		"the directory is a file":   {spec: sandpit.Spec{WorkDir: "/etc/passwd"}, workdir: true, kind: fastrun.ErrNotWorkDir},
		"a mount of what is not so": {spec: sandpit.Spec{Mounts: []sandpit.Mount{{Source: "/no/such/directory", Target: "/mnt"}}}, kind: sandpit.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			r := &fastrun.Run{Home: s.home, Version: "test", Spec: tt.spec, WorkDir: tt.workdir}
			defer r.Close()
			if _, err := r.Start(t.Context(), sandpit.Command{Argv: []string{"true"}}); !errors.Is(err, tt.kind) || errors.Is(err, fastrun.ErrDeclined) {
				t.Errorf("got %v, want %v", err, tt.kind)
			}
		})
	}
}

func TestStdin(t *testing.T) { bothWays(t, testStdin) }

func testStdin(t *testing.T, s *place) {
	t.Run("all of it, and its end", func(t *testing.T) {
		const size = 8 << 20
		var out testkit.Buffer
		p := s.start(sandpit.Command{Argv: []string{"wc", "-c"}, Stdin: true, Stdout: &out})
		if n, err := io.Copy(p.Stdin(), io.LimitReader(zeros{}, size)); n != size || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if err := errors.Join(p.Stdin().Close(), p.Stdin().Close()); err != nil {
			t.Error(err)
		}
		if _, err := p.Stdin().Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
			t.Errorf("writing after Close: %v", err)
		}
		if res := wait(t, p); !res.Success() || out.String() != fmt.Sprintln(size) {
			t.Errorf("got %+v, %s", res, out.String())
		}
	})
	t.Run("there and back", func(t *testing.T) {
		var out testkit.Buffer
		p := s.start(sandpit.Command{Argv: []string{"cat"}, Stdin: true, Stdout: &out})
		for _, line := range []string{"one\n", "two\n"} {
			if _, err := io.WriteString(p.Stdin(), line); err != nil {
				t.Fatal(err)
			}
			until(t, "it comes back", func() bool { return strings.HasSuffix(out.String(), line) })
		}
		_ = p.Stdin().Close()
		wait(t, p)
	})
	t.Run("a process that closes it", func(t *testing.T) {
		p := s.start(sandpit.Command{Script: "exec <&-; sleep 1000", Stdin: true})
		if n, err := io.Copy(p.Stdin(), zeros{}); err == nil {
			t.Errorf("%d bytes were taken", n)
		}
		_ = p.Kill(t.Context())
		wait(t, p)
	})
	t.Run("a process that does not read it", func(t *testing.T) {
		var out testkit.Buffer
		p := s.start(sandpit.Command{Script: "trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done", Stdin: true, Stdout: &out})
		until(t, "it is ready", func() bool { return out.String() == "ready\n" })
		wrote := make(chan error, 1)
		go func() {
			_, err := io.Copy(p.Stdin(), zeros{})
			wrote <- err
		}()
		// Signals are not behind it.
		if err := p.Signal(t.Context(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if res := wait(t, p); res.ExitCode != 7 {
			t.Errorf("got %+v", res)
		}
		if err := <-wrote; err == nil {
			t.Error("a process that has ended takes input")
		}
	})
}

func TestSignals(t *testing.T) { bothWays(t, testSignals) }

func testSignals(t *testing.T, s *place) {
	for name, tt := range map[string]struct {
		script string
		send   func(sandpit.Process) error
		code   int
	}{
		"a signal": {"trap 'exit 7' USR1; echo ready; while :; do sleep 0.02; done", func(p sandpit.Process) error {
			return p.Signal(context.Background(), syscall.SIGUSR1)
		}, 7},
		"its group": {"trap 'exit 8' INT; (trap - INT; echo ready; exec sleep 1000); exit 9", func(p sandpit.Process) error {
			return p.(*started).Process.(sandpit.GroupSignaler).SignalGroup(context.Background(), syscall.SIGINT)
		}, 8},
		"killed": {"trap '' TERM; echo ready; while :; do sleep 0.02; done", func(p sandpit.Process) error {
			return p.Kill(context.Background())
		}, 137},
	} {
		t.Run(name, func(t *testing.T) {
			var out testkit.Buffer
			p := s.start(sandpit.Command{Script: tt.script, Stdout: &out})
			until(t, "it is ready", func() bool { return out.String() == "ready\n" })
			if err := tt.send(p); err != nil {
				t.Fatal(err)
			}
			if res := wait(t, p); res.ExitCode != tt.code {
				t.Errorf("got %+v, want %d", res, tt.code)
			}
		})
	}
	t.Run("a size", func(t *testing.T) {
		var out testkit.Buffer
		p := s.start(sandpit.Command{
			Script: "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.02; done", Stdout: &out, Stdin: true,
			Terminal: &sandpit.TerminalSize{Rows: 24, Cols: 80},
		})
		until(t, "it is ready", func() bool { return strings.HasPrefix(out.String(), "ready") })
		if err := p.Resize(t.Context(), sandpit.TerminalSize{Rows: 33, Cols: 77}); err != nil {
			t.Fatal(err)
		}
		if res := wait(t, p); !res.Success() || !strings.Contains(out.String(), "33 77") {
			t.Errorf("got %+v, %q", res, out.String())
		}
	})
}

func TestLargeOutput(t *testing.T) { bothWays(t, testLargeOutput) }

func testLargeOutput(t *testing.T, s *place) {
	const size = 32 << 20
	var stdout, stderr counter
	p := s.start(sandpit.Command{Script: fmt.Sprintf("yes abcdefg | head -c %d & yes 1234567 | head -c %d >&2; wait", size, size), Stdout: &stdout, Stderr: &stderr})
	if res := wait(t, p); !res.Success() || res.StdoutBytes != size || res.StderrBytes != size {
		t.Errorf("got %+v", res)
	}
	// Whole lines, of one stream each: eight bytes, of which a few are looked at.
	if stdout.bytes != size || stderr.bytes != size || stdout.strange != "" || stderr.strange != "" {
		t.Errorf("%d and %d bytes have come, with %q and %q", stdout.bytes, stderr.bytes, stdout.strange, stderr.strange)
	}
}

// counter counts, and keeps what is not one of the two lines above at its place.
type counter struct {
	bytes   int
	strange string
}

func (c *counter) Write(p []byte) (int, error) {
	for i, b := range p {
		at := (c.bytes + i) % 8
		if b != "abcdefg\n"[at] && b != "1234567\n"[at] {
			c.strange = string(b)
		}
	}
	c.bytes += len(p)
	return len(p), nil
}

// An output that nobody takes does not hold up the other one.
func TestOutputsAreApart(t *testing.T) { bothWays(t, testOutputsAreApart) }

func testOutputsAreApart(t *testing.T, s *place) {
	const much = 8 << 20
	for _, first := range []bool{true, false} {
		stuck := newValve()
		var other testkit.Buffer
		cmd := sandpit.Command{Stdout: stuck, Stderr: &other, Script: fmt.Sprintf("head -c %d /dev/zero & head -c %d /dev/zero >&2; echo free >&2; wait", much, much)}
		if !first {
			cmd.Stdout, cmd.Stderr, cmd.Script = cmd.Stderr, cmd.Stdout, "exec 3>&1 1>&2 2>&3; "+cmd.Script
		}
		p := s.start(cmd)
		until(t, "all of it comes", func() bool { return strings.HasSuffix(other.String(), "free\n") })
		close(stuck.open)
		if res := wait(t, p); !res.Success() || stuck.got != much {
			t.Errorf("got %+v, %d bytes", res, stuck.got)
		}
	}
}

// Output that nobody takes holds the process up, and nothing else.
func TestOutputThatNobodyTakes(t *testing.T) { bothWays(t, testOutputThatNobodyTakes) }

func testOutputThatNobodyTakes(t *testing.T, s *place) {
	const much = 8 << 20
	t.Run("input goes on", func(t *testing.T) {
		stuck := newValve()
		var counted testkit.Buffer
		p := s.start(sandpit.Command{
			Script: fmt.Sprintf("head -c %d /dev/zero & wc -c >/tmp/count; wait; cat /tmp/count >&2", much), Stdin: true, Stdout: stuck, Stderr: &counted,
		})
		if n, err := io.Copy(p.Stdin(), io.LimitReader(zeros{}, much)); n != much || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		_ = p.Stdin().Close()
		close(stuck.open)
		if res := wait(t, p); !res.Success() || stuck.got != much || counted.String() != fmt.Sprintln(much) {
			t.Errorf("got %+v, %d bytes, %s", res, stuck.got, counted.String())
		}
	})
	t.Run("a signal goes on", func(t *testing.T) {
		stuck := newValve()
		p := s.start(sandpit.Command{Script: "trap 'exit 7' TERM; head -c 8000000 /dev/zero & while :; do sleep 0.02; done", Stdout: stuck})
		// Whether it has come to the trap or not, it ends.
		if err := p.Signal(t.Context(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		close(stuck.open)
		if res := wait(t, p); res.ExitCode != 7 && res.ExitCode != 143 {
			t.Errorf("got %+v", res)
		}
	})
	t.Run("who waits can leave", func(t *testing.T) {
		stuck := newValve()
		defer close(stuck.open)
		word := seconds(87101)
		p := s.start(sandpit.Command{Script: "head -c 8000000 /dev/zero; : " + word, Stdout: stuck})
		until(t, "it runs", func() bool { return runs(word) })
		p.leave()
		if _, err := p.end(t); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		until(t, "the command is gone", func() bool { return !runs(word) })
	})
	t.Run("who fails takes nothing more, and the command ends", func(t *testing.T) {
		var after testkit.Buffer
		p := s.start(sandpit.Command{Script: fmt.Sprintf("head -c %d /dev/zero; echo after >&2", much), Stdout: failing{}, Stderr: &after})
		if res := wait(t, p); !res.Success() || after.String() != "after\n" {
			t.Errorf("got %+v, %q", res, after.String())
		}
	})
}

// A client that goes takes its sandbox with it, at any moment.
func TestClientThatGoes(t *testing.T) {
	t.Run("while it runs", func(t *testing.T) { bothWays(t, testClientThatGoes) })
	s := serve(t)
	t.Run("while it is made", func(t *testing.T) {
		var all sync.WaitGroup
		word := seconds(87202)
		for n := range 20 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*time.Millisecond)
				defer cancel()
				r := &fastrun.Run{Home: s.home, Version: "test"}
				defer r.Close()
				p, err := r.Start(ctx, sandpit.Command{Argv: []string{"sleep", word}})
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, fastrun.ErrDeclined) {
						t.Errorf("starting: %v", err)
					}
					return
				}
				if _, err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("waiting: %v", err)
				}
			})
		}
		all.Wait()
		until(t, "the commands are gone", func() bool { return !runs(word) })
	})
}

func testClientThatGoes(t *testing.T, s *place) {
	var out testkit.Buffer
	word := seconds(87201)
	p := s.start(sandpit.Command{Script: "echo ready; sleep " + word + " & sleep " + word, Stdout: &out})
	until(t, "it is ready", func() bool { return out.String() == "ready\n" && runs(word) })
	p.run.Close()
	until(t, "the command is gone", func() bool { return !runs(word) })
	if _, err := p.end(t); err == nil {
		t.Error("it has a result")
	}
}

// A command that is moved to the background outlives its client, whatever that does not
// read. One in a sandbox made for it can't be moved.
func TestBackground(t *testing.T) {
	t.Run("run", func(t *testing.T) {
		s := serve(t)
		var out testkit.Buffer
		p := s.start(sandpit.Command{Script: "echo ready; exec sleep 1000", Stdout: &out})
		until(t, "it is ready", func() bool { return out.String() == "ready\n" })
		if err := p.Process.(sandpit.Backgrounder).Background(t.Context()); !errors.Is(err, sandpit.ErrUnsupported) {
			t.Errorf("got %v", err)
		}
		p.run.Close()
		_, _ = p.end(t)
	})
	t.Run("exec", func(t *testing.T) {
		s := serve(t)
		sb := s.create("box")
		read, write := io.Pipe() // nobody reads on
		defer read.Close()
		p := s.start(sandpit.Command{Script: "yes | head -c 10000000; echo over >&2; read x; exit $x", Stdin: true, Stdout: write, Stderr: write})
		if _, err := io.ReadFull(read, make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
		if err := p.Process.(sandpit.Backgrounder).Background(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.run.Close()
		_ = read.Close()
		if _, err := p.end(t); err == nil {
			t.Error("it has a result")
		}
		var errs testkit.Buffer
		again, err := sb.Attach(t.Context(), p.ID(), sandpit.AttachOptions{Stderr: &errs, Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		until(t, "it goes on", func() bool { return errs.String() == "over\n" })
		if _, err := io.WriteString(again.Stdin(), "5\n"); err != nil {
			t.Fatal(err)
		}
		if res, err := again.Wait(t.Context()); err != nil || res.ExitCode != 5 {
			t.Errorf("got %+v, %v", res, err)
		}
		procs, err := sb.Processes(t.Context())
		if err != nil || len(procs) != 1 || !procs[0].Background || !procs[0].Stdin {
			t.Errorf("it is listed as %+v, %v", procs, err)
		}
	})
}

// A server that is asked to end finishes what it runs.
func TestServerThatEnds(t *testing.T) {
	s := serve(t)
	var out testkit.Buffer
	p := s.start(sandpit.Command{Script: "echo ready; read line; echo $line; exit 4", Stdin: true, Stdout: &out})
	until(t, "it is ready", func() bool { return out.String() == "ready\n" })
	ended := make(chan struct{})
	go func() {
		s.stop()
		close(ended)
	}()
	until(t, "the server takes nothing new", func() bool {
		r := &fastrun.Run{Home: s.home, Version: "test"}
		defer r.Close()
		_, err := r.Start(t.Context(), sandpit.Command{Argv: []string{"true"}})
		if err != nil && !errors.Is(err, fastrun.ErrDeclined) {
			t.Fatalf("while it ends: %v", err)
		}
		return err != nil
	})
	if _, err := io.WriteString(p.Stdin(), "last\n"); err != nil {
		t.Fatal(err)
	}
	if res := wait(t, p); res.ExitCode != 4 || out.String() != "ready\nlast\n" {
		t.Errorf("got %+v, %q", res, out.String())
	}
	<-ended
}

// What a server would do otherwise it does not do.
func TestDeclined(t *testing.T) {
	s := serve(t)
	for name, r := range map[string]*fastrun.Run{
		"another version":      {Home: s.home, Version: "other"},
		"no version at all":    {Home: s.home, Version: "a\r\nb"},
		"no server":            {Home: t.TempDir(), Version: "test"},
		"no data directory":    {Home: filepath.Join(t.TempDir(), "none"), Version: "test"},
		"a long name":          {Home: filepath.Join(t.TempDir(), strings.Repeat("long/", 40)), Version: "test"},
		"text JSON can't hold": {Home: s.home, Version: "test", Spec: sandpit.Spec{WorkDir: "/\xff"}},
		"too large an order":   {Home: s.home, Version: "test", Spec: sandpit.Spec{Labels: map[string]string{"a": strings.Repeat("x", fastrun.MaxRequest)}}},
	} {
		if _, err := r.Start(t.Context(), sandpit.Command{Argv: []string{"true"}}); !errors.Is(err, fastrun.ErrDeclined) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOpenDeclined lists what an exec leaves to a general client.
func TestOpenDeclined(t *testing.T) {
	s := serve(t)
	sb := s.create("box")
	for name, tt := range map[string]struct{ home, version, sandbox string }{
		"another version":   {s.home, "other", "box"},
		"no version at all": {s.home, "a\r\nb", "box"},
		"no server":         {t.TempDir(), "test", "box"},
		"no such sandbox":   {s.home, "test", "nope"},
		"no name":           {s.home, "test", ""},
		"not a name":        {s.home, "test", "box/files"},
		"a parent":          {s.home, "test", ".."},
		"a query":           {s.home, "test", "box?x=y"},
		"a header":          {s.home, "test", "box HTTP/1.1\r\nHost: x"},
	} {
		if _, err := fastrun.Open(tt.home, tt.version, tt.sandbox); !errors.Is(err, fastrun.ErrDeclined) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r, err := fastrun.Open(s.home, "test", sb.ID())
	if err != nil {
		t.Fatalf("by its id: %v", err)
	}
	defer r.Close()
	// What is refused from here on is refused in the server's words.
	if _, err := r.Start(t.Context(), sandpit.Command{Argv: []string{"true"}, User: "nobody-of-this-name"}); !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), "unknown user") {
		t.Errorf("an unknown user: %v", err)
	}
}

// TestExecReport asks for the figures of a sandbox that stays.
func TestExecReport(t *testing.T) {
	s := serve(t)
	s.create("box")
	for _, report := range []bool{false, true} {
		r := s.open()
		defer r.Close()
		r.Report = report
		p, err := r.Start(t.Context(), sandpit.Command{Argv: []string{"true"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		info, err := r.Info(t.Context())
		if report != (err == nil) || report && info.Name != "box" {
			t.Errorf("report %v: %+v, %v", report, info, err)
		}
		if _, err := r.Metrics(t.Context()); report != (err == nil) {
			t.Errorf("report %v: %v", report, err)
		}
	}
}

// TestSandboxThatIsRemoved removes a sandbox under a command.
func TestSandboxThatIsRemoved(t *testing.T) {
	s := serve(t)
	sb := s.create("box")
	var out testkit.Buffer
	p := s.start(sandpit.Command{Script: "echo ready; sleep 1000", Stdout: &out})
	until(t, "it is ready", func() bool { return out.String() == "ready\n" })
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.end(t); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
