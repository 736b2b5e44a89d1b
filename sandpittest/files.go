package sandpittest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

var filesProperties = []property{
	{"files of 0 B to 64 MiB come back as they were written", testFileSizes},
	{"ranges are read", testRanges},
	{"what was written inside is read outside, and the other way round", testBothWays},
	{"names are any bytes", testOddNames},
	{"paths are relative to the working directory", testRelativePaths},
	{"a directory of 10,000 entries is listed in pages", testPaging},
	{"a tree of 4,096 levels is made and removed", testDeepTree},
	{"Stat and Lstat tell all", testStat},
	{"symbolic links are followed where it is said, and only there", testSymlinks},
	{"permissions are those of a new file before the umask", testModes},
	{"Chmod changes permission bits", testChmod},
	{"what is missing is ErrNotExist", testMissingFiles},
	{"other errors have their kinds", testFileErrors},
	{"Open does not block on a special file", testOpenSpecial},
	{"Write appends", testAppend},
	{"Write in place changes its part of a file only", testWriteInPlace},
	{"Write makes parents when asked", testWriteParents},
	{"SetAttr changes the attributes that it names and no others", testSetAttr},
	{"SetAttr of a symbolic link changes the link", testSetAttrOfLink},
	{"Write gives a file attributes, and refuses those that can't be stored", testFileAttributes},
	{"Copy and Edit keep the attributes of files", testAttributesStay},
	{"Write replaces at once or not at all", testAtomicWrite},
	{"a Write whose reader fails changes nothing", testFailedWrite},
	{"Rename and Remove do what they say", testRenameRemove},
	{"Rename to another file system moves files and trees, or changes nothing", testRenameAcross},
	{"Rename to another file system shows nothing before it is complete", testRenameAtOnce},
	{"a Remove of a tree follows no links", testRemoveLinks},
	{"a reader may be closed early", testCloseEarly},
	{"a context ends a call", testFileContext},
	{"many calls at once", testManyFileCalls},
	{"a read of a growing file ends", testGrowingFile},
}

// put writes a small file.
func put(t *testing.T, sb sandpit.Sandbox, path, content string) {
	t.Helper()
	if n, err := sb.Files().Write(guarded(t), path, strings.NewReader(content), sandpit.WriteOptions{}); err != nil || n != int64(len(content)) {
		t.Fatalf("writing %q: %d bytes, %v", path, n, err)
	}
}

// get reads a small file.
func get(t *testing.T, sb sandpit.Sandbox, path string) string {
	t.Helper()
	return getRange(t, sb, path, 0, -1)
}

