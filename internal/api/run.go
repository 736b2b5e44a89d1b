package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
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
	return serveRun(c, false, func(r *run, req *fastrun.Request) { r.make(runner.Runs(), req) })
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
	return serveRun(c, true, func(r *run, req *fastrun.Request) {
		before := r.denials(sb, req)
		res, err := r.execute(sb, req)
		if denied := fastrun.DeniedSince(before, r.denials(sb, req)); len(denied) > 0 {
			report := fastrun.Report{}
			for _, d := range denied {
				report.Denials = append(report.Denials, v1.EgressDenial(d))
			}
			r.tell(&report)
		}
		r.finish(res, err)
	})
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
}

// serveRun takes the connection over and reads the request, which do carries out. If
// the sandbox stays, the client hears before its request that it may send that.
func serveRun(c *call, stays bool, do func(*run, *fastrun.Request)) error {
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
		r.finish(sandpit.Result{}, err)
		return nil
	}
	relay.Serve()
	do(r, req)
	return nil
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
func (r *run) make(client sandpit.Client, req *fastrun.Request) {
	spec, err := req.Spec.Sandpit()
	if err != nil {
		r.finish(sandpit.Result{}, err)
		return
	}
	sb, err := client.Create(r.Ctx, spec)
	if err != nil {
		r.finish(sandpit.Result{}, err)
		return
	}
	r.Target = sb.ID()
	remove := sync.OnceValue(func() error {
		if err := sb.Remove(context.WithoutCancel(r.Ctx)); err != nil {
			return fmt.Errorf("removing the sandbox: %w", err)
		}
		return nil
	})
	defer func() {
		if err := remove(); err != nil {
			r.api.gate.Log().Error("a sandbox was not removed", "request", r.ID, "error", err)
		}
	}()
	var res sandpit.Result
	if req.WorkDir {
		err = checkWorkDir(r.Ctx, sb, spec.WorkDir)
	}
	if err == nil {
		r.notEnforced(sb)
		res, err = r.execute(sb, req)
	}
	if err != nil || req.Report || tidy(spec) {
		err = errors.Join(err, remove())
	}
	r.finish(res, err)
}

// tidy reports whether the sandbox has to be gone before its client hears of
// the end: somebody could notice that it is not. Its name would be taken, a
// directory be in use, an image not be removable.
func tidy(spec sandpit.Spec) bool {
	return spec.Name != "" || len(spec.Mounts) > 0 || spec.Image != "" && spec.Image != "host"
}

// execute runs the command, and reports on the sandbox.
func (r *run) execute(sb sandpit.Sandbox, req *fastrun.Request) (sandpit.Result, error) {
	cmd, err := req.Command.Sandpit()
	if err != nil {
		return sandpit.Result{}, err
	}
	p, err := r.start(r.relay, sb, cmd, 0)
	if err != nil {
		if errors.Is(err, sandpit.ErrStart) {
			err = errors.Join(err, r.report(sb, req))
		}
		return sandpit.Result{}, err
	}
	r.relay.Connect(p)
	res, err := r.await(sb, p)
	if err == nil && (req.Report || res.OOMKilled || res.TimedOut || res.Truncated || res.PidsRefused || res.CPUExceeded || res.DiskFull || res.FilesFull) {
		err = r.report(sb, req)
	}
	return res, err
}

// denials returns what the sandbox was denied so far, if the client wants to hear what is new.
func (r *run) denials(sb sandpit.Sandbox, req *fastrun.Request) []sandpit.EgressDenial {
	if !req.Denials {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Ctx), logTime)
	defer cancel()
	log, err := sb.EgressLog(ctx)
	if err != nil {
		return nil // the command matters more
	}
	return log.Denials
}

// logTime is how long the log of a sandbox's network is waited for.
const logTime = 5 * time.Second

// notEnforced tells the default limits that are not enforced.
func (r *run) notEnforced(sb sandpit.Sandbox) {
	info, err := sb.Info(r.Ctx)
	if err != nil {
		return // the command will tell
	}
	if limits := feature.LimitsAmong(info.NotEnforced); len(limits) > 0 {
		r.tell(&fastrun.Report{NotEnforced: limits})
	}
}

// report tells what the client must know besides the result.
func (r *run) report(sb sandpit.Sandbox, req *fastrun.Request) error {
	info, err := sb.Info(context.WithoutCancel(r.Ctx))
	if err != nil {
		return fmt.Errorf("reading the sandbox's limits: %w", err)
	}
	report := fastrun.Report{Info: new(v1.FromInfo(info))}
	if req.Report {
		if m, err := sb.Metrics(context.WithoutCancel(r.Ctx)); err == nil {
			report.Metrics = new(v1.FromMetrics(m, time.Now()))
		}
	}
	r.tell(&report)
	return nil
}

func (r *run) tell(report *fastrun.Report) {
	if payload, err := json.Marshal(report); err == nil {
		_ = r.relay.Frame(fastrun.FrameReport, payload) // the client may have left
	}
}

// checkWorkDir refuses a working directory that does not exist or is not a directory.
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

// finish tells how the command has ended. The client of a run, which is of the same user,
// gets an error in the words that it would have without a server.
func (r *run) finish(res sandpit.Result, err error) {
	if r.stays {
		r.relay.Finish(res, err, nil)
		return
	}
	r.relay.Finish(res, err, func(err error) v1.Error {
		if cause := context.Cause(r.Ctx); cause != nil && errors.Is(err, context.Canceled) {
			err = cause
		}
		if errors.Is(err, gate.ErrDraining) {
			err = fastrun.ServerEnded()
		}
		return fastrun.EncodeError(err)
	})
}
