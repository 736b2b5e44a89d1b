package linux_test

import (
	"errors"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestDeathIsExplained: a sandbox whose guest has ended says how, with what the guest
// said last, to whoever uses it and in its state.
func TestDeathIsExplained(t *testing.T) {
	c := client(t, options())
	const pids = 40
	for _, tt := range []struct {
		name string
		end  func(t *testing.T, sb sandpit.Sandbox, guest int)
		want string
	}{
		{"killed", func(t *testing.T, _ sandpit.Sandbox, guest int) {
			if err := unix.Kill(guest, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}, "killed by signal 9"},
		// The runtime of Go ends in the same way when it gets no memory, or no epoll.
		{"without a thread", func(t *testing.T, sb sandpit.Sandbox, _ int) {
			if !newDriver().Probe(t.Context()).Features[feature.Pids] {
				testkit.Lacks(t, "a limit of processes")
			}
			if _, err := sb.Start(t.Context(), sandpit.Command{Script: "while sleep 1000 & do :; done"}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "there is room for no more", func() bool { m, err := sb.Metrics(t.Context()); return err == nil && m.Pids >= pids-2 })
			for range pids { // each takes a thread
				next, stop := iter.Pull2(sb.Files().Watch(t.Context(), "/tmp", true))
				t.Cleanup(stop)
				if _, err, _ := next(); err != nil {
					return
				}
			}
			t.Error("it has as many threads as it likes")
		}, "exit status 2: runtime: failed to create new OS thread"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := descendants(os.Getpid())
			sb, err := c.Create(t.Context(), sandpit.Spec{Limits: sandpit.Limits{Pids: pids}})
			testkit.Made(t, err)
			t.Cleanup(func() { _ = sb.Remove(t.Context()) })
			for _, pid := range descendants(os.Getpid()) {
				if isGuest(pid) && !slices.Contains(before, pid) {
					tt.end(t, sb, pid)
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
