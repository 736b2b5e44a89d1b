package guest_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func write(t testing.TB, f sandpit.Files, path, content string, opt sandpit.WriteOptions) {
	t.Helper()
	if n, err := f.Write(within(t, time.Minute), path, strings.NewReader(content), opt); err != nil || n != int64(len(content)) {
		t.Fatalf("writing %q: %d, %v", path, n, err)
	}
}

func read(t testing.TB, f sandpit.Files, path string, offset, length int64) string {
	t.Helper()
	r, err := f.Open(within(t, time.Minute), path, offset, length)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWriteAndRead(t *testing.T) {
	f := start(t).Files()
	dir := t.TempDir()
	p := dir + "/a/b/file"
	if _, err := f.Write(t.Context(), p, strings.NewReader("x"), sandpit.WriteOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without parents: got %v", err)
	}
	write(t, f, p, "first", sandpit.WriteOptions{Parents: true})
	write(t, f, p, "second", sandpit.WriteOptions{Mode: 0o600}) // it keeps its own mode
	write(t, f, p, " third", sandpit.WriteOptions{Append: true})
	if got := read(t, f, p, 0, -1); got != "second third" {
		t.Errorf("got %q", got)
	}
	for _, tc := range []struct {
		offset, length int64
		want           string
	}{{7, -1, "third"}, {0, 6, "second"}, {7, 2, "th"}, {7, 100, "third"}, {100, -1, ""}, {3, 0, ""}} {
		if got := read(t, f, p, tc.offset, tc.length); got != tc.want {
			t.Errorf("%d, %d: got %q, want %q", tc.offset, tc.length, got, tc.want)
		}
	}
	st, err := f.Stat(t.Context(), p)
	if err != nil || st.Name != "file" || st.Size != 12 || st.Mode != 0o644 || time.Since(st.ModTime).Abs() > time.Minute || int(st.UID) != os.Geteuid() {
		t.Errorf("got %+v, %v", st, err)
	}
	if st, err := f.Stat(t.Context(), dir+"/a"); err != nil || !st.IsDir() || st.Mode.Perm() != 0o755 {
		t.Errorf("the directory made: %+v, %v", st, err)
	}
	write(t, f, dir+"/script", "", sandpit.WriteOptions{Mode: 0o777})
	if st, err := f.Stat(t.Context(), dir+"/script"); err != nil || st.Mode != 0o755 {
		t.Errorf("mode with the umask: %+v, %v", st, err)
	}
	if left, _ := filepath.Glob(dir + "/a/b/.*"); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
}

func TestLargeFile(t *testing.T) {
	f := start(t).Files()
	p := t.TempDir() + "/large"
	size := int64(100<<20 + 12345)
	if os.Getenv("SANDPIT_TEST_LONG") != "" {
		size = 1 << 30
	}
	want, got := sha256.New(), sha256.New()
	n, err := f.Write(t.Context(), p, io.TeeReader(io.LimitReader(rand.New(rand.NewSource(1)), size), want), sandpit.WriteOptions{})
	if err != nil || n != size {
		t.Fatal(n, err)
	}
	r, err := f.Open(t.Context(), p, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := io.Copy(got, r); err != nil || n != size {
		t.Fatal(n, err)
	}
	if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Error("what was read is not what was written")
	}
}

func TestOddNames(t *testing.T) {
	f := start(t).Files()
	dir := t.TempDir() + "/"
	names := []string{"new\nline", "inv\xffalid", " spaces ", "-rf", "*", "\\", strings.Repeat("n", 255), "ünï"}
	for _, n := range names {
		write(t, f, dir+n, n, sandpit.WriteOptions{})
		if got := read(t, f, dir+n, 0, -1); got != n {
			t.Errorf("%q: got %q", n, got)
		}
	}
	entries, more, err := f.ReadDir(t.Context(), dir, "", 0)
	if err != nil || more || len(entries) != len(names) {
		t.Fatalf("got %d, %t, %v", len(entries), more, err)
	}
	for i, e := range entries {
		if i > 0 && e.Name <= entries[i-1].Name {
			t.Errorf("%q after %q", e.Name, entries[i-1].Name)
		}
	}
	for _, p := range []string{"", "a\x00b"} {
		if _, err := f.Stat(t.Context(), p); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%q: got %v, want ErrInvalid", p, err)
		}
	}
	if _, err := f.Stat(t.Context(), dir+strings.Repeat("n", 256)); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("long name: got %v", err)
	}
}

