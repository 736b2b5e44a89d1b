package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Runner is a Backend that also carries out sandpit run for its own user.
type Runner interface {
	// Runs makes sandboxes that are not listed and end with the server.
	Runs() sandpit.Client

	// Place is where the server stands: fastrun.Place.
	Place() string
}

// runRoute is how sandpit run asks. It is not part of the reference: both ends
// are of one version.
func runRoute() Route {
	return Route{Method: http.MethodGet, Path: fastrun.RunPath, ID: "run", Status: http.StatusSwitchingProtocols, Upgrade: true, Guarded: true, selfAudited: true, handle: runOnce}
}

// errDeclined is not shown: the client then uses another way.
var errDeclined = &gate.Refusal{Code: errcode.NoRoute, Message: "this server can't carry out this run", Hint: "run the command without the server"}

// runOnce makes a sandbox, runs a command in it, and removes it when that has
// ended or the client has gone.
func runOnce(c *call) error {
	runner, ok := c.api.opts.Backend.(Runner)
	if !ok || !c.isFastRun() || runner.Place() == "" || c.R.Header.Get(fastrun.HeaderPlace) != runner.Place() {
		return errDeclined
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	return serveRun(c, false, func(r *run, req *fastrun.Request) error { return r.make(runner.Runs(), req) })
}

// executeFast is executeSocket for a launcher.
func executeFast(c *call) error {
	if !c.isFastRun() {
		return errDeclined
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	sb, err := c.sandbox()
	if err != nil {
		return err
	}
	return serveRun(c, true, func(r *run, req *fastrun.Request) error { return r.execute(sb, req, nil) })
}

// isFastRun reports whether the client is this user's and speaks as package fastrun does
// in this version.
func (c *call) isFastRun() bool {
	h := c.R.Header
	return c.Caller.Key == "" && h.Get("Upgrade") == fastrun.Protocol && h.Get(fastrun.HeaderVersion) == c.api.opts.Version
}

// run is one command for a client of package fastrun.
type run struct {
	*call
	relay *stream.Relay
	stays bool // the sandbox outlives the command

	failed *fastrun.Outcome // told with the error of a program that could not be started
}

// serveRun takes the connection over and reads the request, which do carries out. If
// the sandbox stays, the client hears before its request that it may send that.
func serveRun(c *call, stays bool, do func(*run, *fastrun.Request) error) error {
	c.IntendLater()
	relay, err := stream.NewRelay(c.Call)
	if err != nil {
		return err
	}
	defer relay.Close()
	r := &run{call: c, relay: relay, stays: stays}
	if stays {
		relay.Flush()
	}
	req := new(fastrun.Request)
	if err := r.request(req); err != nil {
		return r.refuse(err)
	}
	relay.Serve()
	return do(r, req)
}

// request reads the request.
func (r *run) request(req *fastrun.Request) error {
	if err := r.relay.Request(req); err != nil {
		return err
	}
	if (req.Spec == nil) != r.stays {
		return gate.Invalid("the request is for another path", "")
	}
	return r.intendFor(&req.Command)
}

// make carries a request out in a sandbox made for it.
func (r *run) make(client sandpit.Client, req *fastrun.Request) error {
	spec, err := req.Spec.Sandpit()
	if err != nil {
		return r.refuse(err)
	}
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
	return r.execute(sb, req, func(failed bool) error {
		if failed || req.Report || tidy(spec) {
			return remove()
		}
		return nil
	})
}

// tidy reports whether the sandbox has to be gone before its client hears of
// the end: somebody could notice that it is not. Its name would be taken, a
// directory be in use, an image not be removable.
func tidy(spec sandpit.Spec) bool {
	return spec.Name != "" || len(spec.Mounts) > 0 || spec.Image != "" && spec.Image != "host"
}

// execute runs the command and tells how it ended. Before that it calls last, if that is
// set.
func (r *run) execute(sb sandpit.Sandbox, req *fastrun.Request, last func(failed bool) error) error {
	res, err := r.command(sb, req)
	if err != nil {
		if errors.Is(err, sandpit.ErrStart) {
			r.failed = new(fastrun.Outcome)
			err = errors.Join(err, r.report(sb, req, r.failed))
		}
		if last != nil {
			err = errors.Join(err, last(true))
		}
		return r.refuse(err)
	}
	out := fastrun.Outcome{Result: v1.FromResult(res)}
	if err := r.report(sb, req, &out); err != nil {
		return r.refuse(err)
	}
	if last != nil {
		if err := last(false); err != nil {
			return r.refuse(fmt.Errorf("removing the sandbox: %w", err))
		}
	}
	payload, err := json.Marshal(out)
	if err != nil {
		return r.refuse(err)
	}
	r.relay.Last(v1.FrameResult, payload)
	return nil
}

// command starts the command and waits for its end.
func (r *run) command(sb sandpit.Sandbox, req *fastrun.Request) (sandpit.Result, error) {
	cmd, err := req.Command.Sandpit()
	if err != nil {
		return sandpit.Result{}, err
	}
	cmd.Stdout, cmd.Stderr = stream.Output(r.relay)
	began := time.Now()
	var p sandpit.Process
	err = r.relay.Begin(func() (_ sandpit.Process, about []byte, err error) {
		p, err = sb.Start(r.Ctx, cmd)
		switch {
		case err != nil:
		case r.stays:
			about, _ = json.Marshal(describeProcess(p, cmd, began)) // of text and numbers, which never fails
		default:
			about = notEnforced(r.Ctx, sb)
		}
		return p, about, err
	})
	if err != nil {
		return sandpit.Result{}, err
	}
	return r.await(sb, p)
}

// notEnforced returns a list of the default limits that are not enforced, as JSON; nil: all are.
func notEnforced(ctx context.Context, sb sandpit.Sandbox) []byte {
	info, err := sb.Info(ctx)
	if err != nil {
		return nil // its end will tell
	}
	limits := feature.LimitsAmong(info.NotEnforced)
	if len(limits) == 0 {
		return nil
	}
	list, _ := json.Marshal(limits) // of strings, which never fails
	return list
}

// report adds what the client must know besides the result.
func (r *run) report(sb sandpit.Sandbox, req *fastrun.Request, out *fastrun.Outcome) error {
	res := out.Result
	if !req.Report && !res.OOMKilled && !res.TimedOut && !res.Truncated && !res.PidsRefused && !res.DiskFull && !res.FilesFull && out != r.failed {
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

// refuse tells an error, and notes it. The client of a run, which is of the same user,
// gets the text that it would have without a server.
func (r *run) refuse(err error) error {
	status, e := codec.Describe(r.Call, err)
	r.ReplaceOutcome(status, e.Code, err)
	if !r.stays {
		if cause := context.Cause(r.Ctx); cause != nil && errors.Is(err, context.Canceled) {
			err = cause
		}
		if errors.Is(err, gate.ErrDraining) {
			err = fastrun.ServerEnded()
		}
		e = fastrun.EncodeError(err)
	}
	payload, jerr := json.Marshal(fastrun.Failure{Error: e, Outcome: r.failed})
	if jerr == nil {
		r.relay.Last(v1.FrameError, payload)
	}
	return nil
}
