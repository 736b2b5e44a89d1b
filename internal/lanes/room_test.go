package lanes

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"
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
		t.Error("Close did not report which call was the first")
	}
	r.Give(7)
	if err := <-waiting; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Take returned %v", err)
	}
}

// Settle waits for the receiver, and for no other reason than those that it names.
func TestRoomSettles(t *testing.T) {
	r := NewRoom(10)
	r.Settle(time.Hour) // nothing was sent
	if n, err := r.Take(4); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	r.Settle(time.Nanosecond) // it is not consumed
	go r.Give(4)
	r.Settle(time.Hour)
	if n, err := r.Take(10); n != 10 || err != nil {
		t.Errorf("it has settled with %d bytes consumed, %v", n, err)
	}
	go r.Close(io.ErrClosedPipe)
	r.Settle(time.Hour)
}
