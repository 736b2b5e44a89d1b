package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/dialect/e2b"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// The unmodified SDKs do what their users expect where a service is tried hardest: odd names and content, watches under
// load, sandboxes that end, many at once, of two tenants, and of two SDKs.
func TestE2BCases(t *testing.T) {
	npm, node, python := testkit.NeedProgram(t, "npm"), testkit.NeedProgram(t, "node"), testkit.NeedProgram(t, "python3")
	s := newServed(t)
	memory := "128m" // so that there is room for all at once
	if long() {
		memory = "256m"
	}
	s.policy("policies:\n  default: {defaults: {memory: " + memory + "}}\n")
	url, key := s.withE2B()
	env := []string{"E2B_API_URL=" + url, "E2B_SANDBOX_URL=" + url, "E2B_API_KEY=" + key, "OTHER_KEY=" + s.keyOf("other", "")}
	g := newGenerator(t, "e2b-javascript", env)
	g.modules(npm)
	for _, part := range []string{"content", "watch", "ends", "many", "tenants"} {
		args := []string{"cases.mjs", part}
		if long() {
			args = append(args, "long")
		}
		t.Run(part, func(t *testing.T) {
			own := *g
			own.t = t
			own.quiet(node, args...)
		})
	}
	id := strings.TrimSpace(g.run(node, "cases.mjs", "make"))
	p := newGenerator(t, "e2b-python", env)
	p.quiet(filepath.Join(p.venv(python), "python"), "cases.py", id)
}

// serveEnv makes the test binary a server of E2B's API: the data directory, a comma, and the address.
const serveEnv = "SANDPIT_TEST_SERVE_E2B"

// serveE2B serves until it is killed.
func serveE2B(spec string) int {
	home, at, _ := strings.Cut(spec, ",")
	s := &served{home: home, log: new(testkit.Buffer), lookup: func(string) (string, bool) { return "", false }}
	s.settings.Listen = []server.Listen{{Address: server.Address{Network: "tcp", Host: at}, Service: e2b.Name}}
	opt := s.options()
	opt.Dialects = []dialect.Dialect{e2b.New()}
	fmt.Fprintln(os.Stderr, server.Run(context.Background(), opt), s.log)
	return 1
}

// killable starts a server of E2B's API in a process of its own, in place of s, which must have been stopped. It returns what kills it.
func (s *served) killable(url string) (kill func()) {
	s.t.Helper()
	at := strings.TrimPrefix(url, "http://")
	first := exec.Command(os.Args[0])
	first.Env = append(os.Environ(), serveEnv+"="+s.home+","+at)
	first.Stderr = os.Stderr
	if err := first.Start(); err != nil {
		s.t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = first.Process.Kill()
		_ = first.Wait()
	})
	s.t.Cleanup(kill)
	testkit.Until(s.t, "it serves", func() bool {
		conn, err := net.Dial("tcp", at)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return kill
}

// An SDK finds its sandbox, files, signed URLs and processes again after a kill -9 of the server.
func TestE2BServerIsKilled(t *testing.T) {
	npm, node := testkit.NeedProgram(t, "npm"), testkit.NeedProgram(t, "node")
	s := newServed(t)
	url, key := s.withE2B()
	g := newGenerator(t, "e2b-javascript", []string{"E2B_API_URL=" + url, "E2B_SANDBOX_URL=" + url, "E2B_API_KEY=" + key})
	g.modules(npm)
	s.clean()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	kill := s.killable(url)

	sdk := g.command(node, "cases.mjs", "survive")
	in, err := sdk.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := sdk.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	said := new(testkit.Buffer)
	sdk.Stderr = said
	if err := sdk.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	if line, err := r.ReadString('\n'); line != "ready\n" {
		_ = sdk.Wait()
		t.Fatalf("%q, %v\n%s", line, err, said)
	}
	kill()
	s.start()
	fmt.Fprintln(in, "again")
	_ = in.Close()
	_, _ = io.Copy(io.Discard, r)
	if err := sdk.Wait(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}
