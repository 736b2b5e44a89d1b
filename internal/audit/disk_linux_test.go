package audit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/diskfull"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// H3: on a full disk nothing is recorded, the caller is told, and what was
// recorded stays whole; when there is room, it goes on.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	testkit.Tmpfs(t, dir, unix.MS_NOSUID|unix.MS_NODEV, "size=3m,mode=0700")
	logs := filepath.Join(dir, "audit")
	l := openTest(t, logs, Options{MaxSize: 20 << 10})
	written := 0
	for round := range 4 {
		filler := filepath.Join(dir, "filler")
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		for size := 64 << 10; size > 0; size /= 2 {
			for err = error(nil); err == nil; {
				_, err = f.Write(make([]byte, size))
			}
		}
		f.Close()
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		failed := 0
		for range 300 {
			switch _, err := l.Append(t.Context(), call(written)); {
			case err == nil:
				written++
			case !errors.Is(err, sandpit.ErrDiskFull) || !strings.Contains(sandpit.Hint(err), "free some space"):
				t.Fatal(err)
			default:
				failed++
			}
		}
		if failed < 250 {
			t.Errorf("round %d: only %d failed", round, failed)
		}
		// L14: there is room for what must be possible, over the border of a file.
		for n := range 200 {
			r := call(written)
			r.Vital = true
			if _, err := l.Append(t.Context(), r); err != nil {
				t.Fatalf("round %d: vital record %d on a full disk: %v", round, n, err)
			}
			written++
		}
		verify(t, logs)
		verify(t, logs)
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		for range 100 { // over the border of a file
			if _, err := l.Append(t.Context(), call(written)); err != nil {
				t.Fatalf("round %d: when there is room again: %v", round, err)
			}
			written++
		}
		if info, err := os.Stat(filepath.Join(logs, fileReserve)); err != nil || info.Size() != diskfull.ReserveSize {
			t.Errorf("round %d: the reserve is not whole again: %v, %v", round, info, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := verify(t, logs)
	if got := search(t, logs, Query{Action: "exec"}); len(got) != written || s.Crashes != 0 {
		t.Errorf("%d of %d records, %+v", len(got), written, s)
	}
}

// What Append has accepted is there after the process was killed.
func TestKilledWriter(t *testing.T) {
	if dir := os.Getenv("SANDPIT_TEST_AUDIT"); dir != "" {
		l, err := Open(dir, Options{MaxSize: 30 << 10})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		for c := range 4 {
			go func() {
				for n := 0; ; n++ {
					r := call(n)
					r.RequestID = fmt.Sprintf("%d-%d-%d", os.Getpid(), c, n)
					if n%2 == 0 {
						r.Phase = PhaseEnd
					}
					if _, err := l.Append(context.Background(), r); err != nil {
						fmt.Fprintln(os.Stderr, err)
						os.Exit(1)
					}
					_, _ = io.WriteString(os.Stdout, r.RequestID+"\n")
				}
			}()
		}
		select {}
	}
	dir := filepath.Join(t.TempDir(), "audit")
	told := map[string]bool{}
	for round := range 10 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWriter$")
		cmd.Env = append(os.Environ(), "SANDPIT_TEST_AUDIT="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		for n := 0; ; n++ {
			line, err := lines.ReadString('\n')
			if err != nil {
				break // a last line that is not whole does not count
			}
			told[strings.TrimSpace(line)] = true
			if n == 20+17*round {
				_ = cmd.Process.Kill()
			}
		}
		_ = cmd.Wait()
		if _, err := Verify(dir, Anchor{}); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	there := map[string]bool{}
	for r, err := range Search(t.Context(), dir, Query{}) {
		if err == nil {
			there[r.RequestID] = true
		}
	}
	for id := range told {
		if !there[id] {
			t.Errorf("the record %s is lost", id)
		}
	}
	if len(told) < 200 {
		t.Errorf("only %s records were written", strconv.Itoa(len(told)))
	}
}
