package api_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// /metrics is text that Prometheus reads, with what has happened in it.
func TestMetrics(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	s.refused(400, "invalid", ask{method: "POST", path: "/v1/sandboxes", body: v1.Spec{Name: "!"}})
	s.want(200, nil, ask{method: "GET", path: "/v1/sandboxes/" + sb.ID})
	_, body, h := s.get(ask{method: "GET", path: "/metrics", key: adminKey})
	if h.Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
		t.Error(h)
	}
	line := regexp.MustCompile(`^(\w+)(\{(\w+="(\\.|[^"\\])*",?)*\})? (\S+)$`)
	typed, samples := map[string]bool{}, map[string]float64{}
	for text := range strings.Lines(string(body)) {
		text = strings.TrimSuffix(text, "\n")
		if f := strings.Fields(text); f[0] == "#" {
			if f[1] == "TYPE" {
				if typed[f[2]] {
					t.Errorf("%s is said twice", f[2])
				}
				typed[f[2]] = true
			}
			continue
		}
		m := line.FindStringSubmatch(text)
		if m == nil {
			t.Errorf("%q is no sample", text)
			continue
		}
		value, err := strconv.ParseFloat(m[5], 64)
		if err != nil {
			t.Error(err)
		}
		name := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(m[1], "")
		if !typed[name] && !typed[m[1]] {
			t.Errorf("%s has no type", m[1])
		}
		samples[m[1]+m[2]] = value
	}
	for name, want := range map[string]float64{
		`sandpit_http_requests_total{operation="createSandbox",status="201"}`:                       1,
		`sandpit_http_requests_total{operation="createSandbox",status="400"}`:                       1,
		`sandpit_http_request_duration_seconds_bucket{operation="getSandbox",le="+Inf"}`:            1,
		`sandpit_http_request_duration_seconds_count{operation="getSandbox"}`:                       1,
		`sandpit_sandbox_creates_total{result="ok"}`:                                                1,
		`sandpit_sandbox_creates_total{result="invalid"}`:                                           1,
		`sandpit_sandboxes{state="running"}`:                                                        1,
		`sandpit_sandbox_creates_waiting`:                                                           3,
		`sandpit_pool{kind="blank"}`:                                                                2,
		`sandpit_sandbox_memory_bytes{sandbox="` + sb.ID + `",namespace="local"}`:                   5,
		`sandpit_sandbox_cpu_seconds_total{sandbox="` + sb.ID + `",namespace="local"}`:              1,
		`sandpit_sandbox_disk_bytes{sandbox="` + sb.ID + `",namespace="local"}`:                     7,
		`sandpit_sandbox_disk_limit_bytes{sandbox="` + sb.ID + `",namespace="local"}`:               70,
		`sandpit_sandbox_files{sandbox="` + sb.ID + `",namespace="local"}`:                          8,
		`sandpit_sandbox_files_limit{sandbox="` + sb.ID + `",namespace="local"}`:                    80,
		`sandpit_sandbox_network_receive_bytes_total{sandbox="` + sb.ID + `",namespace="local"}`:    9,
		`sandpit_sandbox_network_receive_packets_total{sandbox="` + sb.ID + `",namespace="local"}`:  0,
		`sandpit_sandbox_network_transmit_bytes_total{sandbox="` + sb.ID + `",namespace="local"}`:   0,
		`sandpit_sandbox_network_transmit_packets_total{sandbox="` + sb.ID + `",namespace="local"}`: 10,
		`sandpit_open_streams`: 0,
	} {
		if got, ok := samples[name]; !ok || got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if strings.Contains(string(body), "sandpit_sandbox_pids{") {
		t.Error("a figure that can't be had is told")
	}
}

// Every operation that changes something is guarded by the audit, and everything
// that others must not see is an administrator's.
func TestRoutesAreGuarded(t *testing.T) {
	reads := map[string]bool{"GET": true}
	for _, r := range api.Routes() {
		if !reads[r.Method] && !r.Guarded {
			t.Errorf("%s changes something and is not guarded", r.ID)
		}
		if r.Open && (r.Guarded || r.Admin || strings.Contains(r.Path, "{")) {
			t.Errorf("%s is open", r.ID)
		}
		for _, word := range []string{"/keys", "/audit", "/metrics"} {
			if strings.HasPrefix(strings.TrimPrefix(r.Path, "/v1"), word) && !r.Admin {
				t.Errorf("%s is everybody's", r.ID)
			}
		}
	}
}
