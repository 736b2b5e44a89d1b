package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

var _ sandpit.Previewer = (*sandbox)(nil)

// Preview creates a preview of a port. See sandpit.Previewer.
func (s *sandbox) Preview(ctx context.Context, port uint16, life time.Duration) (sandpit.Preview, error) {
	if err := s.open(); err != nil {
		return sandpit.Preview{}, err
	}
	body, err := encode(v1.FromPreviewTime(life))
	if err != nil {
		return sandpit.Preview{}, fmt.Errorf("creating a preview of sandbox %s: %w", s.Name(), err)
	}
	var v v1.Preview
	if err := s.c.quick(ctx, request{method: http.MethodPost, path: s.path + "/ports/" + strconv.Itoa(int(port)) + "/previews", body: body}, &v); err != nil {
		return sandpit.Preview{}, s.explain(ctx, err)
	}
	return sandpit.Preview(v), nil
}

// Previews returns the previews of the sandbox. See sandpit.Previewer.
func (s *sandbox) Previews(ctx context.Context) (all []sandpit.Preview, err error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	for query := (url.Values{"limit": {"1000"}}); ; {
		var v v1.PreviewList
		if err := s.c.quick(ctx, request{method: http.MethodGet, path: s.path + "/previews", query: query}, &v); err != nil {
			return nil, s.explain(ctx, err)
		}
		for _, p := range v.Previews {
			all = append(all, sandpit.Preview(p))
		}
		if v.Next == "" {
			return all, nil
		}
		query.Set("after", v.Next)
	}
}

// RevokePreview ends a preview. See sandpit.Previewer.
func (s *sandbox) RevokePreview(ctx context.Context, id string) error {
	if err := s.open(); err != nil {
		return err
	}
	if err := s.c.quick(ctx, request{method: http.MethodDelete, path: s.path + "/previews/" + url.PathEscape(id)}, nil); err != nil {
		return s.explain(ctx, err)
	}
	return nil
}
