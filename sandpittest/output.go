package sandpittest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

var outputProperties = []property{
	{"stdout and stderr are apart, each in order", testStreams},
	{"output is bytes", testBinaryOutput},
	{"output arrives as it is written", testStreaming},
	{"a slow reader slows the process down and loses nothing", testSlowReader},
	{"a writer that fails gets no more, and the process goes on", testFailingWriter},
	{"past its limit output is counted and dropped, and the process goes on", testOutputLimit},
	{"the limit is that of both streams together", testOutputLimitBoth},
	{"a Command can lower the limit, not raise it", testOutputLimitLowered},
	{"output that nobody wants is counted", testNoWriters},
	{"a process that writes single bytes is carried", testSingleBytes},
	{"one that does not read its output does not hold up others", testStuckReader},
	{"an output that nobody reads does not hold up the other one, nor input", testStuckOutput},
}

func testStreams(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	const n = 20000
	out := run(t, sb, sandpit.Command{Script: fmt.Sprintf(`seq 1 %d & seq %d -1 1 >&2; wait`, n, n)})
	var up, down strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&up, i)
		fmt.Fprintln(&down, n+1-i)
	}
	if string(out.Stdout) != up.String() {
		t.Errorf("stdout is not what was written: %s", brief(out.Stdout))
	}
	if string(out.Stderr) != down.String() {
		t.Errorf("stderr is not what was written: %s", brief(out.Stderr))
	}
	if out.StdoutBytes != int64(up.Len()) || out.StderrBytes != int64(down.Len()) || out.Truncated || out.DroppedBytes != 0 {
		t.Errorf("got %+v", out.Result)
	}
}

func testBinaryOutput(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	out := run(t, sb, sandpit.Command{Script: `printf '\000\377\376\r\n\033[31m\200'; printf '\303\050\000' >&2`})
	if string(out.Stdout) != "\x00\xff\xfe\r\n\x1b[31m\x80" || string(out.Stderr) != "\xc3(\x00" {
		t.Errorf("got %q and %q", out.Stdout, out.Stderr)
	}
}

func testStreaming(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	var out, errs written
	p := start(t, sb, sandpit.Command{Script: `printf a; read x; printf b >&2; read x; echo c`, Stdin: true, Stdout: &out, Stderr: &errs})
	out.until(t, "a") // although the process is still running, without a newline
	_, _ = io.WriteString(p.Stdin(), "\n")
	errs.until(t, "b")
	_, _ = io.WriteString(p.Stdin(), "\n")
	if res := wait(t, p); !res.Success() || out.String() != "ac\n" || errs.String() != "b" {
		t.Errorf("got %+v, %q, %q", res, out.String(), errs.String())
	}
}

// slowHash is a reader that is slow at first.
type slowHash struct {
	hash.Hash
	n     int64
	calls int
}

func (s *slowHash) Write(b []byte) (int, error) {
	s.calls++
	if s.calls < 200 {
		time.Sleep(2 * time.Millisecond)
	}
	s.n += int64(len(b))
	return s.Hash.Write(b)
}

func testSlowReader(t *testing.T, e *env) {
	size := int64(64 << 20)
	if e.opt.Long {
		size = 1 << 30
	}
	sb := e.sandbox(t, sandpit.Spec{})
	before := heap()
	got := &slowHash{Hash: sha256.New()}
	res := wait(t, start(t, sb, sandpit.Command{Script: fmt.Sprintf("head -c %d /dev/zero | tr '\\0' 'x'", size), Stdout: got}))
	want := sha256.New()
	_, _ = io.CopyN(want, repeat('x'), size)
	if !res.Success() || res.StdoutBytes != size || got.n != size || res.Truncated || res.DroppedBytes != 0 {
		t.Errorf("%d bytes came: %+v", got.n, res)
	} else if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Error("what came is not what was written")
	}
	if grown := heap() - before; grown > 32<<20 {
		t.Errorf("the heap has grown by %d MiB", grown>>20)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// repeat is an endless reader of one byte.
type repeat byte

func (r repeat) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(r)
	}
	return len(b), nil
}

type failingWriter struct{ n, calls int }

func (f *failingWriter) Write(b []byte) (int, error) {
	f.calls++
	if f.n += len(b); f.n > 1000 {
		return 0, errors.New("enough")
	}
	return len(b), nil
}

func testFailingWriter(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	w := &failingWriter{}
	var errs written
	res := wait(t, start(t, sb, sandpit.Command{Script: "head -c 10000000 /dev/zero; echo end >&2; exit 8", Stdout: w, Stderr: &errs}))
	if res.ExitCode != 8 || res.StdoutBytes != 10000000 || errs.String() != "end\n" {
		t.Errorf("got %+v, %q", res, errs.String())
	}
	if calls := w.calls; calls > 2 {
		t.Errorf("the writer was called %d times", calls)
	}
}

