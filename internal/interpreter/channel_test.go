package interpreter

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Whatever comes on a channel is read within the bounds, and all memory that was charged is returned.
func FuzzChannel(f *testing.F) {
	for _, seed := range []string{
		`{"hello":1,"dir":"/tmp","env":["A=b"],"runs":3}` + "\n" + `{"output":{"main":true,"text":"1","png":"AAAA","json":{"a":[1]},"extra":{"a/b":"c"}}}` + "\n" + `{"done":"n","count":1,"marked":3,"error":{"name":"E","value":"v","traceback":"t"}}` + "\n",
		`{"output":{"extra":{"a":"b","a":1}}}` + "\n" + `{"output":{"extra":[[[[`, "\x00\n", "[]\n", "{}", strings.Repeat(`{"output":`, 100) + "\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		charged := int64(0)
		in := newReader(bytes.NewReader(data), func(n int64) error {
			if charged+n > 4*sandpit.MaxCodeOutput {
				return errors.New("too much")
			}
			charged += n
			return nil
		})
		for {
			m, release, err := in.next()
			if err != nil {
				break
			}
			if m.Output != nil && len(m.Output.sandpit().Extra) > maxExtra {
				t.Errorf("an output has %d other formats", len(m.Output.sandpit().Extra))
			}
			if e := m.Error; e != nil && len(e.Name)+len(e.Value)+len(e.Traceback) > maxError {
				t.Error("an error is too long")
			}
			m.env()
			release()
		}
		if charged != 0 {
			t.Errorf("%d bytes are still charged", charged)
		}
	})
}

// A line that is too long, or for which there is no memory, is skipped, and the next one is read.
func TestLongLinesAreSkipped(t *testing.T) {
	const next = `{"done":"n"}` + "\n"
	for name, c := range map[string]struct {
		size int
		room int64
		kept bool
	}{
		"short":     {1 << 10, 0, true},
		"long":      {1 << 20, 1 << 40, true},
		"no memory": {1 << 20, 1 << 20, false},
		"too long":  {maxLine + 1, 1 << 40, false},
	} {
		used := int64(0)
		in := newReader(strings.NewReader(`{"output":{"text":"`+strings.Repeat("x", c.size)+"\"}}\n"+next), func(n int64) error {
			if used+n > c.room {
				return errors.New("too much")
			}
			used += n
			return nil
		})
		m, release, err := in.next()
		if err != nil || m.Truncated == c.kept || (m.Output != nil) != c.kept || m.Output != nil && len(m.Output.Text) != c.size {
			t.Errorf("%s: %v, %v", name, m.Truncated, err)
		}
		release()
		if m, _, err := in.next(); err != nil || m.Done != "n" || used != 0 {
			t.Errorf("%s: then %+v, %v, and %d bytes are charged", name, m, err, used)
		}
	}
}

// A lane passes on exactly what is between its marks, in whatever pieces that comes.
func TestLane(t *testing.T) {
	const want, places = "out\x1eput\x1ebegi\x1een", "\x1eend\x1f1\x1e\x1eend\x1f12\x1e\x1eend\x1fx\x1e"
	for range 2000 {
		var out bytes.Buffer
		o := newOrder()
		o.pass(12)
		l := newLane(&out, "begin", "end", false, make(chan struct{}, 1)).inOrder(o, "end")
		all := []byte("before\x1ebegi\x1ebegin\x1e" + want[:5] + places + want[5:] + "\x1eend\x1eafter\x1eend\x1e")
		for len(all) > 0 {
			n := 1 + rand.IntN(len(all))
			if _, err := l.Write(all[:n]); err != nil {
				t.Fatal(err)
			}
			all = all[n:]
		}
		select {
		case <-l.marked:
		default:
			t.Fatal("the mark was not seen")
		}
		if l.flush(); out.String() != want {
			t.Fatalf("passed on %q", out.String())
		}
		if n := o.placed; n != 12 {
			t.Fatalf("the last place is %d", n)
		}
	}
	var out bytes.Buffer
	l := newLane(&out, "", "end", false, make(chan struct{}, 1))
	_, _ = l.Write([]byte("out\x1een"))
	if l.flush(); out.String() != "out\x1een" {
		t.Errorf("of an output without its mark comes %q", out.String())
	}
}

type pieces []string

func (p *pieces) Write(b []byte) (int, error) {
	*p = append(*p, string(b))
	return len(b), nil
}

// A line whose end comes on its own is one piece, and one that has no end for long is passed on without it.
func TestLanesPassLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got pieces
		l := newLane(&got, "", "end", false, make(chan struct{}, 1))
		for _, in := range []string{"1", "\n", "a\nb", "c\nd", "", "e", "", "f\x1e", "end\x1eg"} {
			if in == "" {
				time.Sleep(lineWait)
				synctest.Wait()
			}
			_, _ = l.Write([]byte(in))
		}
		if want := (pieces{"1\n", "a\n", "bc\n", "d", "e", "f"}); !slices.Equal(got, want) {
			t.Errorf("passed on %q, want %q", got, want)
		}
		got = nil
		l = newLane(&got, "", "end", false, make(chan struct{}, 1))
		for range 3 {
			_, _ = l.Write(make([]byte, maxLineHeld/2+1))
		}
		if len(got) != 1 || len(got[0]) <= maxLineHeld {
			t.Errorf("%d pieces of a line that is too long were passed on at once, want 1", len(got))
		}
		if l.flush(); len(got) != 2 {
			t.Errorf("the flush left %d pieces, want 2", len(got))
		}
	})
}

