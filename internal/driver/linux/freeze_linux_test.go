package linux_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/drivertest"
	"github.com/sandpit-dev/sandpit/internal/feature"
	guestclient "github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// Freeze of a sandbox with a thread that waits in the kernel gives up, and everything runs
// on. What that thread waits for is outside, or it would be frozen, too, and let it go.
func TestFreezeGivesUp(t *testing.T) {
	testkit.NeedFull(t, "it waits for ten seconds")
	testkit.NeedRoot(t, "to open a pipe of a sandbox")
	d := newDriver()
	if !d.Probe(t.Context()).Features[feature.Pause] {
		testkit.Need(t, "the feature pause", errors.New("the driver lacks it here"))
	}
	t.Cleanup(unchanged(t))
	endAfterwards(t)
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	defer cancel()
	inst, err := d.Create(ctx, drivertest.Plan(d, hostRoot(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := inst.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	conn, err := inst.Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c, err := guestclient.New(ctx, conn, guestclient.Options{Config: &guestclient.Config{User: "1000:1000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const mark = "86617"
	p, err := c.Start(ctx, sandpit.Command{Argv: []string{"sleep", mark}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	// found returns a process of this test that is what is looked for.
	found := func(what string, is func(pid int) bool) (found int) {
		eventually(t, what, func() bool {
			all := descendants(os.Getpid())
			i := slices.IndexFunc(all, is)
			if i >= 0 {
				found = all[i]
			}
			return i >= 0
		})
		return found
	}
	sleeper := found("it sleeps", func(pid int) bool {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return string(args) == "sleep\x00"+mark+"\x00"
	})
	pipe, err := os.Open(fmt.Sprintf("/proc/%d/fd/0", sleeper))
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	holder := exec.Command("/proc/self/exe", "probe:hold-pipe")
	holder.Stdin = pipe
	out, err := holder.StdoutPipe()
	if err == nil {
		err = holder.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	end := func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	}
	defer end()
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "ready" {
		t.Fatalf("the probe says %q, %v", line, err)
	}
	go func() {
		for err := error(nil); err == nil; {
			_, err = p.Stdin().Write([]byte("a line\n"))
		}
	}()
	found("the guest waits in the kernel", func(pid int) bool { return isGuest(pid) && waitsForGood(pid) })

	f := inst.(driver.Freezer)
	frozen := func(want bool) {
		t.Helper()
		if is, err := f.Frozen(ctx); err != nil || is != want {
			t.Errorf("frozen: %v, %v, want %v", is, err, want)
		}
	}
	if err := f.Freeze(ctx); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("freezing: %v", err)
	}
	frozen(false)
	other, err := c.Start(ctx, sandpit.Command{Argv: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := other.Wait(ctx); err != nil || !res.Success() {
		t.Errorf("another process ends with %+v, %v", res, err)
	}
	end()
	if err := f.Freeze(ctx); err != nil {
		t.Errorf("when it no longer waits: %v", err)
	}
	frozen(true)
	if err := f.Thaw(ctx); err != nil {
		t.Error(err)
	}
}
