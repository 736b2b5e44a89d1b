package audit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

func openTest(t *testing.T, dir string, opt Options) *Log {
	t.Helper()
	l, err := Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func call(n int) Record {
	return Record{
		RequestID: fmt.Sprintf("req%d", n), Phase: PhaseIntent, Caller: "ci", Key: "k3v7q2ma", Namespace: "team", Remote: "192.0.2.1:4",
		Action: "exec", Sandbox: fmt.Sprintf("box%d", n%3), Detail: `program "sh" with 2 arguments`, Allowed: true,
	}
}

func fillLog(t *testing.T, l *Log, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		if _, err := l.Append(t.Context(), call(n)); err != nil {
			t.Fatal(err)
		}
	}
}

// A record that is added later keeps the time at which it happened.
func TestAppendKeepsTheTime(t *testing.T) {
	dir := t.TempDir()
	l := openTest(t, dir, Options{})
	late := call(1)
	late.Time = time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC)
	before := time.Now()
	for _, r := range []Record{late, call(2)} {
		if _, err := l.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	times := map[string]time.Time{}
	for r, err := range Search(t.Context(), dir, Query{Action: "exec"}) {
		if err != nil {
			t.Fatal(err)
		}
		times[r.RequestID] = r.Time
	}
	if !times["req1"].Equal(late.Time) || times["req2"].Before(before) {
		t.Errorf("the times are %v", times)
	}
	verify(t, dir)
}

