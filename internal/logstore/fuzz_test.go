package logstore_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/logstore"
)

// FuzzSegment reads files that hold anything: what is found must make sense,
// and the log goes on behind it.
func FuzzSegment(f *testing.F) {
	dir := f.TempDir()
	l, err := logstore.Open(dir, logstore.Options{})
	if err != nil {
		f.Fatal(err)
	}
	l.Process("p1", 1).Write(logstore.Stdout, 0, []byte("one\ntwo\n"))
	l.Process("p2", 2).Write(logstore.Stderr, 0, []byte("three\n"))
	l.Close()
	name := filepath.Join(dir, strings.Repeat("0", 16)+".log")
	data, err := os.ReadFile(name)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:len(data)-1])
	f.Add(data[:16])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		for _, name := range []string{"0000000000000000.log", "0000000000000001.log"} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		l, err := logstore.Open(dir, logstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		n := 0
		for e, err := range l.Query(t.Context(), sandpit.LogQuery{}) {
			if err != nil {
				t.Fatal(err)
			}
			if len(e.Data) == 0 || len(e.Data) > 64<<10 {
				t.Errorf("an entry of %d bytes", len(e.Data))
			}
			n++
		}
		l.Process("new", 1).Write(logstore.Stdout, 0, []byte("x\n"))
		var last sandpit.LogEntry
		for e, err := range l.Query(t.Context(), sandpit.LogQuery{Process: "new"}) {
			if err != nil {
				t.Fatal(err)
			}
			last = e
		}
		if string(last.Data) != "x\n" {
			t.Errorf("what is entered behind %d entries is not found", n)
		}
	})
}
