package api

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cmdline"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

func processRoutes() []Route {
	const (
		tag       = "Processes"
		processes = oneSandbox + "/processes"
		one       = processes + "/{p}"
	)
	return []Route{
		{Method: http.MethodPost, Path: processes, ID: "startProcess", EndsWithClient: true, Tag: tag, Summary: "Start a process in the background", In: v1.Command{}, Status: http.StatusCreated, Out: v1.Process{}, Guarded: true, Fails: []string{errcode.StartFailed}, handle: fromJSON(startProcess)},
		{Method: http.MethodGet, Path: processes, ID: "listProcesses", Tag: tag, Summary: "List processes: running ones and those that ended last", Query: pageParams(Param{Name: "state", Type: "string", Enum: []string{"running", "ended"}}), Status: http.StatusOK, Out: v1.ProcessList{}, handle: asJSON(listProcesses)},
		{Method: http.MethodGet, Path: one, ID: "getProcess", Tag: tag, Summary: "Get a process by its ID or pid", Status: http.StatusOK, Out: v1.Process{}, handle: asJSON(getProcess)},
		{Method: http.MethodDelete, Path: one, ID: "killProcess", Tag: tag, Summary: "Kill a process and its descendants", Status: http.StatusNoContent, Guarded: true, Vital: true, handle: only(killProcess)},
		{
			Method: http.MethodGet, Path: one + "/wait", ID: "waitProcess", Tag: tag, Summary: "Wait for a process to end",
			Query:  []Param{{Name: "timeout", Type: "number", Doc: "Seconds, at most 3,600, after which the response has no result; default 60"}},
			Status: http.StatusOK, Out: v1.Process{}, handle: asJSON(waitProcess),
		},
		{Method: http.MethodPost, Path: one + "/signal", ID: "signalProcess", Tag: tag, Summary: "Send a signal", In: v1.Signal{}, Status: http.StatusNoContent, Guarded: true, vitalIf: endsProcess, handle: fromJSONOnly(signalProcess)},
		{Method: http.MethodPost, Path: one + "/resize", ID: "resizeProcess", Tag: tag, Summary: "Resize the terminal of a process", In: v1.Size{}, Status: http.StatusNoContent, Guarded: true, handle: fromJSONOnly(resizeProcess)},
		{
			Method: http.MethodPost, Path: one + "/background", ID: "backgroundProcess", Tag: tag, Summary: "Move a process to the background",
			Text:   "A process of exec then continues when its client disconnects. A process that is in the background already stays there.",
			Status: http.StatusNoContent, Guarded: true, handle: only(moveProcess),
		},
		{
			Method: http.MethodPost, Path: one + "/stdin", ID: "writeStdin", Tag: tag, Summary: "Write to the standard input of a process", Query: []Param{flag("close", "Close standard input afterwards")},
			Raw: octets, Status: http.StatusNoContent, Guarded: true, handle: only(writeStdin),
		},
		{
			Method: http.MethodGet, Path: one + "/output", ID: "followOutput", Ticket: true, Tag: tag, Summary: "Stream the output of a process", Text: "Disconnecting does not end the process. A slow client loses output and is told how much. The response is a stream of frames, or of server-sent events if Accept asks for them, as for exec.",
			Query: []Param{{Name: "history", Type: "boolean", Doc: "false: omit the output stored so far"}}, Status: http.StatusOK, Other: []string{v1.StreamType, stream.Events}, Feed: processFeed(), handle: followOutput,
		},
		{
			Method: http.MethodGet, Path: one + "/attach", ID: "attachProcess", Ticket: true, Tag: tag, Summary: "Attach to a process over a WebSocket", Text: "Closing the socket does not affect the process. " + socketText,
			Query:  []Param{{Name: "history", Type: "boolean", Doc: "false: omit the output stored so far"}, flag("stdin", "Allow writing to standard input")},
			Status: http.StatusSwitchingProtocols, Upgrade: true, Guarded: true, handle: attachProcess,
		},
	}
}

func startProcess(c *call, in *v1.Command) (v1.Process, error) {
	cmd, err := in.Sandpit()
	if err != nil {
		return v1.Process{}, err
	}
	sb, err := c.sandbox()
	if err != nil {
		return v1.Process{}, err
	}
	cmd.Background = true
	began := time.Now()
	p, err := c.begin(sb, cmd)
	if err != nil {
		return v1.Process{}, err
	}
	v := describeProcess(p, cmd, began)
	if v.ID == "" { // it was killed meanwhile
		res, err := p.Wait(c.Ctx)
		if err != nil {
			return v, err
		}
		r := v1.FromResult(res)
		v.Result = &r
	}
	return v, nil
}

// argvPage is how many bytes of command lines are listed at once; one process
// always is.
const argvPage = 1 << 20

