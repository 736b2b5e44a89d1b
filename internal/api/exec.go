package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cmdline"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

func execRoutes() []Route {
	const tag = "Processes"
	return []Route{
		{
			Method: http.MethodPost, Path: oneSandbox + "/exec", ID: execID, Tag: tag, Summary: "Run a command and wait for it", EndsWithClient: true,
			Text: "The server kills the command if the client disconnects. With an Idempotency-Key it waits a minute for the same request to be repeated. The repeated request attaches to the process. It gets the stored output (at most 1 MiB), the number of bytes that were lost, and the output that follows. Its standard input continues where the first request stopped, once the first connection has ended or stalled. After a restart of the server, a repeated request with input fails with outcome_unknown while the process runs. Only the command decides whether two requests are the same: the server skips as many bytes of the repeated stdin as the process was given, without comparing them. Standard input is empty, or stdin_data, or, of any size, the second part of a multipart body: curl --form-string 'command={\"argv\":[\"wc\",\"-c\"]}' -F stdin=@FILE. The part command comes first and is the JSON. The part stdin passes through to the command while it runs; what the command does not read is dropped. If the output is streamed, stdin: true in JSON keeps standard input open instead: other requests write to the process that started names. By default the response is JSON, sent when the command has ended. If Accept asks for it, output is streamed: as frames, or as server-sent events with the same names, which carry output as base64 in data and, if it is UTF-8, in text. Frames (" + v1.StreamType + ") have a type byte, a length of four bytes (big-endian) and a payload. " + channels,
			In:   v1.Exec{}, Form: true, Status: http.StatusOK, Out: v1.Executed{}, Other: []string{v1.StreamType, stream.Events}, Feed: processFeed(), Guarded: true, Fails: []string{errcode.StartFailed}, handle: execute,
		},
		{
			Method: http.MethodGet, Path: oneSandbox + "/exec", ID: "execSocket", Ticket: true, Tag: tag, Summary: "Run a command over a WebSocket",
			Text:   "The client's first message is a Command as text, of at most 10 MiB, within 10 seconds. Closing the socket kills the command. " + socketText + windowText,
			Query:  []Param{flag("windows", "Let no stream hold up another one; see above")},
			Status: http.StatusSwitchingProtocols, Upgrade: true, Guarded: true, selfAudited: true, Fails: []string{errcode.StartFailed, errcode.TooLarge, errcode.BodyTimeout}, handle: executeSocket,
		},
	}
}

// channels describes the bytes that begin frames and messages, and socketText WebSockets.
const (
	channels   = "The server sends 1 started (a Process, the first), 2 stdout, 3 stderr, 4 lost (a count of bytes in eight, big-endian), 5 result (a Result), 6 end (an End, the last), 7 ping, 8 stdin closed (the command reads no more input)."
	socketText = "The subprotocol is " + v1.Subprotocol + ". Each binary message is a byte, the channel, and a payload. " + channels + " The client sends 16 stdin, 17 end of stdin, 18 resize (a Size), 19 signal (a Signal), 7 ping, at most 1 MiB each. After end the socket is closed: 1000 ended, 1001 drained, 1008 key or policy, 1009 a message is too large, 1011 an error of the server, 4000 and the HTTP status for another error."
)

// windowText describes v1.Window.
const windowText = " With windows=true, the server sends at most 1 MiB of each output beyond what the client has passed on, and the client at most 256 KiB of input beyond what the process has taken. The client then sends 20 passed (a byte, 2 or 3, and a count of bytes in four, big-endian) at least for each 256 KiB, and the server 9 taken (a count of bytes in four). Without it, an output that the client does not take holds up everything behind it."

const execID = "exec"

// Bounds of a command.
const (
	maxStdinData = 1 << 20 // bytes
	killTime     = 10 * time.Second
)

