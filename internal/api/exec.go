package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cmdline"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

func execRoutes() []Route {
	const tag = "Processes"
	frames := "Frames (" + v1.StreamType + ") have a type byte, a length of four bytes (big-endian) and a payload: 1 started (a Process), 2 stdout, 3 stderr, 4 lost (a count of bytes in eight), 5 result (a Result, the last), 6 error (an Error, the last), 7 ping, 8 input is no longer read. A client sends 16 stdin, 17 end of stdin, 18 resize (a Size), 19 signal (a Signal)."
	return []Route{
		{
			Method: http.MethodPost, Path: oneSandbox + "/exec", ID: "exec", Tag: tag, Summary: "Run a command and wait for it",
			Text: "The command is killed if the client disconnects. By default the response is JSON, sent when the command has ended. If Accept asks for it, output is streamed: as frames, or as server-sent events with the same names, which carry output as base64 in data and, if it is UTF-8, in text.  " + frames,
			In:   v1.Exec{}, Status: http.StatusOK, Out: v1.Executed{}, Other: []string{v1.StreamType, eventStream}, Guarded: true, handle: execute,
		},
		{
			Method: http.MethodGet, Path: oneSandbox + "/exec", ID: "execSocket", Tag: tag, Summary: "Run a command over a WebSocket",
			Text:   "The client's first message is a Command as text. After that each message is one frame, in both directions. Closing the socket kills the command.  " + frames,
			Status: http.StatusSwitchingProtocols, Upgrade: true, Guarded: true, late: true, handle: executeSocket,
		},
	}
}

// Bounds of a command.
const (
	maxCommand   = 10 << 20 // bytes of JSON; a command line of 8 MiB is more than execve(2) takes
	maxStdinData = 1 << 20  // bytes
	killTime     = 10 * time.Second
)

