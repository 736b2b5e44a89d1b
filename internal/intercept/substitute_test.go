package intercept

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// Texts are found however they are cut into pieces, and nothing else is changed.
func TestSubstitution(t *testing.T) {
	subs := []substitution{{find: []byte("abcab"), put: []byte("ONE")}, {find: []byte("xyz"), put: []byte("")}, {find: []byte("abd"), put: []byte("abcab")}}
	for in, want := range map[string]string{
		"":                 "",
		"abcab":            "ONE",
		"aabcabcab":        "aONEcab",
		"abcaabcab":        "abcaONE",
		"xyzxyxyzz":        "xyz",
		"abcabd":           "ONEd",
		"abd":              "abcab",
		"abca":             "abca",
		"--abcab--xyz--ab": "--ONE----ab",
	} {
		for name, read := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "with the end": iotest.DataErrReader} {
			for _, pad := range []string{"", strings.Repeat("-", substituteSize-3)} {
				ended := 0
				b := newSubstituted(io.NopCloser(read(strings.NewReader(pad+in))), subs)
				b.ended = func() { ended++ }
				if got, err := io.ReadAll(b); string(got) != pad+want || err != nil || ended != 1 {
					t.Errorf("%s %q after %d: %q, %v, ended %d times", name, in, len(pad), got[min(len(pad), len(got)):], err, ended)
				}
			}
		}
	}
	broken := errors.New("broken")
	for name, b := range map[string]*substituted{
		"refused": newSubstituted(io.NopCloser(iotest.OneByteReader(strings.NewReader("before abc after"))), []substitution{{find: []byte("abc"), refuse: func() error { return broken }}}),
		"failed":  newSubstituted(io.NopCloser(io.MultiReader(strings.NewReader("before "), iotest.ErrReader(broken))), subs),
	} {
		if got, err := io.ReadAll(b); string(got) != "before " || !errors.Is(err, broken) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
