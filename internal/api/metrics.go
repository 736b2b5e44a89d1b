package api

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The text format of Prometheus, version 0.0.4
// (prometheus.io/docs/instrumenting/exposition_formats). It is written by hand:
// the client library costs a program 2 ms at each start.
const metricsType = "text/plain; version=0.0.4; charset=utf-8"

// maxSeries is how many sandboxes have figures of their own in /metrics.
const maxSeries = 200

// buckets of durations, in seconds: their upper bounds.
func buckets() [14]float64 {
	return [14]float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300}
}

// histogram counts durations.
type histogram struct {
	counts [15]uint64 // of each bucket alone; the last is beyond all
	sum    float64
}

func (h *histogram) observe(d time.Duration) {
	s := d.Seconds()
	bounds := buckets()
	i, _ := slices.BinarySearch(bounds[:], s)
	h.counts[i]++
	h.sum += s
}

// outcome is what requests are counted by: bounded by the routes and statuses.
type outcome struct {
	operation string
	status    int
}

// metrics is what the API counts of itself.
type metrics struct {
	mu        sync.Mutex
	requests  map[outcome]uint64    // guarded by mu
	durations map[string]*histogram // by operation; guarded by mu
	creates   map[string]uint64     // by code, "" for success; guarded by mu
	create    histogram             // of those that succeeded; guarded by mu

	auditFailures, auditSkipped atomic.Uint64
}

func newMetrics() *metrics {
	return &metrics{requests: map[outcome]uint64{}, durations: map[string]*histogram{}, creates: map[string]uint64{}}
}

// observe counts a request that has ended.
func (m *metrics) observe(c *call) {
	took := time.Since(c.began)
	op := c.operation()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests[outcome{op, c.status}]++
	h := m.durations[op]
	if h == nil {
		h = new(histogram)
		m.durations[op] = h
	}
	h.observe(took)
}

// created counts a try to make a sandbox.
func (m *metrics) created(code string, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.creates[code]++
	if code == "" {
		m.create.observe(took)
	}
}

// text writes everything.
func (m *metrics) text(s Stats, openStreams int, conns Connections) []byte {
	w := new(page)
	m.mu.Lock()
	w.head("sandpit_http_requests_total", "counter", "Requests by operation and status.")
	for _, o := range slices.SortedFunc(maps.Keys(m.requests), func(a, b outcome) int {
		return strings.Compare(a.operation+strconv.Itoa(a.status), b.operation+strconv.Itoa(b.status))
	}) {
		w.sample("sandpit_http_requests_total", float64(m.requests[o]), "operation", o.operation, "status", strconv.Itoa(o.status))
	}
	w.head("sandpit_http_request_duration_seconds", "histogram", "Time of requests by operation. Streams count for as long as they are open.")
	for _, op := range slices.Sorted(maps.Keys(m.durations)) {
		w.histogram("sandpit_http_request_duration_seconds", m.durations[op], "operation", op)
	}
	w.head("sandpit_sandbox_creates_total", "counter", "Tries to make a sandbox by what came of them.")
	for _, code := range slices.Sorted(maps.Keys(m.creates)) {
		result := code
		if code == "" {
			result = "ok"
		}
		w.sample("sandpit_sandbox_creates_total", float64(m.creates[code]), "result", result)
	}
	w.head("sandpit_sandbox_create_duration_seconds", "histogram", "Time to make a sandbox.")
	w.histogram("sandpit_sandbox_create_duration_seconds", &m.create)
	m.mu.Unlock()

	w.single("sandpit_open_streams", "gauge", "Answers that go on for a while.", float64(openStreams))
	w.head("sandpit_connections", "gauge", "Open connections, by kind of caller.")
	w.sample("sandpit_connections", float64(conns.Keys), "of", "keys")
	w.sample("sandpit_connections", float64(conns.Peers), "of", "peers")
	w.sample("sandpit_connections", float64(conns.Strangers), "of", "strangers")
	w.single("sandpit_connections_dropped_total", "counter", "Connections without a valid key that were closed to make room for others.", float64(conns.Dropped))
	w.single("sandpit_audit_failures_total", "counter", "Entries of the audit that could not be written.", float64(m.auditFailures.Load()))
	w.single("sandpit_audit_skipped_total", "counter", "Requests that have no entry of their own in the audit but are counted in its summaries.", float64(m.auditSkipped.Load()))
	w.stats(s)
	return w.Bytes()
}

// page is the text.
type page struct{ bytes.Buffer }

