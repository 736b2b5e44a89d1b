package engine_test

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
)

// BenchmarkClaim times, in turns, a bare fork and exec of true, a cold Create,
// one of a blank, and one of a blank with a run of true and the removal. It
// reports medians in microseconds, and their ratios to the bare one. The blank
// is ready before the clock starts, and no other is made meanwhile: time in a
// loop would be that of making blanks.
func BenchmarkClaim(b *testing.B) {
	for _, persistent := range []bool{false, true} {
		name := "ephemeral"
		if persistent {
			name = "persistent"
		}
		b.Run(name, func(b *testing.B) { benchmarkClaim(b, persistent) })
	}
}

func benchmarkClaim(b *testing.B, persistent bool) {
	change := func(o *engine.Options) {
		o.Pool = engine.Pool{}
		if persistent {
			o.Store = &mapStore{}
		}
	}
	e := poolEngine(b, b.TempDir(), change)
	times := map[string][]float64{}
	timed := func(what string, f func()) {
		began := time.Now()
		f()
		times[what] = append(times[what], float64(time.Since(began))/1e3)
	}
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	remove := func(sb sandpit.Sandbox) { must(sb.Remove(b.Context())) }
	makeOne := func() sandpit.Sandbox {
		sb, err := e.Create(b.Context(), sandpit.Spec{})
		must(err)
		return sb
	}
	warm := func() {
		e.SetPool(engine.Pool{Size: 1})
		ready(b, e, 1)
	}
	remove(makeOne()) // the image, the guest
	claimed := e.PoolStats().Claimed
	n := int64(0)
	for b.Loop() {
		n += 2
		timed("bare", func() { must(exec.Command("/bin/true").Run()) })
		var sb sandpit.Sandbox
		timed("cold", func() { sb = makeOne() })
		remove(sb)
		warm()
		timed("claim", func() { sb = makeOne() })
		e.SetPool(engine.Pool{})
		remove(sb)
		warm()
		timed("claim+run+remove", func() {
			sb = makeOne()
			_, err := sandpit.Exec(b.Context(), sb, "true")
			must(err)
			remove(sb)
		})
		e.SetPool(engine.Pool{})
		ready(b, e, 0)
	}
	if st := e.PoolStats(); st.Claimed-claimed != n {
		b.Errorf("%d of %d were made of blanks", st.Claimed-claimed, n)
	}
	median := func(what string) float64 {
		slices.Sort(times[what])
		return times[what][len(times[what])/2]
	}
	bare := median("bare")
	b.ReportMetric(bare, "bare-µs")
	for _, what := range []string{"cold", "claim", "claim+run+remove"} {
		b.ReportMetric(median(what), what+"-µs")
		b.ReportMetric(median(what)/bare, what+"/bare")
	}
	b.ReportMetric(median("claim")/median("cold"), "claim/cold")
	b.ReportMetric(0, "ns/op")
}
