package api_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// Sandboxes are removed by filter, never without one, and the audit has the ID of each.
func TestRemoveSandboxesByFilter(t *testing.T) {
	s := serve(t, nil)
	var mine []string
	for i := range 3 {
		mine = append(mine, s.create("", v1.Spec{Labels: map[string]string{"team": "a", "n": fmt.Sprint(i)}}).ID)
	}
	other := s.create("", v1.Spec{Labels: map[string]string{"team": "b"}})
	others := s.create(aliceKey, v1.Spec{Labels: map[string]string{"team": "a"}})
	for _, query := range []string{"", "?all=false", "?all=true&label=team=a", "?label=", "?all=", "?until=", "?state=failed&until=", "?state=x", "?limit=1", "?al=true", "?after=1", "?all=true&after=-"} {
		s.refused(400, "invalid", ask{method: "DELETE", path: "/v1/sandboxes" + query})
	}
	var got v1.RemovedList
	s.want(200, &got, ask{method: "DELETE", path: "/v1/sandboxes?label=team=none"})
	if len(got.Sandboxes) != 0 {
		t.Errorf("got %+v", got)
	}
	s.want(200, &got, ask{method: "DELETE", path: "/v1/sandboxes?label=team=a&label=n&state=running&state=paused"})
	if len(got.Sandboxes) != 3 || got.Next != "" {
		t.Errorf("got %+v", got)
	}
	for i, r := range got.Sandboxes {
		if r.ID != mine[i] || r.Error != nil {
			t.Errorf("got %+v, want %s", r, mine[i])
		}
		s.refused(404, "not_found", ask{method: "GET", path: "/v1/sandboxes/" + r.ID})
	}
	s.want(200, nil, ask{method: "GET", path: "/v1/sandboxes/" + other.ID})
	intent, end := "", ""
	for _, e := range s.audit.all() {
		if e.Action == "removeSandboxes" && strings.Contains(e.Detail, "label=n") {
			intent = e.Phase
		}
		if e.Action == "removeSandboxes" && e.Detail == "removed "+strings.Join(mine, " ") {
			end = e.Phase
		}
	}
	if intent != "intent" || end != "end" {
		t.Errorf("the audit has %q and %q", intent, end)
	}
	got = v1.RemovedList{}
	s.want(200, &got, ask{method: "DELETE", path: "/v1/sandboxes?all=true"})
	if len(got.Sandboxes) != 1 || got.Sandboxes[0].ID != other.ID {
		t.Errorf("got %+v", got)
	}
	s.want(200, nil, ask{method: "GET", path: "/v1/sandboxes/" + others.ID, key: aliceKey})
}
