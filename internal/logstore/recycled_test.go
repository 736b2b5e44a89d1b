package logstore_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/logstore"
)

// fillLog writes so many lines of a hundred bytes, over several segments.
func fillLog(t *testing.T, l *logstore.Log, from, n int) {
	t.Helper()
	w := l.Process("p1", 1)
	for i := from; i < from+n; i++ {
		w.Write(logstore.Stdout, int64(i*100), fmt.Appendf(nil, "%099d\n", i))
		if i%20 == 0 {
			if err := l.Written(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.Written(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// seqs returns the Seq of all entries, which must follow each other and be those
// of fillLog.
func seqs(t *testing.T, l *logstore.Log) (first, last uint64) {
	t.Helper()
	for e, err := range l.Query(t.Context(), sandpit.LogQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if first == 0 {
			first = e.Seq
		} else if e.Seq != last+1 {
			t.Errorf("entry %d follows %d", e.Seq, last)
		}
		if want := fmt.Sprintf("%099d\n", e.Seq-1); string(e.Data) != want {
			t.Errorf("entry %d is %q", e.Seq, e.Data)
		}
		last = e.Seq
	}
	return first, last
}

// A file that has been another segment's shows nothing of that, to this program
// and to the next one, wherever this one is killed.
func TestTakenOver(t *testing.T) {
	const limit = 64 << 10
	dir := t.TempDir()
	l := open(t, dir, logstore.Options{MaxBytes: limit})
	for i := range 60 {
		fillLog(t, l, i*37, 37)
		if _, last := seqs(t, l); last != uint64((i+1)*37) {
			t.Errorf("the last of %d entries is %d", (i+1)*37, last)
		}
		killed := t.TempDir()
		if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		next := open(t, killed, logstore.Options{MaxBytes: limit})
		first, last := seqs(t, next)
		if last != uint64((i+1)*37) || i > 20 && last-first < 250 {
			t.Errorf("the next program finds entries %d to %d of %d", first, last, (i+1)*37)
		}
		fillLog(t, next, (i+1)*37, 5)
		if _, last := seqs(t, next); last != uint64((i+1)*37+5) {
			t.Errorf("the next program goes on up to %d", last)
		}
		next.Close()
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}

	// Killed when the oldest had its new name, and was not written to.
	_, last := seqs(t, l)
	l.Close()
	name := filepath.Base(files[3])
	var n int
	if _, err := fmt.Sscanf(name, "%x.log", &n); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(files[0], filepath.Join(dir, fmt.Sprintf("%016x.log", n+1))); err != nil {
		t.Fatal(err)
	}
	next := open(t, dir, logstore.Options{MaxBytes: limit})
	if _, l := seqs(t, next); l != last {
		t.Errorf("the last is %d, not %d", l, last)
	}
	fillLog(t, next, int(last), 100)
	if _, l := seqs(t, next); l != last+100 {
		t.Errorf("the log goes on up to %d, not %d", l, last+100)
	}
}

// Who is reading a file when it is the oldest finds in it what was there.
func TestReadWhileTakenOver(t *testing.T) {
	l := open(t, t.TempDir(), logstore.Options{MaxBytes: 400 << 10}) // more in a file than is read at once
	fillLog(t, l, 0, 3500)
	n, last := 3500, uint64(0)
	for e, err := range l.Query(t.Context(), sandpit.LogQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if last > 0 && e.Seq != last+1 || !bytes.Equal(e.Data, fmt.Appendf(nil, "%099d\n", e.Seq-1)) {
			t.Fatalf("entry %d follows %d: %q", e.Seq, last, e.Data)
		}
		if last == 0 { // so that this file is the oldest, and goes
			fillLog(t, l, n, 600)
			n += 600
		}
		last = e.Seq
	}
	if _, last := seqs(t, l); last != uint64(n) {
		t.Errorf("the last of %d is %d", n, last)
	}
}