func getRange(t *testing.T, sb sandpit.Sandbox, path string, offset, length int64) string {
	t.Helper()
	r, err := sb.Files().Open(guarded(t), path, offset, length)
	if err != nil {
		t.Fatalf("opening %q: %v", path, err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("reading %q: %v", path, err)
	}
	return string(b)
}

func testFileSizes(t *testing.T, e *env) {
	sizes := []int64{0, 1, 2, 4095, 4096, 4097, 65535, 65536, 65537, 1<<20 - 1, 1 << 20, 3<<20 + 17, 64 << 20}
	spec := sandpit.Spec{}
	if e.opt.Long {
		sizes = append(sizes, 1<<30)
		spec.Limits = sandpit.Limits{Disk: 3 << 30}
		if e.opt.Features[feature.Memory] {
			spec.Limits.Memory = 4 << 30
		}
	}
	sb := e.sandbox(t, spec)
	for _, size := range sizes {
		n, err := sb.Files().Write(guarded(t), "/tmp/f", &noiseReader{n: size}, sandpit.WriteOptions{})
		if err != nil || n != size {
			t.Fatalf("writing %d bytes: %d, %v", size, n, err)
		}
		info, err := sb.Files().Stat(t.Context(), "/tmp/f")
		if err != nil || info.Size != size {
			t.Errorf("the size is %d, %v", info.Size, err)
		}
		r, err := sb.Files().Open(guarded(t), "/tmp/f", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		var check noiseChecker
		if _, err := io.Copy(&check, r); err != nil || check.at != size {
			t.Errorf("reading %d bytes: %d, %v", size, check.at, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	// Nothing is left beside it.
	if got := shell(t, sb, "ls -A /tmp"); got != "f" {
		t.Errorf("/tmp has %q", got)
	}
}

func testRanges(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	put(t, sb, "/tmp/f", "0123456789")
	for _, c := range []struct {
		offset, length int64
		want           string
	}{{0, -1, "0123456789"}, {3, -1, "3456789"}, {3, 4, "3456"}, {0, 0, ""}, {9, 100, "9"}, {10, -1, ""}, {100, 5, ""}, {1 << 40, -1, ""}} {
		if got := getRange(t, sb, "/tmp/f", c.offset, c.length); got != c.want {
			t.Errorf("%d bytes from %d are %q", c.length, c.offset, got)
		}
	}
	for _, c := range [][2]int64{{-1, -1}, {0, -2}, {-1 << 63, 1}} {
		_, err := sb.Files().Open(t.Context(), "/tmp/f", c[0], c[1])
		wantKind(t, err, sandpit.ErrInvalid)
	}
}

func testBothWays(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	put(t, sb, "/tmp/out", "from outside\n")
	if got := shell(t, sb, "cat /tmp/out; echo from inside >/tmp/in"); got != "from outside" {
		t.Errorf("got %q", got)
	}
	if got := get(t, sb, "/tmp/in"); got != "from inside\n" {
		t.Errorf("got %q", got)
	}
	put(t, sb, "/tmp/script", "#!/bin/sh\necho ran\n")
	if err := sb.Files().Chmod(t.Context(), "/tmp/script", 0o755); err != nil {
		t.Fatal(err)
	}
	if got := command(t, sb, sandpit.Command{Argv: []string{"/tmp/script"}}); got != "ran" {
		t.Errorf("got %q", got)
	}
}

// oddNames are names that a file may have.
func oddNames() []string {
	return []string{
		"a\nb", "\n", " ", "  lead and trail  ", "\xff\xfe", "\xc3\x28", "-rf", "'\"\\", "$(x)", "*", "~", "...", "ü", "\x01\x1b[2J\x7f",
		"b\x80\n\x80", strings.Repeat("n", 255), ".sandpit-x", "%s%n",
	}
}

func testOddNames(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files := sb.Files()
	if err := files.Mkdir(t.Context(), "/tmp/odd", 0o755, false); err != nil {
		t.Fatal(err)
	}
	names := oddNames()
	for i, name := range names {
		put(t, sb, "/tmp/odd/"+name, fmt.Sprint(i))
	}
	slices.Sort(names)
	entries, more, err := files.ReadDir(t.Context(), "/tmp/odd", "", 0)
	if err != nil || more {
		t.Fatalf("listing: more %v, %v", more, err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name)
	}
	if !slices.Equal(got, names) {
		t.Errorf("got  %q\nwant %q", got, names)
	}
	for i, name := range oddNames() {
		path := "/tmp/odd/" + name
		if c := get(t, sb, path); c != fmt.Sprint(i) {
			t.Errorf("%q holds %q", name, c)
		}
		if info, err := files.Lstat(t.Context(), path); err != nil || info.Name != name {
			t.Errorf("%q is called %q, %v", name, info.Name, err)
		}
		if err := files.Symlink(t.Context(), name, path[:9]+fmt.Sprint(i)); err != nil {
			t.Error(err)
		}
		if target, err := files.Readlink(t.Context(), path[:9]+fmt.Sprint(i)); err != nil || target != name {
			t.Errorf("the link leads to %q, %v", target, err)
		}
		if err := files.Remove(t.Context(), path, false); err != nil {
			t.Error(err)
		}
	}
	_, err = files.Stat(t.Context(), "/tmp/"+strings.Repeat("n", 256))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a name of 256 bytes gives %v", err)
	}
	for _, bad := range []string{"/tmp/\x00", "\x00", "/tmp/a\x00b"} {
		_, err := files.Stat(t.Context(), bad)
		isPathError(t, err, sandpit.ErrInvalid)
		_, err = files.Write(t.Context(), bad, strings.NewReader(""), sandpit.WriteOptions{})
		isPathError(t, err, sandpit.ErrInvalid)
	}
}

func testRelativePaths(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{WorkDir: "/tmp"})
	put(t, sb, "f", "1")
	if got := shell(t, sb, "cat /tmp/f"); got != "1" {
		t.Errorf("got %q", got)
	}
	if err := sb.Files().Mkdir(t.Context(), "a/b", 0o755, true); err != nil {
		t.Fatal(err)
	}
	if err := sb.Files().Rename(t.Context(), "f", "a/b/f"); err != nil {
		t.Fatal(err)
	}
	if got := get(t, sb, "./a/b/../b/f"); got != "1" {
		t.Errorf("got %q", got)
	}
	if got := get(t, sb, "/../../tmp/a/b/f"); got != "1" { // the root is its own parent
		t.Errorf("got %q", got)
	}
}

func testPaging(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	const n = 10000
	shell(t, sb, fmt.Sprintf("mkdir /tmp/many && cd /tmp/many && seq -f f%%05g 1 %d | xargs touch", n))
	files := sb.Files()
	for _, limit := range []int{0, 1, 999, 10000, 1 << 30} {
		var names []string
		after, pages := "", 0
		for more := true; more; pages++ {
			var entries []sandpit.FileInfo
			var err error
			entries, more, err = files.ReadDir(guarded(t), "/tmp/many", after, limit)
			if err != nil {
				t.Fatal(err)
			}
			allowed := limit
			if limit == 0 {
				allowed = 1000
			}
			if len(entries) == 0 || len(entries) > min(allowed, 10000) {
				t.Fatalf("a page with a limit of %d has %d entries", limit, len(entries))
			}
			for _, e := range entries {
				names = append(names, e.Name)
			}
			after = names[len(names)-1]
			if limit == 1 && pages == 3 {
				break
			}
		}
		if limit == 1 {
			if !slices.Equal(names, []string{"f00001", "f00002", "f00003", "f00004"}) {
				t.Errorf("got %q", names)
			}
			continue
		}
		if len(names) != n || !slices.IsSorted(names) || names[0] != "f00001" || names[n-1] != "f10000" {
			t.Errorf("a limit of %d lists %d names", limit, len(names))
		}
	}
	if _, _, err := files.ReadDir(t.Context(), "/tmp/many", "", -1); err != nil {
		wantKind(t, err, sandpit.ErrInvalid)
	}
	entries, more, err := files.ReadDir(t.Context(), "/tmp/many", "f10000", 0)
	if err != nil || more || len(entries) != 0 {
		t.Errorf("after the last there are %d, more %v, %v", len(entries), more, err)
	}
	if err := files.Remove(guarded(t), "/tmp/many", true); err != nil {
		t.Error(err)
	}
}

func testDeepTree(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files := sb.Files()
	// A path has at most 4,095 bytes, so four trees are put into each other.
	const part = 1024
	deep := strings.Repeat("/d", part)
	for i := range 4 {
		if err := files.Mkdir(guarded(t), fmt.Sprintf("/tmp/t%d%s", i, deep), 0o755, true); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			if err := files.Rename(t.Context(), fmt.Sprintf("/tmp/t%d", i-1), fmt.Sprintf("/tmp/t%d%s/d", i, deep)); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(t, sb, "/tmp/t3"+deep+"/f", "x")
	_, err := files.Stat(t.Context(), "/tmp/t3"+strings.Repeat("/d", 3000))
	if err == nil {
		t.Error("a path of 6,000 bytes is taken")
	}
	err = files.Remove(t.Context(), "/tmp/t3", false)
	isPathError(t, err, sandpit.ErrNotEmpty)
	if err := files.Remove(guarded(t), "/tmp/t3", true); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, sb, "ls -A /tmp"); got != "" {
		t.Errorf("/tmp still has %q", got)
	}
}

func testStat(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	shell(t, sb, `cd /tmp; printf 12345 >f; chmod 640 f; touch -d '2001-02-03 04:05:06 UTC' f; mkdir d; chmod 1755 d; ln -s f l; ln -s nowhere broken; mkfifo p; mkfifo suid; chmod 6711 suid`)
	files := sb.Files()
	stat := func(path string) sandpit.FileInfo {
		t.Helper()
		info, err := files.Lstat(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	f := stat("/tmp/f")
	if f.Name != "f" || f.Size != 5 || f.Mode != 0o640 || !f.ModTime.Equal(time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)) || f.Target != "" || f.IsDir() {
		t.Errorf("got %+v", f)
	}
	if d := stat("/tmp/d"); d.Mode != fs.ModeDir|fs.ModeSticky|0o755 || !d.IsDir() {
		t.Errorf("got %+v", d)
	}
	if l := stat("/tmp/l"); l.Mode.Type() != fs.ModeSymlink || l.Target != "f" || l.Size != 1 {
		t.Errorf("got %+v", l)
	}
	if p := stat("/tmp/p"); p.Mode.Type() != fs.ModeNamedPipe {
		t.Errorf("got %+v", p)
	}
	if p := stat("/tmp/suid"); p.Mode != fs.ModeNamedPipe|fs.ModeSetuid|fs.ModeSetgid|0o711 {
		t.Errorf("got %+v", p)
	}
	if null := stat("/dev/null"); null.Mode.Type() != fs.ModeDevice|fs.ModeCharDevice {
		t.Errorf("got %+v", null)
	}
	if root := stat("/"); !root.IsDir() || root.Name != "/" {
		t.Errorf("got %+v", root)
	}
	l, err := files.Stat(t.Context(), "/tmp/l")
	if err != nil || l.Size != 5 || !l.Mode.IsRegular() || l.Name != "l" {
		t.Errorf("got %+v, %v", l, err)
	}
	if _, err := files.Stat(t.Context(), "/tmp/broken"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	// ReadDir tells the same as Lstat.
	entries, _, err := files.ReadDir(t.Context(), "/tmp", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if s := stat("/tmp/" + e.Name); !reflect.DeepEqual(s, e) {
			t.Errorf("%q is %+v by ReadDir and %+v by Lstat", e.Name, e, s)
		}
	}
	if len(entries) != 6 {
		t.Errorf("%d entries", len(entries))
	}
}

func testSymlinks(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files := sb.Files()
	put(t, sb, "/tmp/f", "content")
	for _, l := range [][2]string{{"f", "/tmp/l"}, {"/tmp/l", "/tmp/ll"}, {"loop", "/tmp/loop"}, {"/nowhere", "/tmp/broken"}, {strings.Repeat("x", 4000), "/tmp/long"}} {
		if err := files.Symlink(t.Context(), l[0], l[1]); err != nil {
			t.Fatal(err)
		}
		if target, err := files.Readlink(t.Context(), l[1]); err != nil || target != l[0] {
			t.Errorf("got %q, %v", target, err)
		}
	}
	if got := get(t, sb, "/tmp/ll"); got != "content" {
		t.Errorf("got %q", got)
	}
	// Write writes where open(2) would.
	put(t, sb, "/tmp/ll", "changed")
	if got := get(t, sb, "/tmp/f"); got != "changed" {
		t.Errorf("got %q", got)
	}
	if target, err := files.Readlink(t.Context(), "/tmp/ll"); err != nil || target != "/tmp/l" {
		t.Errorf("the link is %q, %v", target, err)
	}
	_, err := files.Open(t.Context(), "/tmp/loop", 0, -1)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a loop gives %v", err)
	}
	_, err = files.Open(t.Context(), "/tmp/broken", 0, -1)
	isPathError(t, err, fs.ErrNotExist)
	_, err = files.Readlink(t.Context(), "/tmp/f")
	isPathError(t, err, sandpit.ErrInvalid)
	isPathError(t, files.Symlink(t.Context(), "x", "/tmp/f"), fs.ErrExist)
	if err := files.Remove(t.Context(), "/tmp/ll", false); err != nil {
		t.Fatal(err)
	}
	if got := get(t, sb, "/tmp/l"); got != "changed" {
		t.Errorf("got %q", got)
	}
	if err := files.Chmod(t.Context(), "/tmp/l", 0o600); err != nil {
		t.Fatal(err)
	}
	if info, err := files.Stat(t.Context(), "/tmp/f"); err != nil || info.Mode != 0o600 {
		t.Errorf("got %+v, %v", info, err)
	}
}

func testModes(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files := sb.Files()
	for i, c := range []struct{ asked, want fs.FileMode }{{0, 0o644}, {0o666, 0o644}, {0o600, 0o600}, {0o777, 0o755}, {0o400, 0o400}} {
		path := fmt.Sprintf("/tmp/f%d", i)
		if _, err := files.Write(t.Context(), path, strings.NewReader("x"), sandpit.WriteOptions{Mode: c.asked}); err != nil {
			t.Fatal(err)
		}
		if info, err := files.Stat(t.Context(), path); err != nil || info.Mode != c.want {
			t.Errorf("%v makes %v, %v", c.asked, info.Mode, err)
		}
	}
	// One that exists keeps its own.
	if err := files.Chmod(t.Context(), "/tmp/f0", 0o640); err != nil {
		t.Fatal(err)
	}
	for _, opt := range []sandpit.WriteOptions{{Mode: 0o777}, {Mode: 0o777, Append: true}} {
		if _, err := files.Write(t.Context(), "/tmp/f0", strings.NewReader("y"), opt); err != nil {
			t.Fatal(err)
		}
		if info, err := files.Stat(t.Context(), "/tmp/f0"); err != nil || info.Mode != 0o640 {
			t.Errorf("it is %v, %v", info.Mode, err)
		}
	}
	for _, c := range []struct{ asked, want fs.FileMode }{{0o777, 0o755}, {0o700, 0o700}} {
		path := "/tmp/d" + c.asked.String()
		if err := files.Mkdir(t.Context(), path, c.asked, false); err != nil {
			t.Fatal(err)
		}
		if info, err := files.Stat(t.Context(), path); err != nil || info.Mode != fs.ModeDir|c.want {
			t.Errorf("%v makes %v, %v", c.asked, info.Mode, err)
		}
	}
}

func testChmod(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	put(t, sb, "/tmp/f", "x")
	for _, m := range []fs.FileMode{0o777, 0, 0o4755 &^ 0o4000, fs.ModeSetuid | 0o755, fs.ModeSticky | 0o700} {
		if err := sb.Files().Chmod(t.Context(), "/tmp/f", m); err != nil {
			t.Fatal(err)
		}
		if info, err := sb.Files().Stat(t.Context(), "/tmp/f"); err != nil || info.Mode != m {
			t.Errorf("%v is %v, %v", m, info.Mode, err)
		}
	}
}

func testMissingFiles(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files, ctx := sb.Files(), t.Context()
	for _, path := range []string{"/tmp/missing", "/tmp/missing/deeper"} {
		_, err := files.Stat(ctx, path)
		isPathError(t, err, fs.ErrNotExist)
		_, err = files.Lstat(ctx, path)
		isPathError(t, err, fs.ErrNotExist)
		_, _, err = files.ReadDir(ctx, path, "", 0)
		isPathError(t, err, fs.ErrNotExist)
		_, err = files.Open(ctx, path, 0, -1)
		isPathError(t, err, fs.ErrNotExist)
		_, err = files.Readlink(ctx, path)
		isPathError(t, err, fs.ErrNotExist)
		isPathError(t, files.Chmod(ctx, path, 0o644), fs.ErrNotExist)
		isPathError(t, files.Remove(ctx, path, false), fs.ErrNotExist)
		isPathError(t, files.Rename(ctx, path, "/tmp/x"), fs.ErrNotExist)
		if err := files.Remove(ctx, path, true); err != nil {
			t.Errorf("removing recursively: %v", err)
		}
	}
	_, err := files.Write(ctx, "/tmp/missing/f", strings.NewReader("x"), sandpit.WriteOptions{})
	isPathError(t, err, fs.ErrNotExist)
	_, err = files.Write(ctx, "/tmp/missing/f", strings.NewReader("x"), sandpit.WriteOptions{Append: true})
	isPathError(t, err, fs.ErrNotExist)
	isPathError(t, files.Mkdir(ctx, "/tmp/missing/d", 0o755, false), fs.ErrNotExist)
	isPathError(t, files.Symlink(ctx, "x", "/tmp/missing/l"), fs.ErrNotExist)
}

func testFileErrors(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files, ctx := sb.Files(), t.Context()
	shell(t, sb, "cd /tmp; mkdir -p d/sub; touch f")
	closed(t, sb)
	_, err := files.Open(ctx, "/tmp/d", 0, -1)
	isPathError(t, err, sandpit.ErrIsDirectory)
	for _, opt := range []sandpit.WriteOptions{{}, {Append: true}} {
		_, err = files.Write(ctx, "/tmp/d", strings.NewReader("x"), opt)
		isPathError(t, err, sandpit.ErrIsDirectory)
		_, err = files.Write(ctx, "/tmp/f/x", strings.NewReader("x"), opt)
		isPathError(t, err, sandpit.ErrNotDirectory)
		_, err = files.Write(ctx, "/tmp/closed/f", strings.NewReader("x"), opt)
		isPathError(t, err, fs.ErrPermission)
	}
	_, err = files.Write(ctx, "/tmp/f/x/y", strings.NewReader("x"), sandpit.WriteOptions{Parents: true})
	isPathError(t, err, sandpit.ErrNotDirectory)
	_, _, err = files.ReadDir(ctx, "/tmp/f", "", 0)
	isPathError(t, err, sandpit.ErrNotDirectory)
	_, err = files.Stat(ctx, "/tmp/f/x")
	isPathError(t, err, sandpit.ErrNotDirectory)
	isPathError(t, files.Remove(ctx, "/tmp/d", false), sandpit.ErrNotEmpty)
	isPathError(t, files.Mkdir(ctx, "/tmp/d", 0o755, false), fs.ErrExist)
	isPathError(t, files.Mkdir(ctx, "/tmp/f", 0o755, false), fs.ErrExist)
	isPathError(t, files.Mkdir(ctx, "/tmp/f/x", 0o755, true), sandpit.ErrNotDirectory)
	if err := files.Mkdir(ctx, "/tmp/d/sub", 0o755, true); err != nil {
		t.Errorf("one that exists, with parents: %v", err)
	}
	isPathError(t, files.Rename(ctx, "/tmp/f", "/tmp/d"), sandpit.ErrIsDirectory)
	isPathError(t, files.Rename(ctx, "/tmp/d", "/tmp/f"), sandpit.ErrNotDirectory)
	if err := files.Rename(ctx, "/tmp/d", "/tmp/d/sub/d"); err == nil {
		t.Error("a directory is moved into itself")
	}
	isPathError(t, files.Remove(ctx, "/tmp/closed/f", false), fs.ErrPermission)
	isPathError(t, files.Remove(ctx, "/tmp/closed", true), fs.ErrPermission)
	isPathError(t, files.Mkdir(ctx, "/tmp/closed/d", 0o755, false), fs.ErrPermission)
	isPathError(t, files.Rename(ctx, "/tmp/closed/f", "/tmp/g"), fs.ErrPermission)
	isPathError(t, files.Chmod(ctx, "/dev/null", 0o777), fs.ErrPermission)
}

// closed makes a directory /tmp/closed with a file f, in which nobody may do anything.
func closed(t *testing.T, sb sandpit.Sandbox) {
	t.Helper()
	shell(t, sb, "mkdir /tmp/closed; echo x >/tmp/closed/f; chmod 0 /tmp/closed")
}

func testOpenSpecial(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	shell(t, sb, "mkfifo /tmp/p; ln -s p /tmp/lp; ln -s /dev/zero /tmp/lz")
	for _, path := range []string{"/tmp/p", "/tmp/lp", "/tmp/lz", "/dev/zero", "/dev/null", "/dev/tty", "/dev/ptmx", "/dev/random"} {
		r, err := sb.Files().Open(guarded(t), path, 0, -1)
		if err == nil {
			r.Close()
		}
		isPathError(t, err, sandpit.ErrInvalid)
		if !strings.HasSuffix(sandpit.Hint(err), "run a command for devices, pipes and sockets, such as: head -c 1024 '"+path+"'") {
			t.Errorf("the hint for %s is %q", path, sandpit.Hint(err))
		}
		for _, opt := range []sandpit.WriteOptions{{}, {Append: true}} {
			_, err = sb.Files().Write(guarded(t), path, strings.NewReader("x"), opt)
			if err == nil {
				t.Errorf("%s was written", path)
			}
		}
	}
	// Files of /proc say that they are empty, and are not.
	if got := get(t, sb, "/proc/meminfo"); !strings.Contains(got, "MemTotal:") {
		t.Errorf("got %q", got)
	}
	// Those of who does the work are closed.
	for _, path := range []string{"/proc/self/environ", "/proc/1/environ", "/proc/thread-self/environ", "/proc/self/maps", "/proc/self/mem", "/proc/1/mem"} {
		if r, err := sb.Files().Open(guarded(t), path, 0, -1); err == nil {
			b, _ := io.ReadAll(r)
			r.Close()
			if len(b) > 0 {
				t.Errorf("%s gives %s", path, brief(b))
			}
		} else if errors.Is(err, fs.ErrPermission) && !strings.HasSuffix(sandpit.Hint(err), "run a command, such as: cat '"+path+"'") {
			t.Errorf("the hint for %s is %q", path, sandpit.Hint(err))
		}
	}
}

func testAppend(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	for i := range 3 {
		n, err := sb.Files().Write(t.Context(), "/tmp/log", strings.NewReader(fmt.Sprintln(i)), sandpit.WriteOptions{Append: true, Mode: 0o600})
		if err != nil || n != 2 {
			t.Fatalf("%d bytes, %v", n, err)
		}
	}
	if got := get(t, sb, "/tmp/log"); got != "0\n1\n2\n" {
		t.Errorf("got %q", got)
	}
	if info, err := sb.Files().Stat(t.Context(), "/tmp/log"); err != nil || info.Mode != 0o600 {
		t.Errorf("got %v, %v", info.Mode, err)
	}
}

func testWriteInPlace(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files, ctx := sb.Files(), guarded(t)
	large := strings.Repeat("0123456789", 200_000)
	put(t, sb, "/tmp/f", large)
	shell(t, sb, "cd /tmp; chmod 640 f; ln -s f l; stat -c %i f >inode; ln -s new dangling")
	for at, text := range map[int64]string{0: "first", 1_000_000: strings.Repeat("middle", 100_000), int64(len(large)): "end", 123: ""} {
		n, err := files.Write(ctx, "/tmp/l", strings.NewReader(text), sandpit.WriteOptions{InPlace: true, Offset: at, Mode: 0o777})
		if err != nil || n != int64(len(text)) {
			t.Fatalf("at %d: %d bytes, %v", at, n, err)
		}
	}
	want := "first" + large[5:1_000_000] + strings.Repeat("middle", 100_000) + large[1_600_000:] + "end"
	if got := get(t, sb, "/tmp/f"); got != want {
		t.Errorf("%d bytes are not the %d that were written", len(got), len(want))
	}
	if got := shell(t, sb, "cd /tmp; stat -c '%a %i' f; cat inode; stat -c %F l"); got != "640 "+strings.Fields(got)[2]+"\n"+strings.Fields(got)[2]+"\nsymbolic link" {
		t.Errorf("the file or the link is another: %q", got)
	}
	if _, err := files.Write(ctx, "/tmp/dangling", strings.NewReader("x"), sandpit.WriteOptions{InPlace: true, Offset: 3, Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	if info, err := files.Stat(ctx, "/tmp/new"); err != nil || info.Mode != 0o600 || get(t, sb, "/tmp/new") != "\x00\x00\x00x" {
		t.Errorf("a new file: %+v, %v", info, err)
	}
	for _, opt := range []sandpit.WriteOptions{{InPlace: true, Offset: -1}, {Offset: 1}, {InPlace: true, Append: true}, {InPlace: true, Offset: 1<<63 - 1}} {
		if _, err := files.Write(ctx, "/tmp/f", strings.NewReader("x"), opt); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%+v: %v", opt, err)
		} else if strings.Contains(err.Error(), "at the end of the file") != opt.Append {
			t.Errorf("%+v: %v", opt, err)
		}
	}
	if got := get(t, sb, "/tmp/f"); got != want {
		t.Error("a refused write has changed the file")
	}
	for path, kind := range map[string]error{"/tmp": sandpit.ErrIsDirectory, "/tmp/f/x": sandpit.ErrNotDirectory, "/tmp/none/f": fs.ErrNotExist, "/dev/null": sandpit.ErrInvalid, "/proc/1/mem": fs.ErrPermission} {
		_, err := files.Write(ctx, path, strings.NewReader("x"), sandpit.WriteOptions{InPlace: true, Offset: 1})
		isPathError(t, err, kind)
	}
}

func testSetAttr(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files, ctx := sb.Files(), guarded(t)
	put(t, sb, "/tmp/f", "0123456789")
	shell(t, sb, "mkdir /tmp/d; touch -d @1000 /tmp/f /tmp/d")
	owner, err := files.Stat(ctx, "/tmp/f")
	if err != nil {
		t.Fatal(err)
	}
	set := func(path string, a sandpit.FileAttr, want string) {
		t.Helper()
		if err := files.SetAttr(ctx, path, a); err != nil {
			t.Errorf("%+v: %v", a, err)
		} else if got := shell(t, sb, "stat -c '%a %s %.9Y %.9X' "+path); got != want {
			t.Errorf("%+v: it is %q, want %q", a, got, want)
		}
	}
	set("/tmp/f", sandpit.FileAttr{}, "644 10 1000.000000000 1000.000000000")
	set("/tmp/f", sandpit.FileAttr{Mode: new(fs.FileMode(0o600))}, "600 10 1000.000000000 1000.000000000")
	set("/tmp/f", sandpit.FileAttr{ModTime: time.Unix(-5, 25)}, "600 10 -4.999999975 1000.000000000")
	set("/tmp/f", sandpit.FileAttr{AccessTime: time.Unix(7, 0)}, "600 10 -4.999999975 7.000000000")
	set("/tmp/f", sandpit.FileAttr{Size: new(int64(4)), ModTime: time.Unix(1, 0), AccessTime: time.Unix(2, 0), Mode: new(fs.FileMode(0o444)), UID: &owner.UID, GID: &owner.GID}, "444 4 1.000000000 2.000000000")
	if got := get(t, sb, "/tmp/f"); got != "0123" {
		t.Errorf("a file that was cut is %q", got)
	}
	set("/tmp/f", sandpit.FileAttr{Mode: new(fs.ModeSticky | 0o200), ModTime: time.Unix(1, 0), AccessTime: time.Unix(9, 0)}, "1200 4 1.000000000 9.000000000")
	set("/tmp/f", sandpit.FileAttr{Size: new(int64(6)), ModTime: time.Unix(1, 0), AccessTime: time.Unix(2, 0), Mode: new(fs.FileMode(0o644))}, "644 6 1.000000000 2.000000000")
	if got := get(t, sb, "/tmp/f"); got != "0123\x00\x00" {
		t.Errorf("a file that was extended is %q", got)
	}
	if got := shell(t, sb, "stat -c %a /tmp/d") + shell(t, sb, "stat -c %Y /tmp/d"); got != "7551000" {
		t.Errorf("a directory is %q", got)
	}
	if err := files.SetAttr(ctx, "/tmp/d", sandpit.FileAttr{Mode: new(fs.FileMode(0o700)), ModTime: time.Unix(9, 0)}); err != nil {
		t.Error(err)
	}
	if got := shell(t, sb, "stat -c '%a %Y' /tmp/d"); got != "700 9" {
		t.Errorf("a directory is %q", got)
	}
	closed(t, sb)
	for _, c := range []struct {
		path string
		attr sandpit.FileAttr
		kind error
	}{
		{"/tmp/none", sandpit.FileAttr{Size: new(int64(0))}, fs.ErrNotExist},
		{"/tmp/f/x", sandpit.FileAttr{}, sandpit.ErrNotDirectory},
		{"/tmp/d", sandpit.FileAttr{Size: new(int64(0))}, sandpit.ErrIsDirectory},
		{"/dev/null", sandpit.FileAttr{Size: new(int64(0))}, sandpit.ErrInvalid},
		{"/dev/null", sandpit.FileAttr{Mode: new(fs.FileMode(0o777))}, fs.ErrPermission},
		{"/tmp/closed/f", sandpit.FileAttr{Mode: new(fs.FileMode(0o777))}, fs.ErrPermission},
		{"/proc/1/mem", sandpit.FileAttr{Size: new(int64(0))}, fs.ErrPermission},
		{"/tmp/f", sandpit.FileAttr{Size: new(int64(-1))}, sandpit.ErrInvalid},
		{"/tmp/f", sandpit.FileAttr{UID: new(uint32(65535))}, sandpit.ErrInvalid},
		{"/tmp/f", sandpit.FileAttr{GID: new(uint32(1<<32 - 1))}, sandpit.ErrInvalid},
		{"/tmp/f", sandpit.FileAttr{ModTime: time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)}, sandpit.ErrInvalid},
		{"", sandpit.FileAttr{}, sandpit.ErrInvalid},
	} {
		isPathError(t, files.SetAttr(ctx, c.path, c.attr), c.kind)
	}
	if owner.UID != 0 {
		isPathError(t, files.SetAttr(ctx, "/tmp/f", sandpit.FileAttr{UID: new(uint32(0))}), fs.ErrPermission)
	}
}

func testSetAttrOfLink(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files, ctx := sb.Files(), guarded(t)
	put(t, sb, "/tmp/f", "x")
	shell(t, sb, "cd /tmp; ln -s f l; touch -h -d @1000 f l")
	for _, a := range []sandpit.FileAttr{{NoFollow: true, Mode: new(fs.FileMode(0o777))}, {NoFollow: true, Size: new(int64(0))}} {
		isPathError(t, files.SetAttr(ctx, "/tmp/l", a), sandpit.ErrUnsupported)
	}
	for i, a := range []sandpit.FileAttr{{NoFollow: true, ModTime: time.Unix(2000, 0)}, {ModTime: time.Unix(3000, 0), Size: new(int64(0))}} {
		if err := files.SetAttr(ctx, "/tmp/l", a); err != nil {
			t.Error(err)
		}
		if got, want := shell(t, sb, "cd /tmp; stat -c '%F %Y' f l"), [...]string{"regular file 1000\nsymbolic link 2000", "regular empty file 3000\nsymbolic link 2000"}[i]; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func testFileAttributes(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{Tmpfs: []sandpit.Tmpfs{{Target: "/scratch"}}})
	files, ctx := sb.Files(), guarded(t)
	write := func(path string, opt sandpit.WriteOptions) error {
		_, err := files.Write(ctx, path, strings.NewReader("new"), opt)
		return err
	}
	put(t, sb, "/tmp/f", "old")
	want := map[string]string{"e2b.a": "b", "ü": "\x00\xff=", "empty": ""}
	if err := write("/tmp/f", sandpit.WriteOptions{Xattrs: want}); errors.Is(err, sandpit.ErrUnsupported) {
		// A kernel whose tmpfs has none: the file is as it was, and the refusal names one.
		if got := get(t, sb, "/tmp/f"); got != "old" || !strings.Contains(err.Error(), "user.") {
			t.Errorf("the file is %q, %v", got, err)
		}
		return
	} else if err != nil {
		t.Fatal(err)
	}
	has := func(path string, want map[string]string) {
		t.Helper()
		stat, err := files.Stat(ctx, path)
		lstat, lerr := files.Lstat(ctx, path)
		if !maps.Equal(stat.Xattrs, want) || !maps.Equal(lstat.Xattrs, want) || err != nil || lerr != nil {
			t.Errorf("%s has %q, %v; and %q, %v; want %q", path, stat.Xattrs, err, lstat.Xattrs, lerr, want)
		}
	}
	has("/tmp/f", want)
	shell(t, sb, "ln -s f /tmp/l; mkfifo /tmp/p")
	put(t, sb, "/tmp/none", "x")
	for _, with := range []bool{false, true} {
		list, _, err := files.Find(ctx, "/tmp", sandpit.FindQuery{Xattrs: with})
		if err != nil || len(list) != 4 {
			t.Fatalf("%+v, %v", list, err)
		}
		for _, i := range list {
			if expected := with && i.Name == "f"; expected && !maps.Equal(i.Xattrs, want) || !expected && i.Xattrs != nil {
				t.Errorf("asked %v: %s has %q", with, i.Name, i.Xattrs)
			}
		}
	}
	if i, err := files.Stat(ctx, "/tmp/l"); err != nil || !maps.Equal(i.Xattrs, want) {
		t.Errorf("through a link: %q, %v", i.Xattrs, err)
	}

	// What is refused changes nothing.
	many := map[string]string{}
	for i := range 65 {
		many[fmt.Sprint(i)] = ""
	}
	for name, opt := range map[string]sandpit.WriteOptions{
		"too many":  {Xattrs: many},
		"too large": {Xattrs: map[string]string{"x": strings.Repeat("v", 4096)}},
		"no name":   {Xattrs: map[string]string{"": "v"}},
		"long name": {Xattrs: map[string]string{strings.Repeat("n", 251): "v"}},
		"=":         {Xattrs: map[string]string{"a=b": "v"}},
		"NUL":       {Xattrs: map[string]string{"a\x00b": "v"}},
		"append":    {Xattrs: want, Append: true},
		"in place":  {Xattrs: want, InPlace: true},
	} {
		if err := write("/tmp/f", opt); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := write("/tmp/f", sandpit.WriteOptions{Xattrs: map[string]string{"overlay.opaque": "y"}}); err == nil {
		has("/tmp/f", map[string]string{"overlay.opaque": "y"})
		must(t, write("/tmp/f", sandpit.WriteOptions{Xattrs: want})) // tmpfs knows nothing of overlayfs
	}
	has("/tmp/f", want)

	// Appending keeps them, a move takes them along, and a file that replaces another has its own.
	must(t, write("/tmp/f", sandpit.WriteOptions{Append: true}))
	must(t, files.Rename(ctx, "/tmp/f", "/scratch/f"))
	has("/scratch/f", want)
	must(t, write("/scratch/f", sandpit.WriteOptions{}))
	has("/scratch/f", nil)
	if got := shell(t, sb, "ls -A /tmp /scratch"); got != "/scratch:\nf\n\n/tmp:\nl\nnone\np" {
		t.Errorf("there are %q", got)
	}
}

func testAttributesStay(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{Tmpfs: []sandpit.Tmpfs{{Target: "/scratch"}}})
	files, ctx := sb.Files(), guarded(t)
	want := map[string]string{"k": "v", "empty": "", "bytes": "\x00\xff"}
	shell(t, sb, "mkdir -p /tmp/d/sub")
	for _, path := range []string{"/tmp/f", "/tmp/readonly", "/tmp/d/sub/f", "/tmp/old"} {
		opt := sandpit.WriteOptions{Xattrs: want, Mode: map[string]fs.FileMode{"/tmp/readonly": 0o444}[path]}
		if path == "/tmp/old" {
			opt.Xattrs = map[string]string{"k": "old", "other": "old"}
		}
		if _, err := files.Write(ctx, path, strings.NewReader("old text"), opt); errors.Is(err, sandpit.ErrUnsupported) {
			return // a kernel whose tmpfs has none
		} else if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	has := func(path, mode, content string) {
		t.Helper()
		info, err := files.Stat(ctx, path)
		if err != nil || !maps.Equal(info.Xattrs, want) || fmt.Sprintf("%o", info.Mode.Perm()) != mode {
			t.Errorf("%s has mode %o and %q, %v; want %s and %q", path, info.Mode, info.Xattrs, err, mode, want)
		}
		if got := get(t, sb, path); got != content {
			t.Errorf("%s is %q, want %q", path, got, content)
		}
	}
	has("/tmp/readonly", "444", "old text")
	must(t, files.Edit(ctx, "/tmp/f", []sandpit.Edit{{Old: "old", New: "new"}}))
	has("/tmp/f", "644", "new text")
	for _, path := range []string{"/tmp/copy", "/tmp/old"} { // a new file, and one in place of another
		must(t, files.Copy(ctx, "/tmp/f", path, false))
		has(path, "644", "new text")
	}
	must(t, files.Copy(ctx, "/tmp/readonly", "/tmp/copy-of-readonly", false))
	has("/tmp/copy-of-readonly", "444", "old text")
	must(t, files.Rename(ctx, "/tmp/copy-of-readonly", "/scratch/moved")) // to another file system
	has("/scratch/moved", "444", "old text")
	shell(t, sb, "mv /tmp/readonly /tmp/d/")
	must(t, files.Copy(ctx, "/tmp/d", "/tmp/tree", true))
	has("/tmp/tree/sub/f", "644", "old text")
	has("/tmp/tree/readonly", "444", "old text")
}

func testWriteParents(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	for range 2 {
		if _, err := sb.Files().Write(t.Context(), "/tmp/a/b/c/f", strings.NewReader("x"), sandpit.WriteOptions{Parents: true}); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := sb.Files().Stat(t.Context(), "/tmp/a/b"); err != nil || info.Mode != fs.ModeDir|0o755 {
		t.Errorf("got %v, %v", info.Mode, err)
	}
	if got := get(t, sb, "/tmp/a/b/c/f"); got != "x" {
		t.Errorf("got %q", got)
	}
}

func testAtomicWrite(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	const size = 1 << 20
	content := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i%2)}, size+i%2) }
	write := func(i int) {
		if _, err := sb.Files().Write(guarded(t), "/tmp/f", bytes.NewReader(content(i)), sandpit.WriteOptions{}); err != nil {
			t.Error(err)
		}
	}
	write(0)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				got := []byte(get(t, sb, "/tmp/f"))
				if !bytes.Equal(got, content(0)) && !bytes.Equal(got, content(1)) {
					t.Errorf("a reader has seen %d bytes that were never written so", len(got))
					return
				}
			}
		})
	}
	for i := range 40 {
		write(i)
	}
	close(stop)
	wg.Wait()
	if got := shell(t, sb, "ls -A /tmp"); got != "f" {
		t.Errorf("/tmp has %q", got)
	}
}

