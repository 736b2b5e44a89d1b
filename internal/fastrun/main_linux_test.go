package fastrun_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	guestserver "github.com/sandpit-dev/sandpit/internal/guest/server"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

const patience = testkit.Patience

// TestMain lets this test program be its own guest.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == linux.GuestName {
		os.Exit(guestserver.Main(os.Args))
	}
	os.Exit(m.Run())
}

// place is a server in this process.
type place struct {
	t    testing.TB
	home string
	box  string // where commands run; empty: in sandboxes made for them
	log  *testkit.Buffer
	stop func() // ends the server, once, and waits
}

// shortHome returns a data directory whose sockets have short names.
func shortHome(t testing.TB) string {
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

// serve starts a server, and looks at the end whether it has left anything.
func serve(t testing.TB) *place {
	t.Helper()
	s := &place{t: t, home: shortHome(t), log: new(testkit.Buffer)}
	d := linux.New(linux.Options{
		Dir: filepath.Join(s.home, "guest"), Guest: embedded.Guest(), GuestDigest: embedded.Digest(embedded.Guest()), KeepDir: server.KeepDir(s.home),
	})
	caps := d.Examine(t.Context())
	testkit.NeedSandboxes(t, caps.Available, caps.Gaps)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := server.Run(ctx, server.Options{
			Home: s.home, Version: "test", Driver: d,
			Images: image.Open(filepath.Join(s.home, "images"), image.Options{NoSync: true}),
			Lookup: func(string) (string, bool) { return "", false },
			Say:    func(string) {},
			Log:    slog.New(slog.NewTextHandler(s.log, nil)),
		})
		if err != nil {
			t.Errorf("serving: %v", err)
		}
	}()
	s.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(func() {
		s.stop()
		if log := s.log.String(); t.Failed() || strings.Contains(log, "level=ERROR") {
			t.Errorf("the server's log:\n%s", log)
		}
		for _, dir := range []string{"run", "sandboxes", "images/kept"} {
			if left, _ := os.ReadDir(filepath.Join(s.home, dir)); len(left) > 0 {
				t.Errorf("%s has %v", dir, left)
			}
		}
	})
	until(t, "the server answers", func() bool { return strings.Contains(s.log.String(), "msg=listening") })
	return s
}

// bothWays tests commands in sandboxes made for them, and in one that stays.
func bothWays(t *testing.T, test func(*testing.T, *place)) {
	t.Run("run", func(t *testing.T) { test(t, serve(t)) })
	t.Run("exec", func(t *testing.T) {
		s := serve(t)
		s.create("box")
		test(t, s)
	})
}

// create makes the sandbox that commands run in from then on.
func (s *place) create(name string) sandpit.Sandbox {
	s.t.Helper()
	c, err := client.New(client.Options{Address: "unix://" + filepath.Join(s.home, "server.sock")})
	if err != nil {
		s.t.Fatal(err)
	}
	sb, err := c.Create(s.t.Context(), sandpit.Spec{Name: name})
	if err != nil {
		s.t.Fatal(err)
	}
	s.box = name
	s.t.Cleanup(func() {
		if err := errors.Join(sb.Remove(context.Background()), c.Close()); err != nil {
			s.t.Error(err)
		}
	})
	return sb
}

// open returns a command that is to be started.
func (s *place) open() *fastrun.Run {
	s.t.Helper()
	if s.box == "" {
		return &fastrun.Run{Home: s.home, Version: "test"}
	}
	r, err := fastrun.Open(s.home, "test", s.box)
	if err != nil {
		s.t.Fatalf("opening: %v", err)
	}
	return r
}

// started is a command that is being waited for.
type started struct {
	sandpit.Process
	run   *fastrun.Run
	leave context.CancelFunc // who waits leaves
	ended chan struct{}
	res   sandpit.Result // when it has ended
	err   error
}

// start starts a command by way of the server, and waits for it beside, as all
// that the server says is heard in Wait.
func (s *place) start(cmd sandpit.Command) *started {
	s.t.Helper()
	p := &started{run: s.open(), ended: make(chan struct{})}
	var err error
	if p.Process, err = p.run.Start(s.t.Context(), cmd); err != nil {
		s.t.Fatalf("starting %q%s: %v", cmd.Argv, cmd.Script, err)
	}
	var ctx context.Context
	ctx, p.leave = context.WithCancel(context.Background())
	go func() {
		defer close(p.ended)
		p.res, p.err = p.Wait(ctx)
	}()
	s.t.Cleanup(func() {
		p.leave()
		p.run.Close()
		<-p.ended
	})
	return p
}

// end waits for the end of a command.
func (p *started) end(t testing.TB) (sandpit.Result, error) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
	return p.res, p.err
}

// wait waits for the end of a command, which is a proper one.
func wait(t testing.TB, p *started) sandpit.Result {
	t.Helper()
	res, err := p.end(t)
	if err != nil {
		t.Fatalf("waiting: %v", err)
	}
	return res
}

// until waits for something that must come to be.
func until(t testing.TB, what string, true func() bool) {
	t.Helper()
	testkit.Until(t, what, true)
}

// seconds is a number of seconds to sleep, for long, which no other program of
// this machine has in its command line.
func seconds(n int) string { return fmt.Sprintf("%d.%07d", n, os.Getpid()) }

// runs reports whether a program of this machine has a word in its command line.
func runs(word string) bool {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range all {
		if line, err := os.ReadFile(name); err == nil && bytes.Contains(line, []byte(word)) {
			return true
		}
	}
	return false
}

// valve is a writer that takes nothing until it is opened.
type valve struct {
	open chan struct{}
	got  int64 // once it is open
}

func newValve() *valve { return &valve{open: make(chan struct{})} }

func (v *valve) Write(p []byte) (int, error) {
	<-v.open
	v.got += int64(len(p))
	return len(p), nil
}

// failing is a writer that fails.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// zeros gives zeros for ever.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

var _ io.Reader = zeros{}
