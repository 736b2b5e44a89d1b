package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
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
)

// TestSoak works on a server for a while, in which clients vanish, guests are
// killed and the server itself is, and then looks at what it still holds.
func TestSoak(t *testing.T) {
	needSandboxes(t)
	lasting := 5 * time.Second
	if os.Getenv("SANDPIT_TEST_LONG") != "" {
		lasting = 10 * time.Minute
	}
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	k := &soak{t: t, home: home, small: sandpit.Spec{Limits: enforceable(t, sandpit.Limits{Memory: 64 << 20, Pids: 64})}}
	k.s = startService(t, home, nil)
	// What it takes to serve at all is taken before it is measured.
	k.work(200 * time.Millisecond)
	before := k.measure()
	round := lasting / 5
	for n := range 5 {
		k.work(round)
		if t.Failed() {
			return
		}
		if n < 2 {
			_ = k.s.cmd.Process.Kill()
			<-k.s.ended
			k.s = startService(t, home, nil)
		}
	}
	var after usage
	k.s.until("what it held for its callers is given back", func() bool {
		after = k.measure()
		return after.descriptors <= before.descriptors+24 && after.threads <= before.threads+40
	})
	t.Logf("%d done, %d broken off, %d guests killed; before %+v, after %+v", k.done.Load(), k.broken.Load(), k.killed, before, after)
	if after.memory > before.memory+64<<20 {
		t.Errorf("it has %d MiB, and had %d", after.memory>>20, before.memory>>20)
	}
	if k.done.Load() < 10 {
		t.Errorf("only %d things were done", k.done.Load())
	}
	endServer(t, home)
	<-k.s.ended
	if out, err := commandLineAt(t, home, "audit", "verify").CombinedOutput(); err != nil {
		t.Errorf("%v %s", err, out)
	}
}

type soak struct {
	t            *testing.T
	home         string
	small        sandpit.Spec
	s            *service
	done, broken atomic.Int64
	killed       int
}

// work has callers work for a while, most of whom leave in the midst of it, and
// kills a guest.
func (k *soak) work(lasting time.Duration) {
	t := k.t
	ctx, cancel := context.WithTimeout(t.Context(), lasting)
	defer cancel()
	steady := k.s.client()
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
				k.visit(ctx, sb)
			}
		})
	}
	k.killGuest(victim)
	// Nobody but its own callers notices.
	for ctx.Err() == nil {
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
		if info.Reason == "" && info.State != sandpit.StateRunning {
			t.Errorf("%s is %s, and why is not said", info.Name, info.State)
		}
		if err := steady.Remove(t.Context(), info.ID); err != nil && !errors.Is(err, sandpit.ErrNotFound) {
			t.Errorf("removing: %v", err)
		}
	}
	_ = steady.Close()
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
func (k *soak) visit(ctx context.Context, shared sandpit.Sandbox) {
	c, err := client.New(client.Options{Address: server.SocketIn(k.home).String()})
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
			for _, err := range c.Events(ctx, 0) {
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
