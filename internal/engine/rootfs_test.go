package engine

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

func TestVolumesOfAHostileImage(t *testing.T) {
	got := volumes([]string{
		"/data", "/a/../b/", "//c", "relative", "", "/", "/..", "/proc/x", "/sys", "/dev/shm", "/x/../proc", "/nul\x00", "/" + strings.Repeat("l", 5000),
	})
	if diff := cmp.Diff([]string{"/data", "/b", "/c"}, got); diff != "" {
		t.Errorf("the volumes differ:\n%s", diff)
	}
	if n := len(volumes(slicesOf("/v", 1000))); n != maxVolumes {
		t.Errorf("%d volumes are made", n)
	}
}

// slicesOf returns n different paths.
func slicesOf(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = prefix + strings.Repeat("x", i%50) + string(rune('a'+i%26))
	}
	return all
}

func TestHostnameOfAName(t *testing.T) {
	for name, want := range map[string]string{"abc": "abc", "A_b.C": "a-b-c", "---": "sandbox", "": "sandbox", "1-": "1"} {
		if got := hostnameFor(name); got != want {
			t.Errorf("%q has the host name %q, want %q", name, got, want)
		}
	}
}

func TestFilesFitIntoMemory(t *testing.T) {
	for memory, want := range map[int64]int64{
		sandpit.MinMemory: sandpit.MinMemory - 12<<20, 64 << 20: 52 << 20, 1 << 30: 1<<30 - 1<<27,
	} {
		if got := fittingDisk(memory); got != want {
			t.Errorf("of %d bytes files may take %d, want %d", memory, got, want)
		}
	}
	if got := fittingDisk(1); got < sandpit.MinDisk {
		t.Errorf("files may take %d bytes", got)
	}
}
