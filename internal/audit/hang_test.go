package audit

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/groupcommit"
)

// A disk that hangs keeps nobody waiting for longer than Append says, whoever asks
// and however often; when it goes on, what was being written is in the audit, and so
// is what comes after it. (The catalogue's L13g.)
func TestDiskThatHangs(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l := openTest(t, dir, Options{})
		before, released := l.last.seq, make(chan struct{})
		l.queue = groupcommit.New(maxTogether, func(items []*groupcommit.Item[entry]) {
			<-released
			l.write(items)
		})
		began := time.Now()
		const callers = 5
		answers := make(chan error, callers)
		for n := range callers {
			go func() {
				_, err := l.Append(t.Context(), call(n))
				answers <- err
			}()
			synctest.Wait()
		}
		var late []interface{ Wait() error } // of those that may be written later
		for range callers {
			err := <-answers
			if l := (interface{ Wait() error })(nil); errors.As(err, &l) {
				late = append(late, l)
			}
			if !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), "does not respond") {
				t.Errorf("got %v", err)
			}
		}
		if took := time.Since(began); took != groupcommit.Patience || !l.Hangs() {
			t.Errorf("it took %s; that it hangs is said: %v", took, l.Hangs())
		}
		vital := call(callers)
		vital.Vital = true
		if _, err := l.Append(t.Context(), vital); !errors.Is(err, sandpit.ErrUnavailable) || time.Since(began) != groupcommit.Patience {
			t.Errorf("the next one after %s: %v", time.Since(began), err)
		}
		close(released)
		synctest.Wait()
		if l.Hangs() {
			t.Error("it hangs still")
		}
		if len(late) != 1 || late[0].Wait() != nil {
			t.Errorf("%d may be written late, or it is not said that they are", len(late))
		}
		if _, err := l.Append(t.Context(), call(callers)); err != nil {
			t.Error(err)
		}
		if l.last.seq != before+2 {
			t.Errorf("there are %d records more", l.last.seq-before)
		}
	})
	verify(t, dir)
}
