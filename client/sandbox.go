package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// sandbox is a sandbox of a server.
type sandbox struct {
	c       *Client
	id      string
	named   atomic.Pointer[string]
	path    string // of its routes
	removed atomic.Bool
}

var (
	_ sandpit.Sandbox       = (*sandbox)(nil)
	_ sandpit.Lifecycle     = (*sandbox)(nil)
	_ sandpit.ProcessKeeper = (*sandbox)(nil)
	_ sandpit.Networker     = (*sandbox)(nil)
	_ sandpit.Egresser      = (*sandbox)(nil)
	_ sandpit.Committer     = (*sandbox)(nil)
	_ sandpit.Meter         = (*sandbox)(nil)
)

func (c *Client) sandbox(id, name string) *sandbox {
	s := &sandbox{c: c, id: id, path: "/v1/sandboxes/" + id}
	s.named.Store(&name)
	return s
}

// ID returns the ID of the sandbox.
func (s *sandbox) ID() string { return s.id }

// Name returns the name of the sandbox.
func (s *sandbox) Name() string { return *s.named.Load() }

// gone is the error of everything once the sandbox is removed.
func (s *sandbox) gone() error {
	return fmt.Errorf("sandbox %s: %w", s.Name(), sandpit.ErrClosed)
}

// open returns an error once the sandbox is known to be removed.
func (s *sandbox) open() error {
	if s.removed.Load() {
		return s.gone()
	}
	return nil
}

// explain makes the error of a call one of this sandbox: to who holds it, one
// that the server does not know any more is gone. It asks, because something
// else may be what was not found.
func (s *sandbox) explain(ctx context.Context, err error) error {
	if !errors.Is(err, sandpit.ErrNotFound) {
		return err
	}
	if s.open() != nil {
		return s.gone()
	}
	if _, e := s.Info(ctx); errors.Is(e, sandpit.ErrClosed) {
		return e
	}
	return err
}

// Info describes the sandbox.
func (s *sandbox) Info(ctx context.Context) (sandpit.Info, error) {
	if err := s.open(); err != nil {
		return sandpit.Info{}, err
	}
	var v v1.Sandbox
	err := s.c.quick(ctx, request{method: http.MethodGet, path: s.path}, &v)
	if errors.Is(err, sandpit.ErrNotFound) {
		s.removed.Store(true)
		return sandpit.Info{}, s.gone()
	}
	if err != nil {
		return sandpit.Info{}, err
	}
	return v.Sandpit(), nil
}

// Metrics returns the current resource usage of the sandbox.
func (s *sandbox) Metrics(ctx context.Context) (sandpit.Metrics, error) {
	if err := s.open(); err != nil {
		return sandpit.Metrics{}, err
	}
	var v v1.Metrics
	if err := s.c.quick(ctx, request{method: http.MethodGet, path: s.path + "/metrics"}, &v); err != nil {
		return sandpit.Metrics{}, s.explain(ctx, err)
	}
	return v.Sandpit().Metrics, nil
}

