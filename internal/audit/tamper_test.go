package audit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// made makes an audit of three files or so, and returns its lines by file.
func made(t *testing.T, dir string) (lines map[uint64][]string) {
	t.Helper()
	l := openTest(t, dir, Options{MaxSize: 4000})
	fillLog(t, l, 0, 25)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	verify(t, dir)
	lines = map[uint64][]string{}
	all, err := files(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all {
		data, err := os.ReadFile(fileName(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		lines[n] = strings.SplitAfter(strings.TrimSuffix(string(data), "\n"), "\n")
		lines[n][len(lines[n])-1] += "\n"
	}
	if len(lines) != 3 {
		t.Fatalf("%d files", len(lines))
	}
	return lines
}

// H2: whatever is changed afterwards is found, and where.
func TestTampering(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(t *testing.T, dir string, lines map[uint64][]string)
		want   string
	}{
		"edit": {func(_ *testing.T, _ string, l map[uint64][]string) {
			l[2][3] = strings.Replace(l[2][3], `"caller":"ci"`, `"caller":"me"`, 1)
		}, "audit-00000002.jsonl, line 4: it was changed"},
		"edit the last file": {func(_ *testing.T, _ string, l map[uint64][]string) {
			l[3][1] = strings.Replace(l[3][1], `"allowed":true`, `"allowed":false`, 1)
		}, "audit-00000003.jsonl, line 2: "},
		"spaces": {func(_ *testing.T, _ string, l map[uint64][]string) {
			l[1][3] = strings.Replace(l[1][3], `,"action"`, `, "action"`, 1)
		}, "audit-00000001.jsonl, line 4: it was changed"},
		"delete a line": {func(_ *testing.T, _ string, l map[uint64][]string) {
			l[1] = append(l[1][:3], l[1][4:]...)
		}, "audit-00000001.jsonl, line 4: it is record 5, but record 4 before it is missing"},
		"reorder": {func(_ *testing.T, _ string, l map[uint64][]string) {
			l[2][2], l[2][3] = l[2][3], l[2][2]
		}, "audit-00000002.jsonl, line 3: "},
		"repeat": {func(_ *testing.T, _ string, l map[uint64][]string) {
			l[2] = append(l[2][:4], append([]string{l[2][3]}, l[2][4:]...)...)
		}, "audit-00000002.jsonl, line 5: "},
		"insert": {func(_ *testing.T, _ string, l map[uint64][]string) {
			l[2] = append(l[2][:4], append([]string{"{\"seq\":1}\n"}, l[2][4:]...)...)
		}, "audit-00000002.jsonl, line 5: it is not a record"},
		"cut within a file": {func(_ *testing.T, _ string, l map[uint64][]string) {
			l[2] = l[2][:3]
		}, "record 15 before it is missing"},
		"cut the last": {func(_ *testing.T, _ string, l map[uint64][]string) {
			l[3] = l[3][:len(l[3])-1]
		}, "audit-00000003.jsonl: it was truncated: records 28 to 28 are missing"},
		"cut in a line": {func(_ *testing.T, _ string, l map[uint64][]string) {
			last := len(l[3]) - 1
			l[3][last] = l[3][last][:100]
		}, "audit-00000003.jsonl, line "},
		"empty the last": {func(_ *testing.T, _ string, l map[uint64][]string) { l[3] = nil }, "audit-00000003.jsonl"},
		"remove the first": {func(_ *testing.T, _ string, l map[uint64][]string) {
			delete(l, 1)
		}, "audit-00000001.jsonl: the file is missing"},
		"remove one": {func(_ *testing.T, _ string, l map[uint64][]string) {
			delete(l, 2)
		}, "audit-00000002.jsonl: the file is missing"},
		"remove the last": {func(_ *testing.T, _ string, l map[uint64][]string) {
			delete(l, 3)
		}, "audit-00000002.jsonl: it was truncated"},
		"remove all": {func(_ *testing.T, _ string, l map[uint64][]string) { clear(l) }, "all its files are missing"},
		"swap files": {func(_ *testing.T, _ string, l map[uint64][]string) {
			l[1], l[2] = l[2], l[1]
		}, "audit-0000000"},
		"remove the head": {func(t *testing.T, dir string, _ map[uint64][]string) {
			if err := os.Remove(filepath.Join(dir, fileHead)); err != nil {
				t.Fatal(err)
			}
		}, "at head: it is missing"},
		"a head of garbage": {func(t *testing.T, dir string, _ map[uint64][]string) {
			if err := os.WriteFile(filepath.Join(dir, fileHead), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "at head: "},
		"a new chain of the last record": {func(t *testing.T, dir string, l map[uint64][]string) {
			last := len(l[3]) - 1
			before, this, err := checkLine([]byte(strings.TrimSuffix(l[3][last], "\n")))
			if err != nil {
				t.Fatal(err)
			}
			forged, _ := appendLine(nil, link{this.seq - 1, before.hash}, []byte(`{"action":"nothing"}`))
			l[3][last] = string(forged)
		}, "is not the original one"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			lines := made(t, dir)
			tt.change(t, dir, lines)
			for n := range uint64(4) {
				if l, ok := lines[n]; !ok {
					_ = os.Remove(fileName(dir, n))
				} else if err := os.WriteFile(fileName(dir, n), []byte(strings.Join(l, "")), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err := Verify(dir, Anchor{})
			var b *Break
			if !errors.As(err, &b) || !errors.Is(err, sandpit.ErrIntegrity) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want %s", err, tt.want)
			}
			if name == "remove the head" || name == "a head of garbage" {
				return // it is made again
			}
			// Going on does not hide it.
			l := openTest(t, dir, Options{MaxSize: 4000})
			fillLog(t, l, 100, 105)
			l.Close()
			if _, err := Verify(dir, Anchor{}); !errors.Is(err, sandpit.ErrIntegrity) {
				t.Errorf("after a restart: %v", err)
			}
		})
	}
}

// What a crash leaves at the end of a file is closed by the next one.
func TestTornEnds(t *testing.T) {
	for name, end := range map[string]string{
		"part of a line": `{"seq":26,"prev":"`, "zeros": strings.Repeat("\x00", 5000), "lines": "a\nb\n\nc", "long": strings.Repeat("x", 300<<10), "a newline": "\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := openTest(t, dir, Options{})
			fillLog(t, l, 0, 25)
			l.Close()
			for round := range 3 {
				all, err := files(dir)
				if err != nil {
					t.Fatal(err)
				}
				last := fileName(dir, all[len(all)-1])
				f, err := os.OpenFile(last, os.O_WRONLY|os.O_APPEND, 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := f.WriteString(end); err != nil {
					t.Fatal(err)
				}
				f.Close()
				if s := verify(t, dir); s.Pending != int64(len(end)) || s.Crashes != round {
					t.Errorf("before the restart: %+v", s)
				}
				l := openTest(t, dir, Options{})
				fillLog(t, l, 0, 5)
				l.Close()
				if s := verify(t, dir); s.Pending != 0 || s.Crashes != round+1 {
					t.Errorf("after it: %+v", s)
				}
			}
			// That is no way to hide something.
			data, err := os.ReadFile(fileName(dir, 1))
			if err != nil {
				t.Fatal(err)
			}
			data = bytes.Replace(data, []byte("req20"), []byte("req21"), 1)
			if err := os.WriteFile(fileName(dir, 1), data, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Verify(dir, Anchor{}); !errors.Is(err, sandpit.ErrIntegrity) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A crash while a file is begun leaves one without a record.
func TestTornBeginning(t *testing.T) {
	for _, begin := range []string{"", `{"seq":27,"pr`} {
		dir := t.TempDir()
		l := openTest(t, dir, Options{})
		fillLog(t, l, 0, 10)
		older, err := os.ReadFile(filepath.Join(dir, fileHead))
		if err != nil {
			t.Fatal(err)
		}
		fillLog(t, l, 10, 25)
		l.Close()
		// A power cut may bring back an older head: it is not synced.
		if err := os.WriteFile(filepath.Join(dir, fileHead), older, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(fileName(dir, 2), []byte(begin), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			l = openTest(t, dir, Options{})
			fillLog(t, l, 0, 5)
			l.Close()
			if s := verify(t, dir); s.Files != 3 || s.Pending != 0 {
				t.Errorf("%q: %+v", begin, s)
			}
		}
	}
}

func FuzzVerify(f *testing.F) {
	dir := f.TempDir()
	l, err := Open(dir, Options{})
	if err != nil {
		f.Fatal(err)
	}
	for n := range 3 {
		if _, err := l.Append(f.Context(), call(n)); err != nil {
			f.Fatal(err)
		}
	}
	l.Close()
	good, err := os.ReadFile(fileName(dir, 1))
	if err != nil {
		f.Fatal(err)
	}
	head, err := os.ReadFile(filepath.Join(dir, fileHead))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, head)
	f.Add(good[:len(good)-10], head)
	f.Add(bytes.ReplaceAll(good, []byte("ci"), []byte("me")), head)
	f.Add([]byte("\n\n{}\n"), []byte("1 2"))
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, data, head []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(fileName(dir, 1), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, fileHead), head, 0o600); err != nil {
			t.Fatal(err)
		}
		before, err := Verify(dir, Anchor{})
		if err != nil && !errors.Is(err, sandpit.ErrIntegrity) {
			t.Fatal(err)
		}
		for _, err := range Search(t.Context(), dir, Query{}) {
			if err != nil && !errors.Is(err, sandpit.ErrIntegrity) {
				t.Fatal(err)
			}
		}
		// It can be gone on with, whatever it is; and what was whole stays so.
		l, openErr := Open(dir, Options{})
		if openErr != nil {
			t.Fatal(openErr)
		}
		if _, err := l.Append(t.Context(), call(1)); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		after, afterErr := Verify(dir, Anchor{})
		if err == nil && (afterErr != nil || after.Last <= before.Last) {
			t.Errorf("it was whole, and then: %+v, %v", after, afterErr)
		}
	})
}
