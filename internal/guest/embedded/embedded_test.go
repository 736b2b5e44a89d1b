package embedded

import (
	"bytes"
	"debug/elf"
	"runtime"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// What is embedded must run in any root file system: a static program of this
// architecture.
func TestGuestIsStatic(t *testing.T) {
	guest := Guest()
	testkit.NeedGuest(t, guest)
	f, err := elf.NewFile(bytes.NewReader(guest))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	if f.Machine != want {
		t.Errorf("machine = %v, want %v", f.Machine, want)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the guest is dynamically linked")
		}
	}
	if limit := 4 << 20; len(guest) > limit {
		t.Errorf("the guest has %d bytes, over %d", len(guest), limit)
	}
}

func TestGuestCostsNothing(t *testing.T) {
	if n := testing.AllocsPerRun(10, func() { Guest() }); n != 0 {
		t.Errorf("Guest allocates %v times", n)
	}
}