// History returns the resource usage of the sandbox over time. See sandpit.Meter.
func (s *sandbox) History(ctx context.Context, since time.Time) ([]sandpit.Sample, error) {
	query := url.Values{}
	setTime(query, "since", since)
	var all []sandpit.Sample
	err := pages(ctx, s, "/metrics/history", query, func(v v1.MetricsHistory) (string, error) {
		for _, m := range v.Samples {
			all = append(all, m.Sandpit())
		}
		return v.Next, nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// pages reads a list of the sandbox, page by page. take returns the position of the next page, or
// "" with the last one.
func pages[List any](ctx context.Context, s *sandbox, path string, query url.Values, take func(List) (next string, err error)) error {
	if err := s.open(); err != nil {
		return err
	}
	query.Set("limit", strconv.Itoa(sandpit.MaxPage))
	for {
		var list List
		err := s.c.quick(ctx, request{method: http.MethodGet, path: s.path + path, query: query}, &list)
		next := ""
		if err == nil {
			next, err = take(list)
		}
		if err == nil && next != "" && next == query.Get("after") {
			err = badAnswer("the same page of a list again")
		}
		if err != nil {
			return s.explain(ctx, err)
		}
		if next == "" {
			return nil
		}
		query.Set("after", next)
	}
}

// Remove destroys the sandbox.
func (s *sandbox) Remove(ctx context.Context) error {
	if s.removed.Load() {
		return nil
	}
	err := s.c.call(ctx, request{method: http.MethodDelete, path: s.path}, nil)
	if err == nil || errors.Is(err, sandpit.ErrNotFound) || errors.Is(err, sandpit.ErrClosed) {
		s.removed.Store(true)
		return nil
	}
	return err
}

// Stop ends all processes. See sandpit.Lifecycle.
func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	body, err := encode(v1.Stop{Grace: new(v1.Seconds(grace))})
	if err != nil {
		return fmt.Errorf("stopping sandbox %s: %w", s.Name(), err)
	}
	limit := max(grace, 0)
	limit += min(patience, math.MaxInt64-limit)
	return s.change(ctx, limit, request{method: http.MethodPost, path: s.path + "/stop", body: body})
}

// Restart starts a stopped sandbox. See sandpit.Lifecycle.
func (s *sandbox) Restart(ctx context.Context) error {
	return s.change(ctx, patience, request{method: http.MethodPost, path: s.path + "/start"})
}

// Pause freezes all processes. See sandpit.Lifecycle.
func (s *sandbox) Pause(ctx context.Context) error {
	return s.change(ctx, patience, request{method: http.MethodPost, path: s.path + "/pause"})
}

// Resume thaws all processes. See sandpit.Lifecycle.
func (s *sandbox) Resume(ctx context.Context) error {
	return s.change(ctx, patience, request{method: http.MethodPost, path: s.path + "/resume"})
}

// Commit saves the changed files as an image. See sandpit.Committer.
func (s *sandbox) Commit(ctx context.Context, c sandpit.Commit) (sandpit.SavedImage, error) {
	if err := s.open(); err != nil {
		return sandpit.SavedImage{}, err
	}
	body, err := encode(v1.FromCommit(c))
	if err != nil {
		return sandpit.SavedImage{}, fmt.Errorf("saving sandbox %s: %w", s.Name(), err)
	}
	var v v1.SavedImage
	if err := s.c.call(ctx, request{method: http.MethodPost, path: s.path + "/commit", body: body}, &v); err != nil {
		return sandpit.SavedImage{}, s.explain(ctx, err)
	}
	return sandpit.SavedImage{Name: v.Reference, Digest: v.Digest, Size: v.Size, LeftOut: v.LeftOut}, nil
}

// Update changes the name, labels and limits. See sandpit.Lifecycle.
func (s *sandbox) Update(ctx context.Context, c sandpit.Change) error {
	if err := s.open(); err != nil {
		return err
	}
	body, err := encodeChange(c)
	if err != nil {
		return fmt.Errorf("changing sandbox %q: %w", s.Name(), err)
	}
	var v v1.Sandbox
	if err := s.c.quick(ctx, request{method: http.MethodPatch, path: s.path, body: body}, &v); err != nil {
		return s.explain(ctx, err)
	}
	s.named.Store(&v.Name)
	return nil
}

// SetLifetime changes when the sandbox expires. See sandpit.Lifecycle.
func (s *sandbox) SetLifetime(ctx context.Context, life sandpit.Lifetime) error {
	body, err := encode(v1.FromLifetime(life))
	if err != nil {
		return fmt.Errorf("changing the lifetime of sandbox %s: %w", s.Name(), err)
	}
	return s.change(ctx, patience, request{method: http.MethodPut, path: s.path + "/lifetime", body: body})
}

// change asks for another state of the sandbox.
func (s *sandbox) change(ctx context.Context, limit time.Duration, r request) error {
	if err := s.open(); err != nil {
		return err
	}
	if err := s.c.within(ctx, limit, r, nil); err != nil {
		return s.explain(ctx, err)
	}
	return nil
}