func (w *page) head(name, kind, help string) {
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample writes a line. Labels are names and values in turn.
func (w *page) sample(name string, value float64, labels ...string) {
	w.WriteString(name)
	for i := 0; i < len(labels); i += 2 {
		sep := byte(',')
		if i == 0 {
			sep = '{'
		}
		w.WriteByte(sep)
		w.WriteString(labels[i] + `="` + escapeLabel(labels[i+1]) + `"`)
	}
	if len(labels) > 0 {
		w.WriteByte('}')
	}
	w.WriteString(" " + strconv.FormatFloat(value, 'g', -1, 64) + "\n")
}

func (w *page) single(name, kind, help string, value float64) {
	w.head(name, kind, help)
	w.sample(name, value)
}

func (w *page) histogram(name string, h *histogram, labels ...string) {
	var total uint64
	for i, bound := range buckets() {
		total += h.counts[i]
		w.sample(name+"_bucket", float64(total), append(labels[:len(labels):len(labels)], "le", strconv.FormatFloat(bound, 'g', -1, 64))...)
	}
	total += h.counts[len(h.counts)-1]
	w.sample(name+"_bucket", float64(total), append(labels[:len(labels):len(labels)], "le", "+Inf")...)
	w.sample(name+"_sum", h.sum, labels...)
	w.sample(name+"_count", float64(total), labels...)
}

// stats writes what the backend tells.
func (w *page) stats(s Stats) {
	w.head("sandpit_sandboxes", "gauge", "Sandboxes by state.")
	for _, state := range slices.Sorted(maps.Keys(s.States)) {
		w.sample("sandpit_sandboxes", float64(s.States[state]), "state", string(state))
	}
	w.single("sandpit_sandbox_creates_waiting", "gauge", "Callers who wait for room to make a sandbox.", float64(s.Waiting))
	w.single("sandpit_stuck", "gauge", "Operations that were given up because they hang.", float64(s.Stuck))
	w.head("sandpit_pool", "gauge", "Parts of sandboxes that are held ready.")
	for _, kind := range slices.Sorted(maps.Keys(s.Pool)) {
		w.sample("sandpit_pool", float64(s.Pool[kind]), "kind", kind)
	}
	for _, g := range [...]struct {
		name, kind, help string
		value            func(Usage) float64
	}{
		{"sandpit_sandbox_cpu_seconds_total", "counter", "Processor time used.", func(u Usage) float64 { return u.CPU.Seconds() }},
		{"sandpit_sandbox_memory_bytes", "gauge", "Memory charged.", func(u Usage) float64 { return float64(u.Memory) }},
		{"sandpit_sandbox_pids", "gauge", "Processes and threads.", func(u Usage) float64 { return float64(u.Pids) }},
		{"sandpit_sandbox_oom_kills_total", "counter", "Processes killed for want of memory.", func(u Usage) float64 { return float64(u.OOMKills) }},
		{"sandpit_sandbox_disk_bytes", "gauge", "Bytes in use of the sandbox's own file system.", func(u Usage) float64 { return float64(u.Disk) }},
		{"sandpit_sandbox_disk_limit_bytes", "gauge", "Bytes that the sandbox's own file system may have.", func(u Usage) float64 { return float64(u.Limits.Disk) }},
		{"sandpit_sandbox_files", "gauge", "Inodes in use of the sandbox's own file system.", func(u Usage) float64 { return float64(u.Files) }},
		{"sandpit_sandbox_files_limit", "gauge", "Inodes that the sandbox's own file system may have.", func(u Usage) float64 { return float64(u.Limits.Files) }},
		{"sandpit_sandbox_network_receive_bytes_total", "counter", "Bytes received over interfaces other than the loopback.", func(u Usage) float64 { return float64(u.RxBytes) }},
		{"sandpit_sandbox_network_receive_packets_total", "counter", "Packets received over interfaces other than the loopback.", func(u Usage) float64 { return float64(u.RxPackets) }},
		{"sandpit_sandbox_network_transmit_bytes_total", "counter", "Bytes sent over interfaces other than the loopback.", func(u Usage) float64 { return float64(u.TxBytes) }},
		{"sandpit_sandbox_network_transmit_packets_total", "counter", "Packets sent over interfaces other than the loopback.", func(u Usage) float64 { return float64(u.TxPackets) }},
	} {
		w.head(g.name, g.kind, g.help)
		for _, u := range s.Sandboxes[:min(len(s.Sandboxes), maxSeries)] {
			if v := g.value(u); v >= 0 { // the machine can tell
				w.sample(g.name, v, "sandbox", u.ID, "namespace", u.Namespace)
			}
		}
	}
}

// escapeLabel writes a value as the format wants it.
func escapeLabel(s string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(s)
}
