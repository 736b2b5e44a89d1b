package rpc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// tenant returns the engine as the caller sees it, in the namespace that the call names.
func (c *call) tenant() *engine.Tenant { return c.api.Tenant(c.Caller) }

// find returns the sandbox that the call names.
func (c *call) find() (engine.Box, error) {
	sb, err := c.tenant().Box(c.Target)
	if errors.Is(err, sandpit.ErrNotFound) {
		return nil, c.Untouched(&gate.Refusal{Code: errcode.NotFound, Message: fmt.Sprintf("Sandbox '%s' not found in namespace '%s'", c.Target, c.Caller.Nested)})
	}
	if err != nil {
		return nil, err
	}
	return sb, nil
}

// startParams are those of a start.
type startParams struct {
	Target
	Config *config `json:"config"`
}

func (p *startParams) check() error {
	if err := p.Target.check(); err != nil || p.Config == nil {
		return err
	}
	return p.Config.check()
}

func (p *startParams) about() string {
	if p.Config == nil {
		return ""
	}
	return fmt.Sprintf("image %.80q", p.Config.Image)
}

// Times after which a start is answered although the sandbox does not run yet, as microsandbox does. The start goes on.
const (
	patience     = time.Minute
	makePatience = 3 * time.Minute // with an image, which may have to be fetched
)

// startSandbox starts a sandbox, and makes it if there is none. A start of one that runs is a no-op.
func startSandbox(c *call, in *startParams) (any, error) {
	wait := patience
	if in.Config != nil && in.Config.Image != "" {
		wait = makePatience
	}
	s := &start{tenant: c.tenant(), api: c.api, all: c.everywhere(), name: in.Sandbox, config: in.Config, call: c.Ctx}
	switch done, err := c.within(wait, s.do); {
	case err != nil:
		return nil, err
	case !done:
		return fmt.Sprintf("Sandbox %s was started, but timed out waiting for it to be fully running. It may still be initializing.", in.Sandbox), nil
	}
	return fmt.Sprintf("Sandbox %s started successfully", in.Sandbox), nil
}

// within calls f, and stops waiting for it after some time. f then goes on, for as long as the engine lets it or until the
// key or the server ends. If the call ends earlier, so does f.
func (c *call) within(wait time.Duration, f func(context.Context) error) (done bool, err error) {
	ctx, end := c.api.Gate.Outlive(c.Ctx, c.Caller)
	ctx, cancel := context.WithCancelCause(ctx)
	over := make(chan error, 1)
	go func() {
		defer end()
		defer cancel(nil)
		defer c.api.Protect("the start of a sandbox", func(err error) { over <- err })
		over <- f(ctx)
	}()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case err = <-over:
		return true, err
	case <-c.Ctx.Done():
		cancel(context.Cause(c.Ctx))
		return true, <-over
	case <-timer.C:
		return false, nil
	}
}

// start is a start of a sandbox.
type start struct {
	api    *api
	tenant *engine.Tenant
	all    *engine.Tenant // the same in all its namespaces
	name   string
	config *config         // nil: as before
	call   context.Context // ends with the call
}

// tries bounds how often a start begins anew, because other calls make and remove sandboxes of the name in between.
const tries = 100

// do starts the sandbox. While another call is making or removing it, do waits.
func (s *start) do(ctx context.Context) error {
	waiting, cancel := context.WithCancelCause(ctx) // what another call makes goes on without this one
	defer cancel(nil)
	defer context.AfterFunc(s.call, func() { cancel(context.Cause(s.call)) })()
	for n := 1; ; n++ {
		busy, again, err := s.try(ctx)
		switch {
		case !again:
			return err
		case n == tries:
			return &gate.Refusal{Code: errcode.State, Message: fmt.Sprintf("Sandbox '%s' is made and removed by other calls again and again", s.name), Hint: "start it when they have ended"}
		case busy == nil:
			continue
		}
		if err := busy.Settled(waiting); err != nil {
			return err
		}
	}
}

