package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	guestclient "github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// service is a server in a process of its own.
type service struct {
	t     *testing.T
	home  string
	tls   string // HOST:PORT where it listens with TLS; empty: nowhere
	key   string // for there
	cmd   *exec.Cmd
	log   *testkit.Buffer // what it has written
	ended chan struct{}
}

// startService starts a server of a data directory, and returns when it
// answers. prepare may change how it is started.
func startService(t *testing.T, home string, prepare func(*exec.Cmd), args ...string) *service {
	t.Helper()
	s := &service{t: t, home: home, log: new(testkit.Buffer), ended: make(chan struct{})}
	s.cmd = commandLine(t, append([]string{"sandpit", "serve"}, args...)...)
	s.cmd.Env = append(s.cmd.Env, "SANDPIT_HOME="+home)
	s.cmd.Stderr = s.log
	if prepare != nil {
		prepare(s.cmd)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() {
		s.empty()
		_ = s.cmd.Process.Kill()
		<-s.ended
		if log := s.log.String(); strings.Contains(log, "panic") || t.Failed() {
			t.Errorf("the server's log:\n%s", log)
		}
	})
	for end := time.Now().Add(patience); !strings.Contains(s.log.String(), "msg=listening"); time.Sleep(2 * time.Millisecond) {
		select {
		case <-s.ended:
			t.Fatalf("the server has ended: %s\n%s", s.cmd.ProcessState, s.log)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("the server does not answer:\n%s", s.log)
		}
	}
	return s
}

// empty removes the sandboxes that the server holds, if it still can: they would
// outlive it.
func (s *service) empty() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), testkit.Patience)
	defer cancel()
	_ = s.cmd.Process.Signal(syscall.SIGCONT) // tests stop servers, too
	if serverPID(s.t, s.home) != s.cmd.Process.Pid {
		return
	}
	if err := removeAll(ctx, client.Options{Address: server.SocketIn(s.home).String()}); err != nil {
		s.t.Logf("emptying the server: %v", err)
	}
}

// until waits for something that must come to be.
func (s *service) until(what string, true func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !true(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("waited in vain until %s\n%s", what, s.log)
		}
	}
}

