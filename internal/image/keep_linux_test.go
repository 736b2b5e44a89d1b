package image_test

import (
	"errors"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// What a sandbox keeps is in use also when the process that made it is dead.
func TestKeptImagesStay(t *testing.T) {
	ref := "oci:" + writeLayout(t, map[string]v1.Image{"a": randomImage(t, 1000, 2)}) + ":a"
	s := newStore(t, nil)
	for _, ref := range []string{ref, "host"} {
		l, err := s.Acquire(t.Context(), ref, image.AcquireOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Keep("abc", l); err != nil {
			t.Fatal(err)
		}
		root := l.Rootfs()
		l.Release() // as the kernel does at any death

		if _, err := s.Prune(t.Context(), image.PruneOptions{All: true}); err != nil {
			t.Fatal(err)
		}
		if root.Digest != "" {
			if _, err := s.Remove(t.Context(), root.Digest); !errors.Is(err, sandpit.ErrState) {
				t.Errorf("removing a kept image: %v", err)
			}
		}
		again, err := s.Acquire(t.Context(), ref, image.AcquireOptions{Pull: sandpit.PullNever})
		if err != nil || again.Rootfs().Layers[0] != root.Layers[0] {
			t.Fatalf("%s is not there any more: %v", ref, err)
		}
		again.Release()
		for range 2 {
			if err := s.Unkeep("abc"); err != nil {
				t.Error(err)
			}
		}
		out, err := s.Prune(t.Context(), image.PruneOptions{All: true})
		if err != nil || ref != "host" && (out.Images != 1 || out.Layers != 2) {
			t.Errorf("pruned %+v, %v", out, err)
		}
	}
	if err := s.Keep("../x", &image.Lease{}); err != nil {
		t.Error(err) // nothing of the store
	}
}
