package fetch

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// A challenge of any form is read without harm.
func FuzzChallenge(f *testing.F) {
	f.Add(`Bearer realm="https://auth.example/token",service="x",scope="a,b"`)
	f.Add(`Basic realm="a \" b"`)
	f.Add(`Bearer realm="`)
	f.Fuzz(func(t *testing.T, s string) {
		scheme, params := parseChallenge(s)
		if scheme != strings.ToLower(scheme) || len(params) > 33 {
			t.Fatalf("%q, %v", scheme, params)
		}
	})
}

// Any bytes as a compressed layer end, with an error or without.
func FuzzDecompress(f *testing.F) {
	f.Add([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x00, 0x01, 0x00, 0x00})
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := New(Options{}).Decompress(bytes.NewReader(data))
		if err != nil {
			return
		}
		defer r.Close()
		_, _ = io.Copy(io.Discard, io.LimitReader(r, 1<<20)) // as much as a store would take
	})
}