type failingReader struct{ left int }

func (r *failingReader) Read(b []byte) (int, error) {
	if r.left == 0 {
		return 0, errors.New("the reader fails")
	}
	n := min(r.left, len(b))
	r.left -= n
	return n, nil
}

func testFailedWrite(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	put(t, sb, "/tmp/f", "old")
	for _, n := range []int{0, 10, 1 << 20} {
		if _, err := sb.Files().Write(t.Context(), "/tmp/f", &failingReader{n}, sandpit.WriteOptions{}); err == nil || !strings.Contains(err.Error(), "the reader fails") {
			t.Errorf("got %v", err)
		}
		if _, err := sb.Files().Write(t.Context(), "/tmp/new", &failingReader{n}, sandpit.WriteOptions{}); err == nil {
			t.Error("got no error")
		}
	}
	if got := get(t, sb, "/tmp/f"); got != "old" {
		t.Errorf("got %q", got)
	}
	eventually(t, "nothing is left beside it", func() bool { return shell(t, sb, "ls -A /tmp") == "f" })
}

func testRenameRemove(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files, ctx := sb.Files(), t.Context()
	put(t, sb, "/tmp/a", "a")
	put(t, sb, "/tmp/b", "b")
	if err := files.Rename(ctx, "/tmp/a", "/tmp/b"); err != nil {
		t.Fatal(err)
	}
	if got := get(t, sb, "/tmp/b"); got != "a" {
		t.Errorf("got %q", got)
	}
	_, err := files.Lstat(ctx, "/tmp/a")
	isPathError(t, err, fs.ErrNotExist)
	if err := files.Mkdir(ctx, "/tmp/d/e/f", 0o755, true); err != nil {
		t.Fatal(err)
	}
	if err := files.Remove(ctx, "/tmp/d/e/f", false); err != nil {
		t.Error(err)
	}
	if err := files.Remove(ctx, "/tmp/d", true); err != nil {
		t.Error(err)
	}
	if err := files.Remove(ctx, "/tmp/b", true); err != nil {
		t.Error(err)
	}
	if got := shell(t, sb, "ls -A /tmp"); got != "" {
		t.Errorf("/tmp has %q", got)
	}
}

