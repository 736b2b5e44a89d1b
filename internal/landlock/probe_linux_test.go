package landlock

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

func TestVersion(t *testing.T) {
	for _, tt := range []struct {
		n     int
		errno unix.Errno
		want  int
	}{
		{MinABI, 0, MinABI},
		{7, 0, 7},
		{1, 0, 0}, // Linux 5.13 to 5.18
		{-1, unix.ENOSYS, 0},
		{-1, unix.EOPNOTSUPP, 0},
		{-1, unix.EPERM, 0},
	} {
		got, err := version(tt.n, tt.errno)
		if got != tt.want || (err == nil) != (tt.want > 0) {
			t.Errorf("%d, %v: got %d, %v", tt.n, tt.errno, got, err)
		}
		if err != nil && (!errors.Is(err, sandpit.ErrUnsupported) || sandpit.Hint(err) == "") {
			t.Errorf("%d, %v: error without kind or hint: %v", tt.n, tt.errno, err)
		}
	}
}
