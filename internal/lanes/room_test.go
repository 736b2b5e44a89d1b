package lanes

import (
	"errors"
	"io"
	"os"
	"testing"
)

func TestRoom(t *testing.T) {
	const window = 100
	r := NewRoom(window)
	if n, err := r.Take(window + 1); n != window || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	r.Give(3)
	if n, err := r.Take(5); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	r.Give(1 << 31) // more than there ever was
	r.Give(1<<32 - 1)
	if n, err := r.Take(2 * window); n != window || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := r.Take(1)
		waiting <- err
	}()
	if !r.Close(io.ErrClosedPipe) || r.Close(os.ErrClosed) {
		t.Error("the first that closes it is not told apart")
	}
	r.Give(7)
	if err := <-waiting; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("who waits is told %v", err)
	}
}
