package state

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/diskfull"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/keys"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// mountSmall mounts a disk of so many bytes.
func mountSmall(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	testkit.Tmpfs(t, dir, unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%d,mode=0700", size))
	return dir
}

// fill leaves no room on a disk, and returns a way to make it again.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 64 << 10; size > 0; size /= 2 {
		for err = error(nil); err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// L14: the room for vital writes is taken again as soon as there is any, without a
// write.
func TestReserveComesBack(t *testing.T) {
	dir := filepath.Join(mountSmall(t, 6<<20), "state")
	s := openTest(t, dir)
	s.mu.Lock()
	s.reserve.Release()
	free := fill(t, filepath.Dir(dir))
	s.mu.Unlock()
	size := func() int64 {
		info, err := os.Stat(filepath.Join(dir, fileReserve))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	settle := func() {
		t.Helper()
		if err := s.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	settle()
	if n := size(); n >= diskfull.ReserveSize {
		t.Errorf("on a full disk it has %d bytes", n)
	}
	free()
	settle()
	if n := size(); n < diskfull.ReserveSize {
		t.Errorf("with room again it has %d bytes", n)
	}
}

func TestFullDisk(t *testing.T) {
	dir := filepath.Join(mountSmall(t, 4<<20), "state")
	s := openTest(t, dir)
	kept := 0
	for round := range 3 {
		for range 10 {
			if err := s.PutSandbox(t.Context(), record(kept)); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			kept++
		}
		free := fill(t, filepath.Dir(dir))
		var err error
		for i := 0; err == nil && i < 2000; i++ { // there may be room in the log
			r := record(kept)
			r.Data = []byte(`"` + strings.Repeat("a", 3000) + `"`)
			if err = s.PutSandbox(t.Context(), r); err == nil {
				kept++
			}
		}
		if !errors.Is(err, sandpit.ErrExhausted) || !strings.Contains(sandpit.Hint(err), "free some space") {
			t.Fatalf("round %d: on a full disk: %v", round, err)
		}
		if got, err := s.Sandboxes(t.Context()); err != nil || len(got) != kept {
			t.Errorf("round %d: %d of %d records can be read: %v", round, len(got), kept, err)
		}
		if _, err := s.BeginRepeatable(t.Context(), Repeatable{Namespace: "ns", Key: "k"}); !errors.Is(err, sandpit.ErrExhausted) {
			t.Errorf("round %d: %v", round, err)
		}
		free()
		if err := s.PutSandbox(t.Context(), record(kept)); err != nil {
			t.Fatalf("round %d: when there is room again: %v", round, err)
		}
		kept++
	}
	checkIntegrity(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := openTest(t, dir).Sandboxes(t.Context()); err != nil || len(got) != kept {
		t.Errorf("%d of %d records outlived it: %v", len(got), kept, err)
	}
}

// L14: on a full disk keys can be revoked and sandboxes and webhooks removed, for
// good, although nothing can be added.
func TestVitalWritesOnAFullDisk(t *testing.T) {
	dir := filepath.Join(mountSmall(t, 6<<20), "state")
	s := openTest(t, dir)
	const count = 40
	prefix := func(i int) string { return fmt.Sprintf("key%05d", i) }
	for i := range count {
		if err := errors.Join(
			s.PutSandbox(t.Context(), record(i)),
			s.PutKey(t.Context(), keys.Stored{Key: keys.Key{Prefix: prefix(i), Namespace: "ns", Policy: "p", CreatedAt: time.Now()}}),
		); err != nil {
			t.Fatal(err)
		}
	}
	all, err := s.Sandboxes(t.Context())
	if err != nil || len(all) != count {
		t.Fatal(len(all), err)
	}
	free := fill(t, filepath.Dir(dir))
	for i := 0; err == nil && i < 2000; i++ {
		r := record(count + i)
		r.Data = []byte(`"` + strings.Repeat("a", 3000) + `"`)
		if err = s.PutSandbox(t.Context(), r); err == nil {
			err = s.DeleteSandbox(t.Context(), r.ID)
		}
	}
	if !errors.Is(err, sandpit.ErrExhausted) {
		t.Fatalf("on a full disk: %v", err)
	}
	for i := range count {
		stopped := all[i]
		stopped.State = sandpit.StateStopped
		for what, err := range map[string]error{
			"revoking":  s.RevokeKey(t.Context(), prefix(i), time.Now()),
			"stopping":  s.PutSandbox(t.Context(), stopped),
			"removing":  s.DeleteSandbox(t.Context(), all[i].ID),
			"a webhook": s.DeleteWebhook(t.Context(), "ns", "none"),
		} {
			if err != nil && (what != "a webhook" || !errors.Is(err, sandpit.ErrNotFound)) {
				t.Fatalf("%s %d on a full disk: %v", what, i, err)
			}
		}
	}
	if err := s.PutKey(t.Context(), keys.Stored{Key: keys.Key{Prefix: "toomany1", Label: strings.Repeat("a", 1<<20), CreatedAt: time.Now()}}); !errors.Is(err, sandpit.ErrExhausted) {
		t.Errorf("adding to a full disk: %v", err)
	}
	checkIntegrity(t, s)
	// What was written on the full disk is there after a death.
	again := openTest(t, copyOf(t, dir, free))
	if left, err := again.Sandboxes(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("%d sandboxes are left, %v", len(left), err)
	}
	list, err := again.Keys(t.Context())
	if err != nil || len(list) != count {
		t.Fatalf("%d keys, %v", len(list), err)
	}
	for _, k := range list {
		if k.RevokedAt.IsZero() {
			t.Errorf("the key %s is not revoked", k.Prefix)
		}
	}
	if err := s.PutSandbox(t.Context(), record(1)); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(filepath.Join(dir, fileReserve)); err != nil || info.Size() != diskfull.ReserveSize {
		t.Errorf("the reserve is not whole again: %v, %v", info, err)
	}
}

// copyOf copies a state directory as it is, after making room.
func copyOf(t *testing.T, dir string, free func()) string {
	t.Helper()
	free()
	to := filepath.Join(t.TempDir(), "state")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func checkIntegrity(t *testing.T, s *Store) {
	t.Helper()
	var answer string
	if err := s.tx.conn.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&answer); err != nil || answer != "ok" {
		t.Errorf("the database is damaged: %s, %v", answer, err)
	}
}

func TestOpenOnAFullDisk(t *testing.T) {
	dir := mountSmall(t, 3<<20)
	free := fill(t, dir)
	if _, err := Open(t.Context(), filepath.Join(dir, "state")); !errors.Is(err, sandpit.ErrExhausted) || sandpit.Hint(err) == "" {
		t.Errorf("got %v", err)
	}
	free()
	s := openTest(t, filepath.Join(dir, "state"))
	if err := s.PutSandbox(t.Context(), record(1)); err != nil {
		t.Error(err)
	}

	// The same when there is a state already.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	free = fill(t, dir)
	if s, err := Open(t.Context(), filepath.Join(dir, "state")); err == nil {
		_ = s.Close() // a little room was left
	} else if !errors.Is(err, sandpit.ErrExhausted) || !strings.Contains(sandpit.Hint(err), "free some space") {
		t.Errorf("got %v, hint %q", err, sandpit.Hint(err))
	}
	free()
	if got, err := openTest(t, filepath.Join(dir, "state")).Sandboxes(t.Context()); err != nil || len(got) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestReadOnlyDisk(t *testing.T) {
	dir := mountSmall(t, 2<<20)
	s := openTest(t, dir)
	if err := s.PutSandbox(t.Context(), record(1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV|flags, "size=2m"); err != nil {
			t.Fatal(err)
		}
	}
	remount(unix.MS_RDONLY)
	if _, err := Open(t.Context(), dir); !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(sandpit.Hint(err), "writable") {
		t.Errorf("got %v, hint %q", err, sandpit.Hint(err))
	}
	remount(0)
	if got, err := openTest(t, dir).Sandboxes(t.Context()); err != nil || len(got) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
}

// What a call has reported as written is there after its process was killed,
// at whatever moment.
func TestKilledWriter(t *testing.T) {
	if dir := os.Getenv("SANDPIT_TEST_WRITER"); dir != "" {
		writeUntilKilled(dir)
	}
	dir := filepath.Join(t.TempDir(), "state")
	told := map[string]bool{}
	for round := range 10 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWriter$")
		cmd.Env = append(os.Environ(), "SANDPIT_TEST_WRITER="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; n < 20+13*round && lines.Scan(); n++ {
			told[lines.Text()] = true
		}
		_ = cmd.Process.Kill()
		for lines.Scan() { // what it said before it died counts too
			if line := lines.Text(); len(line) == len(engine.NewID()) {
				told[line] = true
			}
		}
		_ = cmd.Wait()

		s, err := Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		records, err := s.Sandboxes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		there := map[string]bool{}
		for _, r := range records {
			there[r.ID] = true
		}
		for id := range told {
			if !there[id] {
				t.Errorf("round %d: the record %s is lost", round, id)
			}
		}
		checkIntegrity(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(told) < 200 {
		t.Errorf("only %d records were written", len(told))
	}
}

func writeUntilKilled(dir string) {
	s, err := Open(context.Background(), dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for range 4 {
		go func() {
			for {
				r := record(1)
				r.ID = engine.NewID()
				r.Name = r.ID
				if err := s.PutSandbox(context.Background(), r); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				_, _ = io.WriteString(os.Stdout, r.ID+"\n")
			}
		}()
	}
	select {}
}
