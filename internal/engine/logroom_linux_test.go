package engine_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/logstore"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// L14: the logs of a tenant take their share of the disk, however many sandboxes
// write, those that have failed and those of an engine before included; another
// tenant's log is whole.
func TestLogsOfATenantAreBounded(t *testing.T) {
	const each = 512 << 10
	srv := newSurvivor(t)
	bounded := func(o *engine.Options) { o.Logs = logstore.Bounds{Each: each, Total: 2 * each} }
	onDisk := func() (n int64) {
		t.Helper()
		if err := filepath.WalkDir(filepath.Join(srv.dir, "logs"), func(_ string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				var info os.FileInfo
				if info, err = d.Info(); err == nil {
					n += info.Size()
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	e := srv.open(t, bounded)
	noisy := func(e *engine.Engine, name string) sandpit.Sandbox {
		t.Helper()
		sb := made(t, e.As("noisy", policy.Default()), sandpit.Spec{Name: name})
		if res, err := background(t, sb, "head -c 2000000 /dev/zero | tr '\\0' 'x' | fold -w 99; echo over").Wait(t.Context()); err != nil || res.ExitCode != 0 {
			t.Fatalf("got %+v, %v", res, err)
		}
		for range sb.Logs(t.Context(), sandpit.LogQuery{}) { // when all is written
			break
		}
		if n := onDisk(); n > each {
			t.Fatalf("the logs of one tenant take %d bytes, and may take %d", n, each)
		}
		return sb
	}
	first := noisy(e, "a")
	noisy(e, "b")
	kill(t, srv, first.ID())
	eventually(t, "it has failed", func() bool {
		info, err := first.Info(t.Context())
		return err == nil && info.State == sandpit.StateFailed
	})
	noisy(e, "c")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e, _ = adopt(t, srv, bounded)
	noisy(e, "d")

	quiet := made(t, e.As("quiet", policy.Default()), sandpit.Spec{Name: "a"})
	if res, err := background(t, quiet, "i=0; while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done").Wait(t.Context()); err != nil || res.ExitCode != 0 {
		t.Fatalf("got %+v, %v", res, err)
	}
	lines := 0
	for _, err := range quiet.Logs(t.Context(), sandpit.LogQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		lines++
	}
	if lines != 1000 {
		t.Errorf("another tenant's log has %d of 1,000 lines", lines)
	}
}