// The log of an interpreter has no marks, in whatever pieces the output comes, and all else.
func TestUnmarked(t *testing.T) {
	const begin, end = "\x1e00112233445566778899aabbccddeeff\x1e", "\x1effeeddccbbaa99887766554433221100\x1f0 1\x1e"
	const want = "out\x1e\x1eput\x1e0011\x1e\x1e00112233445566778899aabbccddeeffx\n\x1e00112233445566778899aabbccddeefg\x1e"
	bash, err := languageOf(sandpit.Bash)
	if err != nil {
		t.Fatal(err)
	}
	for _, fresh := range []bool{true, false} {
		noise := ""
		if fresh {
			noise = "bash: no job control in this shell\n\x1e$ "
		}
		for range 2000 {
			all := []byte(noise + begin + want + end + begin + end + "more\x1e")
			u := NewUnmarked(identity{tag, "own", bash, Sockets + "x"}.command())
			var out []byte
			at, next := int64(1), int64(0)
			if fresh {
				at = 0
			}
			pass := func(at int64, b []byte) {
				if at < next {
					t.Fatalf("what is at %d comes after what is at %d", at, next)
				}
				next, out = at, append(out, b...)
			}
			for len(all) > 0 {
				n := 1 + rand.IntN(len(all))
				u.Take(1, at, all[:n], pass)
				at, all = at+int64(n), all[n:]
			}
			u.End(1, pass)
			u.End(0, pass)
			if string(out) != want+"more\x1e" {
				t.Fatalf("the log has %q", out)
			}
		}
	}
	// What is not a mark after all is passed on together with what follows.
	many, calls := bytes.Repeat([]byte{markByte}, 64_000), 0
	marks := NewUnmarked(identity{tag, "own", bash, Sockets + "x"}.command())
	marks.Take(1, 1, many, func(_ int64, b []byte) { calls++ })
	if calls != 1 {
		t.Errorf("%d bytes are passed on in %d pieces", len(many), calls)
	}
	// A text without an end hides only so much.
	u, kept := NewUnmarked(identity{tag, "own", bash, Sockets + "x"}.command()), 0
	for range 4 {
		u.Take(0, 0, []byte(end[:len(end)-1]), func(int64, []byte) {})
		u.Take(0, 0, bytes.Repeat([]byte("x"), maxMarkText), func(_ int64, b []byte) { kept += len(b) })
	}
	if kept != 4*len("0 1") {
		t.Errorf("%d bytes are kept", kept)
	}
	if NewUnmarked(zygoteCommand()) == nil {
		t.Error("the log of a zygote has its marks")
	}
	if NewUnmarked([]string{"bash"}) != nil {
		t.Error("a program that is not an interpreter is taken for one")
	}
}

// Only command lines of contexts are taken for contexts.
func TestLanguages(t *testing.T) {
	var names []string
	for _, l := range languages() {
		names = append(names, l.name)
	}
	if !slices.Equal(names, sandpit.Languages()) {
		t.Errorf("there are programs for %q, and the languages are %q", names, sandpit.Languages())
	}
	names = nil
	for _, o := range onces() {
		names = append(names, o.name)
	}
	if !slices.Equal(names, sandpit.StatelessLanguages()) {
		t.Errorf("there are programs for %q, and the languages without state are %q", names, sandpit.StatelessLanguages())
	}
}

func TestParseCommand(t *testing.T) {
	l, err := languageOf("")
	if err != nil {
		t.Fatal(err)
	}
	of := func(tag, id, socket string) []string { return identity{tag, id, l, socket}.command() }
	for _, tag := range []string{tag, readyTag} {
		good := of(tag, "own", Sockets+"x")
		if is, ok := parseCommand(good); !ok || is.tag != tag || is.language.name != sandpit.Python || is.id != "own" || is.socket != Sockets+"x" {
			t.Errorf("%q is %+v, %v", good, is, ok)
		}
	}
	good := of(tag, "own", Sockets+"x")
	for _, bad := range [][]string{nil, {tag}, good[:len(good)-1], append([]string{"x"}, good...), of(tag, "../x", Sockets+"x"), of(tag, "own", "/run/x"), of("sandpit-zygote", "own", Sockets+"x")} {
		if _, ok := parseCommand(bad); ok {
			t.Errorf("%q is taken for a context", bad)
		}
	}
}

// Nothing is read beyond the bound of a run, in however many or long lines it comes.
func TestChannelIsBounded(t *testing.T) {
	for name, text := range map[string]string{"many lines": strings.Repeat("{}\n", 1000), "one line": strings.Repeat("x", 3000)} {
		for _, only := range [][]byte{nil, []byte("nonce")} {
			from := strings.NewReader(text)
			r := newReader(&bounded{from, 2000}, func(int64) error { return nil })
			r.only = only
			var err error
			for err == nil {
				_, _, err = r.next()
			}
			if err != errTooMuch || from.Len() != 1000 {
				t.Errorf("%s: %v, and %d bytes are left", name, err, from.Len())
			}
		}
	}
}
