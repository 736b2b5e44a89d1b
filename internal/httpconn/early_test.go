package httpconn_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit/internal/httpconn"
)

// broken is a connection that nothing can be written to, and that is read of a pipe.
type broken struct{ net.Conn }

var errBroken = errors.New("broken")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

// A write that fails waits for the end of what can be read, and no longer than a
// second.
func TestFailureWaitsForTheAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(ours, theirs net.Conn)
		after time.Duration
	}{
		"an answer, and the end": {func(_, theirs net.Conn) {
			_, _ = io.WriteString(theirs, "answer")
			time.Sleep(300 * time.Millisecond)
			_ = theirs.Close()
		}, 300 * time.Millisecond},
		"the end":         {func(_, theirs net.Conn) { _ = theirs.Close() }, 0},
		"closed by us":    {func(ours, _ net.Conn) { _ = ours.Close() }, 0},
		"nothing follows": {func(_, _ net.Conn) {}, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				plain, theirs := net.Pipe()
				ours := httpconn.HearAnswer(broken{plain})
				go func() { _, _ = io.Copy(io.Discard, ours) }()
				go c.end(ours, theirs)
				began := time.Now()
				if _, err := ours.Write([]byte("question")); !errors.Is(err, errBroken) || time.Since(began) != c.after {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
				_ = ours.Close()
				_ = theirs.Close()
			})
		})
	}
}
