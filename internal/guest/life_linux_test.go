package guest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/guest/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// listen gives the guest a socket to listen on and returns its path.
func (g *testGuest) listen() string {
	g.t.Helper()
	dir, err := os.MkdirTemp("", "guest") // a socket's path is short
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		g.t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	f, err := l.File()
	if err != nil {
		g.t.Fatal(err)
	}
	defer f.Close()
	if _, _, err := g.boot.WriteMsgUnix([]byte{'s'}, unix.UnixRights(int(f.Fd())), nil); err != nil {
		g.t.Fatal(err)
	}
	return path
}

// connect greets a guest that listens.
func connect(t testing.TB, path string, opt client.Options) *client.Client {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(t.Context(), conn, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// end makes a guest that outlives its owner end, and says how it did.
func (g *testGuest) end(c *client.Client) int {
	g.t.Helper()
	// It may end before it could answer.
	if _, err := c.SetLifetime(within(g.t, time.Minute), client.Lifetime{Life: 1, Grace: 1}); err != nil && !errors.Is(err, client.ErrExpired) {
		g.t.Fatal(err)
	}
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		g.t.Fatal("the guest does not end")
	}
	_ = g.cmd.Wait()
	return g.cmd.ProcessState.ExitCode()
}

// written waits until the first process of the list, which is ref, has written
// so many bytes, and returns the list.
func written(t testing.TB, c *client.Client, ref uint64, bytes int64) []client.ProcessInfo {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		ps, err := c.Processes(t.Context())
		if err != nil || len(ps) == 0 || ps[0].Ref != ref {
			t.Fatalf("got %+v, %v, want the process %d", ps, err, ref)
		}
		if ps[0].Position == bytes {
			return ps
		}
		if time.Now().After(deadline) {
			t.Fatalf("it has not come to %d bytes: %+v", bytes, ps[0])
		}
	}
}

func TestGuestOutlivesItsOwner(t *testing.T) {
	g := newGuest(t)
	path := g.listen()
	c := g.client(client.Options{Config: config()})
	m := marker(t)
	began := time.Now().Round(0) // of the clock that chunks are told by
	p, err := c.StartDetached(t.Context(), sandpit.Command{
		Script: "echo one; echo two >&2; read -r line; echo got $line; sleep " + m, Stdin: true,
	}, client.Detach{})
	if err != nil {
		t.Fatal(err)
	}
	// Its marker is that of the other with one more digit.
	fg, l := begin(t, c, sandpit.Command{Script: "echo up; sleep " + m + "5"})
	l.next(t)

	// As after a kill -9.
	g.boot.Close()
	c.Close()
	gone(t, m+"5")
	if _, err := fg.Wait(t.Context()); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("got %v", err)
	}

	c = connect(t, path, client.Options{})
	ps := written(t, c, p.Ref(), 8)
	if ps[0].Exited || !ps[0].Stdin {
		t.Fatalf("got %+v", ps)
	}
	out := &lines{ch: make(chan string, 10)}
	var chunks []client.Chunk
	again, err := c.Attach(t.Context(), p.Ref(), 0, client.AttachOptions{
		AttachOptions: sandpit.AttachOptions{Stdin: true, Stdout: out},
		Chunk: func(c client.Chunk) error {
			c.Data = bytes.Clone(c.Data)
			chunks = append(chunks, c)
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := out.next(t); got != "one" {
		t.Errorf("got %q", got)
	}
	if _, err := io.WriteString(again.Stdin(), "this\n"); err != nil {
		t.Fatal(err)
	}
	if got := out.next(t); got != "got this" {
		t.Errorf("got %q", got)
	}
	if err := again.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if res := wait(t, again); res.Signal != 9 {
		t.Errorf("got %+v", res)
	}
	ended := time.Now().Round(0)
	var text [2]string
	at := int64(0)
	for _, c := range chunks {
		if c.Position != at || c.Time.Before(began) || c.Time.After(ended) {
			t.Errorf("chunk %+v at %d", c, at)
		}
		at += int64(len(c.Data))
		i := 0
		if c.Stderr {
			i = 1
		}
		text[i] += string(c.Data)
	}
	if text != [2]string{"one\ngot this\n", "two\n"} {
		t.Errorf("got %q", text)
	}
	if code := g.end(c); code != server.ExitExpired {
		t.Errorf("exit code %d", code)
	}
	if err := c.Err(); !errors.Is(err, sandpit.ErrClosed) || !errors.Is(err, client.ErrExpired) || !strings.Contains(err.Error(), "lifetime") {
		t.Errorf("got %v", c.Err())
	}
}

// What does not greet takes a place for a while only, and does not keep others out.
func TestListenerIsBounded(t *testing.T) {
	testkit.NeedFull(t, "it waits for three seconds")
	g := newGuest(t)
	path := g.listen()
	var idle []net.Conn
	for range 30 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, conn)
	}
	c := connect(t, path, client.Options{Config: config()})
	if res, out, _ := run(t, c, sandpit.Command{Script: "ls /proc/self/fd; ls -l /proc/$PPID/fd | grep -c socket"}); out != "0\n1\n2\n3\n0\n" {
		t.Errorf("a process has %q, %+v", out, res)
	}
	for _, conn := range idle {
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Error(err)
		}
		conn.Close()
	}
	g.boot.Close()
	g.end(c)
}

