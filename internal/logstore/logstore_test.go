package logstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/logstore"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

func open(t *testing.T, dir string, opt logstore.Options) *logstore.Log {
	t.Helper()
	l, err := logstore.Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// read returns what a query gives, a line each.
func read(t *testing.T, l *logstore.Log, q sandpit.LogQuery) []string {
	t.Helper()
	var out []string
	for e, err := range l.Query(t.Context(), q) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%d %s %d %s %q", e.Seq, e.Process, e.PID, e.Stream, e.Data))
	}
	return out
}

func equal(t *testing.T, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the log differs:\n%s", diff)
	}
}

// both runs a test on disk and in memory. No time goes by but what is waited for:
// no line is held for long because the machine is busy.
func both(t *testing.T, test func(t *testing.T, dir string)) {
	t.Run("disk", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, filepath.Join(t.TempDir(), "a", "b")) })
	})
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, "") })
	})
}

func TestLinesOfAllProcesses(t *testing.T) {
	both(t, func(t *testing.T, dir string) {
		l := open(t, dir, logstore.Options{})
		a, b := l.Process("p1", 10), l.Process("p2", 20)
		a.Write(logstore.Stdout, 0, []byte("one\ntw"))
		b.Write(logstore.Stderr, 0, []byte("other\n"))
		a.Write(logstore.Stderr, 6, []byte("error\n"))
		a.Write(logstore.Stdout, 12, []byte("o\n\nend"))
		a.Close()
		equal(t, read(t, l, sandpit.LogQuery{}),
			`1 p1 10 stdout "one\n"`, `2 p2 20 stderr "other\n"`, `3 p1 10 stderr "error\n"`,
			`4 p1 10 stdout "two\n"`, `5 p1 10 stdout "\n"`, `6 p1 10 stdout "end"`)
		equal(t, read(t, l, sandpit.LogQuery{Process: "p1", Stream: "stdout", Tail: 2}), `5 p1 10 stdout "\n"`, `6 p1 10 stdout "end"`)
		equal(t, read(t, l, sandpit.LogQuery{After: 4, Stream: "stderr"}))
		equal(t, read(t, l, sandpit.LogQuery{After: 4}), `5 p1 10 stdout "\n"`, `6 p1 10 stdout "end"`)
		for _, year := range []int{time.Now().Year() + 1, 2263, 3000} { // after 2262 no int64 has the nanoseconds
			equal(t, read(t, l, sandpit.LogQuery{Since: time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)}))
		}
		for _, year := range []int{1000, 1677, time.Now().Year() - 1} {
			equal(t, read(t, l, sandpit.LogQuery{Since: time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC), Tail: 1}), `6 p1 10 stdout "end"`)
		}
		for _, q := range []sandpit.LogQuery{{Tail: -1}, {Stream: "x"}} {
			for _, err := range l.Query(t.Context(), q) {
				if !errors.Is(err, sandpit.ErrInvalid) {
					t.Errorf("%+v gives %v", q, err)
				}
			}
		}
	})
}

// A line that is not ended is entered after a while, and one that is too long
// in parts.
func TestPartsOfLines(t *testing.T) {
	both(t, func(t *testing.T, dir string) {
		l := open(t, dir, logstore.Options{MaxBytes: 1 << 20})
		w := l.Process("p1", 1)
		w.Write(logstore.Stdout, 0, []byte("prompt> "))
		for e, err := range l.Query(t.Context(), sandpit.LogQuery{Follow: true}) {
			if err != nil || string(e.Data) != "prompt> " {
				t.Fatalf("got %q, %v", e.Data, err)
			}
			break
		}
		long := bytes.Repeat([]byte("x"), 150_000)
		w.Write(logstore.Stdout, 8, long[:100_000])
		w.Write(logstore.Stdout, 100_008, append(long[100_000:], '\n'))
		total := 0
		for e, err := range l.Query(t.Context(), sandpit.LogQuery{After: 1}) {
			if err != nil || len(e.Data) > 64<<10 {
				t.Fatalf("an entry of %d bytes, %v", len(e.Data), err)
			}
			total += len(e.Data)
		}
		if total != 150_001 {
			t.Errorf("%d bytes are there", total)
		}
	})
}