func testRenameAcross(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{Tmpfs: []sandpit.Tmpfs{{Target: "/scratch", Size: 1 << 20}, {Target: "/scratch/holder/mnt"}}})
	files, ctx := sb.Files(), guarded(t)
	const list = `find . -printf '%P %y %m %T@ %s %l\n' | sort; cat sub/g`
	shell(t, sb, `cd /tmp; [ $(stat -c %d /tmp) != $(stat -c %d /scratch) ]; echo a >f; chmod 640 f; touch -d @1000.5 f; ln -s nowhere l; touch -h -d @2000 l
mkdir -p d/sub/deep; echo b >d/sub/g; ln -s ../../f d/l; touch -h -d @3000 d/l; chmod 750 d/sub; touch -d @4000 d/sub/deep d/sub/g d/sub d`)
	before := shell(t, sb, "cd /tmp/d; "+strings.ReplaceAll(list, " %s", ""))
	for _, there := range [][2]string{{"/tmp/", "/scratch/"}, {"/scratch/", "/tmp/"}} {
		for _, name := range []string{"f", "l", "d"} {
			must(t, files.Rename(ctx, there[0]+name, there[1]+name))
		}
		if got := shell(t, sb, "cd "+there[1]+"; stat -c '%n %F %a %.9Y' f; stat -c '%n %F %.9Y' l; cat f; readlink l"); got != "f regular file 640 1000.500000000\nl symbolic link 2000.000000000\na\nnowhere" {
			t.Errorf("in %s: %q", there[1], got)
		}
		if got := shell(t, sb, "cd "+there[1]+"d; "+strings.ReplaceAll(list, " %s", "")); got != before {
			t.Errorf("the tree in %s is %q, and was %q", there[1], got, before)
		}
		if got := shell(t, sb, "ls -A "+there[0]+" | grep -v holder; :"); got != "" {
			t.Errorf("left in %s: %q", there[0], got)
		}
	}

	// It replaces what rename(2) replaces.
	shell(t, sb, "cd /scratch; echo old >f; ln -s /tmp/d l; mkdir empty full; touch full/x")
	must(t, files.Rename(ctx, "/tmp/f", "/scratch/f"))
	must(t, files.Rename(ctx, "/scratch/f", "/tmp/f"))
	must(t, files.Rename(ctx, "/tmp/f", "/scratch/l"))
	must(t, files.Rename(ctx, "/tmp/d", "/scratch/empty"))
	if got := shell(t, sb, "cat /scratch/l /scratch/empty/sub/g; ls -A /tmp /scratch"); got != "a\nb\n/scratch:\nempty\nfull\nholder\nl\n\n/tmp:\nl" {
		t.Errorf("replaced: %q", got)
	}

	// What can't be moved is where it was, and nothing else is there.
	shell(t, sb, `cd /tmp; rm l; mkdir pipes; mkfifo pipes/p; echo x >pipes/a; mkdir -p ro/shut; echo y >ro/shut/f; chmod 555 ro/shut; head -c 3000000 /dev/zero >big; mkdir tree; cp big tree; echo z >small`)
	state := `cd /; find /tmp /scratch | sort; cat /tmp/ro/shut/f /tmp/pipes/a /scratch/l; wc -c /tmp/big /tmp/tree/big`
	was := shell(t, sb, state)
	for _, c := range []struct {
		from, to string
		kind     error
	}{
		{"/tmp/pipes", "/scratch/pipes", sandpit.ErrInvalid},
		{"/tmp/big", "/scratch/big", sandpit.ErrNoSpace},
		{"/tmp/tree", "/scratch/tree", sandpit.ErrNoSpace},
		{"/tmp/small", "/scratch/full", sandpit.ErrIsDirectory},
		{"/tmp/tree", "/scratch/l", sandpit.ErrNotDirectory},
		{"/tmp/ro", "/scratch/full", sandpit.ErrNotEmpty},
		{"/tmp/small", "/scratch/none/small", fs.ErrNotExist},
		{"/tmp/none", "/scratch/none", fs.ErrNotExist},
		{"/tmp/small", "/scratch/l/small", sandpit.ErrNotDirectory},
		{"/tmp/tree/.", "/scratch/tree", sandpit.ErrState},
		{"/scratch", "/tmp/moved", nil},         // a mount point, and in a directory that root owns
		{"/scratch/holder", "/tmp/holder", nil}, // has a mount point in it
	} {
		if c.from == "/tmp/ro" && shell(t, sb, "id -u") != "0" {
			c.kind = fs.ErrPermission // its file could not be removed
		}
		if err := files.Rename(ctx, c.from, c.to); err == nil || c.kind != nil && !errors.Is(err, c.kind) {
			t.Errorf("%s to %s: %v, want %v", c.from, c.to, err, c.kind)
		}
		if got := shell(t, sb, state); got != was {
			t.Errorf("after %s to %s: %q, and before %q", c.from, c.to, got, was)
		}
	}
	shell(t, sb, "chmod 755 /tmp/ro/shut")
}

