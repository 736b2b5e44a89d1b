package linux_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestDeathIsExplained: a sandbox whose guest has ended says how, with what the guest
// said last, to whoever uses it and in its state.
func TestDeathIsExplained(t *testing.T) {
	opt := options()
	opt.Guest = nil // this test program
	c := client(t, opt)
	for _, tt := range []struct {
		name   string
		signal unix.Signal
		want   string
	}{
		{"killed", unix.SIGKILL, "killed by signal 9"},
		// The Go runtime speaks in the same way when it gets no memory, thread or epoll.
		{"a panic", guestPanics, "exit status 2: panic: asked to"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := descendants(os.Getpid())
			sb, err := c.Create(t.Context(), sandpit.Spec{})
			testkit.Made(t, err)
			t.Cleanup(func() { _ = sb.Remove(t.Context()) })
			for _, pid := range descendants(os.Getpid()) {
				if isGuest(pid) && !slices.Contains(before, pid) {
					if err := unix.Kill(pid, tt.signal); err != nil {
						t.Fatal(err)
					}
				}
			}
			eventually(t, "the sandbox has failed", func() bool {
				info, err := sb.Info(t.Context())
				return err == nil && info.State == sandpit.StateFailed
			})
			_, err = sandpit.Exec(t.Context(), sb, "true")
			if !errors.Is(err, sandpit.ErrClosed) {
				t.Errorf("the error is %v", err)
			}
			info, ierr := sb.Info(t.Context())
			if ierr != nil {
				t.Fatal(ierr)
			}
			for _, want := range []string{"its guest has died (", tt.want} {
				if !strings.Contains(info.Reason, want) || !strings.Contains(err.Error(), want) {
					t.Errorf("nothing says %q: %q, %v", want, info.Reason, err)
				}
			}
		})
	}
}
