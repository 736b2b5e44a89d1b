package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/interpreter"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

var _ sandpit.Committer = (*Sandbox)(nil)

// BuildLabel is a label of images that a build has saved: what the build was made of. Images that are saved from sandboxes of such an
// image do not inherit it.
const BuildLabel = "dev.sandpit.build"

// beingSaved is the reason of a sandbox that is paused while its files are read.
const beingSaved = "its files are being saved"

// Commit saves the changed files as an image, as Options.Policy allows. See sandpit.Committer.
func (s *Sandbox) Commit(ctx context.Context, c sandpit.Commit) (sandpit.SavedImage, error) {
	return s.commit(ctx, c, s.engine.opts.Policy)
}

// commit saves the changed files as an image. It has the same limits as creating a sandbox, and is
// canceled and given up in the same way.
func (s *Sandbox) commit(ctx context.Context, c sandpit.Commit, p policy.Policy) (saved sandpit.SavedImage, err error) {
	e := s.engine
	quota, err := p.AllowSaving()
	if err == nil {
		err = policy.CheckCommit(c)
	}
	if err != nil {
		return saved, fmt.Errorf("saving sandbox %s: %w", s.Name(), err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	saving := &task{what: "saving", about: "sandbox " + s.Name(), namespace: s.namespace, cancel: cancel}
	e.start(ctx, saving, e.opts.Patience.Create, func(ctx context.Context) error {
		giveBack, err := e.try(ctx, saving, s.namespace)
		if err != nil {
			return err
		}
		defer giveBack()
		return saving.onImage(ctx, image.AcquireOptions{}, giveBack, func(opt image.AcquireOptions) (err error) {
			saved, err = s.saveImage(ctx, c, quota, opt.Moves, saving.stuck)
			return err
		})
	})
	if err := saving.wait(context.Background()); err != nil {
		return sandpit.SavedImage{}, fmt.Errorf("saving sandbox %s: %w", s.Name(), err)
	}
	return saved, nil
}

// saveImage does the work of commit. stuck is closed when nobody waits for it any longer.
func (s *Sandbox) saveImage(ctx context.Context, c sandpit.Commit, quota int64, moves func(), stuck <-chan struct{}) (saved sandpit.SavedImage, err error) {
	asked := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() {
		if errors.Is(err, context.Canceled) && asked.Err() == nil { // by its removal
			err = fault.Errorf(sandpit.ErrClosed, "it was removed")
		}
	}()
	go func() {
		select {
		case <-s.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	state, err := s.begins(ctx)
	if err != nil {
		return sandpit.SavedImage{}, err
	}
	release := sync.OnceFunc(s.ends)
	defer func() { release() }()
	switch state {
	case sandpit.StateRunning, sandpit.StatePaused, sandpit.StateStopped:
	default:
		return sandpit.SavedImage{}, s.stateError(state)
	}
	viewer, ok := s.instance.(driver.Viewer)
	if !ok {
		return sandpit.SavedImage{}, fault.Errorf(sandpit.ErrUnsupported, "the driver %s does not support it", s.info.Driver)
	}
	base := s.lease
	if s.persistent {
		if base, err = s.engine.opts.Images.Kept(s.id); err != nil {
			return sandpit.SavedImage{}, err
		}
		defer base.Release()
	}
	omit, err := s.ownFiles(base.Rootfs())
	if err != nil {
		return sandpit.SavedImage{}, err
	}
	root, err := viewer.View()
	if err != nil {
		return sandpit.SavedImage{}, err
	}
	defer root.Root.Close()
	if state == sandpit.StateRunning && !c.NoPause {
		resume, err := s.holdStill(ctx)
		if err != nil {
			return sandpit.SavedImage{}, err
		}
		release = sync.OnceFunc(func() { resume(); s.ends() })
		ended := make(chan struct{})
		defer close(ended)
		go func() {
			select {
			case <-stuck: // on a disk that hangs: the sandbox does not stand still for that
				release()
			case <-ended:
			}
		}()
	}
	s.mu.Lock()
	disk := s.info.Limits.Disk
	s.mu.Unlock()
	sum, left, err := s.engine.opts.Images.Save(ctx, base, image.Tree{
		Root: root.Root, UIDs: image.ParseIDMap(root.UIDMap), GIDs: image.ParseIDMap(root.GIDMap), Omit: omit, Sockets: interpreter.Sockets,
	}, image.SaveOptions{
		Owner: s.namespace, Name: c.Name, Quota: quota, Bytes: disk, Read: release, Moves: moves,
		Configure: func(config *image.Config) { configure(config, c) },
	})
	if err != nil {
		if s.present() == "" {
			err = s.closedError()
		}
		return sandpit.SavedImage{}, err
	}
	return sandpit.SavedImage{Name: sum.Name, Digest: sum.Digest, Size: sum.Unpacked, LeftOut: left}, nil
}

// holdStill pauses a running sandbox, and returns a function that resumes it. Precondition: s.change
// is held.
func (s *Sandbox) holdStill(ctx context.Context) (resume func(), err error) {
	unsupported := func(err error) error {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "it can't be paused meanwhile: %w", err), "set --no-pause to save it while its programs run")
	}
	f, ok := s.instance.(driver.Freezer)
	if !ok {
		return nil, unsupported(fmt.Errorf("the driver %s does not support it", s.info.Driver))
	}
	if err := s.guestForever(ctx); err != nil {
		return nil, s.explain(err)
	}
	if err := s.become(sandpit.StatePaused, beingSaved); err != nil {
		return nil, err
	}
	later := context.WithoutCancel(ctx)
	runs := func() {
		if s.become(sandpit.StateRunning, "") == nil {
			s.tellGuest(later)
			s.note(later)
		}
		_ = s.mark(later, false, savingMark)
	}
	s.note(ctx)
	_ = s.mark(ctx, true, savingMark) // without it, it stays paused if this program is killed
	if err := f.Freeze(later); err != nil {
		runs()
		if errors.Is(err, sandpit.ErrUnsupported) {
			err = unsupported(err)
		}
		return nil, err
	}
	return func() {
		// If it can't be resumed it stays paused, and the next use of it tries again.
		if s.present() == sandpit.StatePaused && s.thaw(later) == nil {
			runs()
		}
	}, nil
}

// configure changes the configuration of an image as a caller wants.
func configure(config *image.Config, c sandpit.Commit) {
	if c.Entrypoint != nil {
		config.Entrypoint, config.Cmd = c.Entrypoint, nil
	}
	if c.Cmd != nil {
		config.Cmd = c.Cmd
	}
	if c.WorkDir != "" {
		config.WorkingDir = path.Clean(c.WorkDir)
	}
	if c.User != "" {
		config.User = c.User
	}
	nameOf := func(e string) string { name, _, _ := strings.Cut(e, "="); return name }
	for _, e := range c.Env {
		config.Env = append(slices.DeleteFunc(slices.Clone(config.Env), func(old string) bool { return nameOf(old) == nameOf(e) }), e)
	}
	delete(config.Labels, BuildLabel) // of the base
	if len(c.Labels) > 0 && config.Labels == nil {
		config.Labels = map[string]string{}
	}
	maps.Copy(config.Labels, c.Labels)
}

// ownFiles returns the paths of the files that the engine has put into the root: they tell about this
// sandbox, and the next one gets its own.
func (s *Sandbox) ownFiles(root image.Rootfs) (paths []string, err error) {
	s.mu.Lock()
	trusted := s.trusted
	s.mu.Unlock()
	if trusted == nil {
		if trusted, err = s.likelyTrusted(root); err != nil {
			return nil, err
		}
	}
	files := rootFiles("")
	if s.rootInside {
		files = append(files, s.engine.sudoFile()...)
	}
	paths = append(paths, path.Dir(trustFile))
	for _, f := range files {
		paths = append(paths, path.Clean(f.Path))
	}
	return append(paths, trusted...), nil
}

// likelyTrusted returns Made.Trusted of a sandbox that an earlier version has made: what it would be now.
func (s *Sandbox) likelyTrusted(root image.Rootfs) (paths []string, err error) {
	network := s.engine.opts.Network
	if network == nil {
		return nil, nil
	}
	s.mu.Lock()
	now := s.egress
	s.mu.Unlock()
	_, own, operators, err := network.Authority(s.terms(now))
	if err != nil || s.ca == nil && len(own)+len(operators) == 0 {
		return nil, err
	}
	stores, err := s.engine.trust.storesOf(root, operators, len(own) > 0)
	if err != nil {
		return nil, err
	}
	files, err := stores.files(root, own)
	for _, f := range files {
		paths = append(paths, path.Clean(f.Path))
	}
	return paths, err
}
