package engine_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// Creates whose image is on a disk that hangs are given up and listed, get stuck in no
// larger number than others, and hold up no other namespace. (The catalogue's L13q.)
func TestStuckImage(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t, func(o *engine.Options) {
		o.Patience = engine.Patience{Undo: time.Millisecond}
	})
	spec := sandpit.Spec{Name: "box", User: "root", WorkDir: "/"}
	if err := made(t, e, spec).Remove(t.Context()); err != nil { // so that there is a skeleton
		t.Fatal(err)
	}
	// Whoever uses the host image waits for a lock on it in the kernel.
	images, _ := engine.Home(srv.dir)
	entries, err := filepath.Glob(filepath.Join(images, "host", "*"))
	if err != nil {
		t.Fatal(err)
	}
	var held []*os.File
	for _, name := range entries {
		if info, err := os.Stat(name); err != nil || !info.IsDir() {
			continue
		}
		f, err := os.Open(name)
		if err == nil {
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		}
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, f)
	}
	if len(held) == 0 {
		t.Fatal("there is no skeleton")
	}
	const limit, all = 16, 50
	attacker, other := e.As("attacker", policy.Default()), e.As("other", policy.Default())
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range all {
		wg.Go(func() {
			if _, err := attacker.Create(ctx, sandpit.Spec{User: "root", WorkDir: "/"}); !errors.Is(err, sandpit.ErrUnavailable) && !errors.Is(err, sandpit.ErrExhausted) && !errors.Is(err, context.Canceled) {
				t.Errorf("the error is %v", err)
			}
		})
	}
	leave()
	wg.Wait()
	if n := e.StuckCount(); n != limit || !strings.Contains(e.Stuck()[0].Doing, "image") {
		t.Errorf("%d are stuck: %v", n, e.Stuck())
	}
	if _, err := attacker.Create(t.Context(), spec); !errors.Is(err, sandpit.ErrExhausted) {
		t.Errorf("one more: %v", err)
	}
	made(t, other, sandpit.Spec{Image: "dir:" + t.TempDir(), User: "0", WorkDir: "/"})
	for _, f := range held {
		f.Close()
	}
	eventually(t, "nothing is stuck", func() bool { return e.StuckCount() == 0 })
	if n := len(e.Sandboxes()); n != 1 {
		t.Errorf("there are %d sandboxes", n)
	}
	made(t, attacker, spec)
}

// silent is a Fetcher whose registries answer when they are released, or no longer
// asked unless it is deaf.
type silent struct {
	image.Fetcher
	asking   atomic.Int64 // requests under way
	deaf     bool
	released chan struct{}
}

type silentSource struct{ *silent }

var errSilent = errors.New("the registry has nothing")

func (s *silent) Registry(image.Reference, image.AcquireOptions) (image.Source, error) {
	return silentSource{s}, nil
}

func (s silentSource) Root(ctx context.Context) ([]byte, string, error) {
	s.asking.Add(1)
	defer s.asking.Add(-1)
	if s.deaf {
		ctx = context.Background()
	}
	select {
	case <-s.released:
		return nil, "", errSilent
	case <-ctx.Done():
		return nil, "", ctx.Err()
	}
}

func (s silentSource) Blob(context.Context, image.Descriptor, int64) (io.ReadCloser, int64, error) {
	return nil, 0, errSilent
}
func (s silentSource) Tries() int { return 1 }
func (s silentSource) Close()     {}

// fetching returns an engine whose registries are those of s.
func fetching(t *testing.T, s *silent, p engine.Patience) *engine.Engine {
	t.Helper()
	srv := newSurvivor(t)
	return srv.open(t, func(o *engine.Options) {
		o.Images, o.Patience = image.Open(o.Images.Dir(), image.Options{NoSync: true, Fetcher: s}), p
	})
}

const remoteImage = "registry.example/image:1"

// So many images are fetched at once for a namespace. A registry that does not answer
// holds up no creates of images that are here, and is left with the caller.
func TestPullsAreBounded(t *testing.T) {
	s := &silent{released: make(chan struct{})}
	e := fetching(t, s, engine.Patience{})
	const limit, all = 16, 30
	tenant := e.As("tenant", policy.Default())
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for n := range all {
		wg.Go(func() {
			var err error
			if n%2 == 0 {
				_, err = tenant.Create(ctx, sandpit.Spec{Image: remoteImage, User: "root", WorkDir: "/"})
			} else {
				_, err = tenant.Pull(ctx, remoteImage, image.AcquireOptions{})
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the error is %v", err)
			}
		})
	}
	eventually(t, "so many are fetched and the others wait", func() bool {
		return s.asking.Load() == limit && e.WaitingForPlaces() == all-limit
	})
	made(t, tenant, sandpit.Spec{})
	if n := s.asking.Load(); n != limit {
		t.Errorf("%d are fetched at once", n)
	}
	leave()
	wg.Wait()
	if n := e.StuckCount(); n != 0 {
		t.Errorf("%d are stuck", n)
	}
}

// What is fetched is called off when nothing moves for too long, and given up when that
// does not help, as on a disk that hangs.
func TestStuckPull(t *testing.T) {
	for _, c := range []struct {
		deaf bool
		want string
	}{{false, `fetching image "` + remoteImage + `": it took longer than 1ms`}, {true, `fetching image "` + remoteImage + `" is stuck (step "image")`}} {
		s := &silent{deaf: c.deaf, released: make(chan struct{})}
		p := engine.Patience{Image: time.Millisecond}
		if c.deaf {
			p.Undo = time.Millisecond
		}
		e := fetching(t, s, p)
		_, err := e.As("tenant", policy.Default()).Pull(t.Context(), remoteImage, image.AcquireOptions{})
		if !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("the error is %v, want %s", err, c.want)
		}
		close(s.released)
		eventually(t, "nothing is stuck", func() bool { return e.StuckCount() == 0 })
	}
}
