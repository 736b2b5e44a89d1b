package sandpittest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

var fileworkProperties = []property{
	{"Copy copies files, links and trees", testCopy},
	{"Find lists by pattern and depth, a page after the other", testFind},
	{"Grep finds lines, with what is around them", testGrep},
	{"Edit replaces exact text, all or nothing", testEdit},
	{"Watch tells what changes, also below", testWatch},
	{"what was downloaded can be uploaded, and is the same", testDownloadUpload},
	{"a hostile archive writes nothing outside", testHostileArchives},
	{"an archive that breaks off is an error", testBrokenArchives},
	{"file work that can't be done has its kind of error", testFileworkErrors},
}

func testCopy(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files := sb.Files()
	shell(t, sb, `cd /tmp; echo a >f; chmod 4750 f; ln -s nowhere l; mkdir -p d/sub/deep; echo b >d/sub/g; chmod 700 d/sub; ln -s ../f d/l; echo old >there; mkfifo p; head -c 5000000 /dev/zero >big`)
	for from, to := range map[string]string{"/tmp/f": "/tmp/f2", "/tmp/l": "/tmp/l2", "/tmp/big": "/tmp/there"} {
		must(t, files.Copy(guarded(t), from, to, false))
	}
	must(t, files.Copy(guarded(t), "/tmp/d", "/tmp/d2", true))
	if got := get(t, sb, "/tmp/f2"); got != "a\n" {
		t.Errorf("got %q", got)
	}
	if info, err := sb.Files().Lstat(t.Context(), "/tmp/f2"); err != nil || info.Mode.Perm() != 0o750 {
		t.Errorf("got %+v, %v", info, err)
	}
	if target, err := sb.Files().Readlink(t.Context(), "/tmp/l2"); err != nil || target != "nowhere" {
		t.Errorf("got %q, %v", target, err)
	}
	if got := shell(t, sb, `cd /tmp; cmp big there && cat d2/sub/g && readlink d2/l && stat -c %a d2/sub && ls -d d2/sub/deep`); got != "b\n../f\n700\nd2/sub/deep" {
		t.Errorf("got %q", got)
	}
	// A directory only when that was asked for, and never into itself.
	if err := files.Copy(guarded(t), "/tmp/d", "/tmp/d3", false); err == nil {
		t.Error("a directory was copied")
	}
	if err := files.Copy(guarded(t), "/tmp/d", "/tmp/d/sub/inner", true); err == nil {
		t.Error("a directory was copied into itself")
	}
	isPathError(t, files.Copy(guarded(t), "/tmp/p", "/tmp/p2", false), sandpit.ErrInvalid)
	isPathError(t, files.Copy(guarded(t), "/tmp/missing", "/tmp/x", false), fs.ErrNotExist)
	isPathError(t, files.Copy(guarded(t), "/tmp/f", "/tmp/missing/x", false), fs.ErrNotExist)
}

func names(entries []sandpit.FileInfo) []string {
	var out []string
	for _, e := range entries {
		out = append(out, e.Name)
	}
	return out
}

func testFind(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files := sb.Files()
	shell(t, sb, `mkdir -p /tmp/r/a/b/c /tmp/r/x; cd /tmp/r; touch top.go a/one.go a/b/two.go a/b/three.txt x/z.go; ln -s ../.. a/b/up; printf 12345 >x/five`)
	all := []string{"a", "a/b", "a/b/c", "a/b/three.txt", "a/b/two.go", "a/b/up", "a/one.go", "top.go", "x", "x/five", "x/z.go"}
	for name, c := range map[string]struct {
		q    sandpit.FindQuery
		want []string
	}{
		"all":       {sandpit.FindQuery{}, all},
		"top level": {sandpit.FindQuery{Glob: "*.go"}, []string{"top.go"}},
		"any level": {sandpit.FindQuery{Glob: "**/*.go"}, []string{"a/b/two.go", "a/one.go", "top.go", "x/z.go"}},
		"one level": {sandpit.FindQuery{Glob: "*/*.go"}, []string{"a/one.go", "x/z.go"}},
		"below":     {sandpit.FindQuery{Glob: "a/**"}, all[1:7]},
		"depth":     {sandpit.FindQuery{Depth: 1}, []string{"a", "top.go", "x"}},
		"after":     {sandpit.FindQuery{After: "a/b/up"}, all[6:]},
	} {
		t.Run(name, func(t *testing.T) {
			got, more, err := files.Find(guarded(t), "/tmp/r", c.q)
			must(t, err)
			if !slices.Equal(names(got), c.want) || more {
				t.Errorf("got %q, more %v\nwant %q", names(got), more, c.want)
			}
		})
	}
	var paged []string
	for q := (sandpit.FindQuery{Limit: 2}); ; {
		got, more, err := files.Find(guarded(t), "/tmp/r", q)
		must(t, err)
		if len(got) > 2 {
			t.Fatalf("a page of 2 has %d", len(got))
		}
		paged = append(paged, names(got)...)
		if !more {
			break
		}
		q.After = paged[len(paged)-1]
	}
	if !slices.Equal(paged, all) {
		t.Errorf("in pages %q", paged)
	}
	got, _, err := files.Find(guarded(t), "/tmp/r", sandpit.FindQuery{Glob: "x/five"})
	if err != nil || len(got) != 1 || got[0].Size != 5 || got[0].IsDir() {
		t.Errorf("got %+v, %v", got, err)
	}
	// Names are bytes.
	must(t, sb.Files().Mkdir(t.Context(), "/tmp/odd", 0o755, false))
	odd := oddNames()
	for _, name := range odd {
		put(t, sb, "/tmp/odd/"+name, "")
	}
	slices.Sort(odd)
	if got, _, err := files.Find(guarded(t), "/tmp/odd", sandpit.FindQuery{}); err != nil || !slices.Equal(names(got), odd) {
		t.Errorf("got %q, %v", names(got), err)
	}
}

