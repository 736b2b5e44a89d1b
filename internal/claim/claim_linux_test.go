package claim_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/claim"
)

func TestClaims(t *testing.T) {
	file := filepath.Join(t.TempDir(), "made", "claims")
	open := func() int {
		t.Helper()
		fd, err := claim.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	a, b := open(), open()
	defer unix.Close(b)
	for _, n := range []int64{0, 4093, 1<<63 - 2} {
		if err := claim.Take(a, n); err != nil {
			t.Fatal(err)
		}
		if err := claim.Take(b, n); !errors.Is(err, claim.ErrTaken) {
			t.Errorf("claim %d was taken twice: %v", n, err)
		}
	}
	if err := claim.Take(b, 1); err != nil {
		t.Errorf("a claim beside those taken: %v", err)
	}
	if err := claim.Drop(a, 4093); err != nil {
		t.Fatal(err)
	}
	if err := claim.Take(b, 4093); err != nil {
		t.Errorf("one that was given back: %v", err)
	}
	unix.Close(a)
	if err := claim.Take(b, 0); err != nil {
		t.Errorf("one whose holder has closed its descriptor: %v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || info.Size() != 0 {
		t.Errorf("the file is %v, %v", info, err)
	}
}

// TestNoLinkIsFollowed: where others may write to the directory, a link leads
// nowhere.
func TestNoLinkIsFollowed(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "claims")
	if err := os.Symlink(filepath.Join(dir, "target"), link); err != nil {
		t.Fatal(err)
	}
	if fd, err := claim.Open(link); err == nil {
		unix.Close(fd)
		t.Error("a link was followed")
	}
	if _, err := os.Stat(filepath.Join(dir, "target")); !os.IsNotExist(err) {
		t.Errorf("a file was made behind the link: %v", err)
	}
}

// What others have made or may change is refused by name: they could hold all
// claims, or replace the file.
func TestFilesOfOthers(t *testing.T) {
	for want, spoil := range map[string]func(dir, file string) error{
		"locks is writable by other users": func(dir, _ string) error { return os.Chmod(dir, 0o777) },
		"ids is accessible to other users": func(_, file string) error { return os.Chmod(file, 0o604) },
		"locks belongs to another user":    func(dir, _ string) error { return os.Chown(dir, 12345, 12345) },
		"ids belongs to another user":      func(_, file string) error { return os.Chown(file, 12345, 12345) },
	} {
		if os.Geteuid() != 0 && strings.Contains(want, "another user") {
			t.Logf("only root can give a file away: %q is tried where the tests run as root", want)
			continue
		}
		file := filepath.Join(t.TempDir(), "locks", "ids")
		fd, err := claim.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		if err := spoil(filepath.Dir(file), file); err != nil {
			t.Fatal(err)
		}
		fd, err = claim.Open(file)
		if err == nil {
			unix.Close(fd)
		}
		if !errors.Is(err, sandpit.ErrForbidden) || !strings.HasSuffix(err.Error(), want) || sandpit.Hint(err) == "" {
			t.Errorf("got %v, want that %s", err, want)
		}
	}
}
