package settings

import (
	"bytes"
	"testing"
)

// Users are looked up in hostile files.
func FuzzUserFile(f *testing.F) {
	f.Add([]byte("root:x:0:0:root:/root:/bin/sh\n# comment\n\n:::\nuser:x:1000:1000::/home/user:\n"))
	f.Add([]byte("staff:x:50:user,,root\nx:y:4294967295:a\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		eachLine(b, func(fields []string) bool {
			n++
			for _, s := range fields {
				if id, ok := parseID(s); ok && id == 1<<32-1 {
					t.Error("an id that is none")
				}
				isMember(s, "user")
			}
			return true
		})
		if n > bytes.Count(b, []byte{'\n'})+1 {
			t.Error("more lines than there are")
		}
	})
}
