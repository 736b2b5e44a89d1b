package linux_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestStarveEnds has a thousand sandboxes removed at the same moment. The kernel
// frees their filters in a queue that it shares with everything: afterwards it must
// still load, run and free others. (The catalogue's L3.)
func TestStarveEnds(t *testing.T) {
	testkit.NeedWholeMachine(t)
	testkit.NeedWorkingHost(t)
	n := 1000
	if testing.Short() {
		n = 20
	} else {
		testkit.NeedRoot(t, "to make a thousand within minutes; the kernel frees the filters of all users alike")
	}
	t.Cleanup(unchanged(t))
	// Those who wait for their turn are not stuck, on a machine that is slow.
	e := engine.New(engine.Options{Driver: newDriver(), Images: images(), Policy: policy.Default(), Patience: engine.Patience{Remove: time.Hour}})
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	all := makeMany(t, e, n)
	var ends sync.WaitGroup
	for _, sb := range all {
		ends.Go(func() {
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	ends.Wait()
	if is := e.Stuck(); len(is) != 0 {
		t.Errorf("stuck are %v", is)
	}
	for _, sb := range makeMany(t, e, 5) {
		if out := sh(t, sb, "echo well"); string(out.Stdout) != "well\n" {
			t.Errorf("a later sandbox says %+v", out)
		}
	}
}

// makeMany makes so many sandboxes.
func makeMany(t *testing.T, e *engine.Engine, n int) []sandpit.Sandbox {
	t.Helper()
	all := make([]sandpit.Sandbox, n)
	next := make(chan int)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for i := range next {
				var err error
				if all[i], err = e.Create(t.Context(), sandpit.Spec{}); err != nil {
					t.Errorf("making sandbox %d: %v (hint: %s)", i, err, sandpit.Hint(err))
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	workers.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return all
}

// TestStarveFilters: when the machine's memory for compiled filters is used up, a
// sandbox is refused as one too many, and nothing waits or is left. What there is
// goes on, and more can be made when there is memory again. Kernels that fall back
// on their interpreter make the sandbox. (The catalogue's L3.)
func TestStarveFilters(t *testing.T) {
	testkit.NeedWholeMachine(t)
	testkit.NeedWorkingHost(t)
	testkit.NeedRoot(t, "to take the memory away")
	const limit = "/proc/sys/net/core/bpf_jit_limit"
	was, err := os.ReadFile(limit)
	if err != nil {
		t.Fatal(err)
	}
	give := func() {
		if err := os.WriteFile(limit, was, 0o644); err != nil {
			t.Error(err)
		}
	}
	dir := hostDir(t)
	for how, pool := range map[string]engine.Pool{"fresh": {}, "blank": {Size: 1}} {
		t.Run(how, func(t *testing.T) {
			t.Cleanup(unchanged(t))
			e := engine.New(engine.Options{Driver: newDriver(), Images: images(), Policy: policy.Default(), Pool: pool})
			t.Cleanup(func() {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			})
			before, err := e.Create(t.Context(), sandpit.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			e.Warm()
			eventually(t, "there is a blank", func() bool { return e.PoolStats().Ready == pool.Size })
			t.Cleanup(give)
			if err := os.WriteFile(limit, []byte("1"), 0o644); err != nil {
				t.Fatal(err)
			}
			// A blank has its first filter; this has it load the other.
			spec := sandpit.Spec{Mounts: []sandpit.Mount{{Source: dir, Target: "/x"}}}
			_, err = e.Create(t.Context(), spec)
			switch {
			case err == nil && interprets(t):
				t.Log("this kernel interprets filters that it has no memory to compile")
			case !errors.Is(err, sandpit.ErrExhausted) || !strings.Contains(sandpit.Hint(err), "net.core.bpf_jit_limit"):
				t.Errorf("making a sandbox: %v (hint: %s)", err, sandpit.Hint(err))
			default:
				t.Logf("refused: %v", err)
			}
			if out := sh(t, before, "echo well"); string(out.Stdout) != "well\n" {
				t.Errorf("one that was there says %+v", out)
			}
			give()
			if _, err := e.Create(t.Context(), spec); err != nil {
				t.Errorf("when there is memory again: %v", err)
			}
		})
	}
}

// interprets reports whether this kernel runs filters that it could not compile.
func interprets(t *testing.T) bool {
	t.Helper()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile("/boot/config-" + strings.TrimSpace(string(release)))
	if err != nil {
		t.Fatal(err)
	}
	return !bytes.Contains(config, []byte("\nCONFIG_BPF_JIT_ALWAYS_ON=y\n"))
}

// A silentFS is a file system of FUSE whose server never answers who looks for
// the name "hang". The kernel waits for that answer without a bound, and lets no
// signal interrupt who waits.
type silentFS struct {
	dir   string
	dev   *os.File
	asked chan struct{} // closed when somebody waits
}

// The parts of the protocol that a directory without files needs: linux/fuse.h.
const (
	fuseLookup  = 1
	fuseForget  = 2
	fuseGetattr = 3
	fuseStatfs  = 17
	fuseInit    = 26
	fuseForgets = 42 // FUSE_BATCH_FORGET

	fuseMoreFlags = 1 << 30        // FUSE_INIT_EXT
	fuseIDMaps    = 1 << (40 - 32) // FUSE_ALLOW_IDMAP, in the second word of flags
)

func mountSilent(t *testing.T) *silentFS {
	t.Helper()
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	fs := &silentFS{dir: hostDir(t), dev: dev, asked: make(chan struct{})}
	opts := fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other,default_permissions", dev.Fd())
	if err := unix.Mount("silent", fs.dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		fs.serve()
	}()
	t.Cleanup(func() {
		fs.abort()
		<-ended
		if err := unix.Unmount(fs.dir, unix.MNT_DETACH); err != nil && err != unix.EINVAL { // it is unmounted already
			t.Error(err)
		}
		_ = dev.Close()
	})
	return fs
}

// abort ends the connection, and with it the wait of all who wait for an answer,
// also if the file system is still in use.
func (fs *silentFS) abort() { _ = unix.Unmount(fs.dir, unix.MNT_FORCE) }

// serve answers until the connection ends.
func (fs *silentFS) serve() {
	buf := make([]byte, 1<<17)
	for {
		n, err := unix.Read(int(fs.dev.Fd()), buf)
		if err == unix.EINTR || err == unix.ENOENT {
			continue
		} else if err != nil || n < 40 {
			return
		}
		opcode, unique := binary.NativeEndian.Uint32(buf[4:]), buf[8:16]
		answer, errno := make([]byte, 0, 128), int32(0)
		put := func(words ...uint32) {
			for _, w := range words {
				answer = binary.NativeEndian.AppendUint32(answer, w)
			}
		}
		switch opcode {
		case fuseInit:
			put(7, 40, 0, fuseMoreFlags, 0, 1<<16) // the version, ..., the longest write
			put(1, 0, fuseIDMaps, 0, 0, 0, 0, 0, 0, 0)
		case fuseGetattr:
			put(0, 0, 0, 0)                              // not to be kept
			put(1, 0, 0, 0, 0, 0)                        // inode, size, blocks
			put(0, 0, 0, 0, 0, 0, 0, 0, 0)               // times
			put(unix.S_IFDIR|0o755, 1, 0, 0, 0, 4096, 0) // mode, links, owner, blocks
		case fuseStatfs:
			answer = make([]byte, 80)
		case fuseForget, fuseForgets:
			continue
		case fuseLookup:
			if strings.TrimRight(string(buf[40:n]), "\x00") == "hang" {
				close(fs.asked)
				continue
			}
			errno = -int32(unix.ENOENT)
		default:
			errno = -int32(unix.ENOSYS)
		}
		head := binary.NativeEndian.AppendUint32(nil, uint32(16+len(answer)))
		head = binary.NativeEndian.AppendUint32(head, uint32(errno))
		if _, err := unix.Write(int(fs.dev.Fd()), slices.Concat(head, unique, answer)); err != nil {
			return
		}
	}
}

// TestStarveHungMount: a sandbox with a program that the kernel will not let end,
// for it waits for a file system whose server is silent, holds up nobody: not who
// kills that program, stops or removes the sandbox, not the others, not Close. It
// is listed as stuck, and is gone when the file system is. (The catalogue's L13o.)
func TestStarveHungMount(t *testing.T) {
	testkit.NeedWholeMachine(t)
	testkit.NeedWorkingHost(t)
	testkit.NeedRoot(t, "to mount such a file system for others")
	cases := []string{"removed", "stopped", "closed"}
	if testing.Short() {
		cases = cases[:1]
	}
	for _, by := range cases {
		t.Run(by, func(t *testing.T) {
			t.Cleanup(unchanged(t))
			fs := mountSilent(t)
			e := impatient(t, newDriver(), engine.Patience{Remove: time.Second, Close: time.Second})
			sb, err := e.Create(t.Context(), sandpit.Spec{Name: "hung", Mounts: []sandpit.Mount{{Source: fs.dir, Target: "/x", ReadOnly: true}}})
			if errors.Is(err, sandpit.ErrUnsupported) {
				testkit.Need(t, "Linux 6.12, which maps the ids of such file systems", err)
			} else if err != nil {
				t.Fatalf("creating: %v (hint: %s)", err, sandpit.Hint(err))
			}
			p, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"cat", "/x/hang"}})
			if err != nil {
				t.Fatal(err)
			}
			<-fs.asked
			if err := p.Kill(t.Context()); err != nil {
				t.Errorf("killing the program: %v", err)
			}
			eventually(t, "it can't be ended", func() bool {
				return slices.ContainsFunc(descendants(os.Getpid()), func(pid int) bool { return slices.Contains(statusField(pid, "State"), "D") })
			})
			other, err := e.Create(t.Context(), sandpit.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			switch by {
			case "removed":
				err = sb.Remove(t.Context())
			case "stopped": // which leaves the guest; the program comes to execute nothing more
				if err := sb.(sandpit.Lifecycle).Stop(t.Context(), 0); err != nil {
					t.Errorf("stopping it: %v", err)
				}
				err = sb.Remove(t.Context())
			case "closed":
				err = e.Close()
			}
			if !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), "stuck") {
				t.Errorf("%s, it is %v, not said to be stuck", by, err)
			}
			t.Logf("%s: %v", by, err)
			if is := e.Stuck(); len(is) != 1 || is[0].Sandbox != sb.ID() {
				t.Errorf("stuck are %+v", is)
			}
			if by != "closed" {
				if info, err := sb.Info(t.Context()); err != nil || info.State != sandpit.StateFailed {
					t.Errorf("it is %s %q, %v", info.State, info.Reason, err)
				}
				if out := sh(t, other, "echo well"); string(out.Stdout) != "well\n" {
					t.Errorf("another says %+v", out)
				}
				if err := other.Remove(t.Context()); err != nil {
					t.Errorf("removing another: %v", err)
				}
				if _, err := e.Create(t.Context(), sandpit.Spec{}); err != nil {
					t.Errorf("making another: %v", err)
				}
				if err := e.Close(); !errors.Is(err, sandpit.ErrUnavailable) {
					t.Errorf("closing: %v", err)
				}
			}
			fs.abort()
			eventually(t, "nothing is stuck", func() bool { return len(e.Stuck()) == 0 })
		})
	}
}