// client returns a client on the unix socket.
func (s *service) client() *client.Client {
	s.t.Helper()
	c, err := client.New(client.Options{Address: server.SocketIn(s.home).String()})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// end asks it to end, and returns its exit code.
func (s *service) end() int {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	select {
	case <-s.ended:
	case <-time.After(patience):
		s.t.Fatalf("it does not end\n%s", s.log)
	}
	return s.cmd.ProcessState.ExitCode()
}

// shortHome returns a data directory whose sockets have short names.
func shortHome(t *testing.T) string {
	t.Helper()
	home, err := os.MkdirTemp("", "sp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	return home
}

// TestServiceManager stands in for systemd: it passes sockets, hears how the
// server is, has it read its policies again, and ends it while it works.
func TestServiceManager(t *testing.T) {
	needSandboxes(t)
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	unixSocket, err := net.ListenUnix("unix", &net.UnixAddr{Name: server.SocketIn(home).Host, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	unixSocket.SetUnlinkOnClose(false)
	defer unixSocket.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	told, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(home, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer told.Close()
	hear := func(want string) {
		t.Helper()
		buf := make([]byte, 4096)
		_ = told.SetReadDeadline(time.Now().Add(patience))
		for {
			n, err := told.Read(buf)
			if err != nil {
				t.Fatalf("waiting for %s: %v", want, err)
			}
			if got := string(buf[:n]); got == want {
				return
			} else if got != "WATCHDOG=1" {
				t.Fatalf("was told %q, and expected %q", got, want)
			}
		}
	}
	start := func() *service {
		return startService(t, home, func(cmd *exec.Cmd) {
			files := make([]*os.File, 0, 2)
			for _, l := range []interface{ File() (*os.File, error) }{unixSocket, tcp.(*net.TCPListener)} {
				f, err := l.File()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = f.Close() })
				files = append(files, f)
			}
			cmd.ExtraFiles = files // descriptors 3 and 4
			// The id of the process is known when it is there.
			cmd.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh", cmd.Path}, cmd.Args[1:]...)
			cmd.Path = "/bin/sh"
			cmd.Env = append(cmd.Env, "LISTEN_FDS=2", "LISTEN_FDNAMES=sandpit:http", "NOTIFY_SOCKET="+filepath.Join(home, "notify"), "WATCHDOG_USEC=100000")
		})
	}
	s := start()
	hear("READY=1")
	hear("WATCHDOG=1")
	c := s.client()
	sb, err := c.Create(t.Context(), sandpit.Spec{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	remove := func() { _ = sb.Remove(context.WithoutCancel(t.Context())) } // while there is a server
	t.Cleanup(remove)
	// TCP has TLS or is loopback, and asks for a key.
	resp, err := http.Get("http://" + tcp.Addr().String() + "/v1/sandboxes")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("over the TCP socket: %s", resp.Status)
	}
	// What the service manager said is for this program alone.
	out, err := sandpit.Shell(t.Context(), sb, "env; ls /proc/self/fd")
	if err != nil || strings.Contains(string(out.Stdout), "LISTEN_") || strings.Contains(string(out.Stdout), "NOTIFY") {
		t.Errorf("%s %v", out.Stdout, err)
	}

	// SIGHUP is "read the policies again", also when the file is as it was.
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.until("the policies are read again", func() bool { return strings.Contains(s.log.String(), "policies reloaded") })

	// SIGTERM: what runs is finished, what comes is refused.
	idle, err := server.DialHome(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	in := bufio.NewReader(idle)
	ask := func() (int, string) {
		t.Helper()
		if _, err := io.WriteString(idle, "GET /v1/version HTTP/1.1\r\nHost: sandpit\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if status, body := ask(); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	type outcome struct {
		sandpit.Output
		err error
	}
	running, finished := make(chan struct{}), make(chan outcome, 1)
	go func() {
		var stdout bytes.Buffer
		first := sync.OnceFunc(func() { close(running) })
		out, err := sandpit.Run(t.Context(), sb, sandpit.Command{
			Script: "echo begun; while ! test -e /tmp/go; do sleep 0.01; done; echo finished",
			Stdout: writerFunc(func(p []byte) (int, error) { first(); return stdout.Write(p) }),
		})
		out.Stdout = stdout.Bytes()
		finished <- outcome{out, err}
	}()
	<-running
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	hear("STOPPING=1")
	for {
		status, body := ask()
		if status == http.StatusOK {
			continue // it has said so before it does so
		}
		if status != http.StatusServiceUnavailable || !strings.Contains(body, `"draining"`) {
			t.Errorf("a new request: %d %s", status, body)
		}
		break
	}
	select {
	case <-s.ended:
		t.Fatal("the server has ended before what it was doing")
	case f := <-finished:
		t.Fatalf("it was broken off: %s %v", f.Stdout, f.err)
	default:
	}
	// Who comes now waits for the next server: the socket is the service manager's.
	next := make(chan error, 1)
	go func() {
		_, err := c.List(t.Context(), sandpit.ListQuery{})
		next <- err
	}()
	letGo(t, home, sb.ID())
	if f := <-finished; f.err != nil || string(f.Stdout) != "begun\nfinished\n" {
		t.Errorf("what was running: %q %+v %v", f.Stdout, f.Result, f.err)
	}
	<-s.ended
	if got := s.cmd.ProcessState.ExitCode(); got != 0 {
		t.Errorf("exit code %d", got)
	}
	s = start()
	t.Cleanup(remove)
	hear("READY=1")
	if err := <-next; err != nil && !errors.Is(err, sandpit.ErrUnavailable) {
		t.Errorf("who came in between: %v", err)
	}
	if out, err := sandpit.Exec(t.Context(), sb, "cat", "/tmp/go"); err != nil || out.ExitCode != 0 {
		t.Errorf("the sandbox after a restart: %+v %v", out, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// letGo makes /tmp/go in a sandbox of a data directory, past its server: through
// the socket of its guest.
func letGo(t *testing.T, home, id string) {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(home, "run", id+".sock"))
	if err != nil {
		t.Fatal(err)
	}
	guest, err := guestclient.New(t.Context(), conn, guestclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	if _, err := guest.Files().Write(t.Context(), "/tmp/go", strings.NewReader(""), sandpit.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// guestOf returns the first process of a sandbox of a data directory, as its
// driver has noted it.
func guestOf(t *testing.T, home, id string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(home, "run", id+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var noted struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(data, &noted); err != nil || noted.PID <= 1 {
		t.Fatalf("the driver has noted %s: %v", data, err)
	}
	return noted.PID
}
