package build

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// run carries a build out, and removes its sandboxes.
func (b *Build) run(ctx context.Context, in *Plan) {
	defer b.host.Protect("a build of a template", func(err error) { b.end(&Reason{Message: err.Error()}) })
	ctx, cancel := context.WithTimeoutCause(ctx, maxBuildTime, errors.New("the build took longer than "+maxBuildTime.String()))
	defer cancel()
	defer b.host.discard(b.stage)
	step, err := b.do(ctx, in)
	if err == nil {
		b.say("info", "", "The template is ready")
		b.end(nil)
		return
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	text := gate.Failure{Message: err.Error(), Hint: sandpit.Hint(err)}.Text()
	b.say("error", step, text)
	b.end(&Reason{Message: text, Step: step})
}

// do does the work of run. It returns the step that failed.
func (b *Build) do(ctx context.Context, in *Plan) (step string, err error) {
	b.say("info", StepBase, "FROM "+in.From)
	limits := b.request.Limits
	limits.Life = maxBuildTime
	spec := sandpit.Spec{Image: in.Image, Limits: limits, Egress: sandpit.Egress{Preset: sandpit.EgressPublic}}
	sb, err := b.host.Make(ctx, b.caller, spec, b.id)
	if err != nil {
		return StepBase, err
	}
	defer b.host.discard(sb)
	key, err := b.key(ctx, in, sb)
	if err != nil {
		return StepBase, err
	}
	if done, err := b.reuse(ctx, in, key); done || err != nil {
		return StepLast, err
	}
	w := &worker{b: b, sb: sb}
	for i, s := range in.Steps {
		step := strconv.Itoa(i + 1)
		b.say("info", step, in.title(i))
		if err := w.step(ctx, step, s); err != nil {
			return step, err
		}
	}
	within := maxWakeTime // as sandboxes of it wait
	if isPause(in.Ready) {
		within = maxReadyTime
	}
	if err := startProgram(ctx, sb, in.Start, in.Ready, within, sandpit.Command{Env: w.environment(), Dir: w.dir, User: w.user}); err != nil {
		return StepLast, err
	}
	for name, command := range map[string]string{startVariable: in.Start, readyVariable: in.Ready} {
		if command != "" {
			w.env = append(w.env, name+"="+command)
		}
	}
	found, err := b.host.Tenant(b.caller).Box(sb.ID()) // by the present policy
	if err != nil {
		return StepLast, err
	}
	_, err = found.Commit(ctx, sandpit.Commit{Name: b.request.Saved[0], Env: w.env, WorkDir: w.dir, User: w.user, Labels: map[string]string{engine.BuildLabel: key}})
	if err == nil && len(b.request.Saved) > 1 {
		_, err = b.host.TagSaved(ctx, b.caller, b.request.Saved[0], b.request.Saved[1:])
	}
	return StepLast, err
}

// The steps before the first one and after the last one.
const (
	StepBase = "base"
	StepLast = "finalize"
)

// lineLog writes lines to the log of a build. Output may still come when the one who waited for a process has gone.
type lineLog struct {
	b    *Build
	step string

	mu   sync.Mutex
	rest []byte // guarded by mu
}

func (l *lineLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 && len(l.rest) <= maxLogLine {
			return len(p), nil
		}
		if i < 0 || i > maxLogLine {
			i = maxLogLine
		}
		l.b.say("info", l.step, strings.ToValidUTF8(string(l.rest[:i]), "�"))
		l.rest = bytes.TrimPrefix(l.rest[i:], []byte("\n"))
	}
}

func (l *lineLog) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.rest) > 0 {
		l.b.say("info", l.step, strings.ToValidUTF8(string(l.rest), "�"))
	}
}

// discard removes a sandbox of a build.
func (h *Host) discard(sb engine.Box) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := sb.Remove(ctx); err != nil && !errors.Is(err, sandpit.ErrNotFound) && !errors.Is(err, sandpit.ErrClosed) {
		h.Log.Warn("removing a sandbox of a build", "sandbox", sb.ID(), "error", err) // it ends by itself, too
	}
}

// DiscardLeft removes sandboxes that builds have left which a server did not end. It returns at once.
func (bs *Builds) DiscardLeft(all []engine.Box) {
	go func() {
		defer bs.host.Protect("removing the sandboxes of builds", func(error) {})
		for _, sb := range all {
			if bs.host.Gate.Live().Err() == nil { // otherwise the next server does it
				bs.host.discard(sb)
			}
		}
	}()
}