func testRenameAtOnce(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{Tmpfs: []sandpit.Tmpfs{{Target: "/scratch"}}})
	shell(t, sb, "cd /tmp; mkdir tree; head -c 20000000 /dev/zero >big; for i in $(seq 200); do echo $i >tree/$i; done")
	var seen bytes.Buffer
	p := start(t, sb, sandpit.Command{Stdout: &seen, Script: `until [ -e /scratch/big ]; do :; done; stat -c %s /scratch/big; until [ -e /scratch/tree ]; do :; done; ls /scratch/tree | wc -l`})
	must(t, sb.Files().Rename(guarded(t), "/tmp/big", "/scratch/big"))
	must(t, sb.Files().Rename(guarded(t), "/tmp/tree", "/scratch/tree"))
	if _, err := p.Wait(guarded(t)); err != nil || seen.String() != "20000000\n200\n" {
		t.Errorf("seen: %q, %v", seen.String(), err)
	}
	if got := shell(t, sb, "ls -A /tmp; ls -A /scratch"); got != "big\ntree" {
		t.Errorf("left: %q", got)
	}
}

func testRemoveLinks(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	shell(t, sb, "cd /tmp; mkdir keep d; echo x >keep/f; ln -s ../keep d/l; ln -s /tmp/keep d/abs; ln -s keep top")
	if err := sb.Files().Remove(t.Context(), "/tmp/d", true); err != nil {
		t.Fatal(err)
	}
	if err := sb.Files().Remove(t.Context(), "/tmp/top", true); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, sb, "ls -A /tmp /tmp/keep | tr '\\n' ' '"); !strings.Contains(got, "keep") || !strings.HasSuffix(got, "f") {
		t.Errorf("got %q", got)
	}
}

