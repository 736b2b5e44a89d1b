package linux

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A process that the kernel does not finish making holds up no other: another
// thread makes those. (The catalogue's L13b.)
func TestStuckThreadIsReplaced(t *testing.T) {
	var p parent
	began, end := make(chan struct{}), make(chan struct{})
	stuck := make(chan *thread)
	go func() {
		th, _ := p.run(func() error {
			close(began)
			<-end
			return nil
		})
		stuck <- th
	}()
	<-began
	var threads [2]int
	for i := range threads {
		th, err := p.run(func() error {
			threads[i] = unix.Gettid()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		defer th.release()
	}
	if threads[0] != threads[1] {
		t.Error("each has a thread of its own")
	}
	close(end)
	(<-stuck).release()
	if p.now == nil {
		t.Error("the thread that took its place has gone with it")
	}
}

// Numbers of descriptors that somebody never gives back hold up nobody either.
func TestStuckNumbersAreDoneWithout(t *testing.T) {
	n := reservedFDs{lent: make(chan struct{}, 1)}
	n.hold()
	defer n.drop()
	high, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, longTable)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(high)
	lend := func() (int, func()) {
		fd := high
		below, back, err := n.lend([]*int{&fd})
		if err != nil {
			t.Fatal(err)
		}
		return below, back
	}
	below, back := lend()
	if below == 0 {
		t.Fatal("nothing was lent")
	}
	if below, back := lend(); below != 0 {
		t.Error("the same numbers were lent twice")
	} else {
		back()
	}
	back()
	if below, back := lend(); below == 0 {
		t.Error("they are not lent again")
	} else {
		back()
	}
}
