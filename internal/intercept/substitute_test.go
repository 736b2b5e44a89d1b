package intercept

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit/internal/engine"
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

// What may begin a text is not held back without limit: its writer may wait for an answer to it. The text is found
// nevertheless.
func TestSubstitutionInStreams(t *testing.T) {
	const value, placeholder = "real-value-0123", "sandpit-placeholder"
	refused := errors.New("refused")
	mask := substitution{find: []byte(value), put: []byte("***************"), early: maxEarly}
	refuse := substitution{find: []byte(placeholder), refuse: func() error { return refused }, early: len(placeholder)}
	put := substitution{find: []byte(placeholder), put: []byte(value), late: func() error { return refused }}
	for name, c := range map[string]struct {
		subs   []substitution
		pieces []string // that are written, each after a pause
		want   []string // what is read after each
		bad    bool
	}{
		"the beginning of a value":             {subs: []substitution{mask}, pieces: []string{"hear", "!"}, want: []string{"hear", "!"}},
		"more of a value":                      {subs: []substitution{mask}, pieces: []string{"real-", "ly"}, want: []string{"rea", "l-ly"}},
		"a value":                              {subs: []substitution{mask}, pieces: []string{"a r", "e", "a", "l", "-value-01", "23", "."}, want: []string{"a r", "e", "a", "", "", "************", "."}},
		"a value after its own beginning":      {subs: []substitution{mask}, pieces: []string{"rea", "real-value-0123"}, want: []string{"rea", "***************"}},
		"the beginning of a placeholder":       {subs: []substitution{refuse}, pieces: []string{"yes", "sandpit-place", "s"}, want: []string{"yes", "sandpit-place", "s"}},
		"a placeholder that is refused":        {subs: []substitution{refuse}, pieces: []string{"sandpit-", "placeholder"}, want: []string{"sandpit-", ""}, bad: true},
		"the beginning of one that is put in":  {subs: []substitution{put, mask}, pieces: []string{"yes", "no"}, want: []string{"yes", "no"}},
		"one that is put in":                   {subs: []substitution{put}, pieces: []string{"a sandpit-placeholder", "."}, want: []string{"a real-value-0123", "."}},
		"one that is put in comes with pauses": {subs: []substitution{put}, pieces: []string{"yes", "andpit-placeholder"}, want: []string{"yes", ""}, bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, w := io.Pipe()
				b := newSubstituted(r, c.subs)
				b.waiting = t.Context()
				got := make(chan string)
				var failed error
				go func() {
					defer close(got)
					for buf := make([]byte, 100); ; {
						n, err := b.Read(buf)
						if n > 0 {
							got <- string(buf[:n])
						}
						if err != nil {
							failed = err
							return
						}
					}
				}()
				for i, piece := range c.pieces {
					_, _ = io.WriteString(w, piece)
					text := ""
					for pause := time.After(2 * holdTime); ; {
						select {
						case next, ok := <-got:
							if text += next; ok {
								continue
							}
						case <-pause:
						}
						break
					}
					if text != c.want[i] {
						t.Errorf("%q is %q, not %q", piece, text, c.want[i])
					}
				}
				w.Close()
				if text, open := <-got; open || errors.Is(failed, refused) != c.bad {
					t.Errorf("at the end: %q, %v", text, failed)
				}
			})
		})
	}
}

// FuzzSubstitution checks that no value comes back whole, however a body is cut, and that all else stays as it is.
func FuzzSubstitution(f *testing.F) {
	f.Add([]byte("aababbaabab"), []byte{1, 2}, "aabab", "abba")
	f.Add([]byte("real-real-value-0123"), []byte{3, 1, 1}, "real-value-0123", "value-0123")
	f.Fuzz(func(t *testing.T, body, cuts []byte, one, two string) {
		if len(one) < minHidden || len(two) < minHidden {
			return
		}
		e := &exchange{}
		for _, value := range []string{one, two} {
			e.hide(secret{Secret: engine.Secret{Placeholder: "\x00"}}, value)
			e.hidden[len(e.hidden)-1].put = make([]byte, len(value)) // which is in no value
		}
		if strings.Contains(one+two, "\x00") {
			return
		}
		var pieces []io.Reader
		for rest := body; len(rest) > 0; {
			n := len(rest)
			if len(cuts) > 0 {
				n, cuts = min(n, int(cuts[0])+1), cuts[1:]
			}
			pieces = append(pieces, bytes.NewReader(rest[:n]))
			rest = rest[n:]
		}
		got, err := io.ReadAll(newSubstituted(io.NopCloser(io.MultiReader(pieces...)), e.hidden))
		if err != nil || len(got) != len(body) {
			t.Fatalf("%d bytes of %d, %v", len(got), len(body), err)
		}
		if bytes.Contains(got, []byte(one)) || bytes.Contains(got, []byte(two)) {
			t.Errorf("%q becomes %q", body, got)
		}
		for i := range got {
			if got[i] != body[i] && got[i] != 0 {
				t.Fatalf("%q becomes %q", body, got)
			}
		}
	})
}