func testCloseEarly(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	if _, err := sb.Files().Write(guarded(t), "/tmp/big", &noiseReader{n: 32 << 20}, sandpit.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		r, err := sb.Files().Open(guarded(t), "/tmp/big", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, r, 10); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		_ = r.Close()
		if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("reading what is closed gives %d, %v", n, err)
		}
	}
}

func testFileContext(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sb.Files().Stat(ended, "/"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := sb.Files().Write(ended, "/tmp/f", strings.NewReader("x"), sandpit.WriteOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	// In the middle of a write whose reader never gives anything.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	r, w := io.Pipe()
	defer w.Close()
	go func() { _, _ = w.Write(make([]byte, 1000)) }()
	written := make(chan error, 1)
	go func() {
		_, err := sb.Files().Write(ctx, "/tmp/f", r, sandpit.WriteOptions{})
		written <- err
	}()
	select {
	case err := <-written:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	case <-time.After(time.Second):
		// A reader that blocks can't be interrupted: closing it must do.
		w.Close()
		if err := <-written; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	}
	eventually(t, "nothing is left", func() bool { return shell(t, sb, "ls -A /tmp") == "" })
}

func testManyFileCalls(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			path := fmt.Sprintf("/tmp/f%d", i)
			for j := range 5 {
				put(t, sb, path, strings.Repeat(path, 1000*j))
				if got := get(t, sb, path); got != strings.Repeat(path, 1000*j) {
					t.Errorf("%s holds %d bytes", path, len(got))
				}
			}
		})
	}
	wg.Wait()
}

func testGrowingFile(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	put(t, sb, "/tmp/log", "begin\n")
	p := start(t, sb, sandpit.Command{Script: "while :; do echo more >>/tmp/log; done"})
	for range 5 {
		if got := get(t, sb, "/tmp/log"); !strings.HasPrefix(got, "begin\n") {
			t.Errorf("got %s", brief([]byte(got)))
		}
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
}