// try starts the sandbox, unless another call is making or removing it. Then again is true, and busy is the sandbox if it is known.
func (s *start) try(ctx context.Context) (busy engine.Box, again bool, err error) {
	sb, err := s.tenant.Box(s.name)
	if errors.Is(err, sandpit.ErrNotFound) {
		err = s.create(ctx)
		return nil, errors.Is(err, sandpit.ErrExists), err
	}
	if err != nil {
		return nil, false, err
	}
	info, err := sb.Info(ctx)
	switch {
	case err != nil:
		return sb, errors.Is(err, sandpit.ErrClosed), err
	case info.State == sandpit.StateCreating:
		return sb, true, nil
	case info.State == sandpit.StateRunning:
		return nil, false, nil
	case info.State == sandpit.StatePaused:
		err = sb.Resume(ctx)
	case info.State != sandpit.StateFailed:
		err = s.restart(ctx, sb)
	case s.defines():
		err = s.replace(ctx, sb)
	default:
		err = &gate.Refusal{Code: errcode.State, Message: fmt.Sprintf("Sandbox '%s' has failed: %s", s.name, info.Reason), Hint: "start it with an image to replace it"}
	}
	return sb, errors.Is(err, sandpit.ErrClosed) || errors.Is(err, sandpit.ErrExists), err
}

// defines reports whether the call says what sandbox to make.
func (s *start) defines() bool { return s.config != nil && s.config.Image != "" }

// restart starts a sandbox that is stopped. One that was made with another configuration is made again, without its files,
// unless only its limits differ.
func (s *start) restart(ctx context.Context, sb engine.Box) error {
	var was state
	if err := dialect.Recall(sb.Dialect(dialectName), &was); err != nil {
		return err // it may say what must not run, or not be replaced
	}
	if s.defines() {
		if was.Sum != "" && s.config.sum(was.Salt) != was.Sum {
			return s.replace(ctx, sb)
		}
		if was.Memory != s.config.Memory || was.CPUs != s.config.CPUs {
			if err := sb.Update(ctx, s.config.change()); err != nil {
				return err
			}
			was.Memory, was.CPUs = s.config.Memory, s.config.CPUs
			if err := keep(ctx, sb, was); err != nil {
				return err
			}
		}
	}
	err := sb.Restart(ctx)
	if errors.Is(err, sandpit.ErrForbidden) && s.defines() { // it is too old
		return s.replace(ctx, sb)
	}
	if err != nil {
		return err
	}
	// No run needs to be told that the state of the last one before the stop is lost.
	contexts, err := sb.Contexts(ctx)
	for _, one := range contexts {
		if err == nil && one.ID == one.Language {
			err = sb.RemoveContext(ctx, one.ID)
		}
	}
	if err != nil {
		return err
	}
	return was.launch(ctx, sb)
}

// replace removes a sandbox and makes it again.
func (s *start) replace(ctx context.Context, sb engine.Box) error {
	if err := sb.Remove(ctx); err != nil {
		return err
	}
	return s.create(ctx)
}

// create makes the sandbox. If there is no room for it, those that are stopped make some.
func (s *start) create(ctx context.Context) error {
	switch {
	case s.config == nil:
		return gate.Invalid(fmt.Sprintf("No configuration provided and no existing configuration found for sandbox '%s'", s.name), "")
	case s.config.Image == "":
		return gate.Invalid(fmt.Sprintf("Sandbox '%s' not found in existing configuration", s.name), "send config.image")
	}
	spec, err := s.config.spec(s.name)
	if err != nil {
		return err
	}
	if spec.Image, err = s.api.Image(s.config.Image); err != nil {
		return err
	}
	spec.Egress = sandpit.Egress{Preset: sandpit.EgressPublic} // as the original has it
	made := s.config.newState()
	data, err := json.Marshal(made)
	if err != nil {
		return err
	}
	sb, err := s.api.Create(ctx, s.tenant, spec, false, dialectName, data)
	for range maxStopped { // starts at the same time may take the room that this one has made
		give := 0 // how many sandboxes that are stopped make room
		switch {
		case errors.Is(err, sandpit.ErrQuota):
			give = 1
		case errors.Is(err, sandpit.ErrExhausted) && !errors.Is(err, sandpit.ErrRateLimited) && !errors.Is(err, sandpit.ErrDiskFull):
			give = maxStopped
		}
		if give == 0 || forget(ctx, s.all, 0, give) == 0 {
			break
		}
		sb, err = s.api.Create(ctx, s.tenant, spec, false, dialectName, data)
	}
	if err != nil {
		return err
	}
	if err = s.config.equip(ctx, sb); err == nil {
		err = made.launch(ctx, sb)
	}
	if err != nil {
		_ = sb.Remove(context.WithoutCancel(ctx)) // its lifetime is the last resort
	}
	return err
}

