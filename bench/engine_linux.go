package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// watched is a driver that remembers what it has made, so that the benchmark
// can see when it is gone.
type watched struct {
	driver.Driver

	mu      sync.Mutex
	handles map[string]driver.Handle // by sandbox id
}

func (w *watched) Create(ctx context.Context, plan driver.Plan) (driver.Instance, error) {
	i, err := w.Driver.Create(ctx, plan)
	if err == nil {
		w.mu.Lock()
		w.handles[plan.ID] = i.Handle()
		w.mu.Unlock()
	}
	return i, err
}

// trace is what of a sandbox can be seen on the machine.
type trace struct {
	pid    int
	groups []string
	net    unix.FileHandle
	netOK  bool
}

// trace finds the traces of a sandbox.
func (w *watched) trace(id string) (trace, error) {
	w.mu.Lock()
	h, ok := w.handles[id]
	w.mu.Unlock()
	if !ok {
		return trace{}, fmt.Errorf("looking for the traces of %s: it was not made here", id)
	}
	var state struct {
		PID    int      `json:"pid"`
		Groups []string `json:"groups"`
	}
	if err := json.Unmarshal(h.State, &state); err != nil {
		return trace{}, fmt.Errorf("reading the handle of %s: %w", id, err)
	}
	t := trace{pid: state.PID, groups: state.Groups}
	// Namespaces have file handles since Linux 6.18. One doesn't keep the
	// namespace, and can't be opened any more when the last user has left.
	if net, _, err := unix.NameToHandleAt(unix.AT_FDCWD, fmt.Sprintf("/proc/%d/ns/net", t.pid), unix.AT_SYMLINK_FOLLOW); err == nil {
		t.net = net
		t.netOK = t.netThere()
	}
	return t, nil
}

func (t *trace) netThere() bool {
	fs, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fs)
	fd, err := unix.OpenByHandleAt(fs, t.net, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// gone reports whether no process, cgroup or network namespace is left. No
// other child of this process may live.
func (t *trace) gone() bool {
	if unix.Kill(t.pid, 0) != unix.ESRCH || !noChildren() {
		return false
	}
	for _, g := range t.groups {
		if _, err := os.Stat(g); !errors.Is(err, os.ErrNotExist) {
			return false
		}
	}
	return !t.netOK || !t.netThere()
}

// wait waits until all is gone.
func (t *trace) wait(ctx context.Context) error {
	for start := time.Now(); !t.gone(); time.Sleep(20 * time.Microsecond) {
		if time.Since(start) > patience {
			return fmt.Errorf("waiting for a removed sandbox to be gone: traces are left after %s", patience)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// newEngine is the engine as a program has it that embeds Sandpit.
func (b *bench) newEngine() (*engine.Engine, *watched) {
	images, guests := engine.Home(filepath.Join(b.dir, "home"))
	w := &watched{
		Driver:  linux.New(linux.Options{Dir: guests, Guest: b.guest, GuestDigest: b.digest}),
		handles: map[string]driver.Handle{},
	}
	return engine.New(engine.Options{Driver: w, Images: image.Open(images, image.Options{}), Policy: policy.Default()}), w
}

// execTrue runs `true` in a sandbox.
func (b *bench) execTrue(ctx context.Context, sb sandpit.Sandbox) error {
	return succeed(sandpit.Exec(ctx, sb, b.true))
}

func succeed(out sandpit.Output, err error) error {
	if err != nil {
		return err
	}
	if !out.Success() {
		return fmt.Errorf("the program in the sandbox: exit code %d: %s", out.ExitCode, out.Stderr)
	}
	return nil
}

// execsPerLife is how often `true` is executed in each sandbox after the first.
const execsPerLife = 5

// life is a contestant that lives through whole sandboxes of the engine.
func (b *bench) life(e *engine.Engine, w *watched) *contestant {
	return &contestant{name: "engine", once: func(ctx context.Context, rec *record) error {
		start := time.Now()
		sb, err := e.Create(ctx, sandpit.Spec{})
		if err != nil {
			return err
		}
		defer sb.Remove(context.WithoutCancel(ctx)) //nolint:errcheck // the Remove below is the one that is checked
		created := time.Now()
		if err := b.execTrue(ctx, sb); err != nil {
			return err
		}
		first := time.Now()
		rec.time("create", created.Sub(start))
		rec.time("first exec", first.Sub(created))
		for range execsPerLife {
			begin := time.Now()
			if err := b.execTrue(ctx, sb); err != nil {
				return err
			}
			rec.time("exec", time.Since(begin))
		}
		left, err := w.trace(sb.ID())
		if err != nil {
			return err
		}
		begin := time.Now()
		if err := sb.Remove(ctx); err != nil {
			return err
		}
		removed := time.Since(begin)
		if err := left.wait(ctx); err != nil {
			return err
		}
		rec.time("destroy", removed)
		rec.time("quiet", time.Since(begin))
		rec.time("all", first.Sub(start)+removed)
		return nil
	}}
}
