package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// Sandbox is a sandbox of an engine. It implements sandpit.Sandbox.
type Sandbox struct {
	engine   *Engine
	id, name string
	created  time.Time
	nameLock func()

	// Set by start, constant afterwards.
	image    image.Config
	lease    *image.Lease
	info     sandpit.Info
	instance driver.Instance
	guest    *client.Client
	life     *time.Timer

	oomMu   sync.Mutex   // held while kills are counted beside other work
	oomSeen atomic.Int64 // kills for want of memory that have been noticed

	remove    sync.Once
	removeErr error
	gone      chan struct{} // closed when Remove begins
}

var _ sandpit.Sandbox = (*Sandbox)(nil)

// oomScoreAdj is what processes have above the guest: so that a sandbox out of
// memory loses a process of its own before its guest. 1000 would make the
// kernel choose any process of a sandbox before all of the host's, which is
// what a machine under pressure should do, too, but leaves no room for more.
const oomScoreAdj = 500

// start makes the sandbox and configures its guest.
func (s *Sandbox) start(ctx context.Context, spec sandpit.Spec, limits sandpit.Limits, enforce map[string]bool, gaps []sandpit.Gap, caps driver.Capabilities, trace func(string)) error {
	root := s.lease.Rootfs()
	s.image = root.Config

	who, err := chooseUser(spec.User, root)
	if err != nil {
		return err
	}
	if spec.Limits.Disk == 0 && !slices.Contains(spec.Asked, "disk") && enforce["memory"] {
		limits.Disk = min(limits.Disk, fittingDisk(limits.Memory))
	}
	hostname := spec.Hostname
	if hostname == "" {
		hostname = hostnameFor(s.name)
	}
	plan := driver.Plan{
		ID: s.id, Name: s.name, Hostname: hostname,
		Root:   driver.Root{Layers: root.Layers, Files: rootFiles(hostname)},
		Mounts: spec.Mounts, Tmpfs: slices.Clone(spec.Tmpfs),
		ReadOnly: spec.ReadOnly, Write: spec.Write,
		Limits: limits, Enforce: enforce,
		UID: who.uid, GID: who.gid, MultiUser: caps.MultiUser && who.uid == 0,
		Ephemeral: true,
		Trace:     s.engine.opts.Trace,
	}
	for _, b := range root.Binds {
		plan.Root.Binds = append(plan.Root.Binds, driver.Bind(b))
	}
	for i := range plan.Tmpfs {
		if plan.Tmpfs[i].Size == 0 {
			plan.Tmpfs[i].Size = defaultTmpfs
		}
	}
	// A volume of an image is a place for data of its own. Everything in a
	// sandbox is its own already; the directory has to exist.
	plan.Root.Dirs = volumes(root.Config.Volumes)
	trace("plan")

	if s.instance, err = s.engine.opts.Driver.Create(ctx, plan); err != nil {
		return err
	}
	trace("create")
	conn, err := s.instance.Dial(ctx)
	if err != nil {
		return err
	}
	dir := spec.WorkDir
	if dir == "" {
		dir = root.Config.WorkingDir
	}
	s.guest, err = client.New(ctx, conn, client.Options{Config: &client.Config{
		User: who.text, Dir: dir, Env: slices.Concat(root.Config.Env, spec.Env),
		Output: limits.Output, NoFile: limits.NoFile, Life: limits.Life,
		RootCaps: spawn.RootCapabilities, OOMScoreAdj: oomScoreAdj,
	}})
	if err != nil {
		return s.explain(fmt.Errorf("greeting the guest: %w", err))
	}
	trace("guest")

	s.info = sandpit.Info{
		ID: s.id, Name: s.name, Image: imageName(root), Driver: s.engine.opts.Driver.Name(),
		Labels: maps.Clone(spec.Labels), CreatedAt: s.created, Limits: limits, NotEnforced: gaps,
	}
	s.life = time.AfterFunc(limits.Life+lifeGrace, func() { _ = s.Remove(context.Background()) })
	return nil
}

// fittingDisk is how much of a memory limit files may take when nobody has said
// how much: they are in memory, and can't be taken from there. Without room
// beside them, the one process left to be killed for want of memory would in
// the end be the guest.
func fittingDisk(memory int64) int64 {
	const room = 12 << 20 // the guest and a small program
	return max(memory-max(memory/8, room), sandpit.MinDisk)
}

// lifeGrace is how long after its lifetime a sandbox is removed. Its guest ends
// the processes when the lifetime is over, and their results must get out.
const lifeGrace = 2 * time.Second

// defaultTmpfs is the size of a Tmpfs that has none, in bytes.
const defaultTmpfs = 64 << 20

func imageName(root image.Rootfs) string {
	if root.Digest != "" && !strings.Contains(root.Reference, "@") {
		return root.Reference + "@" + root.Digest
	}
	return root.Reference
}

// ID returns the identity.
func (s *Sandbox) ID() string { return s.id }

// Name returns the name.
func (s *Sandbox) Name() string { return s.name }

// Info describes the sandbox.
func (s *Sandbox) Info(context.Context) (sandpit.Info, error) {
	if err := s.closed(); err != nil {
		return sandpit.Info{}, err
	}
	info := s.info
	info.State = sandpit.StateRunning
	select {
	case <-s.instance.Done():
		info.State = sandpit.StateFailed
	default:
		if s.guest.Err() != nil {
			info.State = sandpit.StateFailed
		}
	}
	info.Labels = maps.Clone(info.Labels)
	info.NotEnforced = slices.Clone(info.NotEnforced)
	return info, nil
}

// Files returns the file system.
func (s *Sandbox) Files() sandpit.Files { return s.guest.Files() }

