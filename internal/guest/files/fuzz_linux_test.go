package files

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// A program that a host has sent ends, and stays within itself.
func FuzzMatcher(f *testing.F) {
	f.Add((&wire.Grep{Prog: []wire.Inst{
		{Op: wire.InstAlt, Out: 1, Arg: 2}, {Op: wire.InstRune, Out: 0, Ranges: []int32{'a', 'z'}}, {Op: wire.InstEmpty, Out: 3, Arg: wire.EmptyEnd}, {Op: wire.InstMatch},
	}}).Append(nil), []byte("abc"))
	f.Add((&wire.Grep{Literal: "b", Prog: []wire.Inst{{Op: wire.InstAlt}, {Op: wire.InstAny}}}).Append(nil), []byte("äb"))
	f.Fuzz(func(t *testing.T, message, line []byte) {
		var m wire.Grep
		if m.Decode(message) != nil {
			return
		}
		k := newMatcher(&m)
		first := k.match(line)
		if k.match(line) != first {
			t.Error("not the same a second time")
		}
	})
}

func FuzzGlob(f *testing.F) {
	f.Add("src/**/*.go", "src/a/b/c.go")
	f.Add("**/**/**/x", "a/a/a/a/x")
	f.Add("[a-", "a")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		g, err := newGlob(pattern)
		if err != nil || g == nil {
			return
		}
		at := g.begin()
		for element := range strings.SplitSeq(name, "/") {
			led := g.leads(at)
			at = g.step(at, element)
			if g.matches(at) && !led {
				t.Errorf("%q matches %q below what leads nowhere", pattern, name)
			}
		}
	})
}

func TestReadSmall(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, make([]byte, 1001), 0o644); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{large: unix.EFBIG, fifo: unix.EINVAL, dir: unix.EINVAL, "/dev/zero": unix.EINVAL, dir + "/none": unix.ENOENT} {
		if _, err := ReadSmall(path, 1000); err != want {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
	}
	if b, err := ReadSmall(large, 1001); err != nil || len(b) != 1001 {
		t.Errorf("got %d bytes, %v", len(b), err)
	}
}
