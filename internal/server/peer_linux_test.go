package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/server"
)

// askEnv is set in the test binary as a child that asks the server at the unix
// socket whose path it holds, with the key in askKeyEnv, and prints the answer.
const (
	askEnv    = "SANDPIT_TEST_ASK"
	askKeyEnv = "SANDPIT_TEST_ASK_KEY"
)

// ask is what that child does.
func ask(path string) int {
	conn, err := net.Dial("unix", path)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	key := os.Getenv(askKeyEnv)
	if key != "" {
		key = "Authorization: Bearer " + key + "\r\n"
	}
	if _, err := io.WriteString(conn, "GET /v1/sandboxes HTTP/1.1\r\nHost: sandpit\r\nConnection: close\r\n"+key+"\r\n"); err != nil {
		fmt.Println(err)
		return 1
	}
	if _, err := io.Copy(os.Stdout, conn); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// inNamespaces changes a command so that it runs in new Linux namespaces, in
// which its user is root with the ids of this one.
func inNamespaces(cmd *exec.Cmd, flags uintptr) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	if flags&unix.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
}

// TestPeerInOtherNamespaces connects to the unix socket with the server's own
// uid from other user and pid namespaces, as a sandbox that sees the socket can.
func TestPeerInOtherNamespaces(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.start()
	path, key := server.SocketIn(s.home).Host, s.keyOf("other", "")
	for _, tt := range []struct {
		name  string
		flags uintptr
		want  string
	}{
		{"the server's namespaces", 0, " 200 "},
		{"a mount namespace", unix.CLONE_NEWUSER | unix.CLONE_NEWNS, " 403 "},
		{"a user namespace", unix.CLONE_NEWUSER, " 403 "},
		{"user and pid namespaces", unix.CLONE_NEWUSER | unix.CLONE_NEWPID, " 403 "},
		{"a pid namespace", unix.CLONE_NEWPID, " 403 "},
	} {
		for _, key := range []string{"", key} {
			if tt.flags == unix.CLONE_NEWPID && os.Geteuid() != 0 {
				continue // only root may make one alone; with a user namespace it is tried above
			}
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), askEnv+"="+path, askKeyEnv+"="+key)
			inNamespaces(cmd, tt.flags)
			out, err := cmd.CombinedOutput()
			if status, _, _ := strings.Cut(string(out), "\n"); err != nil || !strings.Contains(status, tt.want) {
				t.Errorf("%s, with a key: %v: want%s, got %v\n%s", tt.name, key != "", tt.want, err, out)
			}
			if refused := tt.want == " 403 "; refused != (strings.Contains(string(out), "TCP address and a key") && strings.Contains(string(out), "hidepid")) {
				t.Errorf("%s: the answer does not say what to do\n%s", tt.name, out)
			}
		}
	}
	// Those who ask as before are still answered.
	if status, body, _ := s.get(http.MethodGet, "http://sandpit/v1/sandboxes", "", ""); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	var list v1.KeyList
	c := s.unix()
	defer c.Close()
	if err := c.Call(t.Context(), "GET", "/v1/keys", nil, &list); err != nil {
		t.Error(err)
	}
}

// TestPeerIsLookedAt looks at processes as the server does, by a descriptor.
func TestPeerIsLookedAt(t *testing.T) {
	t.Parallel()
	// A process that waits until its input ends.
	start := func(flags uintptr) (pidfd int, proc string, end func()) {
		t.Helper()
		cmd := exec.Command("cat")
		inNamespaces(cmd, flags)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr.PidFD = &pidfd
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(in, "ready\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
			t.Fatalf("%q, %v", line, err)
		}
		return pidfd, "/proc/" + strconv.Itoa(cmd.Process.Pid), func() {
			_ = in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		}
	}
	beside, proc, end := start(0)
	defer unix.Close(beside)
	if err := server.BesideUs(beside); err != nil {
		t.Errorf("a process beside this one: %v", err)
	}
	if same, err := server.SameMaps(proc); err != nil || !same {
		t.Errorf("the maps of a process beside this one: %v, %v", same, err)
	}
	end()
	if err := server.BesideUs(beside); err == nil {
		t.Error("a process that has ended is taken for one beside this one")
	}
	elsewhere, proc, end := start(unix.CLONE_NEWUSER | unix.CLONE_NEWPID)
	defer unix.Close(elsewhere)
	if err := server.BesideUs(elsewhere); err == nil {
		t.Error("a process in other namespaces is taken for one beside this one")
	}
	if same, err := server.SameMaps(proc); err != nil || same {
		t.Errorf("the maps of a process in other namespaces: %v, %v", same, err)
	}
	end()
	notAProcess, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(notAProcess)
	if server.BesideUs(notAProcess) == nil || server.BesideUs(-1) == nil {
		t.Error("a descriptor of no process is taken for one beside this one")
	}
}

// BenchmarkPeer is what a connection to the unix socket costs to be looked at.
func BenchmarkPeer(b *testing.B) {
	pidfd, err := unix.PidfdOpen(os.Getppid(), 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(pidfd)
	for b.Loop() {
		if err := server.BesideUs(pidfd); err != nil {
			b.Fatal(err)
		}
	}
}