// execute runs a command in the foreground and answers as Accept asks for.
func execute(c *call) error {
	in := new(v1.Exec)
	if err := codec.Read(c.Call, in, maxCommand); err != nil {
		return err
	}
	if len(in.StdinData) > maxStdinData {
		return gate.Invalid("stdin_data is longer than 1 MiB", "use the WebSocket, or put it into a file")
	}
	if in.Stdin {
		return gate.Invalid("standard input can't be streamed to this endpoint", "use stdin_data, or the WebSocket")
	}
	if err := c.intendFor(in); err != nil {
		return err
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	cmd := in.Sandpit()
	cmd.Stdin = in.StdinData != nil
	sb, err := c.sandbox()
	if err != nil {
		return err
	}
	for _, kind := range [...]string{v1.StreamType, eventStream} {
		if c.accepts(kind) {
			return c.executeStream(sb, cmd, in.StdinData, kind)
		}
	}
	return c.executeWhole(sb, cmd, in.StdinData)
}

// executeWhole runs a command and answers when it has ended.
func (c *call) executeWhole(sb sandpit.Sandbox, cmd sandpit.Command, stdin []byte) error {
	out := &capture{c: c, stdin: int64(len(stdin))}
	cmd.Stdout, cmd.Stderr = captured{out, &out.stdout}, captured{out, &out.stderr}
	if cmd.OutputLimit <= 0 || cmd.OutputLimit > sandpit.DefaultCapture {
		cmd.OutputLimit = sandpit.DefaultCapture
	}
	began := time.Now()
	p, err := sb.Start(c.Ctx, cmd)
	if err != nil {
		return err
	}
	said := describeProcess(p, cmd, began)
	_ = c.Hold(gate.InMemory, int64(len(stdin))) // the request has become a process
	feed(p, stdin)
	res, err := c.await(p)
	if err != nil {
		return err
	}
	return c.executed(v1.Executed{Process: said, Result: v1.FromResult(res)}, out.stdout.Bytes(), out.stderr.Bytes())
}

func textOrBytes(b []byte) (string, []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return "", b
}

// executeStream runs a command and sends its output as it comes.
func (c *call) executeStream(sb sandpit.Sandbox, cmd sandpit.Command, stdin []byte, kind string) error {
	s := newStream(c, kind)
	defer s.close()
	cmd.Stdout, cmd.Stderr = output{s, v1.FrameStdout}, output{s, v1.FrameStderr}
	began := time.Now()
	s.mu.Lock() // output waits until the start has been told
	p, err := sb.Start(c.Ctx, cmd)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	_ = c.Hold(gate.InMemory, int64(len(stdin))) // the request has become a process
	s.begin()
	started, err := json.Marshal(describeProcess(p, cmd, began))
	if err == nil {
		err = s.frameLocked(v1.FrameStarted, started)
	}
	s.mu.Unlock()
	if err != nil {
		kill(p)
		return err
	}
	feed(p, stdin)
	res, err := c.await(p)
	return c.tell(s, res, err)
}

// executeSocket runs a command in the foreground over a WebSocket, whose first
// message is the command. Closing the socket kills it.
func executeSocket(c *call) error {
	if c.R.Header.Get("Upgrade") == fastrun.Protocol {
		return executeFast(c)
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	sb, err := c.sandbox()
	if err != nil {
		return err
	}
	s, err := c.accept()
	if err != nil {
		return err
	}
	defer s.conn.CloseNow() //nolint:errcheck // it is closed already when all went well
	cmd, err := s.command()
	if err != nil {
		return s.refuse(err)
	}
	cmd.Stdout, cmd.Stderr = output{s, v1.FrameStdout}, output{s, v1.FrameStderr}
	began := time.Now()
	s.mu.Lock() // output waits until the start has been told
	p, err := sb.Start(c.Ctx, cmd)
	if err != nil {
		s.mu.Unlock()
		return s.refuse(err)
	}
	_ = c.Hold(gate.InMemory, 0) // the request has become a process
	err = s.jsonLocked(v1.FrameStarted, describeProcess(p, cmd, began))
	s.mu.Unlock()
	if err != nil {
		kill(p)
		return nil
	}
	reading, stopPing := s.attend(p)
	res, err := c.await(p)
	stopPing()
	_ = c.tell(s, res, err)
	s.goodbye(reading, err)
	return nil
}

// tell sends how a process ended.
func (c *call) tell(s interface{ json(kind byte, v any) error }, res sandpit.Result, err error) error {
	if err != nil {
		status, e := codec.Describe(c.Call, err)
		c.NoteOutcome(status, e.Code, err)
		_ = s.json(v1.FrameError, e)
		return nil
	}
	if s.json(v1.FrameResult, v1.FromResult(res)) != nil {
		c.NoteOutcome(gate.StatusClientGone, "canceled", gate.ErrClientGone)
	}
	return nil
}

// await waits for a process in the foreground. When the call ends first, it is
// killed with all that it started, unless it is the server that ends: that does
// not say that nobody wants it.
func (c *call) await(p sandpit.Process) (sandpit.Result, error) {
	res, err := p.Wait(c.Ctx)
	if err == nil {
		return res, nil
	}
	if cause := context.Cause(c.Ctx); cause != nil {
		if !errors.Is(cause, gate.ErrDraining) {
			kill(p)
		}
		return res, cause
	}
	return res, err
}

// kill kills a process, whatever becomes of the call.
func kill(p sandpit.Process) {
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	_ = p.Kill(ctx) // its sandbox's lifetime is the last resort
}

// feed gives a process its whole input, beside everything else: it may not
// read it. The write ends with the process.
func feed(p sandpit.Process, stdin []byte) {
	if stdin == nil || p.Stdin() == nil {
		return
	}
	go func() {
		_, _ = p.Stdin().Write(stdin)
		_ = p.Stdin().Close()
	}()
}

// describeProcess is a process that has just been started.
func describeProcess(p sandpit.Process, cmd sandpit.Command, began time.Time) v1.Process {
	argv := cmd.Argv
	if cmd.Script != "" {
		argv = []string{"/bin/sh", "-c", cmd.Script}
	}
	argv, cut := cmdline.Clip(argv)
	return v1.Process{ID: p.ID(), PID: p.PID(), Argv: argv, ArgvCut: cut, User: cmd.User, Background: cmd.Background, Terminal: cmd.Terminal != nil, StartedAt: began}
}