func listProcesses(c *call) (v1.ProcessList, error) {
	out := v1.ProcessList{Processes: []v1.Process{}}
	q := c.query()
	state, p := q.text("state"), q.page()
	if number, ok := strings.CutPrefix(p.after, "p"); p.after != "" {
		if _, err := strconv.ParseUint(number, 10, 64); !ok || err != nil {
			q.fail("after", "is not a process ID")
		}
	}
	if q.err != nil {
		return out, q.err
	}
	sb, err := c.sandbox()
	if err != nil {
		return out, err
	}
	all, err := sb.Processes(c.Ctx)
	if err != nil {
		return out, err
	}
	slices.SortFunc(all, func(a, b sandpit.ProcessInfo) int { return compareIDs(a.ID, b.ID) })
	size := int64(0)
	for _, info := range all {
		if compareIDs(info.ID, p.after) <= 0 || state != "" && (state == "ended") != (info.Result != nil) {
			continue
		}
		size += cmdline.Size(info.Argv)
		if n := len(out.Processes); n == p.limit || n > 0 && size > argvPage {
			out.Next = out.Processes[n-1].ID
			break
		}
		out.Processes = append(out.Processes, v1.FromProcess(info))
	}
	return out, nil
}

// compareIDs orders IDs of processes as they were started: they are numbers
// behind the same letter.
func compareIDs(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

// process finds the process that the path names: by its ID, or else the latest
// with that pid. Handlers do that before they touch anything.
func (c *call) process(sb sandpit.Sandbox) (sandpit.ProcessInfo, error) {
	info, err := findProcess(c.Ctx, sb, c.R.PathValue("p"))
	if err != nil {
		return info, c.Untouched(err)
	}
	return info, nil
}

// findProcess finds a process by its ID, or else the latest with that pid.
func findProcess(ctx context.Context, sb sandpit.Sandbox, name string) (sandpit.ProcessInfo, error) {
	all, err := sb.Processes(ctx)
	if err != nil {
		return sandpit.ProcessInfo{}, err
	}
	var found *sandpit.ProcessInfo
	for i := range all {
		if all[i].ID == name {
			return all[i], nil
		}
		if strconv.Itoa(all[i].PID) == name {
			found = &all[i]
		}
	}
	if found == nil {
		return sandpit.ProcessInfo{}, fault.Errorf(sandpit.ErrNotFound, "the sandbox has no process %.40q", name)
	}
	return *found, nil
}

func getProcess(c *call) (v1.Process, error) {
	sb, err := c.sandbox()
	if err != nil {
		return v1.Process{}, err
	}
	p, err := c.process(sb)
	if err != nil {
		return v1.Process{}, err
	}
	return v1.FromProcess(p), nil
}

// attach attaches to the process that the path names. leave gives it up.
func (c *call) attach(opt sandpit.AttachOptions) (p sandpit.Process, leave func(), err error) {
	sb, err := c.sandbox()
	if err != nil {
		return nil, nil, err
	}
	if c.EntersLater() {
		if _, err := c.process(sb); err != nil {
			return nil, nil, err
		}
	}
	if p, err = sb.Attach(c.Ctx, c.R.PathValue("p"), opt); err != nil {
		return nil, nil, err
	}
	return p, leaver(p), nil
}

// leaver returns a function that gives an attached process up, once.
func leaver(p sandpit.Process) func() {
	return sync.OnceFunc(func() {
		if d, ok := p.(sandpit.Detacher); ok {
			d.Detach()
		}
	})
}

func killProcess(c *call) error {
	p, leave, err := c.attach(sandpit.AttachOptions{})
	if err != nil {
		return err
	}
	defer leave()
	return p.Kill(c.Ctx)
}

// Times to wait for a process.
const (
	defaultWait = time.Minute
	maxWait     = time.Hour
)

func waitProcess(c *call) (v1.Process, error) {
	q := c.query()
	timeout := q.seconds("timeout", defaultWait, maxWait)
	if q.err != nil {
		return v1.Process{}, q.err
	}
	if err := c.OpenStream(); err != nil {
		return v1.Process{}, err
	}
	sb, err := c.sandbox()
	if err != nil {
		return v1.Process{}, err
	}
	info, err := c.process(sb)
	if err != nil || info.Result != nil {
		return v1.FromProcess(info), err
	}
	p, err := sb.Attach(c.Ctx, info.ID, sandpit.AttachOptions{})
	if err != nil {
		return v1.Process{}, err
	}
	defer leaver(p)()
	ctx, cancel := c.UntilDrained()
	defer cancel(nil)
	defer time.AfterFunc(timeout, func() { cancel(nil) }).Stop()
	res, err := p.Wait(ctx)
	switch {
	case err == nil:
		info.Result = &res
	case ctx.Err() != nil && c.Ctx.Err() == nil: // it goes on
	default:
		return v1.Process{}, err
	}
	return v1.FromProcess(info), nil
}

// endsProcess reports whether a request for a signal is to end a process.
func endsProcess(c *gate.Call) bool {
	var in v1.Signal
	return json.Unmarshal(c.Peek(), &in) == nil && slices.Contains([]syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT}, syscall.Signal(in.Signal))
}

func signalProcess(c *call, in *v1.Signal) error {
	p, leave, err := c.attach(sandpit.AttachOptions{})
	if err != nil {
		return err
	}
	defer leave()
	return stream.Signal(c.Ctx, p, *in)
}