func testGrep(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files := sb.Files()
	shell(t, sb, `mkdir -p /tmp/r/d; cd /tmp/r; printf 'one\ntwo\nthree\nfour\nfive\n' >a.txt; printf 'TWO\n2.two\n' >d/b.go; printf 'two\000binary' >bin; ln -s /etc/passwd link`)
	show := func(q sandpit.GrepQuery) []string {
		t.Helper()
		res, err := files.Grep(guarded(t), "/tmp/r", q)
		must(t, err)
		var out []string
		for _, l := range res.Lines {
			sign := "-"
			if l.Match {
				sign = ":"
			}
			out = append(out, fmt.Sprintf("%s%s%d%s%s", l.Path, sign, l.Line, sign, l.Text))
		}
		if res.Truncated {
			out = append(out, "…")
		}
		return out
	}
	text := func(lines []string) []string {
		return slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "bin") })
	}
	for name, c := range map[string]struct {
		q    sandpit.GrepQuery
		want []string
	}{
		"expression":  {sandpit.GrepQuery{Pattern: "^t.*e$"}, []string{"a.txt:3:three"}},
		"string":      {sandpit.GrepQuery{Pattern: "2.t", Fixed: true}, []string{"d/b.go:2:2.two"}},
		"case":        {sandpit.GrepQuery{Pattern: "two", IgnoreCase: true}, []string{"a.txt:2:two", "d/b.go:1:TWO", "d/b.go:2:2.two"}},
		"files":       {sandpit.GrepQuery{Pattern: "two", Glob: "**/*.go"}, []string{"d/b.go:2:2.two"}},
		"context":     {sandpit.GrepQuery{Pattern: "three", Context: 1}, []string{"a.txt-2-two", "a.txt:3:three", "a.txt-4-four"}},
		"nothing":     {sandpit.GrepQuery{Pattern: "root:"}, nil},
		"limit":       {sandpit.GrepQuery{Pattern: "o", Glob: "a.txt", Limit: 2}, []string{"a.txt:1:one", "a.txt:2:two", "…"}},
		"fixed, case": {sandpit.GrepQuery{Pattern: "TWO", Fixed: true, IgnoreCase: true, Glob: "a.txt"}, []string{"a.txt:2:two"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := text(show(c.q)); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	for _, q := range []sandpit.GrepQuery{{Pattern: "("}, {}, {Pattern: "a", Context: -1}, {Pattern: "a", Limit: -1}} {
		if _, err := files.Grep(guarded(t), "/tmp/r", q); err != nil || q.Pattern == "(" {
			isPathError(t, err, sandpit.ErrInvalid)
		}
	}
	// A line that is long is cut.
	put(t, sb, "/tmp/r/long", "needle"+strings.Repeat("y", 100000)+"\n")
	res, err := files.Grep(guarded(t), "/tmp/r", sandpit.GrepQuery{Pattern: "needley"})
	if err != nil || len(res.Lines) != 1 || len(res.Lines[0].Text) > 2000 {
		t.Errorf("got %d lines, %v", len(res.Lines), err)
	}
}

func testEdit(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files := sb.Files()
	const before = "one two two\nthree\n"
	for name, c := range map[string]struct {
		edits []sandpit.Edit
		want  string // or "" for ErrInvalid, and nothing changed
	}{
		"one":           {[]sandpit.Edit{{Old: "one", New: "1"}}, "1 two two\nthree\n"},
		"all":           {[]sandpit.Edit{{Old: "two", New: "2", All: true}}, "one 2 2\nthree\n"},
		"more":          {[]sandpit.Edit{{Old: "one", New: "1"}, {Old: "three", New: "3"}}, "1 two two\n3\n"},
		"over lines":    {[]sandpit.Edit{{Old: "two\nthree", New: "x"}}, "one two x\n"},
		"to nothing":    {[]sandpit.Edit{{Old: "one ", New: ""}}, "two two\nthree\n"},
		"after another": {[]sandpit.Edit{{Old: "one", New: "four"}, {Old: "four", New: "5"}}, "5 two two\nthree\n"},
		"not there":     {[]sandpit.Edit{{Old: "seven", New: "7"}}, ""},
		"there twice":   {[]sandpit.Edit{{Old: "two", New: "2"}}, ""},
		"one of two":    {[]sandpit.Edit{{Old: "one", New: "1"}, {Old: "seven", New: "7"}}, ""},
		"nothing":       {[]sandpit.Edit{{Old: "", New: "x"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			put(t, sb, "/tmp/f", before)
			must(t, sb.Files().Chmod(t.Context(), "/tmp/f", 0o640))
			err := files.Edit(guarded(t), "/tmp/f", c.edits)
			want := c.want
			if want == "" {
				isPathError(t, err, sandpit.ErrInvalid)
				want = before
			} else if err != nil {
				t.Error(err)
			}
			if got := get(t, sb, "/tmp/f"); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if info, err := sb.Files().Stat(t.Context(), "/tmp/f"); err != nil || info.Mode != 0o640 {
				t.Errorf("the mode is %v, %v", info.Mode, err)
			}
		})
	}
	if got := shell(t, sb, "ls -A /tmp"); got != "f" {
		t.Errorf("/tmp has %q", got)
	}
}

func testWatch(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files := sb.Files()
	shell(t, sb, "mkdir -p /tmp/w/old")
	for _, recursive := range []bool{false, true} {
		t.Run(fmt.Sprint("recursive ", recursive), func(t *testing.T) {
			ctx, cancel := context.WithCancel(guarded(t))
			defer cancel()
			events := make(chan sandpit.FileEvent, 1000)
			failed := make(chan error, 1)
			go func() {
				defer close(events)
				for ev, err := range files.Watch(ctx, "/tmp/w", recursive) {
					if err != nil {
						failed <- err
						return
					}
					events <- ev
				}
			}()
			next := func(want sandpit.FileEvent) {
				t.Helper()
				for {
					select {
					case ev, ok := <-events:
						if !ok {
							select {
							case err := <-failed:
								t.Fatalf("waiting for %+v: %v", want, err)
							default:
								t.Fatalf("waiting for %+v: it has ended", want)
							}
						}
						if ev == want {
							return
						}
						if ev.Kind != sandpit.WatchWrite && ev.Kind != sandpit.WatchChmod && ev.Kind != sandpit.WatchCreate && ev.Kind != sandpit.WatchRemove {
							t.Fatalf("got %+v while waiting for %+v", ev, want)
						}
					case <-time.After(guard):
						t.Fatalf("%+v does not come", want)
					}
				}
			}
			next(sandpit.FileEvent{Kind: sandpit.WatchReady})
			shell(t, sb, "echo a >/tmp/w/f")
			next(sandpit.FileEvent{Kind: sandpit.WatchCreate, Path: "f"})
			next(sandpit.FileEvent{Kind: sandpit.WatchWrite, Path: "f"})
			shell(t, sb, "chmod 600 /tmp/w/f")
			next(sandpit.FileEvent{Kind: sandpit.WatchChmod, Path: "f"})
			shell(t, sb, "mv /tmp/w/f /tmp/w/g")
			next(sandpit.FileEvent{Kind: sandpit.WatchRename, Path: "g", From: "f"})
			if recursive {
				shell(t, sb, "mkdir -p /tmp/w/new/sub")
				next(sandpit.FileEvent{Kind: sandpit.WatchCreate, Path: "new"})
				shell(t, sb, "echo x >/tmp/w/old/x; sleep 0.2; echo y >/tmp/w/new/sub/y")
				next(sandpit.FileEvent{Kind: sandpit.WatchCreate, Path: "old/x"})
				next(sandpit.FileEvent{Kind: sandpit.WatchCreate, Path: "new/sub/y"})
			} else {
				shell(t, sb, "echo x >/tmp/w/old/hidden")
			}
			shell(t, sb, "rm /tmp/w/g")
			next(sandpit.FileEvent{Kind: sandpit.WatchRemove, Path: "g"})
			cancel()
			for ev := range events {
				if strings.Contains(ev.Path, "hidden") {
					t.Errorf("got %+v", ev)
				}
			}
			select {
			case err := <-failed:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("it ends with %v", err)
				}
			default:
			}
		})
	}
	for _, err := range files.Watch(guarded(t), "/tmp/missing", false) {
		isPathError(t, err, fs.ErrNotExist)
	}
}

func testDownloadUpload(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files := sb.Files()
	shell(t, sb, `mkdir -p /tmp/src/d/empty; cd /tmp/src; echo a >f; chmod 750 f; touch -d '2001-02-03 04:05:06 UTC' f; ln -s ../f d/l; ln -s /nowhere d/abs; ln f d/hard; head -c 3000000 /dev/zero >big; printf x >"$(printf 'odd\n \377')"; mkdir -m 700 closed`)
	var archive bytes.Buffer
	must(t, files.Download(guarded(t), "/tmp/src", &archive))
	found := map[string]*tar.Header{}
	for in := tar.NewReader(bytes.NewReader(archive.Bytes())); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		must(t, err)
		if h.Name != "src" && !strings.HasPrefix(h.Name, "src/") {
			t.Errorf("the name %q does not begin with that of the directory", h.Name)
		}
		found[strings.TrimSuffix(h.Name, "/")] = h
	}
	for _, name := range []string{"src/f", "src/d/empty", "src/d/l", "src/big", "src/odd\n \xff", "src/closed"} {
		if found[name] == nil {
			t.Errorf("%q is missing from %q", name, slices.Sorted(maps.Keys(found)))
		}
	}
	must(t, sb.Files().Mkdir(t.Context(), "/tmp/dst", 0o755, false))
	must(t, files.Upload(guarded(t), "/tmp/dst", &archive))
	const look = `cd %s && find . -printf '%%p %%y %%m %%l\n' | sort | cksum && cksum big f d/hard && stat -c %%Y f`
	if a, b := shell(t, sb, fmt.Sprintf(look, "/tmp/src")), shell(t, sb, fmt.Sprintf(look, "/tmp/dst/src")); a != b {
		t.Errorf("it was\n%s\nand is\n%s", a, b)
	}
	// A file alone.
	archive.Reset()
	must(t, files.Download(guarded(t), "/tmp/src/f", &archive))
	in := tar.NewReader(&archive)
	h, err := in.Next()
	must(t, err)
	if b, err := io.ReadAll(in); err != nil || h.Name != "f" || string(b) != "a\n" {
		t.Errorf("got %q with %q, %v", h.Name, b, err)
	}
	// A writer that fails ends it.
	if err := files.Download(guarded(t), "/tmp/src", &failingWriter{}); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("got %v", err)
	}
}

