package state

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/groupcommit"
)

// On a disk that hangs, calls of the state fail after 10 s, and at once from then on,
// whether they write, read or settle. A caller that leaves before its turn does not
// wait. When the disk goes on, so does the state.
// (The catalogue's L13l.)
func TestDiskThatHangs(t *testing.T) {
	s := openTest(t, t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		released := make(chan struct{})
		s.queue = groupcommit.New(maxTogether, func(items []*groupcommit.Item[write]) {
			<-released
			s.commit(items)
		})
		began := time.Now()
		first, leaver := make(chan error, 1), make(chan error, 1)
		go func() { first <- s.PutSandbox(t.Context(), record(1)) }()
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		go func() { leaver <- s.PutSandbox(ctx, record(2)) }()
		synctest.Wait()
		leave()
		if err := <-leaver; !errors.Is(err, context.Canceled) || time.Since(began) != 0 {
			t.Errorf("who leaves has waited for %s: %v", time.Since(began), err)
		}
		hangs := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), "does not respond") || sandpit.Hint(err) != hintHangs {
				t.Errorf("%s: %v", what, err)
			}
			if took := time.Since(began); took != groupcommit.Patience {
				t.Errorf("%s: answered after %s", what, took)
			}
		}
		hangs("writing", <-first)
		hangs("writing again", s.PutSandbox(t.Context(), record(3)))
		hangs("a vital write", s.DeleteSandbox(t.Context(), record(1).ID))
		hangs("settling", s.Settle(t.Context()))
		_, err := s.WebhooksOf(t.Context(), "namespace")
		hangs("reading", err)
		close(released)
		synctest.Wait()
		if err := s.Settle(t.Context()); err != nil {
			t.Error(err)
		}
		if all, err := s.Sandboxes(t.Context()); err != nil || len(all) != 1 || all[0].ID != record(1).ID {
			t.Errorf("there are %v, %v", all, err)
		}
	})
}
