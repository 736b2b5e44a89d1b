package linux_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/driver/drivertest"
	guest "github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// file is the identity of an open file.
type file struct{ dev, ino uint64 }

// busyDescriptors has goroutines open, use and close files, sockets and pipes until
// stop is called, and keeps in mind which these were.
type busyDescriptors struct {
	t    *testing.T
	dir  string
	quit chan struct{}
	work sync.WaitGroup

	mu   sync.Mutex
	seen map[file]bool // guarded by mu
}

func keepBusy(t *testing.T) *busyDescriptors {
	b := &busyDescriptors{t: t, dir: t.TempDir(), quit: make(chan struct{}), seen: map[file]bool{}}
	for i := range 4 {
		b.work.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-b.quit:
					return
				default:
				}
				if err := b.once(i, n); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return b
}

// once opens something and looks whether its descriptors stay what they are until
// they are closed. If anybody closes or replaces a number that is not his, this sees it.
func (b *busyDescriptors) once(worker, n int) error {
	var fds [2]int
	var err error
	switch n % 3 {
	case 0:
		fds[0], err = unix.Open(filepath.Join(b.dir, strconv.Itoa(worker)), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err == nil {
			fds[1], err = unix.Open("/proc/self/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
	case 1:
		fds, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	default:
		err = unix.Pipe2(fds[:], unix.O_CLOEXEC)
	}
	if err != nil {
		return fmt.Errorf("opening: %w", err)
	}
	var opened [2]file
	for range 10 {
		for i, fd := range fds {
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil {
				return fmt.Errorf("descriptor %d was closed by another: %w", fd, err)
			}
			is := file{st.Dev, st.Ino}
			if opened[i] != (file{}) && opened[i] != is {
				return fmt.Errorf("descriptor %d was %v and is %v", fd, opened[i], is)
			}
			opened[i] = is
		}
	}
	b.mu.Lock()
	b.seen[opened[0]], b.seen[opened[1]] = true, true
	b.mu.Unlock()
	for _, fd := range fds {
		if err := unix.Close(fd); err != nil {
			return fmt.Errorf("descriptor %d was closed by another: %w", fd, err)
		}
	}
	return nil
}

func (b *busyDescriptors) stop() {
	close(b.quit)
	b.work.Wait()
}

// check looks at what a process of a sandbox has open. Of files it may have /dev/null only.
func (b *busyDescriptors) check(pid int) {
	b.t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	names, err := os.ReadDir(dir)
	if err != nil {
		b.t.Error(err)
	}
	for _, name := range names {
		link := filepath.Join(dir, name.Name())
		to, err := os.Readlink(link)
		if err != nil {
			continue // closed since
		}
		var st unix.Stat_t
		if err := unix.Stat(link, &st); err != nil {
			continue
		}
		b.mu.Lock()
		seen := b.seen[file{st.Dev, st.Ino}]
		b.mu.Unlock()
		special := slices.ContainsFunc([]string{"socket:", "pipe:", "anon_inode:"}, func(kind string) bool { return strings.HasPrefix(to, kind) })
		if seen || !special && !same(link, "/dev/null") {
			b.t.Errorf("process %d of the sandbox has descriptor %s, %s, of the host", pid, name.Name(), to)
		}
	}
}

// Whatever other goroutines open and close while sandboxes are made, or fail to be
// made, nothing of it gets into one, and no descriptor of theirs is closed or replaced.
func TestLeakOfDescriptors(t *testing.T) {
	testkit.NeedFull(t, "it waits for four seconds")
	testkit.NeedWorkingHost(t)
	const makers, each = 3, 20
	fault := errors.New("injected")
	for _, name := range []string{"few", "many"} {
		t.Run(name, func(t *testing.T) {
			if name == "many" {
				fillDescriptors(t)
			}
			root, d := hostRoot(t), newDriver()
			failing := make([]*recorder, len(createSteps))
			for i, step := range createSteps {
				failing[i] = failingAt(step, fault)
			}
			b := keepBusy(t)
			defer b.stop()
			var work sync.WaitGroup
			for range makers {
				work.Go(func() {
					for n := range each {
						plan := drivertest.Plan(d, root)
						plan.UID, plan.GID = 0, 0 // an ordinary user may look at such a guest only
						inst, err := d.Create(t.Context(), plan)
						if err != nil {
							t.Error(err)
							return
						}
						c := greet(t, inst, &guest.Config{User: "0"}) // its runtime has started
						b.check(stateOf(t, inst.Handle()).PID)
						c.Close()
						if err := inst.Destroy(t.Context()); err != nil {
							t.Error(err)
						}
						f := failing[n%len(failing)]
						if _, err := f.Create(t.Context(), drivertest.Plan(f, root)); !errors.Is(err, fault) {
							t.Errorf("at %s the error is %v", createSteps[n%len(failing)], err)
						}
					}
				})
			}
			work.Wait()
		})
	}
}

// The runtime of a guest that looks for its limit of processors, as one made of
// another Go program may, finds nothing of the host's to keep open.
func TestLeakToRuntime(t *testing.T) {
	testkit.NeedWorkingHost(t)
	opt := options()
	off, on := []byte("containermaxprocs=0"), []byte("containermaxprocs=1")
	if opt.Guest != nil && !bytes.Contains(opt.Guest, off) {
		t.Fatal("the guest says nothing of its processors")
	}
	opt.Guest = bytes.ReplaceAll(opt.Guest, off, on)
	if len(opt.Guest) == 0 {
		opt.Guest = nil // this test binary, which asks for it
	}
	d, b := driverWith(opt), &busyDescriptors{t: t}
	for range 10 {
		plan := drivertest.Plan(d, hostRoot(t))
		plan.UID, plan.GID = 0, 0
		inst, err := d.Create(t.Context(), plan)
		if err != nil {
			t.Fatal(err)
		}
		greet(t, inst, &guest.Config{User: "0"}).Close()
		b.check(stateOf(t, inst.Handle()).PID)
		if err := inst.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// The first sandboxes of a data directory may be made at once. The file of the guest is not
// busy then: no first process that is being made has a copy of a descriptor that writes it.
func TestFirstGuests(t *testing.T) {
	testkit.NeedWorkingHost(t)
	root := hostRoot(t)
	for range 10 {
		opt := options()
		opt.Dir = t.TempDir()
		d := driverWith(opt)
		var work sync.WaitGroup
		for range 8 {
			work.Go(func() {
				inst, err := d.Create(t.Context(), drivertest.Plan(d, root))
				if err != nil {
					t.Error(err)
					return
				}
				if err := inst.Destroy(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
	}
}