func verify(t *testing.T, dir string) Summary {
	t.Helper()
	s, err := Verify(dir, Anchor{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func search(t *testing.T, dir string, q Query) []Record {
	t.Helper()
	var all []Record
	for r, err := range Search(t.Context(), dir, q) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func TestChainOverFilesAndRestarts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	opt := Options{MaxSize: 2000}
	before := time.Now()
	for round := range 5 {
		l := openTest(t, dir, opt)
		fillLog(t, l, round*20, round*20+20)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Append(t.Context(), call(0)); !errors.Is(err, sandpit.ErrState) {
			t.Errorf("a closed one: %v", err)
		}
	}
	after := time.Now()
	s := verify(t, dir)
	if s.First != 1 || s.Files < 10 || s.Last != uint64(100+s.Files) || s.Crashes != 0 || s.Pending != 0 {
		t.Errorf("got %+v", s)
	}
	got := search(t, dir, Query{Action: "exec"})
	if len(got) != 100 {
		t.Fatalf("%d records", len(got))
	}
	for n, r := range got {
		if r.Time.Before(before) || r.Time.After(after) {
			t.Errorf("at %v, not from %v to %v", r.Time, before, after)
		}
		r.Seq, r.Time = 0, time.Time{}
		if diff := cmp.Diff(call(n), r); diff != "" {
			t.Fatal(diff)
		}
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
	// An earlier check can be compared with.
	if _, err := Verify(dir, Anchor{s.Last, s.Hash}); err != nil {
		t.Error(err)
	}
	if _, err := Verify(dir, Anchor{s.Last, start().hash}); !errors.Is(err, sandpit.ErrIntegrity) {
		t.Errorf("another hash: %v", err)
	}
	if _, err := Verify(dir, Anchor{s.Last + 1, s.Hash}); !errors.Is(err, sandpit.ErrIntegrity) {
		t.Errorf("one that is not there: %v", err)
	}
}

func TestOneLogOnADirectory(t *testing.T) {
	dir := t.TempDir()
	l := openTest(t, dir, Options{})
	if _, err := Open(dir, Options{}); !errors.Is(err, sandpit.ErrState) || sandpit.Hint(err) == "" {
		t.Errorf("got %v", err)
	}
	// What this process is just starting has the lock, too, and is no other server.
	child := exec.Command("cat")
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	child.ExtraFiles = []*os.File{l.head}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = stdin.Close(), child.Wait() }()
	l.Close()
	openTest(t, dir, Options{})
}

func TestManyCallers(t *testing.T) {
	dir := t.TempDir()
	l := openTest(t, dir, Options{MaxSize: 64 << 10})
	var wg sync.WaitGroup
	for c := range 16 {
		wg.Go(func() {
			for n := range 50 {
				r := call(c*100 + n)
				if n%2 == 1 {
					r.Phase = PhaseEnd
				}
				if _, err := l.Append(context.Background(), r); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() { // it can be checked meanwhile
		for range 20 {
			if _, err := Verify(dir, Anchor{}); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	seen := map[string]bool{}
	for _, r := range search(t, dir, Query{Action: "exec"}) {
		seen[r.RequestID] = true
	}
	if s := verify(t, dir); len(seen) != 800 || s.Last != uint64(800+s.Files) {
		t.Errorf("%d records, %+v", len(seen), s)
	}
}

// H1: what a caller or guest says stays data: one line, no control character,
// and the same text when it is read back.
func TestHostileTextStaysData(t *testing.T) {
	dir := t.TempDir()
	l := openTest(t, dir, Options{})
	hostile := []string{
		"a\"},\"hash\":\"" + start().hash + "\"}\n{\"seq\":9,\"prev\":\"",
		"\x1b[2J\x07\x00\r\n\t\x7f", "\u009b31m\u202e\u2028\ufeff\U000e0001", "<script>&", "日本語 ü",
	}
	for _, text := range hostile {
		if _, err := l.Append(t.Context(), Record{Action: "exec", Detail: text, Sandbox: text, Allowed: false, Rule: text}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Append(t.Context(), Record{Action: "exec", Detail: "\xff\xfe", Sandbox: strings.Repeat("ä", 1<<20)}); err != nil {
		t.Fatal(err)
	}
	verify(t, dir)
	data, err := os.ReadFile(fileName(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(data), "\n"); n != len(hostile)+2 {
		t.Errorf("there are %d lines", n)
	}
	for _, c := range string(data) {
		if c < ' ' && c != '\n' || c >= 0x7f && c < 0xa0 || c == 0x202e || c == 0x2028 || c == 0xfeff || c == 0xe0001 {
			t.Errorf("%U stands in the file", c)
		}
	}
	got := search(t, dir, Query{Denied: true})
	for i, text := range hostile {
		if got[i].Detail != text || got[i].Sandbox != text || got[i].Rule != text {
			t.Errorf("%q became %+v", text, got[i])
		}
	}
	if last := got[len(got)-1]; len(last.Sandbox) > maxText+3 || last.Detail != "\ufffd\ufffd" {
		t.Errorf("got %d bytes, %q", len(last.Sandbox), last.Detail)
	}
}

// L15: no text makes an entry longer than MaxEntry, whatever it is escaped to, and
// Append says how long it is.
func TestEntriesAreBoundedAsTheyAreWritten(t *testing.T) {
	dir := t.TempDir()
	l := openTest(t, dir, Options{})
	for _, c := range []string{"a", "\x00", "\n", "\"", "\\", "\x7f", "\u0085", "\u2028", "\u202e", "\ufffd", "\xff", "\U000e0001", "日", "a\x01", "\xe2\x80"} {
		for _, length := range []int{1, maxText - 1, maxText, maxText + 1, maxDetail - 1, maxDetail, maxDetail + 1, 64 << 10} {
			s := strings.Repeat(c, length/len(c)+1)
			r := Record{
				RequestID: s, Phase: s, Caller: s, Key: s, Namespace: s, Remote: s, Action: s, Sandbox: s, Detail: s, Rule: s, Code: s,
				Status: 599, Took: math.MaxFloat64, Bytes: math.MaxInt64,
			}
			before := fileSize(t, dir)
			said, err := l.Append(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			took := fileSize(t, dir) - before
			if took > MaxEntry || took > said+20 || took < said-20 {
				t.Errorf("%d of %q take %d bytes, and Append says %d", length, c, took, said)
			}
		}
	}
	for text, want := range map[string]string{
		strings.Repeat("a", maxText):        strings.Repeat("a", maxText),
		strings.Repeat("a", maxText+1):      strings.Repeat("a", maxText-len(clipped)) + clipped,
		strings.Repeat("\x01", maxText/6):   strings.Repeat("\x01", maxText/6),
		strings.Repeat("\x01", maxText):     strings.Repeat("\x01", (maxText-len(clipped))/6) + clipped,
		strings.Repeat("ä", maxText/2):      strings.Repeat("ä", maxText/2),
		strings.Repeat("日", maxText):        strings.Repeat("日", (maxText-len(clipped))/3) + clipped,
		strings.Repeat("a", maxText) + "\n": strings.Repeat("a", maxText-len(clipped)) + clipped,
	} {
		if got := clip(text, maxText); got != want {
			t.Errorf("%.20q… of %d bytes becomes %.20q… of %d, want %d", text, len(text), got, len(got), len(want))
		}
	}
}

func fileSize(t *testing.T, dir string) int {
	t.Helper()
	info, err := os.Stat(fileName(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Size())
}

func TestSearch(t *testing.T) {
	dir := t.TempDir()
	l := openTest(t, dir, Options{MaxSize: 3000})
	for n := range 60 {
		r := call(n)
		if n%10 == 0 {
			r.Allowed, r.Rule, r.Code, r.Namespace, r.Key = false, "team.images", "forbidden", "other", "aaaaaaaa"
		}
		if _, err := l.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	all := search(t, dir, Query{})
	for name, tt := range map[string]struct {
		q    Query
		want int
	}{
		"all calls": {Query{Action: "exec"}, 60},
		"sandbox":   {Query{Sandbox: "box1"}, 20},
		"namespace": {Query{Namespace: "other"}, 6},
		"denied":    {Query{Denied: true}, 6},
		"of one":    {Query{Denied: true, Sandbox: "box0"}, 2},
		"request":   {Query{RequestID: "req7"}, 1},
		"after":     {Query{After: all[len(all)-1].Seq - 5}, 5},
		"since":     {Query{Since: time.Now().Add(time.Minute)}, 0},
		"from":      {Query{Since: all[0].Time, Action: "exec"}, 60},
		"until":     {Query{Until: all[0].Time.Add(-time.Second)}, 0},
		"nobody":    {Query{Caller: "nobody"}, 0},
	} {
		if got := search(t, dir, tt.q); len(got) != tt.want {
			t.Errorf("%s: %d records", name, len(got))
		} else if !slices.IsSortedFunc(got, func(a, b Record) int { return int(a.Seq) - int(b.Seq) }) {
			t.Errorf("%s: out of order", name)
		}
	}
	for range Search(t.Context(), dir, Query{}) {
		break // whoever has enough
	}
	for _, err := range Search(t.Context(), filepath.Join(dir, "nowhere"), Query{}) {
		if err == nil {
			t.Error("no error")
		}
	}
}

// TestSearchInPages reads a long audit in pages, which read little more than what
// they give.
func TestSearchInPages(t *testing.T) {
	dir := t.TempDir()
	const count = 8000 // some 3 MiB
	l := openTest(t, dir, Options{Relaxed: true})
	fillLog(t, l, 0, count)
	f, err := os.Open(fileName(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, after := range []uint64{0, 1, 2, count / 3, count - 1, count, count + 1, count + 100} {
		var got []uint64
		for r, err := range Search(t.Context(), dir, Query{After: after}) {
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, r.Seq); len(got) == 10 {
				break
			}
		}
		var want []uint64 // the first record opens the file
		for n := after + 1; n <= count+1 && len(want) < 10; n++ {
			want = append(want, n)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("after %d: %s", after, diff)
		}
		begin, err := behind(f, after)
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(io.NewSectionReader(f, begin, maxLine)).ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		if seq, ok := seqOf(line); !ok || seq > after+1 || seq+searchStep/100 < min(after, count) {
			t.Errorf("after %d it begins with %d, %v", after, seq, ok)
		}
	}
}

func TestOldFilesAreDropped(t *testing.T) {
	dir := t.TempDir()
	opt := Options{MaxSize: 1000, MaxFiles: 3}
	for range 3 {
		l := openTest(t, dir, opt)
		fillLog(t, l, 0, 30)
		l.Close()
		s := verify(t, dir)
		if s.Files != 3 || s.First < 10 {
			t.Errorf("got %+v", s)
		}
	}
	// What was dropped can't be compared: that is said. Of the last one, the first that is kept tells.
	s := verify(t, dir)
	if _, err := Verify(dir, Anchor{2, start().hash}); !errors.Is(err, sandpit.ErrNotFound) || sandpit.Hint(err) == "" || !strings.Contains(err.Error(), "the known record 2 has expired") {
		t.Errorf("one that was dropped: %v", err)
	}
	all, err := files(dir)
	if err != nil {
		t.Fatal(err)
	}
	line, err := firstLine(fileName(dir, all[0]))
	if err != nil {
		t.Fatal(err)
	}
	before, _, err := checkLine(line)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(dir, Anchor{s.First - 1, before.hash}); err != nil {
		t.Errorf("the last that was dropped: %v", err)
	}
	if _, err := Verify(dir, Anchor{s.First - 1, start().hash}); !errors.Is(err, sandpit.ErrIntegrity) {
		t.Errorf("another in its place: %v", err)
	}

	// One that was removed by somebody else is missed.
	if err := os.Remove(fileName(dir, all[0])); err != nil {
		t.Fatal(err)
	}
	_, err = Verify(dir, Anchor{})
	if !errors.Is(err, sandpit.ErrIntegrity) || !strings.Contains(err.Error(), "the file is missing, although it had not expired") {
		t.Errorf("got %v", err)
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, bb := range []struct {
		name    string
		callers int
		phase   string
		opt     Options
	}{
		{"intent", 1, PhaseIntent, Options{}},
		{"intent of 16 callers", 16, PhaseIntent, Options{}},
		{"end", 1, PhaseEnd, Options{}},
		{"intent, relaxed", 1, PhaseIntent, Options{Relaxed: true}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			l, err := Open(b.TempDir(), bb.opt)
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			r := call(1)
			r.Phase = bb.phase
			var mu sync.Mutex
			var took []time.Duration
			var wg sync.WaitGroup
			b.ResetTimer()
			for c := range bb.callers {
				wg.Go(func() {
					for i := c; i < b.N; i += bb.callers {
						begun := time.Now()
						if _, err := l.Append(context.Background(), r); err != nil {
							b.Error(err)
						}
						mu.Lock()
						took = append(took, time.Since(begun))
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
		})
	}
}
