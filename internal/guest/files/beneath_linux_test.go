package files

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// walkBeneath finds what openat2 finds, and fails where that does.
func TestWalkBeneath(t *testing.T) {
	dir := t.TempDir()
	root := dir + "/root"
	for _, d := range []string{root + "/a/b/c", dir + "/outside"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{root + "/f", root + "/a/b/g", dir + "/outside/secret"} {
		if err := os.WriteFile(f, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"l": "a/b", "a/up": "../f", "a/b/deep": "../../l/./c", "out": "../outside", "abs": "/etc", "a/b/out": "../../../outside/secret",
		"loop": "loop", "gone": "nowhere", "chain": "l/deep/../g", "tof": "f", "round": "a/../../root/f",
	} {
		if err := os.Symlink(target, root+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	// What is found, by its number, and an error.
	look := func(fd int, err error) (uint64, error) {
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		return st.Ino, err
	}
	found := 0
	for _, path := range []string{
		".", "a", "a/b/c", "./a//b/./g", "a/..", "a/b/../../f", "..", "a/../..", "a/../../root", "f", "f/x", "f/..", "l", "l/c", "a/up", "a/b/deep",
		"out", "out/secret", "abs", "abs/passwd", "a/b/out", "loop", "loop/x", "gone", "chain", "tof", "tof/x", "round", "nothing", "nothing/x", "l/../f",
		"/etc", "a/b/deep/../g", strings.Repeat("a/../", 50) + "f", strings.Repeat("l/../../", 41) + "f",
	} {
		for _, flags := range []int{0, unix.O_NOFOLLOW, unix.O_DIRECTORY, unix.O_DIRECTORY | unix.O_NOFOLLOW} {
			how := unix.OpenHow{Flags: uint64(flags) | unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
			wantIno, wantErr := look(unix.Openat2(fd, path, &how))
			ino, err := look(walkBeneath(fd, path, flags))
			if ino != wantIno || err != wantErr {
				t.Errorf("%q with flags %#x: got %d, %v, want %d, %v", path, flags, ino, err, wantIno, wantErr)
			}
			if err == nil {
				found++
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d were found: this tries nothing", found)
	}
}
