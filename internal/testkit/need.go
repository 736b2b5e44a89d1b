package testkit

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// What a test needs is said by one of the functions below, so that all skips give
// their reason in the same words. internal/testreport fails a run of make test in
// which a test is skipped for a reason that is not in its list.

// expect says what machine this is: one where sandboxes work, one that refuses them,
// or, if it is empty, one of which nothing is known. The Makefile and internal/hosttest set it.
func expect() string { return os.Getenv("SANDPIT_TEST_EXPECT") }

// NeedSandboxes skips a test if no sandbox can be made here, for which why gives the
// reason. Where sandboxes are expected to work it fails the test instead.
func NeedSandboxes(t testing.TB, available bool, why any) {
	t.Helper()
	switch {
	case available:
	case expect() == "works":
		t.Fatalf("no sandbox can be made here, where they are expected to work: %v", why)
	default:
		t.Skipf("needs sandboxes: %v", why)
	}
}

// Made fails a test if making a sandbox failed. If the kernel makes no namespaces it
// does what NeedSandboxes does.
func Made(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		NeedSandboxes(t, !strings.Contains(err.Error(), "making namespaces"), err)
		t.Fatalf("making a sandbox: %v", err)
	}
}

// NeedWorkingHost skips a test on a host that was set up to refuse sandboxes. On any
// other, the test finds out itself whether they work, and fails if not.
func NeedWorkingHost(t testing.TB) {
	t.Helper()
	if expect() == "refused" {
		t.Skip("needs a host that does not refuse sandboxes")
	}
}

// NeedWholeMachine skips a test that could harm a machine which others use.
func NeedWholeMachine(t testing.TB) {
	t.Helper()
	if !strings.Contains(os.Getenv("SANDPIT_TEST_TRAITS"), "systemd=yes") {
		t.Skip("needs a machine of its own: make test-vm and make test-hosts have some")
	}
}

// NeedRoot skips a test unless root runs it. The text says what for, such as "to mount
// a file system".
func NeedRoot(t testing.TB, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root " + what)
	}
}

// NeedTUN skips a test where no network interface can be made.
func NeedTUN(t testing.TB) {
	t.Helper()
	tun, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	Need(t, "/dev/net/tun", err)
	tun.Close()
}

// NeedLong skips a test unless long ones were asked for, with the reason why it is long.
func NeedLong(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("SANDPIT_TEST_LONG") == "" {
		t.Skipf("needs make test-long: %s", why)
	}
}

// NeedFull skips a test in the short form of the tests, which make check runs, with the
// reason why it takes long.
func NeedFull(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skipf("needs the full form: %s", why)
	}
}

// NeedGuest skips a test of a program that was built without the guest.
func NeedGuest(t testing.TB, guest []byte) {
	t.Helper()
	if guest == nil {
		t.Skip("needs the build tag guestembed")
	}
}

// NeedProgram skips a test if a program is not installed, and returns its path otherwise.
func NeedProgram(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	Need(t, "the program "+name, err)
	return path
}

// Need skips a test if there was an error in providing what it needs, such as "a kernel
// with Landlock".
func Need(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Skipf("needs %s: %v", what, err)
	}
}

// Lacks skips a test, because it needs something that is not here.
func Lacks(t testing.TB, what string) {
	t.Helper()
	t.Skip("needs " + what)
}
