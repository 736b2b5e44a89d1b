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

// A signature is of one path, operation, user, token and time alone: texts in which the parts are divided
// in another way must not make another request valid.
func FuzzSign(f *testing.F) {
	f.Add("/tmp/x", "user", "1")
	f.Add("/a:read:", "", "")
	f.Fuzz(func(t *testing.T, path, user, expires string) {
		const token = "dt_k_s_m"
		got := sign(path, "read", user, token, expires)
		if got == sign(path, "write", user, token, expires) || got == sign(path, "read", user, token+"x", expires) {
			t.Errorf("%q %q %q: the signature %s is that of another request", path, user, expires, got)
		}
	})
}
