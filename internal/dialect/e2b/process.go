package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// processService is the service of processes. They outlive the client that started them.
const processService = "/process.Process/"

// processRoutes returns the routes of the service.
func processRoutes() []route {
	post := func(method, id string, vital bool, handle func(*call) error) route {
		return route{method: http.MethodPost, path: processService + method, id: id, audited: true, vital: vital, handle: handle}
	}
	return []route{
		post("Start", "startProcess", false, streaming(startProcess)),
		post("Connect", "connectProcess", false, streaming(connectProcess)),
		post("List", "listProcesses", false, unary(listProcesses)),
		post("SendInput", "sendInput", false, unary(sendInput)),
		post("StreamInput", "streamInput", false, streamInput),
		post("CloseStdin", "closeStdin", false, unary(closeStdin)),
		post("SendSignal", "sendSignal", true, unary(sendSignal)),
		post("Update", "updateProcess", false, unary(updateProcess)),
	}
}

// processConfig is a command.
type processConfig struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
}

// pty is a terminal.
type pty struct {
	Size struct {
		Cols uint16 `json:"cols"`
		Rows uint16 `json:"rows"`
	} `json:"size"`
}

func (p *pty) size() sandpit.TerminalSize {
	return sandpit.TerminalSize{Rows: p.Size.Rows, Cols: p.Size.Cols}
}

// selector names a process.
type selector struct {
	PID uint32 `json:"pid"`
	Tag string `json:"tag"`
}

func (s selector) about() string {
	if s.Tag != "" {
		return "tag " + s.Tag
	}
	return "pid " + strconv.FormatUint(uint64(s.PID), 10)
}

// running returns the running process that s names: of several with a tag, the one that was started last.
func (s selector) running(ctx context.Context, sb sandpit.Sandbox) (sandpit.ProcessInfo, error) {
	all, err := sb.Processes(ctx)
	if err != nil {
		return sandpit.ProcessInfo{}, err
	}
	for _, p := range slices.Backward(all) {
		if p.Result == nil && (s.Tag == "" && p.PID == int(s.PID) || s.Tag != "" && p.Tag == s.Tag) {
			return p, nil
		}
	}
	return sandpit.ProcessInfo{}, &gate.Refusal{Code: errcode.NotFound, Message: "no running process has the " + s.about()}
}

// onProcess names a process alone.
type onProcess struct {
	Process selector `json:"process"`
}

func (r *onProcess) about() string { return r.Process.about() }

// attach attaches to the running process that a message names. Call leave once.
func (c *call) attach(s selector, stdin bool) (p sandpit.Process, leave func(), err error) {
	sb, err := c.running()
	if err != nil {
		return nil, nil, err
	}
	info, err := s.running(c.Ctx, sb)
	if err != nil {
		return nil, nil, c.Untouched(err)
	}
	if p, err = sb.Attach(c.Ctx, info.ID, sandpit.AttachOptions{NoHistory: true, Stdin: stdin}); err != nil {
		return nil, nil, err
	}
	return p, func() { dialect.Detach(p) }, nil
}

// bash is the shell with which SDKs run commands.
const bash = "/bin/bash"

type startRequest struct {
	Process processConfig `json:"process"`
	Pty     *pty          `json:"pty"`
	Tag     string        `json:"tag"`
	Stdin   *bool         `json:"stdin"` // missing: true
}

func (r *startRequest) about() string {
	return gate.AboutProgram(r.Process.Cmd, len(r.Process.Args))
}

// events of processes.
const (
	eventKeepalive = `{"event":{"keepalive":{}}}`
	eventBefore    = `{"event":{"data":{"`
	eventAfter     = `"}}}`
)

// output sends what a process writes as events of a kind: stdout, stderr or pty.
type output struct {
	s    *eventStream
	kind string
}

// maxPiece bounds the output in one event, in bytes.
const maxPiece = 32 << 10

