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
	err = pages(ctx, s, "/previews", url.Values{}, func(v v1.PreviewList) (string, error) {
		for _, p := range v.Previews {
			all = append(all, sandpit.Preview(p))
		}
		return v.Next, nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
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