// equip puts the scripts into a new sandbox.
func (k *config) equip(ctx context.Context, sb engine.Box) error {
	files := sb.RootFiles("")
	for name, body := range k.Scripts {
		text := "#!" + cmp.Or(k.Shell, defaultShell) + "\n" + body
		if _, err := files.Write(ctx, scriptsDir+"/"+name, strings.NewReader(text), sandpit.WriteOptions{Mode: 0o755, Parents: true}); err != nil {
			return err
		}
	}
	return nil
}

// launch starts the command of a sandbox that was just started.
func (s state) launch(ctx context.Context, sb engine.Box) error {
	if s.Exec == "" {
		return nil
	}
	_, err := sb.Start(ctx, sandpit.Command{Argv: []string{s.Shell, "-c", s.Exec}, Background: true})
	return err
}

// keep stores the state of a sandbox.
func keep(ctx context.Context, sb engine.Box, s state) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return sb.SetDialect(ctx, dialectName, data)
}

// stopGrace is the time that processes have to end by themselves.
const stopGrace = time.Second

// stopSandbox stops a sandbox, which keeps its files. Stopping one that does not run is a no-op.
func stopSandbox(c *call, in *Target) (any, error) {
	sb, err := c.find()
	if err != nil {
		return nil, err
	}
	info, err := sb.Info(c.Ctx)
	if err != nil {
		return nil, err
	}
	switch info.State {
	case sandpit.StateStopped, sandpit.StateFailed, sandpit.StateCreated:
		_ = c.Untouched(nil)
	default:
		var was state
		if data := sb.Dialect(dialectName); data != nil && dialect.Recall(data, &was) == nil {
			was.Stopped = time.Now().UnixNano() // before others can take it for the first to be removed
			_ = keep(c.Ctx, sb, was)            // otherwise it is
		}
		if err := sb.Stop(c.Ctx, stopGrace); err != nil {
			return nil, err
		}
		forget(c.Ctx, c.everywhere(), maxStopped, sandpit.MaxPage)
	}
	return fmt.Sprintf("Sandbox %s stopped successfully", in.Sandbox), nil
}

// maxStopped is the number of stopped sandboxes that a key's namespace keeps, with those in all namespaces
// nested in it. They take memory of the server's machine.
const maxStopped = 8

// everywhere returns the engine as the caller sees it in all its namespaces.
func (c *call) everywhere() *engine.Tenant {
	who := c.Caller
	who.Nested = sandpit.AllNamespaces
	return c.api.Tenant(who)
}

// forget removes sandboxes of this API that are stopped: at most a number of them, those that were stopped longest ago first, and
// none of those to keep, which were stopped last. It returns how many it has removed, and is best effort.
func forget(ctx context.Context, all *engine.Tenant, keep, most int) (removed int) {
	type stopped struct {
		id   string
		when int64
	}
	var list []stopped
	q := sandpit.ListQuery{States: []sandpit.State{sandpit.StateStopped}, Limit: sandpit.MaxPage}
	for {
		page, err := all.List(ctx, q)
		if err != nil {
			return 0
		}
		for _, info := range page.Sandboxes {
			sb, err := all.Box(info.ID)
			if err != nil {
				continue // it has just gone
			}
			var s state
			if data := sb.Dialect(dialectName); data != nil && dialect.Recall(data, &s) == nil {
				list = append(list, stopped{info.ID, s.Stopped})
			}
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	slices.SortFunc(list, func(a, b stopped) int { return cmp.Compare(a.when, b.when) })
	for _, one := range list[:min(max(0, len(list)-keep), most)] {
		// Another call may have started it meanwhile.
		if selected, err := all.RemoveSelected(ctx, one.id, sandpit.ListQuery{States: q.States}); selected && err == nil {
			removed++
		}
	}
	return removed
}
