// Package examples_test builds and runs the examples.
package examples_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// build builds the examples and the program that serves. Without cgo each can
// be its own guest in every image. With -trimpath they share what make build has compiled.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "./local", "./remote", "./task", "../cmd/sandpit")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the examples: %v\n%s", err, out)
	}
	return dir
}

// home makes a data directory with a short name, for sockets.
func home(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// output runs an example.
func output(t *testing.T, program string, env ...string) string {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		testkit.Made(t, fmt.Errorf("%w\n%s", err, out))
	}
	return string(out)
}

func TestExamples(t *testing.T) {
	bin := build(t)
	t.Run("local", func(t *testing.T) { testLocal(t, bin) })
	t.Run("task", func(t *testing.T) {
		if got := output(t, filepath.Join(bin, "task"), "SANDPIT_HOME="+home(t)); got != "sorted\npit\nsand\n<nil>\n" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("remote", func(t *testing.T) { testRemote(t, bin) })
}

func testLocal(t *testing.T, bin string) {
	got := output(t, filepath.Join(bin, "local"), "SANDPIT_HOME="+home(t))
	if want := "primes below 50:\n2 3 5 7 11 13 17 19 23 29 31 37 41 43 47 \nreport.txt has 5 bytes"; !strings.HasPrefix(got, want) {
		t.Errorf("got %q", got)
	}
}

func testRemote(t *testing.T, bin string) {
	dir := home(t)
	server := exec.Command(filepath.Join(bin, "sandpit"), "serve")
	server.Env = append(os.Environ(), "SANDPIT_HOME="+dir)
	var said strings.Builder
	server.Stdout, server.Stderr = &said, &said
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil || t.Failed() {
			t.Errorf("the server ends with %v, and has said:\n%s", err, said.String())
		}
	})
	socket := filepath.Join(dir, "server.sock")
	testkit.Until(t, "the server listens", func() bool {
		select {
		case err := <-ended:
			ended <- err
			t.Fatal("the server does not start")
		default:
		}
		conn, err := net.Dial("unix", socket) // its file is there before it listens
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	got := output(t, filepath.Join(bin, "remote"), "SANDPIT_SERVER=unix://"+socket)
	const want = "left it at work\nstep 1\nstep 2\nstep 3\nit ended with 0\nits log has 3 lines\nout.txt: result\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
