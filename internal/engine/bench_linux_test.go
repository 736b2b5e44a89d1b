package engine_test

import (
	"io"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

func benchSandbox(b *testing.B) sandpit.Sandbox {
	b.Helper()
	if embedded.Guest() == nil {
		b.Skip("no guest embedded")
	}
	images, guests := engine.Home(b.TempDir())
	e := engine.New(engine.Options{
		Driver: linux.New(linux.Options{Dir: guests, Guest: embedded.Guest()}),
		Images: image.Open(images, image.Options{NoSync: true}),
		Policy: policy.Default(),
	})
	b.Cleanup(func() { _ = e.Close() })
	sb, err := e.Create(b.Context(), sandpit.Spec{})
	if err != nil {
		b.Skip(err)
	}
	return sb
}

func BenchmarkExec(b *testing.B) {
	sb := benchSandbox(b)
	for b.Loop() {
		if _, err := sandpit.Exec(b.Context(), sb, "true"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStream(b *testing.B) {
	sb := benchSandbox(b)
	const size = 64 << 20
	b.SetBytes(size)
	for b.Loop() {
		if _, err := sandpit.Run(b.Context(), sb, sandpit.Command{Argv: []string{"head", "-c", "67108864", "/dev/zero"}, Stdout: io.Discard}); err != nil {
			b.Fatal(err)
		}
	}
}
