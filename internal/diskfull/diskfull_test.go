package diskfull_test

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/diskfull"
)

// A full disk and a used-up quota are recognised in wrapped errors, and Mark keeps
// the text.
func TestDiskFull(t *testing.T) {
	for errno, want := range map[syscall.Errno]bool{syscall.ENOSPC: true, syscall.EDQUOT: true, syscall.EIO: false} {
		err := fmt.Errorf("writing: %w", &fs.PathError{Op: "write", Path: "x", Err: errno})
		if got := diskfull.Is(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
		marked := diskfull.Mark(err)
		if marked.Error() != err.Error() || !errors.Is(marked, errno) || !errors.Is(marked, sandpit.ErrDiskFull) || !errors.Is(marked, sandpit.ErrExhausted) {
			t.Errorf("marked, it is %v", marked)
		}
	}
}
