package linux_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// accountEnv is set in the test binary that runs as an ordinary user.
const accountEnv = "SANDPIT_TEST_ACCOUNT"

// freeUID is an id without an account.
const freeUID = 54321

// sameForAll are the tests that an ordinary user does not run again. They are about what the engine
// and the guest do with sandboxes that can be made, with the rights that every user has inside.
// TestDriver and these attacks run them as root.
const sameForAll = "^TestDriver$/^Client$/^(Client|Output|Logs|Events|Code|Copy_and_Do)$|^TestAttackL13[rs]"

// TestAccount runs everything again as an ordinary user: one without an account
// and one that has subordinate ids. The exception is what sameForAll names.
func TestAccount(t *testing.T) {
	if os.Getenv(accountEnv) != "" || os.Geteuid() != 0 {
		testkit.Lacks(t, "root to become an ordinary user")
	}
	testkit.NeedWorkingHost(t)
	testkit.NeedFull(t, "it runs everything again")
	t.Run("one user", func(t *testing.T) { asUser(t, freeUID, freeUID, "^Test(Driver|Posture|Leak|Attack)") })
	t.Run("subordinate ids", func(t *testing.T) {
		uid, gid := subordinateAccount(t)
		// What more users make a difference to.
		asUser(t, uid, gid, "^TestDriver$/^Client$/^(User|Writing|Mounts)$|^TestDriver$/^Driver$|^TestPosture$|^TestLeakAfter(Normal|Err)|^TestAttack[ABL]")
	})
}

// TestAccountLink makes network interfaces as an ordinary user: where /dev/net/tun may be used,
// and where it may not.
func TestAccountLink(t *testing.T) {
	if os.Getenv(accountEnv) != "" || os.Geteuid() != 0 {
		testkit.Lacks(t, "root to become an ordinary user")
	}
	testkit.NeedWorkingHost(t)
	testkit.NeedFull(t, "it makes many sandboxes")
	testkit.NeedProgram(t, "setpriv")
	const tests = "^TestDriver$/^Driver$/^Link$|^TestDriver$/^Driver$/^Blank$/Link|^TestDriver$/^Client$/^Egress$|^TestAttackEgress"
	for mode, want := range map[string]string{"600": "--- PASS: TestDriver/Driver/Link/Link_is_ErrUnsupported", "666": "--- PASS: TestDriver/Driver/Link/Link_makes_an_interface"} {
		t.Run(mode, func(t *testing.T) {
			// The node is one of the mount namespace of that process.
			out := asUser(t, freeUID, freeUID, tests, "mount -t tmpfs tun /dev/net && mknod -m "+mode+" /dev/net/tun c 10 200")
			if !strings.Contains(out, want) {
				t.Errorf("there is no %q in\n%s", want, out)
			}
		})
	}
}

// subordinateAccount returns an account with subordinate ids, made for this
// test if there is none.
func subordinateAccount(t *testing.T) (uid, gid int) {
	t.Helper()
	for _, tool := range []string{"newuidmap", "newgidmap", "useradd", "userdel"} {
		testkit.NeedProgram(t, tool)
	}
	const name = "sandpit-test"
	if _, err := user.Lookup(name); err != nil {
		out, err := exec.Command("useradd", "--no-create-home", "--shell", "/bin/sh", name).CombinedOutput()
		testkit.Need(t, "an account that useradd makes: "+string(out), err)
		t.Cleanup(func() {
			if out, err := exec.Command("userdel", name).CombinedOutput(); err != nil {
				t.Errorf("removing the account: %v: %s", err, out)
			}
		})
	}
	data, err := os.ReadFile("/etc/subuid")
	if err != nil || !bytes.Contains(data, []byte(name+":")) {
		testkit.Lacks(t, "subordinate ids for a new account")
	}
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	uid, _ = strconv.Atoi(u.Uid)
	gid, _ = strconv.Atoi(u.Gid)
	return uid, gid
}

// asUser runs this test binary as an ordinary user, after scripts that root runs in the mount
// namespace of the binary. It returns what was written.
func asUser(t *testing.T, uid, gid int, tests string, before ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sandpit-account-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	binary := filepath.Join(dir, "suite.test")
	copyFile(t, "/proc/self/exe", binary)
	tmp := filepath.Join(dir, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{dir, tmp} {
		if err := os.Chown(f, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{binary, "-test.v", "-test.count=1", "-test.run=" + tests, "-test.skip=" + sameForAll}
	credential := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	if before != nil {
		user := fmt.Sprintf("exec setpriv --reuid=%d --regid=%d --clear-groups \"$0\" \"$@\"", uid, gid)
		args, credential = slices.Concat([]string{"/bin/sh", "-c", strings.Join(append(before, user), " && ")}, args), nil
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + tmp, "TMPDIR=" + tmp, accountEnv + "=1"}
	if long := os.Getenv("SANDPIT_TEST_LONG"); long != "" {
		cmd.Env = append(cmd.Env, "SANDPIT_TEST_LONG="+long)
	}
	// In a mount namespace of its own: what tests of other packages mount meanwhile
	// is a change of the machine's mounts, after which an ordinary user's blanks
	// are of no use.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential, Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	ran := 0
	var skipped, failed []string
	for line := range strings.Lines(string(out)) {
		switch line = strings.TrimSpace(line); {
		case strings.Contains(line, "--- PASS"):
			ran++
		case strings.Contains(line, "--- SKIP"):
			skipped = append(skipped, line)
		case strings.Contains(line, "--- FAIL"), strings.HasPrefix(line, "panic:"):
			failed = append(failed, line)
		}
	}
	if err != nil {
		t.Errorf("as uid %d: %v\n%s\n%s", uid, err, strings.Join(failed, "\n"), failures(string(out)))
	}
	for _, line := range skipped { // what is skipped, and why, is not to be lost
		t.Log(line)
	}
	if ran == 0 {
		t.Errorf("as uid %d no test ran:\n%s", uid, out)
	}
	t.Logf("as uid %d %d tests passed", uid, ran)
	return string(out)
}

// failures leaves out what passed.
func failures(out string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		if s := strings.TrimSpace(line); strings.HasPrefix(s, "=== ") || strings.HasPrefix(s, "--- PASS") || strings.HasPrefix(s, "--- SKIP") {
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err == nil {
		_, err = io.Copy(out, in)
		if cerr := out.Close(); err == nil {
			err = cerr
		}
	}
	if err != nil {
		t.Fatal(fmt.Errorf("copying the test binary: %w", err))
	}
}
