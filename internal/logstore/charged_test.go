package logstore

import (
	"testing"

	"github.com/sandpit-dev/sandpit/internal/ledger"
)

// What waits for the disk is charged, but for the first block, and given back when
// it is written. (The catalogue's L11d.)
func TestWhatWaitsIsCharged(t *testing.T) {
	book := ledger.New(ledger.Bounds{Namespace: 3 * blockSize})
	p := pending{memory: book.Account("x", 3*blockSize)}
	r := record{kind: outputKind, seq: 1, entries: 1, id: "p1", data: make([]byte, 60<<10)}
	taken := 0
	for taken < 100 && p.add(&r) {
		taken++
	}
	if n := book.Used(); taken != 6 || n != 3*blockSize {
		t.Errorf("%d records wait in %d bytes", taken, n)
	}
	for len(p.blocks) > 0 {
		p.giveBack(p.take())
	}
	if book.Used() != 0 {
		t.Errorf("%d bytes are charged for nothing", book.Used())
	}
	full := ledger.New(ledger.Bounds{Total: 1})
	p = pending{memory: full.Account("x", 1)}
	for i, want := range []bool{true, true, false} { // two in the first block
		if p.add(&r) != want {
			t.Errorf("with a full ledger, the record %d was taken: %v", i, !want)
		}
	}
}
