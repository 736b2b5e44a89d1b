package api_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// needEgress skips where sandboxes can't have a network.
func needEgress(t *testing.T) {
	t.Helper()
	testkit.NeedProgram(t, "curl")
	caps := linux.New(linux.Options{}).Probe(t.Context())
	if i := slices.IndexFunc(caps.Gaps, func(g sandpit.Gap) bool { return g.What == string(feature.Egress) }); i >= 0 {
		testkit.Lacks(t, "egress: "+caps.Gaps[i].Why)
	}
}

// The egress of a running sandbox is read, changed and checked, and its log comes in pages.
func TestEgress(t *testing.T) {
	needEgress(t)
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	defer origin.Close()
	_, port, err := net.SplitHostPort(origin.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, nil)
	sb := s.create(aliceKey, v1.Spec{Name: "box"})
	path := "/v1/sandboxes/box/egress"
	var got v1.Egress
	s.want(200, &got, ask{method: "GET", path: path, key: aliceKey})
	if diff := cmp.Diff(v1.Egress{}, got); diff != "" {
		t.Errorf("without any: %s", diff)
	}
	want := v1.Egress{Allow: []string{"good.test:" + port}, Deny: []string{"never.test"}, Resolve: []string{"good.test:127.0.0.1", "bad.test:127.0.0.1"}, Bounds: &v1.EgressBounds{Connections: 10}}
	for range 2 { // it can be repeated
		s.want(200, &got, ask{method: "PUT", path: path, key: aliceKey, body: want})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("changed: %s", diff)
		}
	}
	get := func(host string) string {
		var out v1.Executed
		s.want(200, &out, ask{method: "POST", path: execPath(sb), key: aliceKey, body: v1.Exec{Command: v1.Command{Script: "curl -sS -m 20 http://" + host + ":" + port + "/ 2>&1; true"}}})
		return out.Stdout
	}
	if out := get("good.test"); out != "hello" {
		t.Errorf("an allowed name: %q", out)
	}
	for _, host := range []string{"bad.test", "127.0.0.2", "never.test"} {
		if out := get(host); strings.Contains(out, "hello") {
			t.Errorf("%s is reached", host)
		}
	}
	for destination, want := range map[string]v1.EgressDecision{
		"good.test:" + port: {Allowed: true, Rule: "good.test:" + port},
		"GOOD.test:" + port: {Allowed: true, Rule: "good.test:" + port},
		"good.test:1":       {},
		"never.test":        {Rule: "never.test"},
		"udp:good.test:53":  {},
	} {
		var d v1.EgressDecision
		s.want(200, &d, ask{method: "GET", path: path + "/check?destination=" + url.QueryEscape(destination), key: aliceKey})
		if d.Allowed != want.Allowed || d.Rule != want.Rule || d.Why == "" {
			t.Errorf("%s: %+v", destination, d)
		}
	}
	var log v1.EgressLog
	s.want(200, &log, ask{method: "GET", path: path + "/log", key: aliceKey})
	if i := slices.IndexFunc(log.Flows, func(f v1.Flow) bool {
		return f.Host == "good.test" && f.Protocol == "tcp" && f.Allowed && f.Address == "127.0.0.1:"+port && f.Sent > 0 && f.Received > 0
	}); i < 0 || len(log.Denials) == 0 || log.Next != "" {
		t.Errorf("the log is %+v", log)
	}
	var one, rest v1.EgressLog
	s.want(200, &one, ask{method: "GET", path: path + "/log?limit=1", key: aliceKey})
	if len(one.Flows) != 1 || one.Next == "" {
		t.Fatalf("a page of one is %+v", one)
	}
	s.want(200, &rest, ask{method: "GET", path: path + "/log?after=" + url.QueryEscape(one.Next), key: aliceKey})
	if len(rest.Flows) != len(log.Flows)-1 || len(rest.Denials) != 0 {
		t.Errorf("the next page is %+v", rest)
	}
	log = v1.EgressLog{}
	s.want(200, &log, ask{method: "GET", path: path + "/log?denied=true", key: aliceKey})
	if len(log.Flows) == 0 || slices.ContainsFunc(log.Flows, func(f v1.Flow) bool { return f.Allowed }) {
		t.Errorf("denied: %+v", log.Flows)
	}
	log = v1.EgressLog{}
	s.want(200, &log, ask{method: "GET", path: path + "/log?host=good.test", key: aliceKey})
	if len(log.Flows) == 0 || slices.ContainsFunc(log.Flows, func(f v1.Flow) bool { return f.Host != "good.test" }) {
		t.Errorf("of one host: %+v", log.Flows)
	}

	for _, body := range []string{`{"allow":["*.com"]}`, `{"allow":["http://x"]}`, `{"preset":"most"}`, `{"allow":"x.test"}`, `{"rules":[]}`, `{"allow":["registry"]}`, `{"bounds":{"sent":-1}}`, `[]`} {
		s.refused(400, "invalid", ask{method: "PUT", path: path, key: aliceKey, body: body})
	}
	s.refused(400, "invalid", ask{method: "GET", path: path + "/check?destination=a%20b", key: aliceKey})
	s.refused(400, "invalid", ask{method: "GET", path: path + "/log?after=x", key: aliceKey})
	if out := get("good.test"); out != "hello" {
		t.Errorf("after refused changes: %q", out)
	}
	for _, a := range []ask{{method: "GET", path: path}, {method: "PUT", path: path, body: want}, {method: "GET", path: path + "/log"}, {method: "GET", path: path + "/check?destination=a.test"}} {
		a.key = bobKey
		s.refused(404, "not_found", a)
	}
	s.want(200, &got, ask{method: "PUT", path: path, key: aliceKey, body: `{}`})
	if out := get("good.test"); strings.Contains(out, "hello") {
		t.Error("what was taken away is reached")
	}
	detail := fmt.Sprintf(`allow "good.test:%s" deny "never.test" resolve "good.test:127.0.0.1,bad.test:127.0.0.1" bounds`, port)
	if !slices.ContainsFunc(s.audit.all(), func(e v1.Audit) bool { return e.Action == "setEgress" && e.Detail == detail && e.Status == 200 }) {
		t.Error("the change is not in the audit")
	}
}
