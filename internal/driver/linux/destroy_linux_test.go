package linux_test

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/drivertest"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func createOne(t *testing.T) driver.Instance { return createWith(t, newDriver()) }

func createWith(t *testing.T, d *recorder) driver.Instance {
	t.Helper()
	inst, err := d.Create(t.Context(), drivertest.Plan(d, hostRoot(t)))
	if err != nil {
		t.Fatalf("creating: %v (hint: %s)", err, sandpit.Hint(err))
	}
	t.Cleanup(func() { _ = inst.Destroy(t.Context()) })
	return inst
}

// A kill that fails is said, and keeps nothing: the guest sees its sockets
// closed, the cgroup and the watcher kill it, too.
func TestDestroyWhenTheSignalFails(t *testing.T) {
	testkit.NeedWorkingHost(t)
	t.Cleanup(unchanged(t))
	inst := createOne(t)
	linux.LosePidFD(inst)
	if err := inst.Destroy(t.Context()); !errors.Is(err, unix.EBADF) {
		t.Errorf("destroying: %v, want the error of the signal", err)
	}
	<-inst.Done()
}

// A guest that is not itself any more, and takes no connection, holds nobody up.
func TestDialWhenTheGuestStandsStill(t *testing.T) {
	testkit.NeedWorkingHost(t)
	t.Cleanup(unchanged(t))
	inst := createOne(t)
	if err := unix.Kill(stateOf(t, inst.Handle()).PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	for {
		conn, err := inst.Dial(t.Context())
		if err != nil {
			if !errors.Is(err, sandpit.ErrExhausted) {
				t.Errorf("dialling once more than %d times: %v, want ErrExhausted", len(conns), err)
			}
			break
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		conn.Close()
	}
	if err := inst.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// Only so many sandboxes end at the same moment: the kernel frees their filters
// in a queue that it shares with everything.
func TestDestroyTakesTurns(t *testing.T) {
	testkit.NeedWorkingHost(t)
	t.Cleanup(unchanged(t))
	d := newDriver()
	inst, other := createWith(t, d), createWith(t, d)
	release, rest, waiting := linux.HoldEnding(inst)
	defer rest()
	done := make(chan error, 2)
	for _, i := range []driver.Instance{inst, other} {
		go func() { done <- i.Destroy(t.Context()) }()
	}
	eventually(t, "both wait for their turn", func() bool { return waiting() == 2 })
	select {
	case <-inst.Done():
		t.Error("it was ended beside as many as may end")
	case <-other.Done():
		t.Error("it was ended beside as many as may end")
	default:
	}
	release() // one place, which both use
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := waiting(); n != 0 {
		t.Errorf("%d wait", n)
	}
}
