package api_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// Every list has pages, with the same parameters and field.
func TestEveryListHasPages(t *testing.T) {
	lists := 0
	for _, r := range api.Routes() {
		if r.Method != http.MethodGet || r.Out == nil || !strings.HasPrefix(r.ID, "list") && !strings.HasPrefix(r.ID, "find") && !strings.HasPrefix(r.ID, "search") && r.ID != "getMetricsHistory" {
			continue
		}
		lists++
		next, ok := reflect.TypeOf(r.Out).FieldByName("Next")
		if !ok || next.Type.Kind() != reflect.String || next.Tag.Get("json") != "next,omitempty" {
			t.Errorf("%s has no next", r.ID)
		}
		for _, want := range []api.Param{
			{Name: "limit", Type: "integer", Most: 1000, Doc: "Default 100, at most 1,000; a page may have fewer entries"},
			{Name: "after", Type: "string", Doc: "The value of next in the previous page"},
		} {
			if !slices.ContainsFunc(r.Query, func(p api.Param) bool { return reflect.DeepEqual(p, want) }) {
				t.Errorf("%s does not have the parameter %q as the others", r.ID, want.Name)
			}
		}
	}
	if lists < 10 {
		t.Errorf("there are %d lists", lists)
	}
	// Each list of the reference is one of them.
	for _, r := range api.Routes() {
		if r.Out == nil || r.Method != http.MethodGet {
			continue
		}
		out := reflect.TypeOf(r.Out)
		for i := range out.NumField() {
			if f := out.Field(i); f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct && strings.HasSuffix(out.Name(), "List") {
				if _, ok := out.FieldByName("Next"); !ok {
					t.Errorf("%s is a list without pages", r.ID)
				}
			}
		}
	}
}

// pages returns the entries of a list, read in pages of a number of entries.
func (s *service) pages(path, field string, limit int) (all []map[string]any) {
	s.t.Helper()
	join := "?"
	if strings.Contains(path, "?") {
		join = "&"
	}
	for after := ""; ; {
		var page map[string]json.RawMessage
		status, body, _ := s.get(ask{method: "GET", path: path + join + "limit=" + strconv.Itoa(limit) + "&after=" + url.QueryEscape(after)})
		if status != 200 {
			s.t.Fatalf("%s: %d %s", path, status, body)
		}
		var part []map[string]any
		after = ""
		if err := json.Unmarshal(body, &page); err != nil {
			s.t.Fatal(err)
		}
		if err := json.Unmarshal(page[field], &part); err != nil || len(part) > limit {
			s.t.Fatalf("%s: %s: %v", path, body, err)
		}
		if next := page["next"]; next != nil {
			if err := json.Unmarshal(next, &after); err != nil {
				s.t.Fatal(err)
			}
		}
		if all = append(all, part...); after == "" {
			return all
		}
	}
}

// A list has the same entries in whatever pages, and those that its filters select.
func TestPagesAndFilters(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	path := "/v1/sandboxes/" + sb.ID
	for range 3 {
		s.want(200, nil, ask{method: "POST", path: path + "/exec", body: v1.Exec{Command: v1.Command{Argv: []string{"true"}}}})
	}
	s.want(201, nil, ask{method: "POST", path: path + "/processes", body: v1.Command{Argv: []string{"sleep", "1000"}}})
	for range 3 {
		s.want(201, nil, ask{method: "POST", path: "/v1/webhooks", body: v1.NewWebhook{URL: "https://example.com/"}})
		s.want(201, nil, ask{method: "POST", path: "/v1/keys", body: v1.NewKey{Name: "k"}})
	}
	for _, name := range []string{"a", "b", "a?scope=server"} {
		s.want(200, nil, ask{method: "PUT", path: "/v1/secrets/" + name, body: v1.NewSecret{Value: "v"}})
	}
	for _, list := range []struct{ path, field string }{
		{path + "/processes", "processes"},
		{path + "/files/list?path=/etc", "entries"},
		{path + "/files/find?path=/etc&depth=1", "entries"},
		{path + "/ports", "ports"},
		{path + "/metrics/history", "samples"},
		{"/v1/sandboxes", "sandboxes"},
		{"/v1/webhooks", "webhooks"},
		{"/v1/secrets", "secrets"},
		{"/v1/services", "services"},
		{"/v1/dialects", "dialects"},
		{"/v1/images", "images"},
		{"/v1/audit?action=createKey", "entries"},
	} {
		join := "?"
		if strings.Contains(list.path, "?") {
			join = "&"
		}
		if !strings.Contains(list.path, "/files/") { // whose positions are names of files
			s.refused(400, "invalid", ask{method: "GET", path: list.path + join + "after=zzz"})
		}
		whole := s.pages(list.path, list.field, 1000)
		for _, limit := range []int{1, 2} {
			if got := s.pages(list.path, list.field, limit); !reflect.DeepEqual(got, whole) {
				t.Errorf("%s in pages of %d has %d entries, and %d in one", list.path, limit, len(got), len(whole))
			}
		}
	}
	for state, want := range map[string]int{"running": 1, "ended": 3, "": 4} {
		query := ""
		if state != "" {
			query = "?state=" + state
		}
		if got := len(s.pages(path+"/processes"+query, "processes", 2)); got != want {
			t.Errorf("there are %d processes of the state %q, want %d", got, state, want)
		}
	}
	for _, query := range []string{"/v1/sandboxes?label=", "/v1/sandboxes?label=a=1&label=a=2", "/v1/sandboxes?state=x", "/v1/sandboxes?state=running&state=x", "/v1/sandboxes?limit=1001", "/v1/sandboxes?after=!", "/v1/sandboxes?since=yesterday", "/v1/sandboxes?until=", "/v1/events?sandbox=", path + "/processes?state=stopped", "/v1/events?kind=events.lost"} {
		s.refused(400, "invalid", ask{method: "GET", path: query})
	}
	for query, want := range map[string]int{"state=running&state=stopped": 1, "state=stopped": 0, "label=none": 0, "until=2020-01-01T00:00:00Z": 0, "since=2020-01-01T00:00:00Z&state=running": 1} {
		if got := len(s.pages("/v1/sandboxes?"+query, "sandboxes", 1)); got != want {
			t.Errorf("%s: %d sandboxes, want %d", query, got, want)
		}
	}
}