// entry is one of a tar stream.
type entry struct {
	name, link, body string
	kind             byte
}

func tarOf(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Size: int64(len(e.body)), Mode: 0o644, Format: tar.FormatPAX}
		if e.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if e.kind == tar.TypeDir {
			h.Mode = 0o755
		}
		must(t, w.WriteHeader(h))
		_, err := io.WriteString(w, e.body)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func testHostileArchives(t *testing.T, e *env) {
	for name, entries := range map[string][]entry{
		"parent":               {{name: "../out", body: "x"}},
		"deep parent":          {{name: "a/../../out", body: "x"}},
		"absolute":             {{name: "/tmp/out", body: "x"}},
		"link to a directory":  {{name: "l", link: "/tmp", kind: tar.TypeSymlink}, {name: "l/out", body: "x"}},
		"relative link":        {{name: "l", link: "..", kind: tar.TypeSymlink}, {name: "l/out", body: "x"}},
		"link to a file":       {{name: "l", link: "/tmp/victim", kind: tar.TypeSymlink}, {name: "l", body: "x"}},
		"chain of links":       {{name: "a", link: ".", kind: tar.TypeSymlink}, {name: "b", link: "a/..", kind: tar.TypeSymlink}, {name: "b/out", body: "x"}},
		"hard link outside":    {{name: "h", link: "../victim", kind: tar.TypeLink}, {name: "h", body: "x"}},
		"absolute hard link":   {{name: "h", link: "/tmp/victim", kind: tar.TypeLink}, {name: "h", body: "x"}},
		"hard link to a link":  {{name: "l", link: "/tmp/victim", kind: tar.TypeSymlink}, {name: "h", link: "l", kind: tar.TypeLink}, {name: "h", body: "x"}},
		"directory over link":  {{name: "l", link: "/tmp", kind: tar.TypeSymlink}, {name: "l", kind: tar.TypeDir}, {name: "l/out", body: "x"}},
		"device":               {{name: "dev", kind: tar.TypeBlock}},
		"character device":     {{name: "dev", kind: tar.TypeChar}},
		"the directory itself": {{name: ".", link: "/tmp", kind: tar.TypeSymlink}, {name: "out", body: "x"}},
		"dots":                 {{name: "..", body: "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			sb := e.sandbox(t, sandpit.Spec{})
			files := sb.Files()
			shell(t, sb, "mkdir /tmp/in; echo safe >/tmp/victim")
			err := files.Upload(guarded(t), "/tmp/in", bytes.NewReader(tarOf(t, entries...)))
			if err != nil {
				if pe := (*fs.PathError)(nil); !errors.As(err, &pe) {
					t.Errorf("the error %v is no *fs.PathError", err)
				}
			}
			if got := shell(t, sb, `cat /tmp/victim; ls -A /tmp | tr '\n' ' '; find /tmp -type b -o -type c`); got != "safe\nin victim" {
				t.Errorf("outside there is %q (%v)", got, err)
			}
		})
	}
}

