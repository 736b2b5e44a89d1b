package state

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
)

func openTest(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func record(n int) engine.Record {
	return engine.Record{
		ID: fmt.Sprintf("id%d", n), Namespace: "ns", Name: fmt.Sprintf("name%d", n), State: sandpit.StateRunning,
		CreatedAt: time.Unix(1_700_000_000, int64(n)), Data: json.RawMessage(`{"version":1}`),
	}
}

func TestRecordsOutliveTheStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "odd name?&#%20 ü")
	s := openTest(t, dir)
	var want []engine.Record
	for n := range 5 {
		want = append(want, record(n))
	}
	for _, n := range []int{3, 1, 4, 0, 2} {
		if err := s.PutSandbox(t.Context(), want[n]); err != nil {
			t.Fatal(err)
		}
	}
	want[2].State, want[2].Data = sandpit.StateStopped, json.RawMessage(`{"version":1,"a":"b"}`)
	if err := s.PutSandbox(t.Context(), want[2]); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"id0", "never"} {
		if err := s.DeleteSandbox(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		got, err := s.Sandboxes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want[1:], got); diff != "" {
			t.Error(diff)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openTest(t, dir)
	}
}

func TestANameIsTakenInItsNamespaceOnly(t *testing.T) {
	s := openTest(t, t.TempDir())
	a := record(1)
	if err := s.PutSandbox(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	b := record(2)
	b.Name = a.Name
	if err := s.PutSandbox(t.Context(), b); !errors.Is(err, sandpit.ErrExists) || sandpit.Hint(err) == "" {
		t.Errorf("got %v", err)
	}
	b.Namespace = "other"
	if err := s.PutSandbox(t.Context(), b); err != nil {
		t.Error(err)
	}
	if err := s.PutSandbox(t.Context(), engine.Record{}); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

// Callers that come at once share a transaction; what one of them is refused
// does no harm to the others.
func TestManyWritersAtOnce(t *testing.T) {
	s := openTest(t, t.TempDir())
	const callers = 64
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range 10 {
				r := record(c*100 + i)
				r.Name = fmt.Sprintf("n%d", c/2*100+i) // each name is wanted twice
				err := s.PutSandbox(context.Background(), r)
				if err != nil && !errors.Is(err, sandpit.ErrExists) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got, err := s.Sandboxes(t.Context())
	if err != nil || len(got) != callers*10/2 {
		t.Errorf("%d records, %v", len(got), err)
	}
}

func TestOneServerOnADirectory(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	_, err := Open(t.Context(), dir)
	if !errors.Is(err, sandpit.ErrState) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) || sandpit.Hint(err) == "" {
		t.Errorf("got %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	openTest(t, dir)
}

// What a process is just starting has its descriptors, and with them its lock: that
// is no other server, neither when the process gives the lock back nor when it is
// dead.
func TestLockThatAChildHas(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer write.Close()
	// It ends when the pipe does.
	child := exec.Command("cat")
	child.Stdin, child.ExtraFiles = read, []*os.File{s.lock}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		_ = write.Close()
		_ = child.Wait()
	})
	defer end()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir)

	// Now one that has died without giving it back.
	end()
	dead := child.Process.Pid
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, fileLock)
	held, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, fmt.Appendln(nil, dead), 0o600); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(200*time.Millisecond, func() { _ = held.Close() })
	openTest(t, dir)
}

func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, dir)
	if err := s.PutSandbox(t.Context(), record(1)); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, e := range entries {
		found[e.Name()] = true
		if info, err := e.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
	if diff := cmp.Diff(map[string]bool{"lock": true, "reserve": true, "state.db": true, "state.db-wal": true, "state.key": true}, found); diff != "" {
		t.Error(diff)
	}
}

func TestSchemas(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	if err := s.PutSandbox(t.Context(), record(1)); err != nil {
		t.Fatal(err)
	}
	s.Close()

	// The next version adds a column.
	next := append(migrations(), "ALTER TABLE sandboxes ADD COLUMN more TEXT")
	s, err := open(t.Context(), dir, next, false)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Sandboxes(t.Context()); err != nil || len(got) != 1 {
		t.Errorf("after a migration: %v, %v", got, err)
	}
	s.Close()
	if info, err := os.Stat(filepath.Join(dir, "state.db.schema-5")); err != nil || info.Mode() != 0o600 {
		t.Errorf("the copy of the old schema: %v", err)
	}

	// This one does not know it.
	before, err := os.ReadFile(filepath.Join(dir, fileDatabase))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), dir)
	if !errors.Is(err, sandpit.ErrState) || !strings.Contains(err.Error(), "has schema 6, but this version of Sandpit supports only schemas up to 5") || sandpit.Hint(err) == "" {
		t.Errorf("got %v", err)
	}
	if after, err := os.ReadFile(filepath.Join(dir, fileDatabase)); err != nil || string(after) != string(before) {
		t.Errorf("the newer database was changed, %v", err)
	}

	// The copy is a way back.
	if err := os.Rename(filepath.Join(dir, "state.db.schema-5"), filepath.Join(dir, fileDatabase)); err != nil {
		t.Fatal(err)
	}
	if got, err := openTest(t, dir).Sandboxes(t.Context()); err != nil || len(got) != 1 {
		t.Errorf("from the copy: %v, %v", got, err)
	}
}