// execute runs a command in the foreground and answers as Accept asks for.
func execute(c *call) error {
	body := new(v1.Exec)
	in, err := c.readExec(body)
	if err != nil {
		return err
	}
	if err := c.intendFor(body); err != nil {
		return err
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	if c.repeated != "" {
		return c.reattach(in)
	}
	cmd, err := body.Sandpit()
	if err != nil {
		return err
	}
	cmd.Stdin = in.given() || in.form == nil && body.Stdin
	sb, err := c.sandbox()
	if err != nil {
		return err
	}
	if kind := c.prefers(jsonType, v1.StreamType, stream.Events); kind != jsonType {
		return c.executeStream(sb, cmd, in, kind)
	}
	return c.executeWhole(sb, cmd, in)
}

// executeWhole runs a command and answers when it has ended.
func (c *call) executeWhole(sb sandpit.Sandbox, cmd sandpit.Command, in execInput) error {
	out := &capture{c: c, stdin: int64(len(in.data))}
	cmd.Stdout, cmd.Stderr = captured{out, &out.stdout}, captured{out, &out.stderr}
	if cmd.OutputLimit <= 0 || cmd.OutputLimit > sandpit.DefaultCapture {
		cmd.OutputLimit = sandpit.DefaultCapture
	}
	began := time.Now()
	p, err := c.begin(sb, cmd)
	if err != nil {
		return err
	}
	c.started(sb, p)
	said := describeProcess(p, cmd, began)
	_ = c.Hold(gate.InMemory, int64(len(in.data))) // the request has become a process
	rest := c.feed(p, in)
	res, err := c.await(sb, p)
	rest()
	if err != nil {
		return err
	}
	return c.executed(v1.Executed{Process: said, Result: v1.FromResult(res)}, out.stdout.Bytes(), out.stderr.Bytes())
}

// executeStream runs a command and streams its output.
func (c *call) executeStream(sb sandpit.Sandbox, cmd sandpit.Command, in execInput, kind string) error {
	c.duplex(in)
	s := stream.NewResponse(c.Call, kind)
	defer s.Close()
	p, err := c.start(s, sb, cmd, len(in.data))
	if err != nil {
		return err
	}
	rest := c.feed(p, in)
	s.Finish(c.await(sb, p))
	rest()
	return nil
}

// duplex lets the answer begin before the whole body is read.
func (c *call) duplex(in execInput) {
	if in.form != nil {
		_ = http.NewResponseController(c.W).EnableFullDuplex() // HTTP/2 always is
	}
}

// start starts a foreground command and reports the start to the client. If that fails, the command
// is killed.
func (c *call) start(s clientStream, sb sandpit.Sandbox, cmd sandpit.Command, stdin int) (p sandpit.Process, err error) {
	cmd.Stdout, cmd.Stderr = stream.Output(s)
	began := time.Now()
	err = s.Begin(func() (v1.Process, error) {
		started, err := c.begin(sb, cmd)
		if err != nil {
			return v1.Process{}, err
		}
		p = started
		c.started(sb, p)
		_ = c.Hold(gate.InMemory, int64(stdin)) // the request has become a process
		return describeProcess(p, cmd, began), nil
	})
	if err != nil && p != nil {
		c.giveUp(sb, p, err)
	}
	return p, err
}

// clientStream is a stream.Response, a stream.Socket or a stream.Relay.
type clientStream interface {
	stream.Sink
	Begin(start func() (v1.Process, error)) error
}

// executeSocket runs a command in the foreground over a WebSocket, whose first
// message is the command. Closing the socket kills it.
func executeSocket(c *call) error {
	if c.R.Header.Get("Upgrade") == fastrun.Protocol {
		return executeFast(c)
	}
	q := c.query()
	windows := q.flag("windows", false)
	if q.err != nil {
		return q.err
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	sb, err := c.sandbox()
	if err != nil {
		return err
	}
	c.IntendLater()
	s, err := stream.Accept(c.Call)
	if err != nil {
		return err
	}
	defer s.Close()
	if windows {
		s.Windows()
	}
	in := new(v1.Command)
	if err = s.First(in, v1.MaxCommand); err == nil {
		err = c.intendFor(in)
	}
	var cmd sandpit.Command
	if err == nil {
		cmd, err = in.Sandpit()
	}
	var p sandpit.Process
	if err == nil {
		p, err = c.start(s, sb, cmd, 0)
	}
	switch {
	case err == nil:
		s.Serve(p)
		s.Finish(c.await(sb, p))
	case p == nil:
		s.Refuse(err)
	}
	return nil
}

// await waits for a process in the foreground. When the call ends first, the process is given up:
// see giveUp.
func (c *call) await(sb sandpit.Sandbox, p sandpit.Process) (sandpit.Result, error) {
	res, err := p.Wait(c.Ctx)
	if cause := context.Cause(c.Ctx); err != nil && cause != nil {
		c.giveUp(sb, p, cause)
		return res, cause
	}
	c.leave(0)
	return res, err
}

// inBackground reports whether a process that was started in the foreground was moved.
func inBackground(sb sandpit.Sandbox, p sandpit.Process) bool {
	all, err := sb.Processes(context.Background())
	return err == nil && slices.ContainsFunc(all, func(i sandpit.ProcessInfo) bool { return i.ID == p.ID() && i.Background })
}

// kill kills a process, whatever becomes of the call.
func kill(p sandpit.Process) {
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	_ = p.Kill(ctx) // its sandbox's lifetime is the last resort
}

// described is a process that knows whose it is, and when it was started: one of the engine.
type described interface {
	StartedAt() time.Time
	User() string
}

// describeProcess is a process that has just been started. began counts if the process does not know
// when it was started.
func describeProcess(p sandpit.Process, cmd sandpit.Command, began time.Time) v1.Process {
	user := cmd.User
	if s, ok := p.(described); ok {
		began, user = s.StartedAt(), s.User()
	}
	argv := cmd.Argv
	if cmd.Script != "" {
		argv = []string{"/bin/sh", "-c", cmd.Script}
	}
	argv, cut := cmdline.Clip(argv)
	return v1.FromProcess(sandpit.ProcessInfo{ID: p.ID(), PID: p.PID(), Argv: argv, ArgvCut: cut, User: user, Dir: cmd.Dir, Tag: cmd.Tag, Background: cmd.Background, Terminal: cmd.Terminal != nil, Stdin: cmd.Stdin || cmd.Terminal != nil, StartedAt: began, Timeout: max(cmd.Timeout, 0)})
}