func testBrokenArchives(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files := sb.Files()
	must(t, sb.Files().Mkdir(t.Context(), "/tmp/in", 0o755, false))
	whole := tarOf(t, entry{name: "a", body: strings.Repeat("a", 5000)}, entry{name: "b", body: strings.Repeat("b", 5000)})
	for name, b := range map[string][]byte{
		"cut in a file":   whole[:3000],
		"cut in a header": whole[:5632+512+100],
		"no archive":      bytes.Repeat([]byte("no archive"), 1000),
		"a changed sum":   append(append([]byte{}, "b"...), whole[1:]...),
	} {
		t.Run(name, func(t *testing.T) {
			isPathError(t, files.Upload(guarded(t), "/tmp/in", bytes.NewReader(b)), sandpit.ErrInvalid)
		})
	}
	err := files.Upload(guarded(t), "/tmp/in", &failingReader{700})
	if err == nil || !strings.Contains(err.Error(), "the reader fails") {
		t.Errorf("got %v", err)
	}
	must(t, files.Upload(guarded(t), "/tmp/in", bytes.NewReader(tarOf(t)))) // an empty one
	// The context ends it.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	r, w := io.Pipe()
	defer w.Close()
	go func() { _, _ = w.Write(whole[:600]) }()
	ended := make(chan error, 1)
	go func() { ended <- files.Upload(ctx, "/tmp/in", r) }()
	select {
	case err = <-ended:
	case <-time.After(time.Second):
		w.Close() // a reader that blocks can't be interrupted
		err = <-ended
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func testFileworkErrors(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files := sb.Files()
	ctx := guarded(t)
	put(t, sb, "/tmp/f", "x")
	closed(t, sb)
	_, _, err := files.Find(ctx, "/tmp/missing", sandpit.FindQuery{})
	isPathError(t, err, fs.ErrNotExist)
	_, err = files.Grep(ctx, "/tmp/missing", sandpit.GrepQuery{Pattern: "x"})
	isPathError(t, err, fs.ErrNotExist)
	isPathError(t, files.Edit(ctx, "/tmp/missing", []sandpit.Edit{{Old: "a", New: "b"}}), fs.ErrNotExist)
	isPathError(t, files.Edit(ctx, "/tmp", []sandpit.Edit{{Old: "a", New: "b"}}), sandpit.ErrIsDirectory)
	isPathError(t, files.Download(ctx, "/tmp/missing", io.Discard), fs.ErrNotExist)
	isPathError(t, files.Upload(ctx, "/tmp/missing", bytes.NewReader(tarOf(t))), fs.ErrNotExist)
	isPathError(t, files.Upload(ctx, "/tmp/f", bytes.NewReader(tarOf(t))), sandpit.ErrNotDirectory)
	isPathError(t, files.Upload(ctx, "/tmp/closed", bytes.NewReader(tarOf(t, entry{name: "a", body: "x"}))), fs.ErrPermission)
	isPathError(t, files.Copy(ctx, "/tmp/f", "/tmp/closed/f", false), fs.ErrPermission)
	must(t, sb.Remove(guarded(t)))
	isPathError(t, files.Download(ctx, "/tmp", io.Discard), sandpit.ErrClosed)
	isPathError(t, files.Copy(ctx, "/tmp/f", "/tmp/g", false), sandpit.ErrClosed)
	for _, err := range files.Watch(ctx, "/tmp", true) {
		isPathError(t, err, sandpit.ErrClosed)
	}
}
