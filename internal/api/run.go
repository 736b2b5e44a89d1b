package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Runner is a Backend that also carries out sandpit run for its own user.
type Runner interface {
	// Runs makes sandboxes that nobody else sees and that end with the server.
	Runs() sandpit.Client

	// Place is where the server stands: fastrun.Place.
	Place() string
}

// runRoute is how sandpit run asks. It is no part of the reference: both ends
// are of one version.
func runRoute() Route {
	return Route{Method: http.MethodGet, Path: fastrun.Path, ID: "run", Status: http.StatusSwitchingProtocols, Upgrade: true, Guarded: true, late: true, handle: runOnce}
}

// errDeclined is read by nobody: the client then does the run itself.
var errDeclined = &gate.Refusal{Status: http.StatusNotFound, Code: errcode.NoRoute, Message: "this server can't carry out this run", Hint: "run the command without the server"}

// killPatience is how long a guest may take to kill a command.
const killPatience = time.Second

// runOnce makes a sandbox, runs a command in it, and removes it when that has
// ended or the client has gone.
func runOnce(c *call) error {
	runner, ok := c.api.opts.Backend.(Runner)
	h := c.R.Header
	if !ok || c.Caller.Key != "" || h.Get("Upgrade") != fastrun.Protocol || h.Get(fastrun.HeaderVersion) != c.api.opts.Version ||
		runner.Place() == "" || h.Get(fastrun.HeaderPlace) != runner.Place() {
		return errDeclined
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	conn, buffered, err := http.NewResponseController(c.W).Hijack()
	if err != nil {
		return fmt.Errorf("taking over the connection: %w", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(gate.HeaderTime))
	c.NoteOutcome(http.StatusSwitchingProtocols, "", nil)
	r := &run{call: c, conn: conn, in: buffered.Reader, stream: runStream{conn: conn, cancel: c.Cancel, room: fastrun.NewRoom()}}
	r.stream.buf = append(r.stream.buf, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+fastrun.Protocol+"\r\n\r\n"...)
	defer r.stream.close()
	req := new(fastrun.Request)
	if err := r.request(req); err != nil {
		return r.refuse(err)
	}
	_ = conn.SetDeadline(time.Time{}) // whoever waits for the command may stop reading for as long as he likes
	// Whatever waits for the client ends with the call.
	stop := context.AfterFunc(c.Ctx, r.breakOff)
	defer stop()
	return r.do(runner.Runs(), req)
}

// run is one run for a client.
type run struct {
	*call
	conn   net.Conn
	in     *bufio.Reader
	stream runStream
}

// request reads the first frame.
func (r *run) request(req *fastrun.Request) error {
	kind, payload, err := fastrun.ReadFrame(r.in, nil, fastrun.MaxRequest)
	if err != nil {
		return gate.ErrClientGone
	}
	if kind != fastrun.FrameRequest {
		return invalid("the first frame is not a request", "")
	}
	if err := parse(payload, req); err != nil {
		return err
	}
	return r.intendFor(&req.Command)
}

// breakOff ends a connection nobody is to wait for: at once when the client has
// gone, else after what was to be said.
func (r *run) breakOff() {
	r.stream.room.Close(context.Cause(r.Ctx))
	if errors.Is(context.Cause(r.Ctx), gate.ErrClientGone) {
		_ = r.conn.Close()
		return
	}
	_ = r.conn.SetWriteDeadline(time.Now().Add(gate.LastWords))
}

// do carries the request out.
func (r *run) do(client sandpit.Client, req *fastrun.Request) error {
	reading := make(chan struct{})
	started := make(chan sandpit.Process, 1)
	go func() {
		defer close(reading)
		r.Cancel(r.read(started))
	}()
	defer func() {
		_ = r.conn.Close()
		<-reading
	}()
	spec := req.Spec.Sandpit()
	sb, err := client.Create(r.Ctx, spec)
	if err != nil {
		return r.refuse(err)
	}
	r.Target = sb.ID()
	removed := false
	remove := func() error {
		if removed {
			return nil
		}
		removed = true
		return sb.Remove(context.WithoutCancel(r.Ctx))
	}
	defer func() {
		if err := remove(); err != nil {
			r.api.gate.Log().Error("a sandbox was not removed", "request", r.ID, "error", err)
		}
	}()
	if req.WorkDir {
		if err := checkWorkDir(r.Ctx, sb, spec.WorkDir); err != nil {
			return r.refuse(err)
		}
	}
	res, err := r.command(sb, req, started)
	if err != nil {
		if rerr := remove(); rerr != nil {
			err = errors.Join(err, rerr)
		}
		return r.refuse(err)
	}
	out := fastrun.Outcome{Result: v1.FromResult(res)}
	if err := r.report(sb, req, &out); err != nil {
		return r.refuse(err)
	}
	if tidy(spec) || req.Report {
		if err := remove(); err != nil {
			return r.refuse(fmt.Errorf("removing the sandbox: %w", err))
		}
	}
	payload, err := json.Marshal(out)
	if err != nil {
		return r.refuse(err)
	}
	r.stream.last(v1.FrameResult, payload)
	return nil
}

// tidy reports whether the sandbox has to be gone before its client hears of
// the end: somebody could notice that it is not. Its name would be taken, a
// directory be in use, an image not be removable.
func tidy(spec sandpit.Spec) bool {
	return spec.Name != "" || len(spec.Mounts) > 0 || spec.Image != "" && spec.Image != "host"
}

// command starts the command and waits for its end.
func (r *run) command(sb sandpit.Sandbox, req *fastrun.Request, started chan<- sandpit.Process) (sandpit.Result, error) {
	cmd := req.Command.Sandpit()
	cmd.Stdout, cmd.Stderr = output{&r.stream, v1.FrameStdout}, output{&r.stream, v1.FrameStderr}
	r.stream.mu.Lock() // output waits until the start has been told
	// A client that has no answer when the connection ends runs the command
	// itself: it must know before this one may have begun.
	r.stream.send()
	p, err := sb.Start(r.Ctx, cmd)
	if err != nil {
		r.stream.mu.Unlock()
		return sandpit.Result{}, err
	}
	r.stream.add(v1.FrameStarted, nil)
	r.stream.mu.Unlock()
	started <- p
	return r.await(p)
}

// report adds what the client has to know beside the result.
func (r *run) report(sb sandpit.Sandbox, req *fastrun.Request, out *fastrun.Outcome) error {
	res := out.Result
	if !req.Report && !res.OOMKilled && !res.TimedOut && !res.Truncated {
		return nil
	}
	info, err := sb.Info(context.WithoutCancel(r.Ctx))
	if err != nil {
		return fmt.Errorf("reading the sandbox's limits: %w", err)
	}
	told := v1.FromInfo(info)
	out.Info = &told
	if !req.Report {
		return nil
	}
	if m, err := sb.Metrics(context.WithoutCancel(r.Ctx)); err == nil {
		told := v1.FromMetrics(m, time.Now())
		out.Metrics = &told
	}
	return nil
}

// checkWorkDir refuses a working directory that is none.
func checkWorkDir(ctx context.Context, sb sandpit.Sandbox, dir string) error {
	info, err := sb.Files().Stat(ctx, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fastrun.ErrNoWorkDir
	case err == nil && !info.IsDir():
		return fastrun.ErrNotWorkDir
	}
	return nil // what else is wrong, the start of the command will tell
}

// refuse tells an error, and notes it.
func (r *run) refuse(err error) error {
	status, e := r.describe(err)
	r.ReplaceOutcome(status, e.Code, err)
	if cause := context.Cause(r.Ctx); cause != nil && errors.Is(err, context.Canceled) {
		err = cause
	}
	if errors.Is(err, gate.ErrDraining) {
		err = fastrun.ServerEnded()
	}
	payload, jerr := json.Marshal(fastrun.EncodeError(err))
	if jerr == nil {
		r.stream.last(v1.FrameError, payload)
	}
	return nil
}