// Write sends a piece of output.
func (o output) Write(b []byte) (int, error) {
	for n := 0; n < len(b); {
		piece := b[n:min(n+maxPiece, len(b))]
		if err := o.s.sendBytes(eventBefore+o.kind+`":"`, piece, eventAfter); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return len(b), nil
}

// startProcess starts a process and streams its output. The time-out of the call is that of the
// process, which is then killed; a client that leaves ends only the stream.
func startProcess(c *call, in *startRequest) error {
	sb, err := c.running()
	if err != nil {
		return err
	}
	cmd := sandpit.Command{
		Argv: append([]string{in.Process.Cmd}, in.Process.Args...), Dir: in.Process.Cwd, Env: withOwn(sb, in.Process.Envs), User: user(c.R),
		Stdin: in.Stdin == nil || *in.Stdin, Timeout: c.timeout(), Tag: in.Tag,
	}
	s := c.newStream(eventKeepalive)
	defer s.close()
	cmd.Stdout, cmd.Stderr = output{s, "stdout"}, output{s, "stderr"}
	if in.Pty != nil {
		cmd.Terminal, cmd.Stdout, cmd.Stderr = new(in.Pty.size()), output{s, "pty"}, nil
	}
	p, err := sb.Start(c.Ctx, cmd)
	if err != nil {
		if failed := new(sandpit.StartError); in.Process.Cmd == bash && errors.As(err, &failed) && failed.ExitCode == 127 {
			return sandpit.WithHint(err, "use an image that has bash: SDKs run commands with it")
		}
		return err
	}
	defer dialect.Detach(p)
	if b, ok := p.(sandpit.Backgrounder); ok {
		if err := b.Background(c.Ctx); err != nil {
			_ = p.Kill(context.WithoutCancel(c.Ctx)) // which nobody would find again
			return err
		}
	}
	return c.follow(s, p)
}

// follow streams a process to its end.
func (c *call) follow(s *eventStream, p sandpit.Process) error {
	if s.begin(fmt.Sprintf(`{"event":{"start":{"pid":%d}}}`, p.PID())) != nil {
		return nil // the client has gone
	}
	ctx, cancel := c.UntilDrained()
	defer cancel(nil)
	res, err := p.Wait(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return s.end(context.Cause(ctx))
	case err != nil:
		return s.end(asGone(err))
	}
	if res.TimedOut || res.Signal == int(syscall.SIGKILL) {
		if gone := c.ending(); gone != nil {
			return s.end(gone)
		}
	}
	if res.TimedOut {
		return s.end(&gate.Refusal{Code: errcode.Timeout, Message: "the process was killed at its time-out"})
	}
	message, err := json.Marshal(map[string]any{"event": map[string]any{"end": endOf(res)}})
	if err == nil {
		err = s.send(message)
	}
	if err != nil {
		return nil // the client has gone
	}
	return s.end(nil)
}

// endEvent is the end of a process.
type endEvent struct {
	ExitCode int    `json:"exitCode"`
	Exited   bool   `json:"exited"`
	Status   string `json:"status"`
	Error    string `json:"error,omitempty"`
}

// endOf describes the end of a process as os.ProcessState does, which E2B uses.
func endOf(r sandpit.Result) endEvent {
	switch {
	case r.Signal != 0:
		status := "signal: " + syscall.Signal(r.Signal).String()
		reason := status
		if r.OOMKilled {
			reason += " (out of memory)"
		}
		return endEvent{ExitCode: -1, Status: status, Error: reason}
	case r.ExitCode != 0:
		status := "exit status " + strconv.Itoa(r.ExitCode)
		return endEvent{ExitCode: r.ExitCode, Exited: true, Status: status, Error: status}
	}
	return endEvent{Exited: true, Status: "exit status 0"}
}

// connectProcess streams what a running process writes from now on.
func connectProcess(c *call, in *onProcess) error {
	sb, err := c.running()
	if err != nil {
		return err
	}
	info, err := in.Process.running(c.Ctx, sb)
	if err != nil {
		return err
	}
	s := c.newStream(eventKeepalive)
	defer s.close()
	lost := make(chan struct{}, 1)
	opt := sandpit.AttachOptions{NoHistory: true, Stdout: output{s, "stdout"}, Stderr: output{s, "stderr"}}
	if info.Terminal {
		opt.Stdout, opt.Stderr = output{s, "pty"}, nil
	}
	opt.Lost = func(int64) { // the protocol can't say that something is missing
		_ = s.end(&gate.Refusal{Code: errcode.QuotaExceeded, Message: "output was lost because the client did not read fast enough"})
		select {
		case lost <- struct{}{}:
		default:
		}
	}
	p, err := sb.Attach(c.Ctx, info.ID, opt)
	if err != nil {
		return err
	}
	defer dialect.Detach(p)
	if t := c.timeout(); t > 0 {
		timer := time.AfterFunc(t, func() { c.Cancel(context.DeadlineExceeded) })
		defer timer.Stop()
	}
	defer context.AfterFunc(c.Ctx, func() { dialect.Detach(p) })()
	return c.follow(s, p)
}

type listRequest struct{}

func (*listRequest) about() string { return "" }

// processInfo is a running process.
type processInfo struct {
	Config processConfig `json:"config"`
	PID    int           `json:"pid"`
	Tag    string        `json:"tag,omitempty"`
}

// listProcesses lists the running processes, without their environments: see sandpit.ProcessInfo.
func listProcesses(c *call, _ *listRequest) (any, error) {
	sb, err := c.running()
	if err != nil {
		return nil, err
	}
	all, err := sb.Processes(c.Ctx)
	if err != nil {
		return nil, err
	}
	list := []processInfo{}
	for _, p := range all {
		if p.Result == nil && len(p.Argv) > 0 {
			list = append(list, processInfo{processConfig{Cmd: p.Argv[0], Args: p.Argv[1:], Cwd: p.Dir}, p.PID, p.Tag})
		}
	}
	return map[string]any{"processes": list}, nil
}

type inputRequest struct {
	Process selector     `json:"process"`
	Input   processInput `json:"input"`
}

// processInput is input of a process, of either kind.
type processInput struct {
	Stdin []byte `json:"stdin"`
	Pty   []byte `json:"pty"`
}

func (r *inputRequest) about() string { return r.Process.about() }

// sendInput writes to a process. One that does not read holds up the call, for at most the time that
// the gate gives tunnels.
func sendInput(c *call, in *inputRequest) (any, error) {
	if err := c.OpenStream(); err != nil {
		return nil, err
	}
	p, leave, err := c.attach(in.Process, true)
	if err != nil {
		return nil, err
	}
	defer leave()
	if p.Stdin() == nil {
		return nil, gate.Invalid("the process has no standard input", "start the process with stdin")
	}
	return struct{}{}, c.write(c.Ctx, p, leave, in.Input)
}

// write writes to the standard input of a process. leave ends a write that waits.
func (c *call) write(ctx context.Context, p sandpit.Process, leave func(), in processInput) error {
	size := int64(len(in.Stdin) + len(in.Pty)) // beside the message that they were in
	if err := c.HoldMore(gate.InMemory, size); err != nil {
		return err
	}
	defer func() { _ = c.HoldMore(gate.InMemory, -size) }()
	ctx, cancel := context.WithTimeout(ctx, c.api.Gate.Limits().Tunnel)
	defer cancel()
	defer context.AfterFunc(ctx, leave)()
	if _, err := p.Stdin().Write(append(in.Stdin, in.Pty...)); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("writing to the standard input: %w", errors.Join(err, sandpit.ErrNotFound))
	}
	return nil
}