func TestLifetimeOfTheGuest(t *testing.T) {
	g := newGuest(t)
	path := g.listen()
	c := g.client(client.Options{Config: config()})
	ctx := within(t, time.Minute)
	if left, err := c.TimeLeft(ctx); err != nil || left != (client.TimeLeft{}) {
		t.Errorf("got %+v, %v", left, err)
	}
	left, err := c.SetLifetime(ctx, client.Lifetime{Life: time.Hour, Idle: time.Minute})
	if err != nil || left.Life <= 59*time.Minute || left.Life > time.Hour || left.Idle != time.Minute || left.IdleLeft > time.Minute || left.IdleLeft <= 0 {
		t.Errorf("got %+v, %v", left, err)
	}
	// A host that is there is asked first, and extends it.
	if _, err := c.SetLifetime(ctx, client.Lifetime{Life: time.Millisecond, Grace: time.Hour}); err != nil {
		t.Fatal(err)
	}
	e, err := c.Expired(ctx)
	if err != nil || e.Idle || e.Grace < 59*time.Minute {
		t.Errorf("got %+v, %v", e, err)
	}
	if _, err := c.SetLifetime(ctx, client.Lifetime{}); err != nil {
		t.Fatal(err)
	}
	// Idle: not while a stream is there.
	p, l := begin(t, c, sandpit.Command{Script: "echo up; read -r line", Stdin: true})
	l.next(t)
	if _, err := c.SetLifetime(ctx, client.Lifetime{Idle: time.Millisecond, Grace: time.Hour}); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	if e, err := c.Expired(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a sandbox in use: got %+v, %v", e, err)
	}
	cancel()
	p.Stdin().Close()
	wait(t, p)
	if e, err := c.Expired(ctx); err != nil || !e.Idle {
		t.Errorf("got %+v, %v", e, err)
	}
	if _, err := c.SetLifetime(ctx, client.Lifetime{}); err != nil {
		t.Fatal(err)
	}
	// With nobody there.
	m := marker(t)
	if _, err := c.StartDetached(ctx, sandpit.Command{Script: "setsid sleep " + m}, client.Detach{}); err != nil {
		t.Fatal(err)
	}
	g.boot.Close()
	ended := make(chan struct{})
	go func() { _ = g.cmd.Wait(); close(ended) }()
	for life, over := 300*time.Millisecond, false; !over; life *= 10 {
		if _, err := c.SetLifetime(within(t, time.Minute), client.Lifetime{Life: life, Grace: time.Hour}); err != nil {
			t.Fatal(err)
		}
		c.Close()
		select {
		case <-ended:
			over = true
			continue
		case <-time.After(life + 20*time.Second):
		}
		// The one thing that may keep it: on a busy machine its time was over
		// before this host had gone, and it gave that the grace.
		c = connect(t, path, client.Options{})
		if e, err := c.Expired(within(t, time.Minute)); err != nil || e.Grace == 0 || life > time.Minute {
			t.Fatalf("it goes on with nobody there, with a lifetime of %v: %+v, %v", life, e, err)
		}
	}
	if code := g.cmd.ProcessState.ExitCode(); code != server.ExitExpired {
		t.Errorf("exit code %d", code)
	}
	gone(t, m)
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		t.Error("somebody still listens")
	}
}