func resizeProcess(c *call, in *v1.Size) error {
	p, leave, err := c.attach(sandpit.AttachOptions{})
	if err != nil {
		return err
	}
	defer leave()
	return p.Resize(c.Ctx, sandpit.TerminalSize{Rows: in.Rows, Cols: in.Cols})
}

func moveProcess(c *call) error {
	p, leave, err := c.attach(sandpit.AttachOptions{})
	if err != nil {
		return err
	}
	defer leave()
	if b, ok := p.(sandpit.Backgrounder); ok {
		return b.Background(c.Ctx)
	}
	return fault.Errorf(sandpit.ErrUnsupported, "moving a process to the background: its sandbox can't do that")
}

func writeStdin(c *call) error {
	q := c.query()
	end := q.flag("close", false)
	if q.err != nil {
		return q.err
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	p, leave, err := c.attach(sandpit.AttachOptions{Stdin: true})
	if err != nil {
		return err
	}
	defer leave()
	if c.R.Body != http.NoBody {
		if err := c.copyInto(p, leave); err != nil {
			return err
		}
	}
	if end && p.Stdin() != nil {
		return p.Stdin().Close()
	}
	return nil
}

// copyInto writes the body of the call to the standard input of an attached
// process. One that does not read holds that up: leaving it ends the write. It is
// left when the call ends, and when it has read nothing for so long that the client
// may have left unseen, behind what he has sent.
func (c *call) copyInto(p sandpit.Process, leave func()) error {
	to := input{in: p.Stdin(), stall: c.api.gate.Limits().Tunnel}
	if to.in == nil {
		return &gate.Refusal{Code: errcode.State, Message: "the process has no standard input: it was started without one, or has exited", Hint: "start the process with stdin: true"}
	}
	c.begun = true
	defer context.AfterFunc(c.Ctx, leave)()
	to.timer = time.AfterFunc(to.stall, func() {
		to.timedOut.Store(true)
		leave()
	})
	to.timer.Stop()
	_, err := io.Copy(&to, c.Body(-1, 0))
	switch {
	case err == nil || to.err == nil: // it is the body that can't be read
		return err
	case c.Ctx.Err() != nil:
		return context.Cause(c.Ctx)
	case to.timedOut.Load():
		return &gate.Refusal{Code: errcode.Timeout, Message: "the process is not reading its standard input", Hint: "wait until the process reads, then send the rest"}
	}
	return &gate.Refusal{Code: errcode.State, Message: "the process no longer accepts input", Hint: "check whether the process has exited"}
}

// input writes to a process, which has a time to take each part.
type input struct {
	in       io.Writer
	stall    time.Duration
	timer    *time.Timer
	timedOut atomic.Bool // the time was over
	err      error       // of in
}

func (i *input) Write(b []byte) (int, error) {
	i.timer.Reset(i.stall)
	n, err := i.in.Write(b)
	i.timer.Stop() // the client has a time of its own
	i.err = err
	return n, err
}

// followOutput streams the output of a process. Leaving does not end it.
func followOutput(c *call) error {
	q := c.query()
	history := q.flag("history", true)
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
	info, err := c.process(sb)
	if err != nil {
		return err
	}
	s := stream.NewResponse(c.Call, c.prefers(v1.StreamType, stream.Events))
	defer s.Close()
	p, err := c.attachStream(s, sb, info, stream.Attachment(s, history, false))
	if p != nil {
		defer leaver(p)()
	}
	if err != nil || c.R.Method == http.MethodHead {
		return err
	}
	s.Finish(c.watch(p))
	return nil
}

// attachStream attaches to a process, of which the client is told first. p is nil
// unless that has succeeded, also if the client could not be told.
func (c *call) attachStream(s clientStream, sb sandpit.Sandbox, info sandpit.ProcessInfo, opt sandpit.AttachOptions) (p sandpit.Process, err error) {
	err = s.Begin(func() (v1.Process, error) {
		attached, err := sb.Attach(c.Ctx, info.ID, opt)
		if err == nil {
			p = attached
		}
		return v1.FromProcess(info), err
	})
	return p, err
}

// watch waits for a process that the caller only looks at: it does so no longer
// when the client leaves or the server is about to end.
func (c *call) watch(p sandpit.Process) (sandpit.Result, error) {
	ctx, cancel := c.UntilDrained()
	defer cancel(nil)
	res, err := p.Wait(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return res, err
}

// attachProcess is followOutput over a WebSocket, with standard input.
func attachProcess(c *call) error {
	q := c.query()
	history, stdin := q.flag("history", true), q.flag("stdin", false)
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
	info, err := c.process(sb)
	if err != nil {
		return err
	}
	s, err := stream.Accept(c.Call)
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := c.attachStream(s, sb, info, stream.Attachment(s, history, stdin))
	if p == nil {
		s.Refuse(err)
		return nil
	}
	leave := leaver(p)
	defer leave()
	if err != nil {
		return nil // the client has gone
	}
	s.Serve(p)
	res, err := c.watch(p)
	leave() // a process that does not read must hold up nothing here
	s.Finish(res, err)
	return nil
}
