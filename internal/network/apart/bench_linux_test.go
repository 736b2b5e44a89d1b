package apart

import (
	"log/slog"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/network/networktest"
)

// BenchmarkJoin times the parts of a create with egress that are outside the driver.
func BenchmarkJoin(b *testing.B) {
	e := sandpit.Egress{Allow: []string{"origin.test"}, Resolve: []string{"origin.test:127.0.0.1"}}
	b.Run("rules", func(b *testing.B) {
		here := network.InProcess{}
		for b.Loop() {
			if _, _, err := here.Excess(e, []string{"all"}, []string{"127.0.0.1"}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("authority", func(b *testing.B) {
		here := network.InProcess{}
		for b.Loop() {
			_, _, _, _ = here.Authority(engine.Terms{Egress: e})
		}
	})
	join := func(b *testing.B, to engine.Network) {
		for b.Loop() {
			b.StopTimer()
			f, _ := networktest.Pair(b)
			b.StartTimer()
			j, err := to.Join(b.Context(), f, engine.Terms{Egress: e})
			if err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			_ = j.Close()
			b.StartTimer()
		}
	}
	b.Run("in process", func(b *testing.B) { join(b, network.InProcess{}) })
	b.Run("apart", func(b *testing.B) {
		h := New(slog.New(slog.DiscardHandler), nil)
		b.Cleanup(h.Close)
		join(b, h)
	})
}
