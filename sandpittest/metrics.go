package sandpittest

import (
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

var metricsProperties = []property{
	{"Metrics tell what is written", testMetricsOfDisk},
	{"Metrics of a paused sandbox leave it paused", testMetricsPaused},
	{"Metrics of the network leave the loopback out", testMetricsOfNetwork},
	{"History is of the same figures", testHistoryFigures},
}

// metrics asks for what a sandbox uses.
func metrics(t *testing.T, sb sandpit.Sandbox) sandpit.Metrics {
	t.Helper()
	m, err := sb.Metrics(guarded(t))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func testMetricsOfDisk(t *testing.T, e *env) {
	e.need(t, feature.Disk, feature.Files)
	const written, files, slack = 3 << 20, 20, 64 << 10
	sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Disk: 8 << 20, Files: 500}})
	before := metrics(t, sb)
	if before.Disk < 0 || before.Disk > 1<<20 || before.Files <= 0 || before.Files > 100 {
		t.Errorf("a new sandbox uses %d bytes and %d inodes", before.Disk, before.Files)
	}
	// /tmp and /dev/shm are on the same file system.
	shell(t, sb, `head -c 1048576 /dev/zero >/tmp/a; head -c 1048576 /dev/zero >/dev/shm/b; head -c 1048576 /dev/zero >"$HOME/c"
		i=0; while [ $i -lt 17 ]; do : >/tmp/f$i; i=$((i+1)); done`)
	m := metrics(t, sb)
	if got := m.Disk - before.Disk; got < written || got > written+slack {
		t.Errorf("%d bytes are written, and %d told", written, got)
	}
	if got := m.Files - before.Files; got < files || got > files+10 {
		t.Errorf("%d files are made, and %d told", files, got)
	}
	shell(t, sb, `rm /tmp/a /dev/shm/b "$HOME/c" /tmp/f*`)
	if m = metrics(t, sb); m.Disk > before.Disk+slack || m.Files > before.Files+10 {
		t.Errorf("before it was written %+v, removed %+v", before, m)
	}
	// Full, it is at its limits and not beyond.
	shell(t, sb, `cat /dev/zero >/tmp/full 2>/dev/null; i=0; while true 2>/dev/null >/tmp/n$i; do i=$((i+1)); done; true`)
	if m = metrics(t, sb); m.Disk > 8<<20 || m.Disk < 8<<20-slack || m.Files != 500 {
		t.Errorf("full, it uses %d bytes and %d inodes", m.Disk, m.Files)
	}
}

func testMetricsPaused(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	shell(t, sb, "head -c 100000 /dev/zero >/tmp/a")
	before := metrics(t, sb)
	e.pause(t, sb)
	m := metrics(t, sb)
	if m.Disk != before.Disk || m.Files != before.Files || m.RxBytes != before.RxBytes {
		t.Errorf("running %+v, paused %+v", before, m)
	}
	state(t, sb, sandpit.StatePaused)
	must(t, sb.Resume(guarded(t)))
}

func testMetricsOfNetwork(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	p := start(t, sb, sandpit.Command{Argv: []string{"sleep", "1000"}})
	if conn, err := sb.Dial(guarded(t), 1); err == nil { // over the loopback, and refused
		_ = conn.Close()
	}
	m := metrics(t, sb)
	if m.RxBytes != 0 || m.RxPackets != 0 || m.TxBytes != 0 || m.TxPackets != 0 {
		t.Errorf("without a network it has received and sent %+v", m)
	}
	must(t, p.Kill(guarded(t)))
}

// Samples are taken too seldom for a test to wait for one.
func testHistoryFigures(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	shell(t, sb, "head -c 1048576 /dev/zero >/tmp/a")
	all, err := sb.History(guarded(t), time.Time{})
	must(t, err)
	now := metrics(t, sb)
	for _, s := range all {
		if s.Time.IsZero() || (s.Disk < 0) != (now.Disk < 0) || (s.Files < 0) != (now.Files < 0) || s.RxBytes != now.RxBytes || s.TxPackets != now.TxPackets {
			t.Errorf("a sample is %+v, and what is used %+v", s, now)
		}
	}
}
