package imagetest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
	"github.com/sandpit-dev/sandpit/internal/image/imagetest"
)

// How long a real image takes from its archive into the store.
func BenchmarkUnpackDebian(b *testing.B) {
	archive := imagetest.Debian(b)
	for b.Loop() {
		dir := filepath.Join(b.TempDir(), "images")
		s := image.Open(dir, image.Options{NoSync: true, Fetcher: fetch.New(fetch.Options{})})
		l, err := s.Acquire(b.Context(), "oci-archive:"+archive, image.AcquireOptions{})
		if err != nil {
			b.Fatal(err)
		}
		l.Release()
		b.StopTimer()
		os.RemoveAll(dir)
		b.StartTimer()
	}
}