// closeStdin ends the input of a process.
func closeStdin(c *call, in *onProcess) (any, error) {
	p, leave, err := c.attach(in.Process, true)
	if err != nil {
		return nil, err
	}
	defer leave()
	if p.Stdin() == nil {
		return nil, gate.Invalid("the process has no standard input", "start the process with stdin")
	}
	return struct{}{}, p.Stdin().Close()
}

type signalRequest struct {
	Process selector        `json:"process"`
	Signal  json.RawMessage `json:"signal"` // a name or a number
}

func (r *signalRequest) about() string {
	return r.Process.about() + " " + strings.Trim(string(r.Signal), `"`)
}

// endWait bounds the wait for the end of a process that was killed.
const endWait = 10 * time.Second

// sendSignal sends a signal. SIGKILL kills the process with all that it started, and is answered when the process has ended.
func sendSignal(c *call, in *signalRequest) (any, error) {
	var kill bool
	switch strings.Trim(string(in.Signal), `"`) {
	case "SIGNAL_SIGKILL", "9":
		kill = true
	case "SIGNAL_SIGTERM", "15":
	default:
		return nil, c.Untouched(gate.Invalid("the signal is not known", "use SIGNAL_SIGTERM or SIGNAL_SIGKILL"))
	}
	p, leave, err := c.attach(in.Process, false)
	if err != nil {
		return nil, err
	}
	defer leave()
	if kill {
		if err := p.Kill(c.Ctx); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(c.Ctx, endWait)
		defer cancel()
		_, _ = p.Wait(ctx) // so that lists that are asked for afterwards lack it
		return struct{}{}, nil
	}
	return struct{}{}, p.Signal(c.Ctx, syscall.SIGTERM)
}

type updateRequest struct {
	Process selector `json:"process"`
	Pty     *pty     `json:"pty"`
}

func (r *updateRequest) about() string { return r.Process.about() }

// updateProcess changes the size of a terminal.
func updateProcess(c *call, in *updateRequest) (any, error) {
	p, leave, err := c.attach(in.Process, false)
	if err != nil {
		return nil, err
	}
	defer leave()
	if in.Pty == nil {
		return struct{}{}, nil
	}
	return struct{}{}, p.Resize(c.Ctx, in.Pty.size())
}