func TestReadDirPages(t *testing.T) {
	f := start(t).Files()
	dir := fastDir(t)
	const count = 12_345
	// Links with long targets: a reply can't hold a whole page of them.
	long := strings.Repeat("t", 400)
	for i := range count {
		if err := os.Symlink(long, fmt.Sprintf("%s/%05d", dir, i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []int{0, 1, 5000, 10_000, 20_000} {
		after, seen, pages := "", 0, 0
		want := min(limit, 10_000)
		if limit == 0 {
			want = 1000
		}
		for {
			entries, more, err := f.ReadDir(t.Context(), dir, after, limit)
			if err != nil {
				t.Fatal(err)
			}
			if more && len(entries) != want {
				t.Fatalf("limit %d: a page of %d", limit, len(entries))
			}
			for _, e := range entries {
				if e.Name != fmt.Sprintf("%05d", seen) || e.Target != long || e.Mode.Type() != fs.ModeSymlink {
					t.Fatalf("entry %d is %q", seen, e.Name)
				}
				seen++
				after = e.Name
			}
			if pages++; !more || limit == 1 && pages == 20 {
				break
			}
		}
		if limit != 1 && seen != count {
			t.Errorf("limit %d: %d entries", limit, seen)
		}
	}
	if _, _, err := f.ReadDir(t.Context(), dir, "", -1); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if entries, more, err := f.ReadDir(t.Context(), dir, "99999", 0); len(entries) != 0 || more || err != nil {
		t.Errorf("after the last: %v, %t, %v", entries, more, err)
	}
}

func TestWhatIsNoRegularFile(t *testing.T) {
	f := start(t).Files()
	dir := t.TempDir()
	if err := unix.Mkfifo(dir+"/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	held, err := os.OpenFile(dir+"/fifo", os.O_RDWR, 0) // so that it could be opened for writing
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := unix.Mkfifo(dir+"/fifo2", 0o644); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: dir + "/socket"}); err != nil {
		t.Fatal(err)
	}
	ctx := within(t, time.Minute)
	for path, kind := range map[string]error{
		dir + "/fifo": sandpit.ErrInvalid, dir + "/fifo2": sandpit.ErrInvalid, dir + "/socket": sandpit.ErrInvalid,
		"/dev/zero": sandpit.ErrInvalid, "/dev/tty": nil, dir: sandpit.ErrIsDirectory, dir + "/": sandpit.ErrIsDirectory,
	} {
		if r, err := f.Open(ctx, path, 0, -1); err == nil || kind != nil && !errors.Is(err, kind) {
			t.Errorf("reading %s: got %v, want %v", path, err, kind)
			if err == nil {
				r.Close()
			}
		}
		if path == "/dev/zero" || path == "/dev/tty" {
			continue // not what a test should try to replace
		}
		for _, add := range []bool{false, true} {
			if _, err := f.Write(ctx, path, strings.NewReader("x"), sandpit.WriteOptions{Append: add}); !errors.Is(err, kind) {
				t.Errorf("writing %s (append %t): got %v, want %v", path, add, err, kind)
			}
		}
	}
	for path, kind := range map[string]error{
		dir + "/fifo/x": sandpit.ErrNotDirectory, dir + "/nowhere": fs.ErrNotExist,
	} {
		_, err := f.Open(ctx, path, 0, -1)
		var pe *fs.PathError
		if !errors.Is(err, kind) || !errors.As(err, &pe) || pe.Path != path {
			t.Errorf("%s: got %v, want %v", path, err, kind)
		}
	}
}

func TestFilesOfProc(t *testing.T) {
	f := start(t).Files()
	if got := read(t, f, "/proc/version", 0, -1); !strings.HasPrefix(got, "Linux version") {
		t.Errorf("got %q", got)
	}
	if _, err := f.Open(t.Context(), "/proc/self/environ", 0, -1); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("the guest's own environment: got %v", err)
	}
}

func TestFileThatGrowsWhileItIsRead(t *testing.T) {
	f := start(t).Files()
	p := t.TempDir() + "/growing"
	write(t, f, p, strings.Repeat("x", 3<<20), sandpit.WriteOptions{})
	r, err := f.Open(t.Context(), p, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	write(t, f, p, strings.Repeat("y", 3<<20), sandpit.WriteOptions{Append: true})
	if n, err := io.Copy(io.Discard, r); err != nil || n != 3<<20 {
		t.Errorf("got %d, %v", n, err)
	}
}

func TestLinks(t *testing.T) {
	f := start(t).Files()
	dir := t.TempDir()
	ctx := t.Context()
	if err := f.Symlink(ctx, "target", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := f.Symlink(ctx, "other", dir+"/link"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v", err)
	}
	// Written through: the file it leads to is made, the link stays.
	write(t, f, dir+"/link", "content", sandpit.WriteOptions{})
	if got := read(t, f, dir+"/target", 0, -1); got != "content" {
		t.Errorf("got %q", got)
	}
	if got, err := f.Readlink(ctx, dir+"/link"); err != nil || got != "target" {
		t.Errorf("got %q, %v", got, err)
	}
	if st, err := f.Lstat(ctx, dir+"/link"); err != nil || st.Mode.Type() != fs.ModeSymlink || st.Target != "target" || st.Size != 6 {
		t.Errorf("got %+v, %v", st, err)
	}
	if st, err := f.Stat(ctx, dir+"/link"); err != nil || !st.Mode.IsRegular() || st.Target != "" {
		t.Errorf("got %+v, %v", st, err)
	}
	if err := f.Chmod(ctx, dir+"/link", 0o4711&0o777|fs.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if st, err := f.Stat(ctx, dir+"/target"); err != nil || st.Mode != 0o711|fs.ModeSetuid {
		t.Errorf("got %v, %v", st.Mode, err)
	}
	if err := f.Symlink(ctx, "loop", dir+"/loop"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(ctx, dir+"/loop", strings.NewReader(""), sandpit.WriteOptions{}); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("a loop: got %v", err)
	}
	if _, err := f.Readlink(ctx, dir+"/target"); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("readlink of a file: got %v", err)
	}
	if err := f.Remove(ctx, dir+"/link", true); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Stat(ctx, dir+"/target"); err != nil {
		t.Errorf("remove has followed a link: %v", err)
	}
}

func TestDirectories(t *testing.T) {
	f := start(t).Files()
	dir := t.TempDir()
	ctx := t.Context()
	for _, tc := range []struct {
		path    string
		parents bool
		kind    error
	}{
		{dir + "/a/b", false, fs.ErrNotExist},
		{dir + "/a/b/../c/", true, nil},
		{dir + "/a/b", true, nil},
		{dir + "/a", false, fs.ErrExist},
		{"/", true, nil},
		{"/dev/null/x", true, sandpit.ErrNotDirectory},
	} {
		if err := f.Mkdir(ctx, tc.path, 0o700, tc.parents); !errors.Is(err, tc.kind) {
			t.Errorf("%s: got %v, want %v", tc.path, err, tc.kind)
		}
	}
	write(t, f, dir+"/file", "x", sandpit.WriteOptions{})
	if err := f.Mkdir(ctx, dir+"/file", 0, true); !errors.Is(err, sandpit.ErrNotDirectory) {
		t.Errorf("a file in the way: got %v", err)
	}
	if err := f.Remove(ctx, dir+"/a", false); !errors.Is(err, sandpit.ErrNotEmpty) {
		t.Errorf("got %v, want ErrNotEmpty", err)
	}
	if err := f.Rename(ctx, dir+"/a", dir+"/moved"); err != nil {
		t.Error(err)
	}
	if err := f.Rename(ctx, dir+"/file", dir+"/moved"); !errors.Is(err, sandpit.ErrIsDirectory) {
		t.Errorf("got %v, want ErrIsDirectory", err)
	}
	for _, path := range []string{dir + "/moved/c", dir + "/moved/b", dir + "/moved/", dir + "/file"} {
		if err := f.Remove(ctx, path, false); err != nil {
			t.Error(err)
		}
	}
	if err := f.Remove(ctx, dir+"/file", false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want ErrNotExist", err)
	}
	if err := f.Remove(ctx, dir+"/file", true); err != nil {
		t.Errorf("got %v, want nil", err)
	}
}

func TestRemoveLargeTrees(t *testing.T) {
	testkit.NeedFull(t, "it waits for four seconds")
	f := start(t).Files()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	file := func(at int, name string) {
		t.Helper()
		fd, err := unix.Openat(at, name, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		must(err)
		unix.Close(fd)
	}
	// A wide one, with links out of it.
	must(os.MkdirAll(dir+"/tree/wide", 0o755))
	must(os.Mkdir(dir+"/keep", 0o755))
	must(os.WriteFile(dir+"/keep/this", nil, 0o644))
	must(os.Symlink(dir+"/keep", dir+"/tree/wide/link"))
	must(os.Symlink("/", dir+"/tree/root"))
	for i := range 2000 {
		file(unix.AT_FDCWD, fmt.Sprintf("%s/tree/wide/%d", dir, i))
	}
	for i := range 200 {
		must(os.Mkdir(fmt.Sprintf("%s/tree/wide/d%d", dir, i), 0o755))
		file(unix.AT_FDCWD, fmt.Sprintf("%s/tree/wide/d%d/x", dir, i))
	}
	// A deep one: deeper than what is remembered on the way.
	at, err := unix.Open(dir+"/tree", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(err)
	for i := range 4200 {
		must(unix.Mkdirat(at, "d", 0o755))
		if i%100 == 0 {
			file(at, "a")
			file(at, "z")
		}
		next, err := unix.Openat(at, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(err)
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	if err := f.Remove(within(t, 2*time.Minute), dir+"/tree", true); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir + "/tree"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(dir + "/keep/this"); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
}

func TestRights(t *testing.T) {
	testkit.NeedRoot(t, "to become another user")
	dir, err := os.MkdirTemp("/tmp", "rights")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	g := newGuest(t)
	conf := config()
	conf.User = "12345:54321"
	f := g.client(client.Options{Config: conf}).Files()
	ctx := t.Context()
	for path, mode := range map[string]os.FileMode{dir + "/secret": 0o600, dir + "/public": 0o644, dir + "/open": 0o666} {
		if err := os.WriteFile(path, []byte("x"), mode); err != nil {
			t.Fatal(err)
		}
		_ = os.Chmod(path, mode)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	denied := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: got %v, want ErrPermission", what, err)
		}
	}
	_, err = f.Open(ctx, dir+"/secret", 0, -1)
	denied("reading", err)
	_, err = f.Open(ctx, "/etc/shadow", 0, -1)
	denied("reading", err)
	_, err = f.Write(ctx, dir+"/public", strings.NewReader("y"), sandpit.WriteOptions{Append: true})
	denied("extending", err)
	_, err = f.Write(ctx, dir+"/new", strings.NewReader("y"), sandpit.WriteOptions{})
	denied("making", err)
	denied("removing", f.Remove(ctx, dir+"/public", false))
	denied("removing", f.Remove(ctx, dir+"/public", true))
	denied("chmod", f.Chmod(ctx, dir+"/open", 0o777))
	denied("mkdir", f.Mkdir(ctx, dir+"/d/e", 0, true))
	if _, err := f.Write(ctx, dir+"/open", strings.NewReader("y"), sandpit.WriteOptions{Append: true}); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	// The directory is open, but the file in it is not this user's to write.
	_, err = f.Write(ctx, dir+"/public", strings.NewReader("y"), sandpit.WriteOptions{})
	denied("replacing", err)
	write(t, f, dir+"/mine", "y", sandpit.WriteOptions{})
	if st, err := os.Stat(dir + "/mine"); err != nil || st.Sys().(*syscall.Stat_t).Uid != 12345 || st.Sys().(*syscall.Stat_t).Gid != 54321 {
		t.Errorf("the owner is %+v, %v", st.Sys(), err)
	}
}

func TestFullDisk(t *testing.T) {
	testkit.NeedRoot(t, "to mount a small file system")
	dir := t.TempDir()
	testkit.Tmpfs(t, dir, 0, "size=1m")
	f := start(t).Files()
	write(t, f, dir+"/file", "before", sandpit.WriteOptions{})
	_, err := f.Write(t.Context(), dir+"/file", io.LimitReader(zeros{}, 10<<20), sandpit.WriteOptions{})
	if !errors.Is(err, sandpit.ErrNoSpace) {
		t.Errorf("got %v, want ErrNoSpace", err)
	}
	if got := read(t, f, dir+"/file", 0, -1); got != "before" {
		t.Errorf("got %q", got)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		entries, _ := os.ReadDir(dir)
		if len(entries) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left over: %v", entries)
		}
	}
}

func TestWriteThatIsCalledOff(t *testing.T) {
	g := newGuest(t)
	dir := t.TempDir()
	f := g.client(client.Options{Config: config()}).Files()
	write(t, f, dir+"/file", "before", sandpit.WriteOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	_, err := f.Write(ctx, dir+"/file", readerFunc(func(b []byte) (int, error) {
		if n++; n == 20 {
			cancel()
		}
		return len(b), nil
	}), sandpit.WriteOptions{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	broken := errors.New("broken")
	if _, err := f.Write(t.Context(), dir+"/file", readerFunc(func([]byte) (int, error) { return 0, broken }), sandpit.WriteOptions{}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	// And one whose host dies.
	c := g.client(client.Options{})
	n = 0
	_, err = c.Files().Write(t.Context(), dir+"/file", readerFunc(func(b []byte) (int, error) {
		if n++; n == 20 {
			c.Close()
		}
		return len(b), nil
	}), sandpit.WriteOptions{})
	if !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("got %v", err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		entries, _ := os.ReadDir(dir)
		if len(entries) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left over: %v", entries)
		}
	}
	if got := read(t, f, dir+"/file", 0, -1); got != "before" {
		t.Errorf("got %q", got)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func TestReadThatIsCalledOff(t *testing.T) {
	f := start(t).Files()
	p := t.TempDir() + "/file"
	if err := os.WriteFile(p, make([]byte, 20<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, err := f.Open(ctx, p, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.Copy(discard{}, r); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	r.Close()
	r, err = f.Open(t.Context(), p, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if got := read(t, f, p, 0, 3); got != "\x00\x00\x00" {
		t.Errorf("the connection is broken: %q", got)
	}
}

// A guest that only the file system's second wall holds back.
func TestLandlock(t *testing.T) {
	dir := t.TempDir()
	allowed := dir + "/allowed"
	if err := os.Mkdir(allowed, 0o777); err != nil {
		t.Fatal(err)
	}
	g := newGuest(t)
	c := g.client(client.Options{Config: config()})
	for _, writable := range []string{allowed, dir} { // the second one takes nothing from the first
		ruleset := landlock(t, writable)
		defer unix.Close(ruleset)
		if _, _, err := g.boot.WriteMsgUnix([]byte{'l'}, unix.UnixRights(ruleset), nil); err != nil {
			t.Fatal(err)
		}
	}
	// It holds for a connection from before, from when a filter that is none is
	// answered: the guest takes these messages in order.
	if errno := g.filter(make([]byte, 16)); errno != 0 {
		t.Fatal(errno)
	}
	write(t, c.Files(), allowed+"/file", "x", sandpit.WriteOptions{})
	write(t, c.Files(), allowed+"/file", "y", sandpit.WriteOptions{})
	if _, err := c.Files().Write(t.Context(), dir+"/file", strings.NewReader("x"), sandpit.WriteOptions{}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v, want ErrPermission", err)
	}
	if err := c.Files().Mkdir(t.Context(), dir+"/d", 0, false); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v, want ErrPermission", err)
	}
	res, _, stderr := run(t, c, sandpit.Command{Script: "echo x >" + allowed + "/p && ! echo x >" + dir + "/p"})
	if res.ExitCode != 0 {
		t.Errorf("got %+v, %s", res, stderr)
	}
}

// A guest that can't load a filter that it is told to load answers why and ends.
func TestFilterThatIsNone(t *testing.T) {
	g := newGuest(t)
	if errno := g.filter(make([]byte, 24)); errno != unix.EINVAL { // SECCOMP_SET_MODE_STRICT, of which there is none with arguments
		t.Errorf("got %v, want EINVAL", errno)
	}
	if err := g.cmd.Wait(); err == nil {
		t.Error("the guest goes on without the filter")
	}
}

// filter gives the guest a filter to load, and returns what it answers.
func (g *testGuest) filter(message []byte) syscall.Errno {
	g.t.Helper()
	ours, theirs := socketpair(g.t, unix.SOCK_SEQPACKET)
	defer ours.Close()
	_, err := ours.Write(message)
	if err == nil {
		_, _, err = g.boot.WriteMsgUnix([]byte{'f'}, unix.UnixRights(int(theirs.Fd())), nil)
	}
	theirs.Close()
	answer := make([]byte, 8)
	n := 0
	if err == nil {
		n, err = ours.Read(answer)
	}
	if err != nil || n != 4 {
		g.t.Fatalf("the guest answers %x, %v", answer[:n], err)
	}
	return syscall.Errno(binary.LittleEndian.Uint32(answer))
}

// landlock makes a ruleset that allows writing below dir only (landlock(7)).
func landlock(t *testing.T, dir string) int {
	t.Helper()
	const writes = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	attr := unix.LandlockRulesetAttr{Handled_access_fs: writes}
	// The size of the first version of the attribute: later kernels take it too.
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), 8, 0)
	if errno != 0 {
		testkit.Need(t, "a kernel with Landlock", errno)
	}
	parent, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(parent)
	rule := unix.LandlockPathBeneathAttr{Allowed_access: writes, Parent_fd: int32(parent)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, fd, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	return int(fd)
}

// A guest that does not know file work as another user, and so would ignore the user, is not
// asked; if it is asked, it refuses.
func TestFilesAsAnOlderGuest(t *testing.T) {
	g := newGuest(t)
	for name, older := range map[string]func(h *wire.Header, payload []byte, fromGuest bool) []byte{
		"by its greeting": func(h *wire.Header, payload []byte, fromGuest bool) []byte {
			return greeting(t, h, payload, fromGuest, wire.FeatureAs)
		},
		"by the operation": func(h *wire.Header, payload []byte, _ bool) []byte {
			if h.Type == wire.Open && wire.Op(payload[0]) == wire.OpAs {
				payload[0] = 250
			}
			return payload
		},
	} {
		c := changed(t, g, older)
		file := t.TempDir() + "/f"
		if _, err := c.Files().As("0").Write(within(t, time.Minute), file, strings.NewReader("x"), sandpit.WriteOptions{}); !errors.Is(err, sandpit.ErrUnsupported) {
			t.Errorf("%s: got %v", name, err)
		}
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s: the file was written", name)
		}
		write(t, c.Files(), file, "x", sandpit.WriteOptions{})
		c.Close()
	}
}

// A guest that does not know root's rights for another user is not asked for them: the user's own rights count.
func TestRootFilesOfAnOlderGuest(t *testing.T) {
	asked := make(chan bool, 1)
	c := changed(t, newGuest(t), func(h *wire.Header, payload []byte, fromGuest bool) []byte {
		if h.Type == wire.Open && wire.Op(payload[0]) == wire.OpAs {
			var m wire.As
			if err := m.Decode(payload[1:]); err != nil {
				t.Error(err)
			}
			asked <- m.Root
		}
		return greeting(t, h, payload, fromGuest, wire.FeatureAsRoot)
	})
	defer c.Close()
	_, err := c.RootFiles("0").Stat(within(t, time.Minute), "/")
	if <-asked {
		t.Error("it was asked")
	}
	if err != nil && !errors.Is(err, sandpit.ErrUnsupported) { // only one user exists here
		t.Error(err)
	}
}

// A guest that does not know writes in place, and so would replace the file, is not asked, and
// neither is one for attributes that it does not know. If it is asked, it refuses.
func TestAttributesOfAnOlderGuest(t *testing.T) {
	g := newGuest(t)
	file := t.TempDir() + "/f"
	c := changed(t, g, func(h *wire.Header, payload []byte, fromGuest bool) []byte {
		return greeting(t, h, payload, fromGuest, wire.FeatureInPlace|wire.FeatureAttrs)
	})
	write(t, c.Files(), file, "content", sandpit.WriteOptions{})
	for _, f := range []sandpit.Files{c.Files(), c.Files().As("0")} {
		if _, err := f.Write(within(t, time.Minute), file, strings.NewReader("x"), sandpit.WriteOptions{InPlace: true, Offset: 3}); !errors.Is(err, sandpit.ErrUnsupported) || sandpit.Hint(err) == "" {
			t.Errorf("a write in place: %v", err)
		}
		if _, err := f.Write(within(t, time.Minute), file, strings.NewReader("x"), sandpit.WriteOptions{Xattrs: map[string]string{"k": "v"}}); !errors.Is(err, sandpit.ErrUnsupported) || sandpit.Hint(err) == "" {
			t.Errorf("a write with attributes: %v", err)
		}
		if err := f.SetAttr(within(t, time.Minute), file, sandpit.FileAttr{Size: new(int64(0))}); !errors.Is(err, sandpit.ErrUnsupported) || sandpit.Hint(err) == "" {
			t.Errorf("a change of attributes: %v", err)
		}
	}
	c.Close()
	c = changed(t, g, func(h *wire.Header, payload []byte, _ bool) []byte {
		if h.Type == wire.Open && wire.Op(payload[0]) == wire.OpSetAttr {
			var m wire.SetAttr
			if err := m.Decode(payload[1:]); err != nil {
				t.Error(err)
			}
			m.Attrs |= 1 << 40 // of a later version
			return m.Append([]byte{byte(wire.OpSetAttr)})
		}
		return payload
	})
	if err := c.Files().SetAttr(within(t, time.Minute), file, sandpit.FileAttr{Size: new(int64(0))}); !errors.Is(err, sandpit.ErrUnsupported) {
		t.Errorf("an unknown attribute: %v", err)
	}
	c.Close()
	if b, err := os.ReadFile(file); err != nil || string(b) != "content" {
		t.Errorf("the file is %q, %v", b, err)
	}
}

// greeting is for changed: it takes features from what the guest says that it knows.
func greeting(t *testing.T, h *wire.Header, payload []byte, fromGuest bool, without uint64) []byte {
	var m wire.HelloMessage
	if h.Type != wire.Hello || !fromGuest {
		return payload
	}
	if err := m.Decode(payload); err != nil {
		t.Error(err)
	}
	m.Features &^= without
	return m.Append(nil)
}

// changed returns a client of a guest whose frames, and those to it, pass through a function.
func changed(t *testing.T, g *testGuest, change func(h *wire.Header, payload []byte, fromGuest bool) []byte) *client.Client {
	t.Helper()
	ours, theirs := net.Pipe()
	real := g.dial()
	pass := func(to, from net.Conn, fromGuest bool) {
		defer to.Close()
		r := wire.NewReader(from)
		for {
			h, err := r.Next()
			if err != nil {
				return
			}
			payload := make([]byte, h.Len)
			if r.Into(payload) != nil {
				return
			}
			if _, err := to.Write(wire.AppendFrame(nil, h.Type, h.Stream, change(&h, payload, fromGuest))); err != nil {
				return
			}
		}
	}
	go pass(real, theirs, false)
	go pass(theirs, real, true)
	c, err := client.New(within(t, time.Minute), ours, client.Options{Config: config()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A request that is not a file operation, or names no user, is refused, and content that follows a
// refusal does no harm.
func TestFilesAsMalformed(t *testing.T) {
	g := newGuest(t)
	g.client(client.Options{Config: config()})
	conn := g.dial()
	defer conn.Close()
	hello := wire.HelloMessage{Version: wire.Version, MinVersion: wire.MinVersion, Window: wire.HostWindow}
	out := wire.AppendFrame(nil, wire.Hello, 0, hello.Append(nil))
	path := string((&wire.Path{Path: "/"}).Append(nil))
	messages := []wire.As{
		{User: "0", Op: uint64(wire.OpStart), Message: path},
		{User: "0", Op: uint64(wire.OpAs), Message: path},
		{User: "0", Op: uint64(wire.OpDial), Message: path},
		{User: "0", Op: 256 + uint64(wire.OpStat), Message: path},
		{User: "0", Op: 1 << 63, Message: path},
		{Op: uint64(wire.OpStat), Message: path},
		{User: "no-such-user", Op: uint64(wire.OpUnpack), Message: path},
		{User: "no-such-user", Op: uint64(wire.OpWrite), Message: path},
		{User: "0:0", Op: uint64(wire.OpWrite), Message: "\xff"},
		{},
	}
	for i, m := range messages {
		id := uint32(i + 1)
		out = wire.AppendFrame(out, wire.Open, id, m.Append([]byte{byte(wire.OpAs)}))
		if m.Op == uint64(wire.OpUnpack) || m.Op == uint64(wire.OpWrite) {
			out = wire.AppendFrame(out, wire.Data, id, []byte("content"))
			out = wire.AppendFrame(out, wire.EOF, id, nil)
		}
	}
	last := uint32(len(messages) + 1)
	out = wire.AppendFrame(out, wire.Open, last, []byte{byte(wire.OpAs), 0x80})
	if _, err := conn.Write(out); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	r := wire.NewReader(conn)
	refused := map[uint32]bool{}
	for len(refused) < int(last) {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("after %d of %d refusals: %v", len(refused), last, err)
		}
		b, err := r.Message(h.Len)
		switch {
		case err != nil:
			t.Fatal(err)
		case h.Type == wire.Error && h.Stream == 0:
			t.Fatalf("the connection ends: %q", b)
		case h.Type == wire.Error:
			refused[h.Stream] = true
		case h.Type == wire.Reply:
			t.Fatalf("stream %d is answered: %q", h.Stream, b)
		}
	}
}