// The secret of a record is given back, and is not in the database's files: neither as
// long as the record is there, nor after its removal.
func TestSecretsOfRecords(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	const secret = `["TOKEN=a very secret one"]`
	r := record(1)
	r.Secret = json.RawMessage(secret)
	if err := s.PutSandbox(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := s.PutSandbox(t.Context(), record(2)); err != nil {
		t.Fatal(err)
	}
	got, err := s.Sandboxes(t.Context())
	if err != nil || len(got) != 2 || string(got[0].Secret) != secret || got[1].Secret != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	// A change of the record writes the secret, which may be large, no second time.
	sealed := func() (text string) {
		t.Helper()
		err := s.view(t.Context(), func(t *tx) error {
			return t.row("SELECT hex(secret) FROM secrets WHERE sandbox=?", []any{r.ID}, &text)
		})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := sealed()
	r.State = sandpit.StateStopped
	if err := s.PutSandbox(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if sealed() != before {
		t.Error("it was written again")
	}
	// One that is new is written.
	r.Secret, r.NewSecret = json.RawMessage(`["TOKEN=another very secret one"]`), true
	if err := s.PutSandbox(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Sandboxes(t.Context()); err != nil || string(got[0].Secret) != string(r.Secret) {
		t.Errorf("a new one: %+v, %v", got, err)
	}
	unseen := func(when string) {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(dir, fileDatabase+"*"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, file := range files {
			if data, err := os.ReadFile(file); err != nil || bytes.Contains(data, []byte("very secret")) {
				t.Errorf("%s: it is in %s, %v", when, file, err)
			}
		}
	}
	unseen("with the record")
	if err := s.DeleteSandbox(t.Context(), r.ID); err != nil {
		t.Fatal(err)
	}
	unseen("after its removal")
	if err := s.PutSandbox(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	s.Close()

	// With another key it is lost, and nothing else.
	if err := os.Remove(filepath.Join(dir, fileSeal)); err != nil {
		t.Fatal(err)
	}
	got, err = openTest(t, dir).Sandboxes(t.Context())
	if err != nil || len(got) != 2 || got[0].Secret != nil || got[1].Secret != nil {
		t.Errorf("with another key: %+v, %v", got, err)
	}
}

func TestABrokenStepChangesNothing(t *testing.T) {
	dir := t.TempDir()
	openTest(t, dir).Close()
	_, err := open(t.Context(), dir, append(migrations(), "CREATE TABLE new (a TEXT) STRICT; ALTER TABLE nowhere ADD COLUMN x TEXT"), false)
	if err == nil || !strings.Contains(err.Error(), "changing the schema from 5 to 6") {
		t.Fatalf("got %v", err)
	}
	if err := openTest(t, dir).PutSandbox(t.Context(), record(1)); err != nil {
		t.Error(err)
	}
}

func TestNotADatabase(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fileDatabase), []byte(strings.Repeat("garbage ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dir); !errors.Is(err, sandpit.ErrIntegrity) || sandpit.Hint(err) == "" {
		t.Errorf("got %v", err)
	}
}

func TestClosed(t *testing.T) {
	s := openTest(t, t.TempDir())
	s.Close()
	if err := s.PutSandbox(t.Context(), record(1)); !errors.Is(err, sandpit.ErrState) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Sandboxes(t.Context()); !errors.Is(err, sandpit.ErrState) {
		t.Errorf("got %v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.PutSandbox(canceled, record(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// What a record costs, beside the disk's own fdatasync of a page, and beside
// the same record that a power cut could take back.
func BenchmarkPutSandbox(b *testing.B) {
	b.Run("fdatasync", func(b *testing.B) {
		f, err := os.Create(filepath.Join(b.TempDir(), "file"))
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		var took []time.Duration
		for i := range b.N {
			start := time.Now()
			if _, err := f.WriteAt(make([]byte, 4096), int64(i%1000)*4096); err != nil {
				b.Fatal(err)
			}
			if err := f.Sync(); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		reportQuantiles(b, took)
	})
	for _, bb := range []struct {
		name    string
		callers int
		sync    string
	}{{"alone", 1, "FULL"}, {"16 callers", 16, "FULL"}, {"not durable", 1, "NORMAL"}} {
		b.Run(bb.name, func(b *testing.B) { benchmarkPut(b, bb.callers, bb.sync) })
	}
}

func benchmarkPut(b *testing.B, callers int, synchronous string) {
	s, err := Open(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if _, err := s.tx.conn.ExecContext(b.Context(), "PRAGMA synchronous="+synchronous); err != nil {
		b.Fatal(err)
	}
	data := json.RawMessage(`{"x":"` + strings.Repeat("a", 1500) + `"}`)
	var mu sync.Mutex
	var took []time.Duration
	var wg sync.WaitGroup
	b.ResetTimer()
	for c := range callers {
		wg.Go(func() {
			for i := c; i < b.N; i += callers {
				r := record(i)
				r.ID, r.Name, r.Data = engine.NewID(), engine.NewID(), data
				start := time.Now()
				if err := s.PutSandbox(context.Background(), r); err != nil {
					b.Error(err)
				}
				mu.Lock()
				took = append(took, time.Since(start))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	reportQuantiles(b, took)
}

// The index of the log is in memory, also when the database was there before: a
// file of it that is there was left by another version, and is not used.
func TestNoSharedMemory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	for n := range 3 {
		s := openTest(t, dir)
		if err := s.PutSandbox(t.Context(), record(n)); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Sandboxes(t.Context()); err != nil || len(got) != n+1 {
			t.Errorf("%d of %d records: %v", len(got), n+1, err)
		}
		if _, err := os.Lstat(filepath.Join(dir, "state.db-shm")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("when it is opened for the %d. time: %v", n+1, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	left := []byte("left by another version")
	if err := os.WriteFile(filepath.Join(dir, "state.db-shm"), left, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := openTest(t, dir).Sandboxes(t.Context()); err != nil || len(got) != 3 {
		t.Errorf("%d records: %v", len(got), err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "state.db-shm")); err != nil || string(got) != string(left) {
		t.Errorf("the file that was left has %d other bytes: %v", len(got), err)
	}
}