func TestBounded(t *testing.T) {
	both(t, func(t *testing.T, dir string) {
		const limit = 400 << 10
		l := open(t, dir, logstore.Options{MaxBytes: limit})
		w := l.Process("p1", 1)
		line := []byte(strings.Repeat("y", 999) + "\n")
		for i := range 3000 {
			w.Write(logstore.Stdout, int64(i*1000), line)
			if i%100 == 0 {
				read(t, l, sandpit.LogQuery{Tail: 1}) // so that it is written
			}
		}
		got := read(t, l, sandpit.LogQuery{})
		if len(got) < 100 || len(got) > 420 {
			t.Errorf("%d entries of 1,000 bytes are kept in %d bytes", len(got), limit)
		}
		if !strings.HasPrefix(got[len(got)-1], "3000 ") || l.Lost() != 0 {
			t.Errorf("the last is %.20s, and %d are lost", got[len(got)-1], l.Lost())
		}
		if dir == "" {
			return
		}
		var size int64
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if info, err := e.Info(); err == nil {
				size += info.Size()
			}
		}
		if size > limit+200<<10 || len(entries) > 4 {
			t.Errorf("%d bytes in %d files", size, len(entries))
		}
	})
}

// The next program continues a log, and enters nothing twice.
func TestContinued(t *testing.T) { synctest.Test(t, testContinued) } // see both

func testContinued(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, logstore.Options{MaxBytes: 64 << 10})
	quiet, loud := l.Process("p1", 1), l.Process("p2", 2)
	quiet.Write(logstore.Stdout, 0, []byte("first\nhel"))
	for i := range 5000 { // so that what p1 has written is in no file any more
		loud.Write(logstore.Stdout, int64(i*100), bytes.Repeat([]byte("z"), 99))
		loud.Write(logstore.Stderr, int64(i*100+99), []byte("\n"))
		if i%50 == 0 {
			read(t, l, sandpit.LogQuery{Tail: 1})
		}
	}
	last := read(t, l, sandpit.LogQuery{Tail: 1})
	// It is killed here: what is held is not written.

	again := open(t, dir, logstore.Options{MaxBytes: 64 << 10})
	w := again.Process("p1", 1)
	w.Write(logstore.Stdout, 0, []byte("first\nhel"))
	w.Write(logstore.Stdout, 9, []byte("lo\n"))
	got := read(t, again, sandpit.LogQuery{Process: "p1"})
	var seq int
	if _, err := fmt.Sscan(last[0], &seq); err != nil {
		t.Fatal(err)
	}
	equal(t, got, fmt.Sprintf(`%d p1 1 stdout "hello\n"`, seq+1))
}

// What was being written when the program was killed is cut off.
func TestTorn(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, logstore.Options{})
	w := l.Process("p1", 1)
	for i := range 20 {
		w.Write(logstore.Stdout, int64(i*2), []byte{'a' + byte(i), '\n'})
		read(t, l, sandpit.LogQuery{Tail: 1})
	}
	l.Close()
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for cut := len(whole); cut >= 0; cut -= 7 {
		if err := os.WriteFile(files[0], whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		l := open(t, dir, logstore.Options{})
		before := len(read(t, l, sandpit.LogQuery{}))
		l.Process("p2", 2).Write(logstore.Stderr, 0, []byte("new\n"))
		got := read(t, l, sandpit.LogQuery{})
		if len(got) != before+1 || got[before] != fmt.Sprintf(`%d p2 2 stderr "new\n"`, before+1) {
			t.Fatalf("cut at %d of %d: %d entries, then %q", cut, len(whole), before, got[len(got)-1])
		}
		l.Close()
		for _, f := range must(filepath.Glob(filepath.Join(dir, "*.log"))) {
			_ = os.Remove(f)
		}
	}
}

func must[T any](v T, _ error) T { return v }

