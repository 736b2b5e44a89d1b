package spawn_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// run starts a program with empty input and returns what it wrote.
func run(t *testing.T, a spawn.Attr) (string, spawn.Status, error) {
	t.Helper()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	a.Stdin, a.Stdout, a.Stderr = int(null.Fd()), int(w.Fd()), int(w.Fd())
	if a.Dir == "" {
		a.Dir = "/"
	}
	if a.Candidates == nil {
		a.Candidates = []string{"/bin/sh"}
	}
	// The test keeps its capabilities, so that it works for any user.
	p, err := spawn.Start(&a)
	w.Close()
	if err != nil {
		return "", spawn.Status{}, err
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	st, err := p.Wait()
	if err != nil {
		t.Fatal(err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(p.Helper(), &ws, 0, nil); err != nil || !ws.Exited() || ws.ExitStatus() != 0 {
		t.Errorf("helper ended with %v, %v", ws, err)
	}
	p.Reaped()
	return string(out), st, nil
}

func TestExitCodeAndOutput(t *testing.T) {
	out, st, err := run(t, spawn.Attr{Argv: []string{"sh", "-c", "echo $A $0 $1; pwd; exit 3", "x", "y z"}, Env: []string{"A=b"}, Dir: "/usr"})
	if err != nil {
		t.Fatal(err)
	}
	if want := "b x y z\n/usr\n"; out != want || st.Wait.ExitStatus() != 3 {
		t.Errorf("got %q, exit %d; want %q, 3", out, st.Wait.ExitStatus(), want)
	}
}

func TestOrphansStayBelowTheHelper(t *testing.T) {
	// The grandchild outlives the program; the helper must reap it too, and
	// run waits for the helper's own good end.
	_, st, err := run(t, spawn.Attr{Argv: []string{"sh", "-c", "(setsid sh -c 'sleep 0.2' >/dev/null 2>&1 &) ; exit 0"}, Env: os.Environ()})
	if err != nil || st.Wait.ExitStatus() != 0 {
		t.Fatalf("got %v, %v", st.Wait, err)
	}
}

// The score is the program's alone, also when it is set while the program is
// executed: whoever starts it and shares its memory up to then keeps its own.
func TestOOMScoreIsTheProgramsAlone(t *testing.T) {
	score := func() string {
		data, err := os.ReadFile("/proc/self/oom_score_adj")
		testkit.Need(t, "a /proc that has oom_score_adj", err)
		return strings.TrimSpace(string(data))
	}
	own := score()
	if own == "500" {
		testkit.Lacks(t, "to be started with another oom_score_adj than 500, so that a raised one can be told")
	}
	for i := range 300 {
		if _, _, err := run(t, spawn.Attr{Argv: []string{"sh", "-c", ":"}, OOMScoreAdj: 500}); err != nil {
			t.Fatal(err)
		}
		if now := score(); now != own {
			t.Fatalf("after %d programs this one has the score %s, not %s", i+1, now, own)
		}
	}
	// It is set a moment after the start.
	if out, _, err := run(t, spawn.Attr{Argv: []string{"sh", "-c", "until grep -qx 500 /proc/$$/oom_score_adj; do :; done; echo set"}, OOMScoreAdj: 500}); err != nil || out != "set\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestSignalsAreDefault(t *testing.T) {
	out, _, err := run(t, spawn.Attr{Argv: []string{"sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status | tr -s '\t\n' '  '; ls /proc/self/fd | tr '\n' ' '"}, Env: os.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"SigBlk: 0000000000000000", "SigIgn: 0000000000000000", "0 1 2 3 "} { // 3 is ls's own
		if !strings.Contains(out, want) {
			t.Errorf("got %q, want it to hold %q", out, want)
		}
	}
}

func TestStartErrors(t *testing.T) {
	dir := t.TempDir()
	plain := dir + "/plain"
	if err := os.WriteFile(plain, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name       string
		candidates []string
		dir        string
		errno      syscall.Errno
		notFound   bool
	}{
		{"missing", []string{"/nowhere/a", "/nowhere/b"}, "/", syscall.ENOENT, true},
		{"not executable", []string{plain}, "/", syscall.EACCES, false},
		{"not executable, then missing", []string{plain, "/nowhere/b"}, "/", syscall.EACCES, false},
		{"missing directory", []string{"/bin/sh"}, "/nowhere", syscall.ENOENT, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := run(t, spawn.Attr{Argv: []string{"x"}, Candidates: tc.candidates, Dir: tc.dir})
			var se *spawn.StartError
			if !errors.As(err, &se) || se.Errno != tc.errno || se.NotFound() != tc.notFound {
				t.Errorf("got %v (%+v), want %v, not found %t", err, se, tc.errno, tc.notFound)
			}
		})
	}
}

func BenchmarkStart(b *testing.B) {
	b.Run("spawn", func(b *testing.B) {
		null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
		if err != nil {
			b.Fatal(err)
		}
		defer null.Close()
		fd := int(null.Fd())
		for b.Loop() {
			p, err := spawn.Start(&spawn.Attr{Argv: []string{"true"}, Candidates: []string{"/bin/true"}, Dir: "/", Stdin: fd, Stdout: fd, Stderr: fd})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := p.Wait(); err != nil {
				b.Fatal(err)
			}
			_, _ = syscall.Wait4(p.Helper(), nil, 0, nil)
			p.Reaped()
		}
	})
	b.Run("os-exec", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
