package diskfull

import (
	"os"
	"path/filepath"
	"testing"
)

// A reserve has its room until it is released, and again when it is restored, also
// after a program that was killed in between.
func TestReserve(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reserve")
	size := func() int64 {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("its mode is %v", info.Mode())
		}
		return info.Size()
	}
	f := OpenReserve(path)
	if size() != ReserveSize {
		t.Errorf("it has %d bytes", size())
	}
	f.Release()
	if size() != 0 {
		t.Errorf("when it is released it has %d bytes", size())
	}
	f.Restore()
	if size() != ReserveSize {
		t.Errorf("when it is restored it has %d bytes", size())
	}
	if err := os.Truncate(path, 5000); err != nil { // by one that was killed
		t.Fatal(err)
	}
	f.Restore()
	if size() != 5000 {
		t.Error("it is looked at although nobody has released it")
	}
	if OpenReserve(path); size() < ReserveSize || size() > ReserveSize+4096 {
		t.Errorf("when it is opened again it has %d bytes", size())
	}

	// Where none can be had, nothing fails, and it is tried again.
	dir := filepath.Join(t.TempDir(), "later")
	path = filepath.Join(dir, "reserve")
	f = OpenReserve(path)
	f.Release()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f.Restore()
	if size() != ReserveSize {
		t.Errorf("when there is a place for it it has %d bytes", size())
	}
}
