package build

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Builds are those that a server knows. Its methods are safe for concurrent use.
type Builds struct {
	host Host

	mu  sync.Mutex
	all []*Build // oldest first; guarded by mu
}

// New returns the builds of a server, of which there are none yet.
func New(host Host) *Builds { return &Builds{host: host} }

func namespaceOf(c gate.Caller) string { return c.Namespace + "/" + c.Nested }

// Request begins a build, which waits for its archives and its start.
func (bs *Builds) Request(ctx context.Context, caller gate.Caller, in Request) (*Build, error) {
	if err := bs.host.Tenant(caller).AllowSaving(); err != nil { // which is asked again when it is saved
		return nil, fmt.Errorf("building a template: %w", err)
	}
	b := &Build{host: &bs.host, caller: caller, request: in, namespace: namespaceOf(caller)}
	b.life, b.over = bs.host.Gate.Outlive(ctx, caller)
	left, err := bs.add(b)
	if err != nil {
		b.over()
		return nil, err
	}
	for _, sb := range left {
		bs.host.discard(sb)
	}
	stage, err := bs.host.Stage(ctx, caller, maxBuildTime, b.id)
	if err != nil {
		bs.remove(b)
		return nil, fmt.Errorf("making a place for the files of the build: %w", err)
	}
	if !bs.place(b, stage) {
		bs.host.discard(stage)
		return nil, &gate.Refusal{Code: errcode.State, Message: replaced}
	}
	return b, nil
}

// add adds a build. It ends those of the same template that wait. If there are too many, the oldest ones that have ended make
// room, or else those that wait, of the namespace or of one that has more. The caller removes the sandboxes that are left of them.
func (bs *Builds) add(b *Build) (left []engine.Box, err error) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	namespace := b.namespace
	for _, o := range bs.all {
		if o.namespace == namespace && o.request.Template == b.request.Template && o.present() == Waiting {
			o.end(&Reason{Message: replaced})
			left = append(left, o.stage)
		}
	}
	for {
		own := slices.IndexFunc(bs.all, func(b *Build) bool { return b.namespace == namespace && b.ended() })
		if own < 0 { // its client may have given up
			own = slices.IndexFunc(bs.all, func(b *Build) bool { return b.namespace == namespace && b.present() == Waiting })
		}
		count := map[string]int{}
		for _, b := range bs.all {
			count[b.namespace]++
		}
		any := slices.IndexFunc(bs.all, (*Build).ended)
		if any < 0 {
			any = slices.IndexFunc(bs.all, func(b *Build) bool {
				return count[b.namespace] > count[namespace]+1 && b.present() == Waiting
			})
		}
		at := -1
		switch {
		case count[namespace] >= maxBuildsOfOne && own < 0:
			return nil, &gate.Refusal{Code: errcode.QuotaExceeded, Message: fmt.Sprintf("%d builds of this namespace are running", count[namespace]), Hint: "wait until one has ended"}
		case count[namespace] >= maxBuildsOfOne:
			at = own
		case len(bs.all) >= maxBuilds && any < 0:
			return nil, &gate.Refusal{Code: errcode.Overloaded, Message: "too many templates are being built", Hint: "try again later", After: 10 * time.Second}
		case len(bs.all) >= maxBuilds:
			at = any
		}
		if at < 0 {
			break
		}
		if bs.all[at].present() == Waiting {
			bs.all[at].end(&Reason{Message: "newer builds were requested"})
			left = append(left, bs.all[at].stage)
		}
		bs.all = slices.Delete(bs.all, at, at+1)
	}
	b.id, b.asked, b.status = strings.ToLower(rand.Text()), time.Now(), Waiting
	b.idle = time.AfterFunc(maxIdleTime, func() {
		defer b.host.Protect("ending a build that waits", func(error) {})
		bs.abandon(b, "the build got neither files nor its start within "+maxIdleTime.String())
	})
	context.AfterFunc(b.life, func() {
		defer b.host.Protect("ending a build that waits", func(error) {})
		if why := context.Cause(b.life); errors.Is(why, gate.ErrKeyEnded) {
			bs.abandon(b, why.Error())
		}
	})
	bs.all = append(bs.all, b)
	return slices.DeleteFunc(left, func(sb engine.Box) bool { return sb == nil }), nil
}

// replaced says why a build has ended that waited.
const replaced = "a newer build of the template was requested"

// place gives a build the sandbox for its archives, before which nobody finds it by its template. It reports whether the build
// still waits.
func (bs *Builds) place(b *Build, stage engine.Box) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if !slices.Contains(bs.all, b) || b.present() != Waiting {
		return false
	}
	b.stage = stage
	return true
}

// abandon ends a build if it waits, and removes its sandbox.
func (bs *Builds) abandon(b *Build, why string) {
	bs.mu.Lock()
	waits, stage := b.present() == Waiting, b.stage
	if waits {
		b.end(&Reason{Message: why})
	}
	bs.mu.Unlock()
	if waits && stage != nil { // otherwise place refuses it
		b.host.discard(stage)
	}
}

// Refuse ends a build whose start is refused, since clients give up then, unless the refusal says when to try again.
func (bs *Builds) Refuse(b *Build, f gate.Failure) {
	if f.After == 0 {
		bs.abandon(b, f.Text())
	}
}

// remove removes a build.
func (bs *Builds) remove(b *Build) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b.idle.Stop()
	b.over()
	bs.all = slices.DeleteFunc(bs.all, func(o *Build) bool { return o == b })
}

// Find returns a build of a namespace, or nil.
func (bs *Builds) Find(caller gate.Caller, id string) *Build {
	namespace := namespaceOf(caller)
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if i := slices.IndexFunc(bs.all, func(b *Build) bool { return b.namespace == namespace && b.id == id }); i >= 0 {
		return bs.all[i]
	}
	return nil
}

// Waiting returns the newest build of a template that waits, or nil.
func (bs *Builds) Waiting(caller gate.Caller, template string) (found *Build) {
	namespace := namespaceOf(caller)
	bs.mu.Lock()
	defer bs.mu.Unlock()
	for _, b := range bs.all {
		if b.namespace == namespace && b.request.Template == template && b.stage != nil && b.present() == Waiting {
			found = b
		}
	}
	return found
}

// Start starts a build that waits. Two builds of one template don't run at the same time: the other one goes on waiting.
func (bs *Builds) Start(b *Build, in *Plan) error {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	for _, o := range bs.all {
		switch status := o.present(); {
		case o == b && status != Waiting:
			return &gate.Refusal{Code: errcode.State, Message: "the build was started before, or has ended"}
		case o != b && o.namespace == b.namespace && o.request.Template == b.request.Template && status == Building:
			return &gate.Refusal{Code: errcode.State, Message: fmt.Sprintf("another build of the template %q is running", b.request.Template), Hint: "wait until it has ended"}
		}
	}
	b.mu.Lock()
	b.status = Building
	b.mu.Unlock()
	b.idle.Stop()
	go b.run(b.life, in)
	return nil
}
