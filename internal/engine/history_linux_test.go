package engine_test

import (
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// What a sandbox has used is kept, with its disk and network; a paused one is
// measured, too, and stays paused.
func TestHistoryTellsWhatWasUsed(t *testing.T) {
	e := newEngine(t)
	sb := create(t, e, sandpit.Spec{})
	latest := func() sandpit.Sample {
		t.Helper()
		e.Sample()
		all, err := sb.History(t.Context(), time.Time{})
		if err != nil || len(all) == 0 {
			t.Fatalf("the history is %+v, %v", all, err)
		}
		return all[len(all)-1]
	}
	empty := latest()
	if out, err := sandpit.Shell(t.Context(), sb, "head -c 1048576 /dev/zero >/tmp/a"); err != nil || !out.Success() {
		t.Fatal(out, err)
	}
	full := latest()
	paused := true
	if err := sb.Pause(t.Context()); err != nil {
		t.Logf("a sandbox can't be paused here: %v", err)
		paused = false
	}
	still := latest()
	if info, err := sb.Info(t.Context()); err != nil || paused && info.State != sandpit.StatePaused {
		t.Errorf("after a sample it is %+v, %v", info, err)
	}
	if empty.Disk < 0 || full.Disk < empty.Disk+1<<20 || full.Files <= empty.Files || still.Disk != full.Disk {
		t.Errorf("the disk was not told: %+v, written to %+v, paused %+v", empty, full, still)
	}
	for _, s := range []sandpit.Sample{empty, full, still} {
		if s.RxBytes != 0 || s.RxPackets != 0 || s.TxBytes != 0 || s.TxPackets != 0 {
			t.Errorf("without a network it has %+v", s)
		}
	}
}