func testOutputLimit(t *testing.T, e *env) {
	for _, own := range []bool{true, false} {
		spec, cmd := sandpit.Spec{}, sandpit.Command{Script: "seq 1 100000; echo over >/tmp/over; exit 3"}
		if own {
			cmd.OutputLimit = 1000
		} else {
			spec.Limits.Output = 1000
		}
		sb := e.sandbox(t, spec)
		var buf bytes.Buffer
		cmd.Stdout = &buf
		res := wait(t, start(t, sb, cmd))
		const total = 588895 // bytes of seq 1 100000
		if res.ExitCode != 3 || !res.Truncated || res.StdoutBytes != total || res.DroppedBytes != total-1000 {
			t.Errorf("got %+v", res)
		}
		if buf.Len() != 1000 || !strings.HasPrefix(buf.String(), "1\n2\n3\n") {
			t.Errorf("%d bytes were kept", buf.Len())
		}
		if got := shell(t, sb, "cat /tmp/over"); got != "over" {
			t.Errorf("the process did not go on: %q", got)
		}
	}
}

func testOutputLimitBoth(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	out := run(t, sb, sandpit.Command{Script: "head -c 60000 /dev/zero; head -c 60000 /dev/zero >&2", OutputLimit: 100000})
	if n := len(out.Stdout) + len(out.Stderr); n != 100000 || !out.Truncated || out.DroppedBytes != 20000 || out.StdoutBytes != 60000 || out.StderrBytes != 60000 {
		t.Errorf("%d bytes were kept: %+v", n, out.Result)
	}
	out = run(t, sb, sandpit.Command{Script: "head -c 50000 /dev/zero; head -c 50000 /dev/zero >&2", OutputLimit: 100000})
	if n := len(out.Stdout) + len(out.Stderr); n != 100000 || out.Truncated || out.DroppedBytes != 0 {
		t.Errorf("%d bytes were kept: %+v", n, out.Result)
	}
}

func testOutputLimitLowered(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Output: 1000}})
	for limit, want := range map[int64]int64{0: 1000, 10: 10, 5000: 1000} {
		w := &counter{}
		res := wait(t, start(t, sb, sandpit.Command{Script: "head -c 6000 /dev/zero", Stdout: w, OutputLimit: limit}))
		if w.n != want || res.DroppedBytes != 6000-want {
			t.Errorf("with a limit of %d %d bytes are kept: %+v", limit, w.n, res)
		}
	}
}

type counter struct{ n int64 }

func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return len(b), nil
}

func testNoWriters(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	res := wait(t, start(t, sb, sandpit.Command{Script: "head -c 3000000 /dev/zero; head -c 2000000 /dev/zero >&2"}))
	if !res.Success() || res.StdoutBytes != 3000000 || res.StderrBytes != 2000000 || res.Truncated {
		t.Errorf("got %+v", res)
	}
}

func testSingleBytes(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	out := run(t, sb, sandpit.Command{Script: "dd if=/dev/zero bs=1 count=20000 2>/dev/null"})
	if len(out.Stdout) != 20000 {
		t.Errorf("%d bytes came", len(out.Stdout))
	}
}

// gate is a writer that waits.
type gate struct{ open chan struct{} }

func (g gate) Write(b []byte) (int, error) {
	<-g.open
	return len(b), nil
}

func testStuckReader(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	g := gate{make(chan struct{})}
	p := start(t, sb, sandpit.Command{Argv: []string{"head", "-c", "50000000", "/dev/zero"}, Stdout: g})
	if got := shell(t, sb, "echo other; head -c 1000000 /dev/zero >&2"); got != "other" {
		t.Errorf("got %q", got)
	}
	if _, err := sb.Files().Stat(t.Context(), "/"); err != nil {
		t.Error(err)
	}
	close(g.open)
	if res := wait(t, p); res.StdoutBytes != 50000000 {
		t.Errorf("got %+v", res)
	}
}

func testStuckOutput(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	const much = 4 << 20
	for _, input := range []bool{false, true} {
		g := gate{make(chan struct{})}
		var errs written
		cmd := sandpit.Command{
			Script: fmt.Sprintf("head -c %d /dev/zero & head -c %[1]d /dev/zero | tr '\\0' x >&2; echo free >&2; wc -c >&2; wait", much),
			Stdin:  input, Stdout: g, Stderr: &errs,
		}
		p := start(t, sb, cmd)
		want := "0\n"
		if input {
			if _, err := io.CopyN(p.Stdin(), repeat('y'), much); err != nil {
				t.Fatal(err)
			}
			_ = p.Stdin().Close()
			want = fmt.Sprintln(much)
		}
		errs.until(t, "free\n"+want)
		close(g.open)
		if res := wait(t, p); !res.Success() || res.StdoutBytes != much || res.DroppedBytes != 0 || len(errs.String()) != much+len("free\n"+want) {
			t.Errorf("got %+v, %d bytes of stderr", res, len(errs.String()))
		}
	}
}
