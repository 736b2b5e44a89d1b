package e2b

import (
	"bytes"
	"testing"
)

// What is in an envelope comes out of it again, and other bytes are refused.
func FuzzEnvelope(f *testing.F) {
	f.Add([]byte{}, byte(0))
	f.Add([]byte(`{"process":{}}`), byte(0))
	f.Add([]byte{0, 0, 0, 0, 0}, byte(1))
	f.Fuzz(func(t *testing.T, data []byte, flags byte) {
		got, err := openEnvelope(envelope(flags, data))
		if (err == nil) != (flags == 0) || err == nil && !bytes.Equal(got, data) {
			t.Errorf("%q with flags %d is %q, %v", data, flags, got, err)
		}
		if got, err := openEnvelope(data); err == nil && !bytes.Equal(envelope(0, got), data) {
			t.Errorf("%q is an envelope of %q", data, got)
		}
	})
}
