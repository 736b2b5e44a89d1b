package guest_test

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/guest/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// The test binary is its own guest. As "pid1" it first mounts the /proc of its
// new namespaces, as a driver does.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == server.Name {
		if os.Args[1] == "pid1" {
			if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
				panic(err)
			}
			os.Args[1] = "bootstrap"
		}
		os.Exit(server.Main(os.Args))
	}
	os.Exit(testkit.Main(m))
}

// A testGuest is a guest that runs as a process of its own, without a sandbox
// around it, as the user who runs the test.
type testGuest struct {
	t    testing.TB
	boot *net.UnixConn
	cmd  *exec.Cmd
	said testkit.Buffer // its standard error
}

// newGuest starts a guest.
func newGuest(t testing.TB) *testGuest {
	return startGuest(t, []string{server.Name, "bootstrap"}, nil)
}

// newPID1 starts a guest that is pid 1 of new namespaces.
func newPID1(t testing.TB) *testGuest {
	testkit.NeedRoot(t, "to make a pid namespace with its own /proc")
	return startGuest(t, []string{server.Name, "pid1"}, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Unshareflags: unix.CLONE_NEWNS})
}

// guestProgram is another guest than the test binary: the one that is shipped
// has no race detector, which can't follow a forked child.
const guestProgram = "SANDPIT_TEST_GUEST"

func startGuest(t testing.TB, args []string, attr *syscall.SysProcAttr) *testGuest {
	t.Helper()
	ours, theirs := socketpair(t, unix.SOCK_SEQPACKET)
	binary := os.Getenv(guestProgram)
	if binary == "" || args[1] == "pid1" {
		binary = "/proc/self/exe"
	}
	cmd := exec.Command(binary)
	cmd.Args = args
	cmd.ExtraFiles = []*os.File{theirs}
	g := &testGuest{t: t, boot: ours, cmd: cmd}
	cmd.Stderr = io.MultiWriter(os.Stderr, &g.said)
	cmd.Env = []string{}
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	t.Cleanup(func() {
		ours.Close()
		done := make(chan struct{})
		go func() { _ = cmd.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Error("the guest does not end although its bootstrap socket has")
			_ = cmd.Process.Kill()
			<-done
		}
	})
	return g
}

func socketpair(t testing.TB, kind int) (*net.UnixConn, *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "ours")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.UnixConn), os.NewFile(uintptr(fds[1]), "theirs")
}

// dial makes a new connection to the guest.
func (g *testGuest) dial() net.Conn {
	g.t.Helper()
	ours, theirs := socketpair(g.t, unix.SOCK_STREAM)
	defer theirs.Close()
	if _, _, err := g.boot.WriteMsgUnix([]byte{'c'}, unix.UnixRights(int(theirs.Fd())), nil); err != nil {
		g.t.Fatal(err)
	}
	return ours
}

// client greets the guest on a new connection.
func (g *testGuest) client(opt client.Options) *client.Client {
	g.t.Helper()
	c, err := client.New(g.t.Context(), g.dial(), opt)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { c.Close() })
	return c
}

// start is what most tests need: a guest, and a client with a configuration
// that works for any user.
func start(t testing.TB) *client.Client {
	t.Helper()
	return newGuest(t).client(client.Options{Config: config()})
}

func config() *client.Config {
	return &client.Config{User: strconv.Itoa(os.Geteuid()) + ":" + strconv.Itoa(os.Getegid()), Dir: "/", RootCaps: 1<<63 - 1}
}

// A guest that has no descriptor free for a connection says so, and goes on.
func TestNoDescriptorForAConnection(t *testing.T) {
	g := newGuest(t)
	c := g.client(client.Options{Config: config()})
	var was unix.Rlimit
	if err := unix.Prlimit(g.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(g.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Max: was.Max}, nil); err != nil {
		t.Fatal(err)
	}
	if n, err := g.dial().Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %d bytes, %v", n, err)
	}
	testkit.Until(t, "it says so", func() bool { return strings.Contains(g.said.String(), "no descriptor free") })
	if err := unix.Prlimit(g.cmd.Process.Pid, unix.RLIMIT_NOFILE, &was, nil); err != nil {
		t.Fatal(err)
	}
	g.client(client.Options{})
	if _, err := c.Files().Stat(t.Context(), "/"); err != nil {
		t.Error(err)
	}
}

// within gives a test that would hang a chance to say where.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
