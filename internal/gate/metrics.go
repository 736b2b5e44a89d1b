package gate

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

// metrics counts requests and entries of the audit.
type metrics struct {
	mu        sync.Mutex
	requests  map[outcome]uint64    // guarded by mu
	durations map[string]*Histogram // by operation; guarded by mu
	ignored   map[string]uint64     // by operation; guarded by mu

	auditFailures, auditSkipped atomic.Uint64
}

func newMetrics() *metrics {
	return &metrics{requests: map[outcome]uint64{}, durations: map[string]*Histogram{}, ignored: map[string]uint64{}}
}

// observe counts a request that has ended.
func (m *metrics) observe(c *Call) {
	took := time.Since(c.began)
	op := c.operation()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests[outcome{op, c.status}]++
	h := m.durations[op]
	if h == nil {
		h = new(Histogram)
		m.durations[op] = h
	}
	h.Observe(took)
}

// Ignore counts fields of the request that its handler ignores, as the API does whose dialect it is of.
func (c *Call) Ignore(fields int) {
	if fields == 0 {
		return
	}
	m := c.gate.metrics
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ignored[c.operation()] += uint64(fields)
}

// WriteRequests writes the numbers and durations of requests.
func (g *Gate) WriteRequests(w *Page) {
	m := g.metrics
	m.mu.Lock()
	defer m.mu.Unlock()
	w.Head("sandpit_http_requests_total", "counter", "Requests by operation and status.")
	for _, o := range slices.SortedFunc(maps.Keys(m.requests), func(a, b outcome) int {
		return strings.Compare(a.operation+strconv.Itoa(a.status), b.operation+strconv.Itoa(b.status))
	}) {
		w.Sample("sandpit_http_requests_total", float64(m.requests[o]), "operation", o.operation, "status", strconv.Itoa(o.status))
	}
	w.Head("sandpit_http_request_duration_seconds", "histogram", "Duration of requests by operation. A stream counts for as long as it is open.")
	for _, op := range slices.Sorted(maps.Keys(m.durations)) {
		w.Histogram("sandpit_http_request_duration_seconds", m.durations[op], "operation", op)
	}
	w.Head("sandpit_ignored_fields_total", "counter", "Fields in requests of clients of other projects that were ignored, by operation.")
	for _, op := range slices.Sorted(maps.Keys(m.ignored)) {
		w.Sample("sandpit_ignored_fields_total", float64(m.ignored[op]), "operation", op)
	}
}

// WriteStreams writes the number of open streams.
func (g *Gate) WriteStreams(w *Page) {
	g.limiter.mu.Lock()
	open := g.limiter.streams
	g.limiter.mu.Unlock()
	w.Single("sandpit_open_streams", "gauge", "Open streaming responses.", float64(open))
}

// WriteAudit writes the numbers of entries that the audit lacks.
func (g *Gate) WriteAudit(w *Page) {
	w.Single("sandpit_audit_failures_total", "counter", "Audit log entries that could not be written.", float64(g.metrics.auditFailures.Load()))
	w.Single("sandpit_audit_skipped_total", "counter", "Requests without an audit log entry of their own, which its summaries count.", float64(g.metrics.auditSkipped.Load()))
}

// buckets returns the upper bounds of the buckets of durations, in seconds.
func buckets() [14]float64 {
	return [14]float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300}
}

// Histogram counts durations. It has no lock: its owner guards it.
type Histogram struct {
	counts [15]uint64 // of each bucket alone; the last is beyond all
	sum    float64
}

// Observe counts a duration.
func (h *Histogram) Observe(d time.Duration) {
	s := d.Seconds()
	bounds := buckets()
	i, _ := slices.BinarySearch(bounds[:], s)
	h.counts[i]++
	h.sum += s
}

// outcome is what requests are counted by. Routes and statuses bound the number of outcomes.
type outcome struct {
	operation string
	status    int
}

// Page is text in the format of Prometheus, version 0.0.4
// (prometheus.io/docs/instrumenting/exposition_formats). It is written by hand:
// the client library costs a program 2 ms at each start.
type Page struct{ bytes.Buffer }

// Head begins a family of samples.
func (w *Page) Head(name, kind, help string) {
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// Sample writes a sample. Labels are alternating names and values.
func (w *Page) Sample(name string, value float64, labels ...string) {
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

// Single writes a family of one sample.
func (w *Page) Single(name, kind, help string, value float64) {
	w.Head(name, kind, help)
	w.Sample(name, value)
}

// Histogram writes the samples of a histogram.
func (w *Page) Histogram(name string, h *Histogram, labels ...string) {
	var total uint64
	for i, bound := range buckets() {
		total += h.counts[i]
		w.Sample(name+"_bucket", float64(total), append(labels[:len(labels):len(labels)], "le", strconv.FormatFloat(bound, 'g', -1, 64))...)
	}
	total += h.counts[len(h.counts)-1]
	w.Sample(name+"_bucket", float64(total), append(labels[:len(labels):len(labels)], "le", "+Inf")...)
	w.Sample(name+"_sum", h.sum, labels...)
	w.Sample(name+"_count", float64(total), labels...)
}

// escapeLabel escapes the value of a label.
func escapeLabel(s string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(s)
}
