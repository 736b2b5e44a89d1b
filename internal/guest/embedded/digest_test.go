package embedded

import (
	"bytes"
	"testing"
)

func TestDigest(t *testing.T) {
	program := append([]byte("\x7fELF\x04\x00\x00\x00Go\x00\x00first build"), make([]byte, 5000)...)
	digest := Digest(program)
	if len(digest) != 16 {
		t.Fatalf("the digest is %q", digest)
	}
	if again := Digest(bytes.Clone(program)); again != digest {
		t.Errorf("the same program has %s and %s", digest, again)
	}
	if other := Digest(bytes.Replace(program, []byte("first"), []byte("other"), 1)); other == digest || other == "" {
		t.Errorf("another build has %q, too", other)
	}
	if longer := Digest(append(program, 0)); longer == digest {
		t.Error("a longer one has the same")
	}
	for _, none := range [][]byte{nil, {}, []byte("#!/bin/sh\n"), append(make([]byte, 4094), "Go\x00\x00"...)} {
		if got := Digest(none); got != "" {
			t.Errorf("what is no program of Go has %q", got)
		}
	}
}
