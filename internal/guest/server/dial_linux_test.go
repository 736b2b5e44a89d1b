package server

import (
	"bytes"
	"testing"
)

// Lines that the kernel did not write yield an address of a valid length, or none.
func FuzzPorts(f *testing.F) {
	f.Add([]byte("  sl  local_address rem_address   st\n   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1\n"))
	f.Add([]byte("   1: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for line := range bytes.Lines(b) {
			p, ok := parsePort(line)
			if ok && len(p.Address) != 4 && len(p.Address) != 16 {
				t.Errorf("%q: %+v", line, p)
			}
		}
	})
}
