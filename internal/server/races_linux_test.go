package server_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/server"
)

// runFor runs a server that must not start.
func runFor(t *testing.T, opt server.Options) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := server.Run(ctx, opt)
	if ctx.Err() != nil {
		t.Fatal("it has started")
	}
	return err
}

// TestOneNameOfMany has 64 callers make and remove one name.
func TestOneNameOfMany(t *testing.T) {
	t.Parallel()
	rounds := 2
	if long() {
		rounds = 50
	}
	s := newServed(t).start()
	var made, removed atomic.Int64
	for range rounds {
		var all sync.WaitGroup
		for i := range 64 {
			all.Go(func() {
				c := s.unix()
				defer c.Close()
				if i%2 == 0 {
					_, err := c.Create(t.Context(), small("one"))
					switch {
					case err == nil:
						made.Add(1)
					case !errors.Is(err, sandpit.ErrExists) && !errors.Is(err, sandpit.ErrNotFound) && !errors.Is(err, sandpit.ErrClosed):
						t.Errorf("creating: %v", err)
					}
					return
				}
				err := c.Remove(t.Context(), "one")
				switch {
				case err == nil:
					removed.Add(1)
				case !errors.Is(err, sandpit.ErrNotFound):
					t.Errorf("removing: %v", err)
				}
			})
		}
		all.Wait()
	}
	c := s.unix()
	defer c.Close()
	page, err := c.List(t.Context(), sandpit.ListQuery{})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Sandboxes) > 1 || int64(len(page.Sandboxes)) < made.Load()-removed.Load() {
		t.Errorf("%d made, %d removed, and there is %+v", made.Load(), removed.Load(), page.Sandboxes)
	}
	// The name can be had.
	if err := c.Remove(t.Context(), "one"); err != nil && !errors.Is(err, sandpit.ErrNotFound) {
		t.Error(err)
	}
	sb := create(t, c, "one")
	if out, err := sandpit.Exec(t.Context(), sb, "echo", "well"); err != nil || string(out.Stdout) != "well\n" {
		t.Errorf("%q %v", out.Stdout, err)
	}
}

// TestRemovedUnderWork removes sandboxes in which callers work, twice at once.
func TestRemovedUnderWork(t *testing.T) {
	t.Parallel()
	rounds := 4
	if long() {
		rounds = 200
	}
	s := newServed(t).start()
	c := s.unix()
	defer c.Close()
	for range rounds {
		sb := create(t, c, "")
		var all sync.WaitGroup
		begun := make(chan struct{}, 100)
		for range 8 {
			all.Go(func() {
				for {
					out, err := sandpit.Shell(t.Context(), sb, "echo well; sleep 0.01")
					begun <- struct{}{}
					switch {
					case err == nil && string(out.Stdout) == "well\n":
						continue
					case err == nil && out.Signal != 0:
						return // it was killed
					case errors.Is(err, sandpit.ErrNotFound), errors.Is(err, sandpit.ErrClosed), errors.Is(err, sandpit.ErrState), errors.Is(err, sandpit.ErrUnavailable):
						return
					case err == nil && strings.HasPrefix("well\n", string(out.Stdout)):
						t.Errorf("it ended as if by itself: %+v", out)
						return
					}
					t.Errorf("working: %+v %v", out, err)
					return
				}
			})
			all.Go(func() {
				if _, err := sb.Files().Write(t.Context(), "/tmp/f", strings.NewReader(strings.Repeat("x", 1<<16)), sandpit.WriteOptions{}); err != nil && !gone(err) {
					t.Errorf("writing: %v", err)
				}
			})
		}
		<-begun
		go func() {
			for range begun { // so that nobody waits
			}
		}()
		for range 2 {
			all.Go(func() {
				if err := c.Remove(t.Context(), sb.ID()); err != nil && !errors.Is(err, sandpit.ErrNotFound) {
					t.Errorf("removing: %v", err)
				}
			})
			all.Go(func() {
				if err := sb.Remove(t.Context()); err != nil {
					t.Errorf("removing: %v", err)
				}
			})
		}
		all.Wait()
		close(begun)
		if _, err := c.Get(t.Context(), sb.ID()); !errors.Is(err, sandpit.ErrNotFound) {
			t.Errorf("after it was removed: %v", err)
		}
	}
}

func gone(err error) bool {
	return errors.Is(err, sandpit.ErrNotFound) || errors.Is(err, sandpit.ErrClosed) || errors.Is(err, sandpit.ErrState) || errors.Is(err, sandpit.ErrUnavailable)
}
