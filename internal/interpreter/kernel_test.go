package interpreter

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// An interrupt that comes before the run has begun is not lost, and does not concern the next run.
func TestEarlyInterrupts(t *testing.T) {
	python := testkit.NeedProgram(t, "python3")
	l, err := languageOf(sandpit.Python)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	source, err := l.source(setup{Socket: socket, Nonce: "ready", Stale: []string{}, MaxLine: maxLine, Env: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, l.argv[1:]...)
	cmd.Stdin = strings.NewReader(source)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if _, err := io.ReadFull(out, make([]byte, len(markOf("ready")))); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	for _, early := range []bool{true, false} {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(conn)
		if _, err := in.ReadString('\n'); err != nil { // the greeting
			t.Fatal(err)
		}
		if early {
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		}
		line, _ := json.Marshal(request{Begin: "b", Run: "r", Code: "1"})
		if _, err := conn.Write(append(line, '\n')); err != nil {
			t.Fatal(err)
		}
		interrupted := false
		for {
			answer, err := in.ReadBytes('\n')
			var m message
			if err != nil || json.Unmarshal(answer, &m) != nil {
				t.Fatalf("%q, %v", answer, err)
			}
			if m.Done == "" {
				continue
			}
			interrupted = m.Error != nil && m.Error.Name == "KeyboardInterrupt"
			break
		}
		if interrupted != early {
			t.Errorf("the run is interrupted: %t, want %t", interrupted, early)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
