package files

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// However many and large the attributes of a file are, those that are read fit a message.
func TestAttributesAreBounded(t *testing.T) {
	path := t.TempDir() + "/f"
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	set := func(name string, size int) {
		if err := unix.Setxattr(path, name, make([]byte, size), 0); err == unix.EOPNOTSUPP {
			testkit.Need(t, "a file system with extended attributes", err)
		} else if err != nil && err != unix.ENOSPC {
			t.Fatal(err)
		}
	}
	set("user.large", 5000)
	for i := range 100 {
		set("user."+strings.Repeat("n", 100)+strconv.Itoa(i), i%2*60)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	got := xattrs(path, &st)
	if len(got) == 0 || len(got) > wire.MaxAttrs || wire.AttrBytes(got) > wire.MaxAttrBytes {
		t.Fatalf("%d attributes of %d bytes", len(got), wire.AttrBytes(got))
	}
	var m wire.Described
	if err := m.Decode((&wire.Described{File: wire.File{Attrs: got}}).Append(nil)); err != nil || len(m.Attrs) != len(got) {
		t.Errorf("%d of %d attributes arrive: %v", len(m.Attrs), len(got), err)
	}
}

// A file system without attributes is named as what refuses them.
func TestAttributesThatCannotBeStored(t *testing.T) {
	f, err := os.OpenFile("/proc/self/comm", os.O_WRONLY, 0) // a regular file; procfs has none
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = setXattrs(int(f.Fd()), []wire.Attr{{Name: "e2b.k", Value: "v"}})
	var m *wire.ErrorMessage
	if !errors.As(err, &m) || m.Code != wire.CodeUnsupported || !strings.Contains(m.Text, `"user.e2b.k"`) {
		t.Errorf("got %v", err)
	}
}
