package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestSoak works on a server for a while, over its unix socket and over TLS in
// turn, in which clients vanish, guests are killed and the server itself is, and
// then looks at what it still holds.
func TestSoak(t *testing.T) {
	testkit.NeedFull(t, "it waits for six seconds")
	needSandboxes(t)
	lasting := 5 * time.Second
	long := os.Getenv("SANDPIT_TEST_LONG") != ""
	if long {
		lasting = 10 * time.Minute
	}
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	k := &soak{t: t, home: home, small: sandpit.Spec{Limits: enforceable(t, sandpit.Limits{Memory: 64 << 20, Pids: 64})}}
	k.s = overTLS(t, home)
	k.unix, k.tls = client.Options{Address: server.SocketIn(home).String()}, tlsOptions(t, k.s)
	t.Cleanup(k.clean)
	// What it takes to serve at all is taken before it is measured.
	k.work(200*time.Millisecond, k.unix)
	k.work(200*time.Millisecond, k.tls)
	before := k.measure()
	rounds := 5 // of which each has one way, or in the long form both
	for n := range rounds {
		ways := []client.Options{k.unix, k.tls}
		if !long {
			ways = ways[n%2 : n%2+1]
		}
		for _, way := range ways {
			k.work(lasting/time.Duration(rounds*len(ways)), way)
		}
		if t.Failed() {
			return
		}
		if n < 2 {
			_ = k.s.cmd.Process.Kill()
			<-k.s.ended
			k.s = startTLS(t, home, k.s.tls)
		}
	}
	var after usage
	testkit.Until(t, "what it held for its callers is given back", func() bool {
		after = k.measure()
		return after.descriptors <= before.descriptors+24 && after.threads <= before.threads+40 && after.memory <= before.memory+64<<20
	}, func() string { return fmt.Sprintf("before %+v, after %+v", before, after) })
	t.Logf("%d done, %d broken off, %d guests killed; before %+v, after %+v", k.done.Load(), k.broken.Load(), k.killed, before, after)
	if k.done.Load() < 10 {
		t.Errorf("only %d things were done", k.done.Load())
	}
	endServer(t, home)
	<-k.s.ended
	if out, err := commandLineAt(t, home, "audit", "verify").CombinedOutput(); err != nil {
		t.Errorf("%v %s", err, out)
	}
}

// tlsOptions are of a client that uses a server's TLS.
func tlsOptions(t *testing.T, s *service) client.Options {
	t.Helper()
	cert, err := os.ReadFile(filepath.Join(s.home, "cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	return client.Options{Address: "https://" + s.tls, Key: s.key, TLS: &tls.Config{RootCAs: roots}}
}

type soak struct {
	t            *testing.T
	home         string
	small        sandpit.Spec
	unix, tls    client.Options
	s            *service
	done, broken atomic.Int64
	killed       int
}

// work has callers work for a while, most of whom leave in the midst of it, and
// kills a guest.
func (k *soak) work(lasting time.Duration, way client.Options) {
	t := k.t
	ctx, cancel := context.WithTimeout(t.Context(), lasting)
	defer cancel()
	steady, err := client.New(way)
	if err != nil {
		t.Fatal(err)
	}
	defer steady.Close()
	sb, err := steady.Create(t.Context(), k.small)
	if err != nil {
		t.Fatal(err)
	}
	victim, err := steady.Create(t.Context(), k.small)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				k.visit(ctx, way, sb)
			}
		})
	}
	k.killGuest(victim)
	// Nobody but its own callers notices.
	for n := 0; n < 2 || ctx.Err() == nil; n++ {
		out, err := sandpit.Exec(t.Context(), sb, "echo", "well")
		if err != nil || string(out.Stdout) != "well\n" {
			t.Errorf("in a sandbox beside: %+v %v", out, err)
			break
		}
		k.done.Add(1)
	}
	all.Wait()
	for _, b := range []sandpit.Sandbox{sb, victim} {
		if err := b.Remove(t.Context()); err != nil {
			t.Errorf("removing: %v", err)
		}
	}
	page, err := steady.List(t.Context(), sandpit.ListQuery{Limit: 1000})
	if err != nil {
		t.Error(err)
	}
	for _, info := range page.Sandboxes {
		// What a client has left while it was made may be on its way out.
		if info.Reason == "" && info.State != sandpit.StateRunning && info.State != sandpit.StateCreating {
			t.Errorf("%s is %s, and why is not said", info.Name, info.State)
		}
		if err := steady.Remove(t.Context(), info.ID); err != nil && !errors.Is(err, sandpit.ErrNotFound) {
			t.Errorf("removing: %v", err)
		}
	}
}

