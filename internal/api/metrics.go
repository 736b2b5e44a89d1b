package api

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/gate"
)

// metricsType is the media type of gate.Page.
const metricsType = "text/plain; version=0.0.4; charset=utf-8"

// maxSeries is the maximum number of sandboxes with series of their own in /metrics.
const maxSeries = 200

// metrics are the counters of the API.
type metrics struct {
	mu      sync.Mutex
	creates map[string]uint64 // by code, "" for success; guarded by mu
	create  gate.Histogram    // of those that succeeded; guarded by mu
}

func newMetrics() *metrics { return &metrics{creates: map[string]uint64{}} }

// created counts a try to make a sandbox.
func (m *metrics) created(code string, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.creates[code]++
	if code == "" {
		m.create.Observe(took)
	}
}

// write writes the counters.
func (m *metrics) write(w *gate.Page) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w.Head("sandpit_sandbox_creates_total", "counter", "Attempts to create a sandbox, by result.")
	for _, code := range slices.Sorted(maps.Keys(m.creates)) {
		result := code
		if code == "" {
			result = "ok"
		}
		w.Sample("sandpit_sandbox_creates_total", float64(m.creates[code]), "result", result)
	}
	w.Head("sandpit_sandbox_create_duration_seconds", "histogram", "Time to create a sandbox.")
	w.Histogram("sandpit_sandbox_create_duration_seconds", &m.create)
}

// metricsPage returns everything.
func (a *API) metricsPage(s Stats) []byte {
	w := new(gate.Page)
	a.gate.WriteRequests(w)
	a.metrics.write(w)
	a.gate.WriteStreams(w)
	conns := a.opts.Connections()
	w.Head("sandpit_connections", "gauge", "Open connections, by kind of caller.")
	w.Sample("sandpit_connections", float64(conns.Keys), "of", "keys")
	w.Sample("sandpit_connections", float64(conns.Peers), "of", "peers")
	w.Sample("sandpit_connections", float64(conns.Strangers), "of", "strangers")
	w.Single("sandpit_connections_dropped_total", "counter", "Connections without a valid key that were closed to make room for others.", float64(conns.Dropped))
	a.gate.WriteAudit(w)
	writeStats(w, s)
	return w.Bytes()
}

// writeStats writes the statistics of the backend.
func writeStats(w *gate.Page, s Stats) {
	w.Head("sandpit_sandboxes", "gauge", "Sandboxes by state.")
	for _, state := range slices.Sorted(maps.Keys(s.States)) {
		w.Sample("sandpit_sandboxes", float64(s.States[state]), "state", string(state))
	}
	w.Single("sandpit_sandbox_creates_waiting", "gauge", "Requests that wait for capacity to create a sandbox.", float64(s.Waiting))
	w.Single("sandpit_stuck", "gauge", "Operations that were abandoned because they hang.", float64(s.Stuck))
	w.Head("sandpit_pool", "gauge", "Parts of sandboxes in the warm pool, by kind.")
	for _, kind := range slices.Sorted(maps.Keys(s.Pool)) {
		w.Sample("sandpit_pool", float64(s.Pool[kind]), "kind", kind)
	}
	for _, g := range [...]struct {
		name, help string
		value      func(Traffic) int64
	}{
		{"sandpit_egress_connections_total", "Connections that sandboxes made.", func(t Traffic) int64 { return t.Connections }},
		{"sandpit_egress_denials_total", "Connections, datagrams and names that sandboxes were denied.", func(t Traffic) int64 { return t.Denials }},
		{"sandpit_egress_sent_bytes_total", "Bytes that sandboxes sent.", func(t Traffic) int64 { return t.Sent }},
		{"sandpit_egress_received_bytes_total", "Bytes that sandboxes received.", func(t Traffic) int64 { return t.Received }},
	} {
		w.Head(g.name, "counter", g.help)
		for _, namespace := range slices.Sorted(maps.Keys(s.Traffic)) {
			w.Sample(g.name, float64(g.value(s.Traffic[namespace])), "namespace", namespace)
		}
	}
	for _, g := range [...]struct {
		name, kind, help string
		value            func(Usage) float64
	}{
		{"sandpit_sandbox_cpu_seconds_total", "counter", "CPU time used.", func(u Usage) float64 { return u.CPU.Seconds() }},
		{"sandpit_sandbox_memory_bytes", "gauge", "Memory charged.", func(u Usage) float64 { return float64(u.Memory) }},
		{"sandpit_sandbox_pids", "gauge", "Processes and threads.", func(u Usage) float64 { return float64(u.Pids) }},
		{"sandpit_sandbox_oom_kills_total", "counter", "Processes killed because the sandbox ran out of memory.", func(u Usage) float64 { return float64(u.OOMKills) }},
		{"sandpit_sandbox_disk_bytes", "gauge", "Bytes used in the sandbox's own file system.", func(u Usage) float64 { return float64(u.Disk) }},
		{"sandpit_sandbox_disk_limit_bytes", "gauge", "Limit on bytes in the sandbox's own file system.", func(u Usage) float64 { return float64(u.Limits.Disk) }},
		{"sandpit_sandbox_files", "gauge", "Inodes used in the sandbox's own file system.", func(u Usage) float64 { return float64(u.Files) }},
		{"sandpit_sandbox_files_limit", "gauge", "Limit on inodes in the sandbox's own file system.", func(u Usage) float64 { return float64(u.Limits.Files) }},
		{"sandpit_sandbox_network_receive_bytes_total", "counter", "Bytes received over interfaces other than the loopback.", func(u Usage) float64 { return float64(u.RxBytes) }},
		{"sandpit_sandbox_network_receive_packets_total", "counter", "Packets received over interfaces other than the loopback.", func(u Usage) float64 { return float64(u.RxPackets) }},
		{"sandpit_sandbox_network_transmit_bytes_total", "counter", "Bytes sent over interfaces other than the loopback.", func(u Usage) float64 { return float64(u.TxBytes) }},
		{"sandpit_sandbox_network_transmit_packets_total", "counter", "Packets sent over interfaces other than the loopback.", func(u Usage) float64 { return float64(u.TxPackets) }},
	} {
		w.Head(g.name, g.kind, g.help)
		for _, u := range s.Sandboxes[:min(len(s.Sandboxes), maxSeries)] {
			if v := g.value(u); v >= 0 { // the machine can tell
				w.Sample(g.name, v, "sandbox", u.ID, "namespace", u.Namespace)
			}
		}
	}
}