// Metrics returns what the sandbox uses.
func (s *Sandbox) Metrics(ctx context.Context) (sandpit.Metrics, error) {
	if err := s.closed(); err != nil {
		return sandpit.Metrics{}, err
	}
	return s.instance.Stats(ctx)
}

// closed returns an error once the sandbox is being removed.
func (s *Sandbox) closed() error {
	select {
	case <-s.gone:
		return fmt.Errorf("sandbox %s: %w", s.name, sandpit.ErrClosed)
	default:
		return nil
	}
}

// Remove destroys the sandbox.
func (s *Sandbox) Remove(ctx context.Context) error {
	s.remove.Do(func() {
		close(s.gone)
		if s.life != nil {
			s.life.Stop()
		}
		if s.instance != nil {
			s.removeErr = s.instance.Destroy(ctx)
		}
		if s.guest != nil {
			s.guest.Close()
		}
		s.lease.Release()
		if s.nameLock != nil {
			s.nameLock()
		}
		s.engine.forget(s)
	})
	return s.removeErr
}

// Start starts a program. See sandpit.Sandbox.
func (s *Sandbox) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	cmd, err := s.completed(cmd)
	if err != nil {
		return nil, err
	}
	s.oomMu.Lock() // a count that is under way
	before := s.oomSeen.Load()
	s.oomMu.Unlock()
	p, err := s.guest.Start(ctx, cmd)
	if err != nil {
		return nil, s.explain(err)
	}
	return &process{Process: p, sandbox: s, oomKills: before, patience: s.watch(p, cmd.Timeout)}, nil
}

// guestPatience is how long after a timeout a guest may take to have killed
// everything and to say so. Its own limit for a process that hangs in the
// kernel is shorter.
const guestPatience = 15 * time.Second

// watch destroys the sandbox when a process outlives its timeout: its guest
// then does not do what it was told. A guest is not trusted with the host's
// time. The timer is to be stopped when the process has ended.
func (s *Sandbox) watch(p sandpit.Process, timeout time.Duration) *time.Timer {
	if timeout <= 0 {
		return nil // the lifetime holds
	}
	return time.AfterFunc(timeout+guestPatience, func() {
		ended, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		if _, err := p.Wait(ended); errors.Is(err, context.DeadlineExceeded) {
			_ = s.instance.Destroy(context.Background())
		}
	})
}

// completed fills in what the image says about running it.
func (s *Sandbox) completed(cmd sandpit.Command) (sandpit.Command, error) {
	if !cmd.FromImage && cmd.Entrypoint == nil {
		return cmd, nil
	}
	if cmd.Script != "" {
		return cmd, fmt.Errorf("starting a process: a script has no entrypoint: %w", sandpit.ErrInvalid)
	}
	entry, rest := s.image.Entrypoint, cmd.Argv
	if cmd.Entrypoint != nil {
		entry = cmd.Entrypoint
	} else if len(rest) == 0 {
		rest = s.image.Cmd
	}
	cmd.Argv, cmd.FromImage, cmd.Entrypoint = slices.Concat(entry, rest), false, nil
	if len(cmd.Argv) == 0 {
		return cmd, sandpit.WithHint(fmt.Errorf("starting a process: no command was given, and image %s has none: %w", s.info.Image, sandpit.ErrInvalid), "name a command")
	}
	return cmd, nil
}

// explain adds to an error of the guest's connection what the driver knows.
func (s *Sandbox) explain(err error) error {
	if !errors.Is(err, sandpit.ErrClosed) {
		return err
	}
	select {
	case <-s.gone:
		return fmt.Errorf("sandbox %s was removed: %w", s.name, err)
	default:
	}
	if n := s.oomKills(context.Background()); n > 0 {
		return sandpit.WithHint(fmt.Errorf("sandbox %s is out of memory: %w", s.name, err), "raise the memory limit")
	}
	return err
}

// oomKills returns how many processes the kernel has killed for want of memory.
func (s *Sandbox) oomKills(ctx context.Context) int64 {
	m, err := s.instance.Stats(ctx)
	if err != nil || m.OOMKills < 0 {
		return 0
	}
	s.oomSeen.Store(m.OOMKills)
	return m.OOMKills
}

// process adds to a process of the guest what only the host can tell.
type process struct {
	sandpit.Process
	sandbox  *Sandbox
	oomKills int64       // of the sandbox, before the start
	patience *time.Timer // with the guest, or nil

	once sync.Once
	oom  bool
}

// Wait waits for the end. When the kernel has counted a kill for want of memory
// since the start, a process that was killed has died of that, and one that
// failed has lost a process to it. For one that succeeded the count is only
// taken, while the caller goes on, so that the next one is not blamed.
func (p *process) Wait(ctx context.Context) (sandpit.Result, error) {
	res, err := p.Process.Wait(ctx)
	if err != nil {
		return res, p.sandbox.explain(err)
	}
	p.once.Do(func() {
		if p.patience != nil {
			p.patience.Stop()
		}
		if res.ExitCode != 0 {
			p.oom = p.sandbox.oomKills(ctx) > p.oomKills && !res.TimedOut
			return
		}
		p.sandbox.oomMu.Lock()
		go func() {
			defer p.sandbox.oomMu.Unlock()
			p.sandbox.oomKills(context.WithoutCancel(ctx))
		}()
	})
	res.OOMKilled = p.oom
	return res, nil
}

// SignalGroup signals the process group of the program. See sandpit.GroupSignaler.
func (p *process) SignalGroup(ctx context.Context, sig syscall.Signal) error {
	if g, ok := p.Process.(sandpit.GroupSignaler); ok {
		return g.SignalGroup(ctx, sig)
	}
	return p.Process.Signal(ctx, sig)
}