// clean removes what a test that has failed has left with its key, which
// endServer can't see.
func (k *soak) clean() {
	if serverPID(k.t, k.home) == 0 {
		return
	}
	c, err := client.New(k.tls)
	if err != nil {
		k.t.Error(err)
		return
	}
	defer c.Close()
	ctx := context.WithoutCancel(k.t.Context())
	page, err := c.List(ctx, sandpit.ListQuery{Limit: 1000})
	if err != nil {
		k.t.Error(err)
	}
	for _, info := range page.Sandboxes {
		if err := c.Remove(ctx, info.ID); err != nil {
			k.t.Errorf("removing %s: %v", info.Name, err)
		}
	}
}

// killGuest kills the first process of a sandbox from outside.
func (k *soak) killGuest(victim sandpit.Sandbox) {
	t := k.t
	if err := syscall.Kill(guestOf(t, k.home, victim.ID()), syscall.SIGKILL); err != nil {
		t.Fatalf("killing a guest: %v", err)
	}
	k.killed++
	k.s.until("the sandbox is failed", func() bool {
		info, err := victim.Info(t.Context())
		return err == nil && info.State == sandpit.StateFailed && info.Reason != ""
	})
	if _, err := sandpit.Exec(t.Context(), victim, "true"); err == nil {
		t.Error("a command has run in a sandbox whose guest is dead")
	}
}

// visit is a client that does a few things and leaves, perhaps in the midst.
func (k *soak) visit(ctx context.Context, way client.Options, shared sandpit.Sandbox) {
	c, err := client.New(way)
	if err != nil {
		k.t.Error(err)
		return
	}
	defer c.Close()
	ctx, leave := context.WithTimeout(ctx, time.Duration(rand.Int64N(int64(400*time.Millisecond))))
	defer leave()
	err = func() error {
		sb, err := c.Get(ctx, shared.ID())
		if err != nil {
			return err
		}
		switch rand.IntN(6) {
		case 0:
			mine, err := c.Create(ctx, k.small)
			if err != nil {
				return err
			}
			defer mine.Remove(context.WithoutCancel(ctx))
			_, err = sandpit.Shell(ctx, mine, "head -c 1000000 /dev/zero")
			return err
		case 1:
			_, err := sandpit.Shell(ctx, sb, "yes | head -c 5000000; sleep 0.05")
			return err
		case 2:
			_, err := sb.Files().Write(ctx, fmt.Sprintf("/tmp/f%d", rand.IntN(8)), io.LimitReader(neverending{}, 1<<20), sandpit.WriteOptions{})
			return err
		case 3:
			for _, err := range sb.Logs(ctx, sandpit.LogQuery{Follow: true, Tail: 10}) {
				if err != nil {
					return err
				}
			}
			return nil
		case 4:
			for _, err := range c.Events(ctx, sandpit.EventQuery{}) {
				if err != nil {
					return err
				}
			}
			return nil
		}
		_, err = sb.Start(ctx, sandpit.Command{Argv: []string{"sleep", "0.1"}, Background: true})
		return err
	}()
	switch {
	case err == nil:
		k.done.Add(1)
	case ctx.Err() != nil:
		k.broken.Add(1)
	case errors.Is(err, sandpit.ErrExhausted):
	default:
		k.t.Errorf("working: %v", err)
	}
}

// neverending gives zeros.
type neverending struct{}

func (neverending) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// usage is what a server has of the machine.
type usage struct {
	memory               int64 // bytes, resident
	descriptors, threads int
}

func (k *soak) measure() usage {
	t := k.t
	t.Helper()
	dir := fmt.Sprintf("/proc/%d", k.s.cmd.Process.Pid)
	open, err := os.ReadDir(dir + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		t.Fatal(err)
	}
	u := usage{descriptors: len(open)}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		n, _ := strconv.ParseInt(fields[0], 10, 64)
		switch name {
		case "VmRSS":
			u.memory = n << 10
		case "Threads":
			u.threads = int(n)
		}
	}
	return u
}
