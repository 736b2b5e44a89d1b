package api_test

import (
	"maps"
	"strings"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// PATCH merges labels, of which null removes one, and is in the audit without their values.
func TestUpdateSandbox(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{Name: "box", Labels: map[string]string{"a": "1", "b": "2"}})
	path := "/v1/sandboxes/box"
	var got v1.Sandbox
	s.want(200, &got, ask{method: "PATCH", path: path, body: `{"name":"other","labels":{"a":null,"c":"hidden","none":null}}`})
	if got.Name != "other" || got.ID != sb.ID || !maps.Equal(got.Labels, map[string]string{"b": "2", "c": "hidden"}) {
		t.Errorf("got %+v", got)
	}
	s.refused(404, "not_found", ask{method: "PATCH", path: path, body: `{}`})
	path = "/v1/sandboxes/other"
	s.want(200, &got, ask{method: "PATCH", path: path, body: `{}`})
	s.create("", v1.Spec{Name: "box"})
	s.refused(409, "exists", ask{method: "PATCH", path: path, body: `{"name":"box"}`})
	for _, body := range []string{`{"labels":{"a":1}}`, `{"labels":[]}`, `{"state":"stopped"}`, `{"name":"a/b"}`, `{"limits":{"memory":1}}`, `[]`} {
		s.refused(400, "invalid", ask{method: "PATCH", path: path, body: body})
	}
	for body, want := range map[string]string{
		`{"limits":{"disk":1073741824}}`: `"limits.disk" is unknown`,
		`{"limits":{"life":60}}`:         `"limits.life" is unknown`,
		`{"name":""}`:                    `"name" must not be empty`,
		`{"name":null}`:                  `"name" can't be null`,
		`{"labels":null}`:                `"labels" can't be null`,
		`{"limits":null}`:                `"limits" can't be null`,
		`{"limits":{"memory":0}}`:        `"limits.memory" must be more than 0`,
		`{"limits":{"memory":null}}`:     `"limits.memory" can't be null`,
		`{"limits":{"cpus":-1}}`:         `"limits.cpus" must be more than 0`,
		`{"limits":{"pids":0}}`:          `"limits.pids" must be more than 0`,
	} {
		if e := s.refused(400, "invalid", ask{method: "PATCH", path: path, body: body}); !strings.Contains(e.Message, want) || e.Hint == "" {
			t.Errorf("the answer to %s is %q with the hint %q", body, e.Message, e.Hint)
		}
	}
	s.want(200, &got, ask{method: "PATCH", path: path, body: `{"labels":{"d":""}}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}})
	if !maps.Equal(got.Labels, map[string]string{"b": "2", "c": "hidden", "d": ""}) {
		t.Errorf("after a merge patch the labels are %v", got.Labels)
	}
	for body, want := range map[string]string{
		`{"life":0}`:         `"life" must be more than 0`,
		`{"life":1e-12}`:     `"life" must be more than 0`,
		`{"life":null}`:      `"life" can't be null`,
		`{"idle":0}`:         `"idle" must be more than 0`,
		`{"idle":-2}`:        `"idle" must be more than 0`,
		`{"idle":null}`:      `"idle" can't be null`,
		`{"on_expiry":""}`:   `"on_expiry" must not be empty`,
		`{"on_expiry":null}`: `"on_expiry" can't be null`,
	} {
		if e := s.refused(400, "invalid", ask{method: "PUT", path: path + "/lifetime", body: body}); !strings.Contains(e.Message, want) || e.Hint == "" {
			t.Errorf("the answer to %s is %q with the hint %q", body, e.Message, e.Hint)
		}
	}
	for _, body := range []string{`{}`, `{"life":60,"idle":-1,"on_expiry":"stop"}`} {
		s.want(200, nil, ask{method: "PUT", path: path + "/lifetime", body: body})
	}
	s.refused(415, "unsupported_media", ask{method: "PUT", path: path + "/lifetime", body: `{}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}})
	found := false
	for _, e := range s.audit.all() {
		if e.Action == "updateSandbox" && strings.Contains(e.Detail, "hidden") {
			t.Errorf("the audit has %+v", e)
		}
		found = found || e.Action == "updateSandbox" && e.Detail == `name "other" labels a,c,none` && e.Phase == "end" && e.Status == 200
	}
	if !found {
		t.Error("the change is not in the audit")
	}
}