// A log that can't be written counts what is lost, and goes on when it can.
func TestFullDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // where the directory should be
		t.Fatal(err)
	}
	l, err := logstore.Open(filepath.Join(dir, "x"), logstore.Options{})
	if err == nil {
		defer l.Close()
		t.Fatal("a file is a directory")
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	l = open(t, dir, logstore.Options{})
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := l.Process("p1", 1)
	w.Write(logstore.Stdout, 0, []byte("a\nb\n"))
	equal(t, read(t, l, sandpit.LogQuery{}))
	if l.Lost() != 2 {
		t.Errorf("%d are lost", l.Lost())
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	w.Write(logstore.Stdout, 4, []byte("c\n"))
	equal(t, read(t, l, sandpit.LogQuery{}), `3 p1 1 stdout "c\n"`)
}

// What is not to be had any more leaves a gap in Seq, once, and only if it was
// not entered before.
func TestLostOutput(t *testing.T) {
	both(t, func(t *testing.T, dir string) {
		l := open(t, dir, logstore.Options{})
		w := l.Process("p1", 1)
		w.Write(logstore.Stdout, 0, []byte("a\nb\nc"))
		w.Lost(5)
		w.Lost(4) // all of it is there
		w.Write(logstore.Stderr, 5, []byte("d\n"))
		w.Lost(100)
		w.Write(logstore.Stdout, 100, []byte("e\n"))
		want := []string{`1 p1 1 stdout "a\n"`, `2 p1 1 stdout "b\n"`, `3 p1 1 stdout "c"`, `4 p1 1 stderr "d\n"`, `6 p1 1 stdout "e\n"`}
		equal(t, read(t, l, sandpit.LogQuery{}), want...)
		if n := l.Lost(); n != 1 {
			t.Errorf("%d are lost", n)
		}
		if dir == "" {
			return
		}
		// A program that continues it learns of the same loss, and of another.
		l.Close()
		l = open(t, dir, logstore.Options{})
		w = l.Process("p1", 1)
		w.Lost(100)
		w.Write(logstore.Stdout, 102, []byte("f\n"))
		w.Lost(200)
		w.Write(logstore.Stdout, 200, []byte("g\n"))
		equal(t, read(t, l, sandpit.LogQuery{}), append(want, `7 p1 1 stdout "f\n"`, `9 p1 1 stdout "g\n"`)...)
	})
}

func TestFollow(t *testing.T) {
	both(t, func(t *testing.T, dir string) {
		l := open(t, dir, logstore.Options{})
		w := l.Process("p1", 1)
		w.Write(logstore.Stdout, 0, []byte("a\nb\n"))
		done := make(chan []string)
		go func() {
			var got []string
			for e, err := range l.Query(context.Background(), sandpit.LogQuery{Tail: 1, Follow: true}) {
				if err != nil {
					t.Error(err)
				}
				got = append(got, string(e.Data))
				if len(got) == 1 {
					w.Write(logstore.Stdout, 4, []byte("c\n"))
				} else if len(got) == 2 {
					go l.Close() // which ends it
				}
			}
			done <- got
		}()
		equal(t, <-done, "b\n", "c\n")

		ctx, cancel := context.WithCancel(t.Context())
		l = open(t, "", logstore.Options{})
		time.AfterFunc(10*time.Millisecond, cancel)
		for _, err := range l.Query(ctx, sandpit.LogQuery{Follow: true}) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		}
	})
}

// BenchmarkWrite enters pieces of 64 KiB: of short lines, of long ones, and
// without an end of a line.
func BenchmarkWrite(b *testing.B) {
	for _, disk := range []bool{false, true} {
		for _, size := range []int{2, 80, 60_000, 1 << 20} {
			b.Run(fmt.Sprintf("disk=%v/line=%d", disk, size), func(b *testing.B) {
				dir := ""
				if disk {
					dir = b.TempDir()
				}
				l, err := logstore.Open(dir, logstore.Options{})
				if err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				w := l.Process("p1", 1)
				chunk := bytes.Repeat([]byte(strings.Repeat("x", size-1)+"\n"), 65536/min(size, 65536))[:65536/min(size, 65536)*min(size, 65536)]
				b.SetBytes(int64(len(chunk)))
				var at int64
				for i := 0; b.Loop(); i++ {
					w.Write(logstore.Stdout, at, chunk)
					at += int64(len(chunk))
					if i%32 == 0 { // half of what may wait
						if err := l.Written(b.Context()); err != nil {
							b.Fatal(err)
						}
					}
				}
				if n := l.Lost(); n > 0 {
					b.Errorf("%d entries are lost", n)
				}
			})
		}
	}
}
