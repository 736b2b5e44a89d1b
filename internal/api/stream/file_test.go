package stream

import "testing"

// A range is within its file.
func FuzzRange(f *testing.F) {
	for _, s := range []string{"bytes=0-1", "bytes=-1", "bytes=5-", "bytes=-0", "bytes=9223372036854775807-", "bytes=0-9223372036854775808", "bytes= 1-2", "x"} {
		f.Add(s, int64(10))
	}
	f.Fuzz(func(t *testing.T, s string, size int64) {
		if size < 1 {
			return
		}
		part, ok := parseRange(s, size)
		if ok && part.length >= 0 && (part.from < 0 || part.length == 0 || part.from+part.length > size) {
			t.Errorf("%q of %d bytes is %+v", s, size, part)
		}
	})
}
