package claim_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

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