// A slow reader holds up neither the process nor others, and is told what it missed.
func TestSlowAttacher(t *testing.T) {
	c := start(t)
	const total = 6888896 // bytes of seq 1000000
	p, err := c.StartDetached(t.Context(), sandpit.Command{Script: "read -r go; seq 1000000; read -r go; echo end", Stdin: true}, client.Detach{Keep: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	stdin := p.Stdin()
	release := make(chan struct{})
	var slow, fast, held count
	slow.wait = release
	var views []*client.Process
	for i, opt := range []client.AttachOptions{
		{AttachOptions: sandpit.AttachOptions{Stdout: &slow, Lost: slow.lose}},
		{AttachOptions: sandpit.AttachOptions{Stdout: &fast, Lost: fast.lose}},
		{AttachOptions: sandpit.AttachOptions{Stdout: &held, Lost: held.lose}, Hold: true},
		{}, // only waits
	} {
		v, err := c.Attach(t.Context(), p.Ref(), 0, opt)
		if err != nil {
			t.Fatal(i, err)
		}
		views = append(views, v)
	}
	if _, err := io.WriteString(stdin, "go\n"); err != nil {
		t.Fatal(err)
	}
	// It comes to its end although one takes nothing.
	written(t, c, p.Ref(), total)
	close(release)
	stdin.Close()
	for _, v := range views {
		wait(t, v)
	}
	for name, n := range map[string]*count{"slow": &slow, "fast": &fast, "held": &held} {
		if n.got+n.lost != total+4 {
			t.Errorf("%s: got %d, lost %d of %d bytes", name, n.got, n.lost, total+4)
		}
	}
	if held.lost != 0 || slow.lost < total/2 {
		t.Errorf("held has lost %d bytes, slow %d", held.lost, slow.lost)
	}
	// From where one was.
	var again count
	var out bytes.Buffer
	v, err := c.Attach(t.Context(), p.Ref(), 0, client.AttachOptions{From: total - 8, AttachOptions: sandpit.AttachOptions{Stdout: &out, Lost: again.lose}})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, v)
	if out.String() != "1000000\nend\n" || again.lost != 0 {
		t.Errorf("got %q, lost %d", out.String(), again.lost)
	}
	if _, err := c.Attach(t.Context(), p.Ref(), 0, client.AttachOptions{From: 1 << 40}); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("from a place that has yet to come: got %v", err)
	}
	out.Reset()
	v, err = c.Attach(t.Context(), p.Ref(), 0, client.AttachOptions{AttachOptions: sandpit.AttachOptions{Stdout: &out, NoHistory: true}})
	if err != nil {
		t.Fatal(err)
	}
	if wait(t, v); out.Len() != 0 {
		t.Errorf("got %q", out.String())
	}
}

// count is a writer that counts.
type count struct {
	wait chan struct{}
	got  int64
	lost int64
}

func (c *count) Write(b []byte) (int, error) {
	if c.wait != nil {
		<-c.wait
	}
	c.got += int64(len(b))
	return len(b), nil
}

func (c *count) lose(n int64) { c.lost += n }

// The results of the latest are kept, also of those whose host has gone.
func TestResultsAreKept(t *testing.T) {
	g := newGuest(t)
	c := g.client(client.Options{Config: config()})
	for i := range 300 {
		res, _, _ := run(t, c, sandpit.Command{Argv: []string{"sh", "-c", fmt.Sprint("exit ", i%200)}})
		if res.ExitCode != i%200 {
			t.Fatal(res)
		}
	}
	ps, err := c.Processes(t.Context())
	if err != nil || len(ps) < 256 || len(ps) > 257 || ps[len(ps)-1].Result.ExitCode != 299%200 {
		t.Errorf("%d processes, %v", len(ps), err)
	}
}

func TestLimitOfOneProcess(t *testing.T) {
	g := newGuest(t)
	conf := config()
	conf.NoFile = 100
	c := g.client(client.Options{Config: conf})
	for n, want := range map[int64]string{0: "100\n", 50: "50\n", 200: "100\n"} {
		if _, out, _ := run(t, c, sandpit.Command{Script: "ulimit -Hn", NoFile: n}); out != want {
			t.Errorf("%d: got %q", n, out)
		}
	}
}
