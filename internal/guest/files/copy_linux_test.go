package files

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestCopyKeepsHoles: a copy has the content and the size of its original, and takes no more room.
func TestCopyKeepsHoles(t *testing.T) {
	const size = 1 << 30
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	f, err := os.Create(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := bytes.Repeat([]byte("x"), 64<<10)
	for _, at := range []int64{1 << 20, size / 2} {
		if _, err := f.WriteAt(block, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if err := copyTree(from, to, false, func() bool { return false }); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(to, &st); err != nil || st.Size != size || st.Blocks*512 > 8<<20 {
		t.Errorf("the copy has %d bytes in %d blocks, %v", st.Size, st.Blocks, err)
	}
	g, err := os.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for at, want := range map[int64][]byte{0: make([]byte, len(block)), 1 << 20: block, 1<<20 + int64(len(block)): make([]byte, len(block)), size / 2: block, size - int64(len(block)): make([]byte, len(block))} {
		got := make([]byte, len(block))
		if _, err := g.ReadAt(got, at); err != nil || !bytes.Equal(got, want) {
			t.Errorf("at %d the copy differs, %v", at, err)
		}
	}
}

// TestCopyFollowsNoLink: a file that is replaced by a link while it is copied is not followed.
func TestCopyFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	secret, name, link, to := filepath.Join(dir, "secret"), filepath.Join(dir, "name"), filepath.Join(dir, "link"), filepath.Join(dir, "to")
	for path, text := range map[string]string{secret: "secret", name: "own"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, name, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	defer func() { close(stop); <-done }()
	copied := 0
	for range 5000 {
		err := copyTree(name, to, false, func() bool { return false })
		if err != nil && err != unix.ELOOP && err != unix.EINVAL { // it was a file before, or a link
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err != nil || unix.Lstat(to, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			_ = os.Remove(to)
			continue
		}
		copied++
		if text, err := os.ReadFile(to); err != nil || string(text) != "own" {
			t.Fatalf("the copy has %q, %v", text, err)
		}
	}
	if copied == 0 {
		t.Error("nothing was copied")
	}
}

// TestCopyOfProc: a file that says it is empty is copied as well.
func TestCopyOfProc(t *testing.T) {
	to := filepath.Join(t.TempDir(), "to")
	if err := copyTree("/proc/version", to, false, func() bool { return false }); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("/proc/version")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestCopyOfGrowing: the copy of a file that grows has what it had at the start.
func TestCopyOfGrowing(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	want := bytes.Repeat([]byte("x"), 1<<20)
	if err := os.WriteFile(from, want, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(from, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	grow := func() bool {
		if _, err := f.Write(make([]byte, 2*maxUnsized)); err != nil {
			t.Error(err)
		}
		return false
	}
	if err := copyTree(from, to, false, grow); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(to); err != nil || !bytes.HasPrefix(got, want) {
		t.Errorf("the copy has %d bytes, %v", len(got), err)
	}
}

// TestCopyOfLargeAttributes: attributes that the other file system has no place for do not fail a copy.
func TestCopyOfLargeAttributes(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "sandpit-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	from, to := filepath.Join(dir, "from"), filepath.Join(t.TempDir(), "to")
	if err := os.WriteFile(from, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(from, "user.big", make([]byte, 30_000), 0); err != nil && err != unix.EOPNOTSUPP {
		t.Fatal(err)
	}
	never := func() bool { return false }
	if err := copyTree(from, to, false, never); err != nil {
		t.Errorf("copy: %v", err)
	}
	if err := move(from, to+"2", never); err != nil {
		t.Errorf("move: %v", err)
	}
}

// TestMoveEnds: what a move removes is bounded by what it has copied, whatever others make there meanwhile.
func TestMoveEnds(t *testing.T) {
	dir := t.TempDir()
	dirfd, err := openDir(unix.AT_FDCWD, dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dirfd)
	fill := func(n int) string {
		tree := filepath.Join(dir, "tree"+strconv.Itoa(n))
		for i := range n {
			if i%100 == 0 {
				if err := os.MkdirAll(filepath.Join(tree, strconv.Itoa(i/100)), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(tree, strconv.Itoa(i/100), strconv.Itoa(i)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return filepath.Base(tree)
	}
	if err := (&copier{}).remove(dirfd, fill(strangers+1000)); err != unix.EBUSY && err != unix.ENOTEMPTY {
		t.Errorf("a tree of others: got %v", err)
	}
	if err := (&copier{entries: strangers}).remove(dirfd, fill(strangers+500)); err != nil {
		t.Errorf("its own tree: got %v", err)
	}
}

// TestTimesBeyondRange: times that 64 bits of nanoseconds can't tell do not become others.
func TestTimesBeyondRange(t *testing.T) {
	for _, tt := range []struct {
		at   unix.Timespec
		want int64
	}{
		{unix.Timespec{Sec: 1 << 34}, math.MaxInt64},
		{unix.Timespec{Sec: math.MaxInt64, Nsec: 999_999_999}, math.MaxInt64},
		{unix.Timespec{Sec: -1 << 34}, math.MinInt64},
		{unix.Timespec{Sec: math.MinInt64}, math.MinInt64},
		{unix.Timespec{Sec: -1, Nsec: 5}, -int64(time.Second) + 5},
		{unix.Timespec{Sec: 9_000_000_000, Nsec: 5}, 9_000_000_000*int64(time.Second) + 5},
	} {
		if got := nanoseconds(tt.at); got != tt.want {
			t.Errorf("%+v is %d, want %d", tt.at, got, tt.want)
		}
	}
}
