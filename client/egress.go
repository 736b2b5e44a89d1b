package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// Egress returns what the sandbox may reach. See sandpit.Egresser.
func (s *sandbox) Egress(ctx context.Context) (sandpit.Egress, error) {
	if err := s.open(); err != nil {
		return sandpit.Egress{}, err
	}
	var v v1.Egress
	if err := s.c.quick(ctx, request{method: http.MethodGet, path: s.path + "/egress"}, &v); err != nil {
		return sandpit.Egress{}, s.explain(ctx, err)
	}
	return v.Sandpit(), nil
}

// SetEgress changes what the sandbox may reach. See sandpit.Egresser.
func (s *sandbox) SetEgress(ctx context.Context, e sandpit.Egress) error {
	body, err := encodeEgress(e)
	if err != nil {
		return fmt.Errorf("changing the egress of sandbox %q: %w", s.Name(), err)
	}
	return s.change(ctx, patience, request{method: http.MethodPut, path: s.path + "/egress", body: body})
}

// ChangeEgress changes a part of what the sandbox may reach. See sandpit.Egresser.
func (s *sandbox) ChangeEgress(ctx context.Context, c sandpit.EgressChange) error {
	r, a := c.Remove, c.Add
	texts := slices.Concat([]string{string(c.Preset)}, r.Allow, r.Deny, r.Resolve, a.Allow, a.Deny, a.Resolve)
	err := isText("egress", texts...)
	var body []byte
	if err == nil {
		body, err = encode(v1.FromEgressChange(c))
	}
	if err != nil {
		return fmt.Errorf("changing the egress of sandbox %q: %w", s.Name(), err)
	}
	return s.change(ctx, patience, request{method: http.MethodPatch, path: s.path + "/egress", body: body})
}

// CheckEgress says whether a destination is allowed. See sandpit.Egresser.
func (s *sandbox) CheckEgress(ctx context.Context, destination string) (sandpit.EgressDecision, error) {
	if err := s.open(); err != nil {
		return sandpit.EgressDecision{}, err
	}
	if err := isText("destination", destination); err != nil {
		return sandpit.EgressDecision{}, err
	}
	var v v1.EgressDecision
	if err := s.c.quick(ctx, request{method: http.MethodGet, path: s.path + "/egress/check", query: url.Values{"destination": {destination}}}, &v); err != nil {
		return sandpit.EgressDecision{}, s.explain(ctx, err)
	}
	return sandpit.EgressDecision(v), nil
}

// EgressLog returns the last connections and denials. See sandpit.Egresser.
func (s *sandbox) EgressLog(ctx context.Context) (sandpit.EgressLog, error) {
	var log sandpit.EgressLog
	err := pages(ctx, s, "/egress/log", url.Values{}, func(v v1.EgressLog) (string, error) {
		for _, f := range v.Flows {
			log.Flows = append(log.Flows, f.Sandpit())
		}
		for _, d := range v.Denials {
			log.Denials = append(log.Denials, sandpit.EgressDenial(d))
		}
		log.Lost += v.Lost
		log.Learns = log.Learns || v.Learns
		return v.Next, nil
	})
	if err != nil {
		return sandpit.EgressLog{}, err
	}
	return log, nil
}
