package guest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// makeTree makes files on the host: name to content; a name that ends with a
// slash is a directory, a content that begins with "-> " a link.
func makeTree(t testing.TB, dir string, tree map[string]string) {
	t.Helper()
	for name, content := range tree {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		target, link := strings.CutPrefix(content, "-> ")
		switch {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o755)
		case link:
			err = os.Symlink(target, path)
		default:
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// readTree is the opposite of makeTree.
func readTree(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name := path[len(dir)+1:]
		switch {
		case d.IsDir():
			out[name+"/"] = ""
		case d.Type() == fs.ModeSymlink:
			target, _ := os.Readlink(path)
			out[name] = "-> " + target
		case d.Type() == 0:
			b, err := os.ReadFile(path)
			out[name] = string(b)
			return err
		default:
			out[name] = d.Type().String()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestCopy(t *testing.T) {
	f := start(t).Files()
	dir := t.TempDir()
	tree := map[string]string{
		"a/": "", "a/file": "content", "a/empty": "", "a/b/": "", "a/b/deep": strings.Repeat("x", 200_000),
		"a/link": "-> file", "a/dangling": "-> /nowhere", "a/b/c/": "", "single": "one",
	}
	makeTree(t, dir, tree)
	for name, mode := range map[string]os.FileMode{"a/file": 0o755, "a/b/c": 0o500, "single": 0o600} {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	if err := f.Copy(ctx, dir+"/a", dir+"/copy", true); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(readTree(t, dir+"/a"), readTree(t, dir+"/copy")); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]os.FileMode{"file": 0o755, "b/c": 0o500 | fs.ModeDir, "b": 0o755 | fs.ModeDir} {
		if st, err := os.Lstat(dir + "/copy/" + name); err != nil || st.Mode() != want {
			t.Errorf("%s: got %v, %v", name, st.Mode(), err)
		}
	}
	// A single file, over another.
	if err := f.Copy(ctx, dir+"/single", dir+"/copy/file", false); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(dir + "/copy/file"); string(b) != "one" {
		t.Errorf("got %q", b)
	}
	if st, err := os.Stat(dir + "/copy/file"); err != nil || st.Mode() != 0o600 {
		t.Errorf("got %v, %v", st.Mode(), err)
	}
	if err := f.Copy(ctx, dir+"/a/dangling", dir+"/copy/empty", false); err != nil {
		t.Error(err)
	}
	if got, err := os.Readlink(dir + "/copy/empty"); got != "/nowhere" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := unix.Mkfifo(dir+"/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	makeTree(t, dir, map[string]string{"special/x": "x"})
	if err := unix.Mkfifo(dir+"/special/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		from, to  string
		recursive bool
		want      error
	}{
		"directory":        {"/a", "/d1", false, sandpit.ErrIsDirectory},
		"into itself":      {"/a", "/a/b/new", true, sandpit.ErrInvalid},
		"onto itself":      {"/a", "/a", true, fs.ErrExist},
		"missing":          {"/none", "/d2", true, fs.ErrNotExist},
		"pipe":             {"/fifo", "/d3", false, sandpit.ErrInvalid},
		"tree with a pipe": {"/special", "/d4", true, sandpit.ErrInvalid},
		"over a directory": {"/single", "/a", false, sandpit.ErrIsDirectory},
		"tree over a tree": {"/a", "/copy", true, fs.ErrExist},
		"nowhere":          {"/single", "/none/x", false, fs.ErrNotExist},
	} {
		err := f.Copy(ctx, dir+tc.from, dir+tc.to, tc.recursive)
		if name == "onto itself" && errors.Is(err, fs.ErrExist) {
			continue
		}
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
	if err := f.Copy(ctx, "/proc/version", dir+"/version", false); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(dir + "/version"); !bytes.HasPrefix(b, []byte("Linux")) {
		t.Errorf("got %q", b)
	}
	if err := f.Copy(ctx, "/proc/self/environ", dir+"/environ", false); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("the guest's own: got %v", err)
	}
}

// fastDir is a directory in memory, if the machine has such a place.
func fastDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "sandpit-test")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func names(list []sandpit.FileInfo) (out []string) {
	for _, i := range list {
		out = append(out, i.Name)
	}
	return out
}

func TestFind(t *testing.T) {
	f := start(t).Files()
	dir := t.TempDir()
	makeTree(t, dir, map[string]string{
		"a/b/c.go": "", "a/b/d.txt": "", "a.b": "", "a/z.go": "", "src/x/y/main.go": "", "src/main.go": "", "link": "-> a", "empty/": "",
	})
	ctx := t.Context()
	all := []string{"a", "a/b", "a/b/c.go", "a/b/d.txt", "a/z.go", "a.b", "empty", "link", "src", "src/main.go", "src/x", "src/x/y", "src/x/y/main.go"}
	for name, tc := range map[string]struct {
		q    sandpit.FindQuery
		want []string
	}{
		"all":        {sandpit.FindQuery{}, all},
		"by name":    {sandpit.FindQuery{Glob: "**/*.go"}, []string{"a/b/c.go", "a/z.go", "src/main.go", "src/x/y/main.go"}},
		"at the top": {sandpit.FindQuery{Glob: "*.b"}, []string{"a.b"}},
		"below":      {sandpit.FindQuery{Glob: "a/**"}, []string{"a/b", "a/b/c.go", "a/b/d.txt", "a/z.go"}},
		"everything": {sandpit.FindQuery{Glob: "**"}, all},
		"by path":    {sandpit.FindQuery{Glob: "src/**/*.go"}, []string{"src/main.go", "src/x/y/main.go"}},
		"one level":  {sandpit.FindQuery{Glob: "*/*.go"}, []string{"a/z.go", "src/main.go"}},
		"twice":      {sandpit.FindQuery{Glob: "**/x/**"}, []string{"src/x/y", "src/x/y/main.go"}},
		"depth":      {sandpit.FindQuery{Depth: 1}, []string{"a", "a.b", "empty", "link", "src"}},
		"after":      {sandpit.FindQuery{After: "a/b/d.txt"}, all[4:]},
		"after dir":  {sandpit.FindQuery{After: "src/x"}, all[11:]},
		"after gone": {sandpit.FindQuery{After: "b/c/d"}, all[6:]},
		"none":       {sandpit.FindQuery{Glob: "nothing*"}, nil},
	} {
		got, more, err := f.Find(ctx, dir, tc.q)
		if err != nil || more {
			t.Errorf("%s: more %t, %v", name, more, err)
		}
		if diff := cmp.Diff(tc.want, names(got)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	var paged []string
	for after, n := "", 0; ; n++ {
		got, more, err := f.Find(ctx, dir, sandpit.FindQuery{Limit: 2, After: after})
		if err != nil || len(got) == 0 || n > 20 {
			t.Fatal(got, err)
		}
		paged = append(paged, names(got)...)
		after = got[len(got)-1].Name
		if !more {
			break
		}
	}
	if diff := cmp.Diff(all, paged); diff != "" {
		t.Error(diff)
	}
	if got, _, err := f.Find(ctx, dir, sandpit.FindQuery{Glob: "link"}); err != nil || got[0].Target != "a" || got[0].Mode.Type() != fs.ModeSymlink {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, _, err := f.Find(ctx, dir, sandpit.FindQuery{Glob: "[a"}); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if _, _, err := f.Find(ctx, dir+"/a.b", sandpit.FindQuery{}); !errors.Is(err, sandpit.ErrNotDirectory) {
		t.Errorf("got %v", err)
	}
}

// A directory with more names than are held at once.
func TestFindInLargeDirectory(t *testing.T) {
	f := start(t).Files()
	dir := fastDir(t)
	const n = 20_000
	for i := range n {
		if err := os.WriteFile(fmt.Sprintf("%s/%05d", dir, i), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	seen := 0
	for after := ""; ; {
		got, more, err := f.Find(t.Context(), dir, sandpit.FindQuery{Limit: 10_000, After: after})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range got {
			if e.Name != fmt.Sprintf("%05d", seen) {
				t.Fatalf("got %s at %d", e.Name, seen)
			}
			seen++
		}
		if !more {
			break
		}
		after = got[len(got)-1].Name
	}
	if seen != n {
		t.Errorf("%d entries", seen)
	}
}

func TestGrep(t *testing.T) {
	f := start(t).Files()
	dir := t.TempDir()
	long := strings.Repeat("y", 100_000)
	makeTree(t, dir, map[string]string{
		"a.txt":     "one\ntwo needle\nthree\nfour\nfive needle\nsix\nno newline needle",
		"b/c.go":    "package needle\r\n",
		"binary":    "needle\x00needle\n",
		"empty":     "",
		"long":      long + "\nneedle behind\n" + long + "needle\nlast\n",
		"longer":    strings.Repeat(long, 11) + "needle\nend\n",
		"late":      strings.Repeat("z\n", 50_000) + "needle at 50001\n",
		"link":      "-> a.txt",
		"ünï/codé":  "größe NEEDLE Σσς\n",
		"truncated": "needle" + strings.Repeat("é", 2000) + "\n",
	})
	_ = unix.Mkfifo(dir+"/fifo", 0o644)
	ctx := t.Context()
	show := func(r sandpit.GrepResult) (out []string) {
		for _, l := range r.Lines {
			mark := "-"
			if l.Match {
				mark = ":"
			}
			out = append(out, fmt.Sprintf("%s%s%d%s%.20s", l.Path, mark, l.Line, mark, l.Text))
		}
		return out
	}
	for name, tc := range map[string]struct {
		q    sandpit.GrepQuery
		want []string
	}{
		"fixed": {sandpit.GrepQuery{Pattern: "needle", Fixed: true, Glob: "**/[a-k]*.*"}, []string{
			"a.txt:2:two needle", "a.txt:5:five needle", "a.txt:7:no newline needle"[:len("a.txt:7:")+17], "b/c.go:1:package needle",
		}},
		"context": {sandpit.GrepQuery{Pattern: "two|five", Context: 1, Glob: "a.txt"}, []string{
			"a.txt-1-one", "a.txt:2:two needle", "a.txt-3-three", "a.txt-4-four", "a.txt:5:five needle", "a.txt-6-six",
		}},
		"case":     {sandpit.GrepQuery{Pattern: "GRÖSSE|GRÖßE", IgnoreCase: true}, []string{"ünï/codé:1:größe NEEDLE Σσς"[:len("ünï/codé:1:")+len("größe NEEDLE Σσς")]}},
		"anchors":  {sandpit.GrepQuery{Pattern: `^needle\b.*\d$`, Glob: "la*"}, []string{"late:50001:needle at 50001"}},
		"long":     {sandpit.GrepQuery{Pattern: `needle`, Glob: "long"}, []string{"long:2:needle behind", "long:3:yyyyyyyyyyyyyyyyyyyy"}},
		"longer":   {sandpit.GrepQuery{Pattern: `needle|end`, Glob: "longer"}, []string{"longer:2:end"}},
		"bin":      {sandpit.GrepQuery{Pattern: `needle`, Glob: "binary"}, nil},
		"greek":    {sandpit.GrepQuery{Pattern: `σΣς`, IgnoreCase: true, Fixed: true}, []string{"ünï/codé:1:größe NEEDLE Σσς"}},
		"dir glob": {sandpit.GrepQuery{Pattern: `needle`, Glob: "b/**"}, []string{"b/c.go:1:package needle"}},
	} {
		got, err := f.Grep(ctx, dir, tc.q)
		if err != nil || got.Truncated {
			t.Errorf("%s: %v, %v", name, got.Truncated, err)
		}
		if diff := cmp.Diff(tc.want, show(got)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	got, err := f.Grep(ctx, dir, sandpit.GrepQuery{Pattern: "needle", Limit: 2})
	if err != nil || len(got.Lines) != 2 || !got.Truncated {
		t.Errorf("got %+v, %v", got, err)
	}
	got, err = f.Grep(ctx, dir+"/a.txt", sandpit.GrepQuery{Pattern: "needle", Limit: 3})
	if err != nil || len(got.Lines) != 3 || got.Truncated || got.Lines[0].Path != "a.txt" {
		t.Errorf("got %+v, %v", got, err)
	}
	got, err = f.Grep(ctx, dir+"/truncated", sandpit.GrepQuery{Pattern: "needle"})
	if err != nil || len(got.Lines) != 1 || got.Lines[0].Text != "needle"+strings.Repeat("é", 997) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, q := range []sandpit.GrepQuery{{Pattern: "("}, {Pattern: "a\nb", Fixed: true}, {Pattern: "x", Limit: -1}, {Pattern: `x{1000}{1000}`}} {
		if _, err := f.Grep(ctx, dir, q); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%+v: got %v", q, err)
		}
	}
	if _, err := f.Grep(ctx, dir+"/none", sandpit.GrepQuery{Pattern: "x"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	// Each line is large, so the answer is cut by its size.
	makeTree(t, dir, map[string]string{"much": strings.Repeat(strings.Repeat("x", 3000)+"\n", 9000)})
	got, err = f.Grep(ctx, dir+"/much", sandpit.GrepQuery{Pattern: "x", Limit: 10_000})
	if err != nil || !got.Truncated || len(got.Lines) < 4000 || len(got.Lines) > 4500 {
		t.Errorf("%d lines, %t, %v", len(got.Lines), got.Truncated, err)
	}
}

// The guest's own matcher says what package regexp says.
func FuzzGrep(f *testing.F) {
	for _, s := range []string{
		"a|b", "(a*)*b", "^x$", `\bfoo\b`, `\B`, "[^a-z]+é", "(?i)straße", ".", "a{2,3}", "", "x*", "(?i)k", `\pL+`, `[[:alpha:]]`, "a.*b|^$", "foo(bar)?", `\xff`,
	} {
		f.Add(s, "foo\nfoobar\n\nxaabb é STRASSE ſ K\n\xff\n")
	}
	c := start(f)
	files := c.Files()
	path := filepath.Join(f.TempDir(), "file")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		re, err := regexp.Compile(pattern)
		if err != nil || len(text) > 10_000 || strings.ContainsRune(text, 0) || len(pattern) > 1000 {
			return
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := files.Grep(context.Background(), path, sandpit.GrepQuery{Pattern: pattern, Limit: 10_000})
		if errors.Is(err, sandpit.ErrInvalid) {
			return // too large
		}
		if err != nil {
			t.Fatal(err)
		}
		var lines, want []int
		for _, l := range got.Lines {
			lines = append(lines, l.Line)
		}
		for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
			if text != "" && re.MatchString(strings.TrimSuffix(line, "\r")) {
				want = append(want, i+1)
			}
		}
		if !slices.Equal(lines, want) {
			t.Errorf("%q in %q: got lines %v, want %v", pattern, text, lines, want)
		}
	})
}

func TestEdit(t *testing.T) {
	f := start(t).Files()
	dir := t.TempDir()
	path := dir + "/file"
	const before = "alpha\nbeta\nbeta\ngamma\n"
	for name, tc := range map[string]struct {
		edits []sandpit.Edit
		want  string
		err   string // part of it
	}{
		"one":         {[]sandpit.Edit{{Old: "alpha", New: "ALPHA"}}, "ALPHA\nbeta\nbeta\ngamma\n", ""},
		"several":     {[]sandpit.Edit{{Old: "alpha", New: "x"}, {Old: "x\nbeta", New: "y"}, {Old: "gamma\n", New: ""}}, "y\nbeta\n", ""},
		"all":         {[]sandpit.Edit{{Old: "beta", New: "b", All: true}}, "alpha\nb\nb\ngamma\n", ""},
		"twice":       {[]sandpit.Edit{{Old: "alpha", New: "x"}, {Old: "beta", New: "b"}}, before, "edit 2: the text to replace occurs 2 times"},
		"not there":   {[]sandpit.Edit{{Old: "delta", New: "b", All: true}}, before, "edit 1: the text to replace is not in the file"},
		"nothing":     {nil, before, "no edit"},
		"empty":       {[]sandpit.Edit{{New: "b"}}, before, "is empty"},
		"to the same": {[]sandpit.Edit{{Old: "a", New: "a", All: true}}, before, ""},
	} {
		if err := os.WriteFile(path, []byte(before), 0o640); err != nil {
			t.Fatal(err)
		}
		err := f.Edit(t.Context(), path, tc.edits)
		if tc.err == "" && err != nil || tc.err != "" && (!errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s: got %v", name, err)
		}
		if b, _ := os.ReadFile(path); string(b) != tc.want {
			t.Errorf("%s: got %q", name, b)
		}
		if st, err := os.Stat(path); err != nil || st.Mode() != 0o640 {
			t.Errorf("%s: got %v, %v", name, st.Mode(), err)
		}
	}
	if err := os.Truncate(path, 17<<20); err != nil {
		t.Fatal(err)
	}
	if err := f.Edit(t.Context(), path, []sandpit.Edit{{Old: "x", New: "y"}}); err == nil {
		t.Error("a file that is too large is edited")
	}
	if left := readTree(t, dir); len(left) != 1 {
		t.Errorf("left over: %d files", len(left))
	}
}

func TestTar(t *testing.T) {
	f := start(t).Files()
	dir := t.TempDir()
	deep := strings.Repeat("long-name-of-a-directory/", 12)
	makeTree(t, dir, map[string]string{
		"src/file": "content", "src/empty": "", "src/large": strings.Repeat("0123456789", 100_000), "src/link": "-> file", "src/d/": "",
		"src/" + deep + "file": "deep", "src/näme": "ü",
	})
	if err := os.Chmod(dir+"/src/file", 0o751); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir+"/src/d", 0o555); err != nil {
		t.Fatal(err)
	}
	old := time.Unix(1_000_000_000, 0)
	if err := os.Chtimes(dir+"/src/file", old, old); err != nil {
		t.Fatal(err)
	}
	_ = unix.Mkfifo(dir+"/src/fifo", 0o644)
	ctx := t.Context()
	var b bytes.Buffer
	if err := f.Download(ctx, dir+"/src/", &b); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir+"/dst", 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time over what is there
		if err := f.Upload(ctx, dir+"/dst", bytes.NewReader(b.Bytes())); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(dir + "/src/fifo")
		if diff := cmp.Diff(readTree(t, dir+"/src"), readTree(t, dir+"/dst/src")); diff != "" {
			t.Error(diff)
		}
	}
	if st, err := os.Stat(dir + "/dst/src/file"); err != nil || st.Mode() != 0o751 || !st.ModTime().Equal(old) {
		t.Errorf("got %v, %v", st, err)
	}
	if st, err := os.Stat(dir + "/dst/src/d"); err != nil || st.Mode() != 0o555|fs.ModeDir {
		t.Errorf("got %v, %v", st, err)
	}
	b.Reset()
	if err := f.Download(ctx, dir+"/src/file", &b); err != nil {
		t.Fatal(err)
	}
	h, err := tar.NewReader(&b).Next()
	if err != nil || h.Name != "file" || h.Size != 7 {
		t.Errorf("got %+v, %v", h, err)
	}
	if err := f.Download(ctx, dir+"/none", &b); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	b.Reset()
	if err := f.Download(ctx, dir+"/src/large", &b); err != nil {
		t.Fatal(err)
	}
	if err := f.Upload(ctx, dir+"/none", &b); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// An archive made by somebody who means harm.
func TestHostileTar(t *testing.T) {
	c := start(t)
	f := c.Files()
	type entry struct {
		name, target, content string
		kind                  byte
	}
	for name, tc := range map[string]struct {
		entries []entry
		fails   bool
	}{
		"dot dot":            {[]entry{{name: "../outside", content: "x"}}, true},
		"deeper dot dot":     {[]entry{{name: "a/../../outside", content: "x"}}, true},
		"absolute":           {[]entry{{name: "/outside", content: "x"}}, false}, // is made inside
		"through a link":     {[]entry{{name: "l", target: "..", kind: tar.TypeSymlink}, {name: "l/outside", content: "x"}}, true},
		"absolute link":      {[]entry{{name: "l", target: "DIR", kind: tar.TypeSymlink}, {name: "l/outside", content: "x"}}, true},
		"link to a link":     {[]entry{{name: "a", kind: tar.TypeDir}, {name: "a/l", target: "../..", kind: tar.TypeSymlink}, {name: "a/l/outside", content: "x"}}, true},
		"over a link":        {[]entry{{name: "l", target: "../victim", kind: tar.TypeSymlink}, {name: "l", content: "x"}}, false},
		"directory in link":  {[]entry{{name: "l", target: "..", kind: tar.TypeSymlink}, {name: "l/outside", kind: tar.TypeDir}}, true},
		"directory as link":  {[]entry{{name: "l", target: "..", kind: tar.TypeSymlink}, {name: "l", kind: tar.TypeDir}}, true},
		"hard link out":      {[]entry{{name: "h", target: "../victim", kind: tar.TypeLink}}, true},
		"hard link via link": {[]entry{{name: "l", target: "..", kind: tar.TypeSymlink}, {name: "h", target: "l/victim", kind: tar.TypeLink}}, true},
		"hard link to link":  {[]entry{{name: "l", target: "../victim", kind: tar.TypeSymlink}, {name: "h", target: "l", kind: tar.TypeLink}, {name: "h", content: "x"}}, true},
		"link inside":        {[]entry{{name: "d", kind: tar.TypeDir}, {name: "l", target: "d", kind: tar.TypeSymlink}, {name: "l/inside", content: "x"}}, false},
		"hard link inside":   {[]entry{{name: "f", content: "x"}, {name: "h", target: "f", kind: tar.TypeLink}}, false},
		"device":             {[]entry{{name: "null", kind: tar.TypeChar}}, true},
		"pipe":               {[]entry{{name: "fifo", kind: tar.TypeFifo}}, true},
		"cut short":          {[]entry{{name: "f", content: "CUT"}}, true},
	} {
		dir := t.TempDir()
		makeTree(t, dir, map[string]string{"in/": "", "victim": "untouched"})
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, e := range tc.entries {
			h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: strings.ReplaceAll(e.target, "DIR", dir), Mode: 0o6755, Size: int64(len(e.content))}
			if e.kind == 0 {
				h.Typeflag = tar.TypeReg
			}
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(w, e.content)
		}
		archive := b.Bytes()
		if name == "cut short" {
			archive = archive[:513]
		}
		err := f.Upload(within(t, time.Minute), dir+"/in", bytes.NewReader(archive))
		if (err != nil) != tc.fails {
			t.Errorf("%s: got %v", name, err)
		}
		got := readTree(t, dir)
		for path, content := range got {
			if !strings.HasPrefix(path, "in/") && !(path == "victim" && content == "untouched") {
				t.Errorf("%s: %s is outside", name, path)
			}
		}
		_ = filepath.WalkDir(dir+"/in", func(path string, d fs.DirEntry, err error) error {
			if i, ierr := d.Info(); ierr == nil && i.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
				t.Errorf("%s: %s is %v", name, path, i.Mode())
			}
			return err
		})
	}
	// The guest itself refuses, whatever its host has let through.
	for _, path := range []string{"../outside", "a/../../outside", "/outside", "..", "a/..", "x\x00y"} {
		dir := t.TempDir()
		makeTree(t, dir, map[string]string{"in/": ""})
		done := false
		err := c.WriteTree(t.Context(), dir+"/in", func() (client.TreeEntry, io.Reader, error) {
			if done {
				return client.TreeEntry{}, nil, io.EOF
			}
			done = true
			return client.TreeEntry{Path: path, Size: 1}, strings.NewReader("x"), nil
		})
		if err == nil {
			t.Errorf("%q: no error", path)
		}
		if got := readTree(t, dir); len(got) > 2 {
			t.Errorf("%q: made %v", path, got)
		}
	}
}

// events collects what a watch says until a marker file appears.
func TestWatch(t *testing.T) {
	f := start(t).Files()
	dir := t.TempDir()
	makeTree(t, dir, map[string]string{"w/old": "x", "w/sub/inner": "x", "elsewhere/x": ""})
	root := dir + "/w"
	ctx, cancel := context.WithCancel(within(t, time.Minute))
	defer cancel()
	events := make(chan sandpit.FileEvent, 1000)
	ended := make(chan error, 1)
	go func() {
		defer close(ended)
		for e, err := range f.Watch(ctx, root, true) {
			if err != nil {
				ended <- err
				return
			}
			events <- e
		}
	}()
	next := func() sandpit.FileEvent {
		select {
		case e := <-events:
			return e
		case <-ctx.Done():
			t.Fatal("no event for a minute")
		}
		panic("not reached")
	}
	expect := func(want ...sandpit.FileEvent) {
		t.Helper()
		for _, w := range want {
			for {
				e := next()
				if e == w {
					break
				}
				// What is written comes in as many pieces as it likes, and a
				// directory that was just made may be told twice.
				if e.Kind != sandpit.WatchWrite && e.Kind != sandpit.WatchCreate && e.Kind != sandpit.WatchChmod {
					t.Fatalf("got %+v, want %+v", e, w)
				}
			}
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	expect(sandpit.FileEvent{Kind: sandpit.WatchReady})
	do(os.WriteFile(root+"/new", []byte("x"), 0o644))
	expect(sandpit.FileEvent{Kind: sandpit.WatchCreate, Path: "new"}, sandpit.FileEvent{Kind: sandpit.WatchWrite, Path: "new"})
	do(os.Chmod(root+"/sub/inner", 0o600))
	expect(sandpit.FileEvent{Kind: sandpit.WatchChmod, Path: "sub/inner"})
	do(os.Rename(root+"/new", root+"/sub/newer"))
	expect(sandpit.FileEvent{Kind: sandpit.WatchRename, Path: "sub/newer", From: "new"})
	do(os.Rename(root+"/sub", root+"/moved"))
	expect(sandpit.FileEvent{Kind: sandpit.WatchRename, Path: "moved", From: "sub"})
	do(os.Remove(root + "/moved/newer"))
	expect(sandpit.FileEvent{Kind: sandpit.WatchRemove, Path: "moved/newer"})
	do(os.MkdirAll(root+"/p/q/r", 0o755))
	expect(sandpit.FileEvent{Kind: sandpit.WatchCreate, Path: "p/q/r"})
	do(os.WriteFile(root+"/p/q/r/file", []byte("x"), 0o644))
	expect(sandpit.FileEvent{Kind: sandpit.WatchCreate, Path: "p/q/r/file"})
	do(os.Rename(root+"/p", dir+"/elsewhere/p"))
	expect(sandpit.FileEvent{Kind: sandpit.WatchRemove, Path: "p"})
	do(os.WriteFile(dir+"/elsewhere/p/q/r/unseen", nil, 0o644))
	do(os.Rename(dir+"/elsewhere/p", root+"/back"))
	expect(sandpit.FileEvent{Kind: sandpit.WatchCreate, Path: "back"}, sandpit.FileEvent{Kind: sandpit.WatchCreate, Path: "back/q"})
	do(os.RemoveAll(root + "/back"))
	for e := next(); e != (sandpit.FileEvent{Kind: sandpit.WatchRemove, Path: "back"}); e = next() {
		if strings.Contains(e.Path, "unseen") && e.Kind == sandpit.WatchCreate && !strings.HasPrefix(e.Path, "back/") {
			t.Errorf("got %+v", e)
		}
	}
	do(os.RemoveAll(root))
	for e := next(); e != (sandpit.FileEvent{Kind: sandpit.WatchRemove}); e = next() {
	}
	if err := <-ended; err != nil {
		t.Errorf("got %v", err)
	}
	for _, err := range f.Watch(ctx, dir+"/none", true) {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	}
}

// One who does not listen is told that he has missed something.
func TestWatchOverflow(t *testing.T) {
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	queued, cerr := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || cerr != nil || queued > 50_000 {
		testkit.Lacks(t, fmt.Sprintf("a queue of inotify that can be filled, and not of %d", queued))
	}
	f := start(t).Files()
	dir := t.TempDir()
	for e, err := range f.Watch(within(t, time.Minute), dir, false) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == sandpit.WatchReady {
			// More than that queue and the window of a stream hold.
			name := dir + "/" + strings.Repeat("n", 200)
			for i := range 2 {
				if err := os.WriteFile(name+strconv.Itoa(i), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for i := range queued + 10_000 {
				if err := os.Chmod(name+strconv.Itoa(i%2), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		if e.Kind == sandpit.WatchOverflow {
			return
		}
	}
	t.Error("no overflow")
}

// Those who watch and do not listen keep nobody from his files.
func TestWatchKeepsNobodyWaiting(t *testing.T) {
	c := start(t)
	f := c.Files()
	dir := t.TempDir()
	makeTree(t, dir, map[string]string{"watched/": ""})
	deep := dir + "/tree" + strings.Repeat("/"+strings.Repeat("d", 250), 10)
	for i := range 1000 { // 2.5 KiB to tell of each, of which a stream's window holds 1 MiB
		makeTree(t, deep, map[string]string{strconv.Itoa(i): ""})
	}
	ctx := within(t, time.Minute)
	for range 6 { // more than there are workers
		next, stop := iter.Pull2(f.Watch(ctx, dir+"/watched", true))
		defer stop()
		if e, err, ok := next(); err != nil || !ok || e.Kind != sandpit.WatchReady {
			t.Fatalf("got %+v, %v, %t", e, err, ok)
		}
	}
	if err := os.Rename(dir+"/tree", dir+"/watched/tree"); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if _, err := c.Files().Stat(ctx, dir); err != nil {
			t.Fatalf("call %d: %v", i+1, err)
		}
		time.Sleep(time.Millisecond)
	}
}
