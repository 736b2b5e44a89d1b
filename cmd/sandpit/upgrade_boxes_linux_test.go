package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// situations are those of sandboxes and of the server, in the order in which they
// are set up; the last are in the midst of something that takes its time.
func situations() []situation {
	return []situation{
		{"the files of a sandbox", upgradeFiles},
		{"limits", upgradeLimits},
		{"a stopped sandbox", upgradeStopped},
		{"a paused sandbox", upgradePaused},
		{"a lifetime", upgradeLife},
		{"an idle time", upgradeIdle},
		{"standard input", upgradeInput},
		{"a terminal", upgradeTerminal},
		{"processes that have ended", upgradeEnded},
		{"a port", upgradePort},
		{"an image", upgradeImage},
		{"a tenant", upgradeTenant},
		{"a webhook", upgradeWebhook},
		{"events", upgradeEvents},
		{"a request that is repeated", upgradeRepeated},
		{"the audit", upgradeAudit},
		{"commands of the other program", upgradeMixed},
		{"figures", upgradeFigures},
		{"a process in the foreground", upgradeForeground},
		{"output while it is written", upgradeOutput},
		{"a lifetime that ends without a server", upgradeExpired},
	}
}

func upgradeFiles(u *upgrade) func(*upgrade) {
	const look = `cd /tmp; find . | sort | xargs stat -c '%n %f %s %Y %N %u'; sha256sum big; cat small; echo "$MARK"; pwd`
	sb := u.box(sandpit.Spec{Name: "files", Env: []string{"MARK=kept"}, Labels: map[string]string{"made": "by the old"}})
	u.shell(sb, `cd /tmp; head -c 3000000 /dev/urandom >big; echo hello >small; chmod 640 small; mkdir -p d/e; chmod 751 d; ln -s ../small d/link; ln small d/e/hard; touch -d 2001-02-03 d/e`)
	seen := u.shell(sb, look)
	info, err := sb.Info(u.t.Context())
	if err != nil {
		u.t.Fatal(err)
	}
	return func(u *upgrade) {
		t := u.t
		if diff := cmp.Diff(seen, u.shell(sb, look)); diff != "" {
			t.Error(diff)
		}
		now, err := u.again("files").Info(t.Context())
		// What an older program did not know of, it has not enforced: that is told
		// as a gap of its sandboxes, beside those that it told itself.
		known := len(info.NotEnforced)
		for _, gap := range now.NotEnforced[min(known, len(now.NotEnforced)):] {
			if !strings.Contains(gap.Why, "earlier version") {
				t.Errorf("a gap that it did not have: %+v", gap)
			}
		}
		now.NotEnforced = now.NotEnforced[:min(known, len(now.NotEnforced))]
		if diff := cmp.Diff(info, now, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Error(diff, err)
		}
		if _, err := sb.Files().Write(t.Context(), "/tmp/small", strings.NewReader("and more\n"), sandpit.WriteOptions{Append: true}); err != nil {
			t.Error(err)
		}
		if err := sb.Files().Edit(t.Context(), "/tmp/small", []sandpit.Edit{{Old: "hello", New: "good day"}}); err != nil {
			t.Error(err)
		}
		if got := u.shell(sb, "cat /tmp/small"); got != "good day\nand more\n" {
			t.Errorf("the file is %q", got)
		}
		if got, err := sb.Files().Grep(t.Context(), "/tmp", sandpit.GrepQuery{Pattern: "good|never"}); err != nil || len(got.Lines) == 0 {
			t.Errorf("searching: %+v %v", got, err)
		}
		var archive bytes.Buffer
		if err := sb.Files().Download(t.Context(), "/tmp", &archive); err != nil || archive.Len() < 3000000 {
			t.Errorf("downloading: %d bytes, %v", archive.Len(), err)
		}
		if err := sb.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := u.c.Get(t.Context(), "files"); !errors.Is(err, sandpit.ErrNotFound) {
			t.Errorf("removed, it is %v", err)
		}
		u.box(sandpit.Spec{Name: "files"})
	}
}

func upgradeLimits(u *upgrade) func(*upgrade) {
	limits := u.limits
	limits.Disk = 8 << 20
	if limits.Pids != 0 {
		limits.Pids = 32
	}
	sb := u.box(sandpit.Spec{Name: "limits", Limits: limits})
	info, err := sb.Info(u.t.Context())
	if err != nil {
		u.t.Fatal(err)
	}
	return func(u *upgrade) {
		t := u.t
		if now, err := sb.Info(t.Context()); err != nil || now.Limits != info.Limits {
			t.Errorf("they were %+v, and are %+v %v", info.Limits, now.Limits, err)
		}
		if limits.Pids != 0 {
			// Those who sleep end at once when there can be no more. A guest that is kept
			// at the limit for longer than 0.2 s may die of it: the runtime of Go ends a
			// program that can have no thread, and the old guest counts against the limit.
			if out, err := sandpit.Shell(t.Context(), sb, "trap 'kill 0' EXIT; i=0; while [ $i -lt 64 ]; do sleep 1000 & i=$((i+1)); done"); err != nil || out.Success() {
				t.Errorf("64 processes where 32 may be: %+v %v", out.Result, err)
			}
		}
		if limits.Memory != 0 {
			out, err := sandpit.Shell(t.Context(), sb, "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}")
			if err != nil || out.Success() {
				t.Errorf("200 MB where 64 MiB may be: %+v %v", out.Result, err)
			}
		}
		var said string                                        // by the last try
		testkit.Until(t, "it can be used again", func() bool { // when those who sleep have ended
			out, err := sandpit.Exec(t.Context(), sb, "echo", "well")
			said = fmt.Sprintf("%+v %v %s", out.Result, err, out.Stderr)
			return err == nil && string(out.Stdout) == "well\n"
		}, func() string {
			info, err := sb.Info(t.Context())
			return fmt.Sprintf("%s\nthe sandbox is %s %q, %v", said, info.State, info.Reason, err)
		})
		if out, err := sandpit.Shell(t.Context(), sb, "head -c 16000000 /dev/zero >/var/tmp/big 2>/dev/null || head -c 16000000 /dev/zero >$HOME/big"); err != nil || out.Success() {
			t.Errorf("16 MB where 8 MiB may be: %+v %v", out.Result, err)
		}
	}
}

func upgradeStopped(u *upgrade) func(*upgrade) {
	sb := u.box(sandpit.Spec{Name: "stopped"})
	u.shell(sb, "echo hello >/tmp/file")
	if err := sb.(sandpit.Lifecycle).Stop(u.t.Context(), time.Second); err != nil {
		u.t.Fatal(err)
	}
	return func(u *upgrade) {
		t := u.t
		u.is(sb, sandpit.StateStopped)
		if _, err := sandpit.Exec(t.Context(), sb, "true"); !errors.Is(err, sandpit.ErrState) {
			t.Errorf("in a stopped sandbox: %v", err)
		}
		if err := sb.(sandpit.Lifecycle).Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := u.shell(sb, "cat /tmp/file"); got != "hello\n" {
			t.Errorf("its file is %q", got)
		}
		if err := sb.(sandpit.Lifecycle).Stop(t.Context(), time.Second); err != nil {
			t.Error(err)
		}
	}
}

func (u *upgrade) is(sb sandpit.Sandbox, want sandpit.State) {
	u.t.Helper()
	if info, err := sb.Info(u.t.Context()); err != nil || info.State != want {
		u.t.Errorf("%s is %s, want %s: %s %v", sb.Name(), info.State, want, info.Reason, err)
	}
}

// becomes waits until a sandbox is in a state.
func (u *upgrade) becomes(sb sandpit.Sandbox, want sandpit.State) {
	u.t.Helper()
	u.until(fmt.Sprintf("%s is %s", sb.Name(), want), func() bool {
		info, err := sb.Info(u.t.Context())
		return err == nil && info.State == want
	})
}

func (u *upgrade) until(what string, true func() bool) {
	u.t.Helper()
	testkit.Until(u.t, what, true)
}

func upgradePaused(u *upgrade) func(*upgrade) {
	sb := u.box(sandpit.Spec{Name: "paused"})
	p, err := sb.Start(u.t.Context(), sandpit.Command{Script: "i=0; while :; do i=$((i+1)); echo $i >/tmp/n; sleep 0.01; done", Background: true})
	if err != nil {
		u.t.Fatal(err)
	}
	u.until("it counts", func() bool { return u.shell(sb, "cat /tmp/n 2>/dev/null; :") != "" })
	if err := sb.(sandpit.Lifecycle).Pause(u.t.Context()); err != nil {
		if !errors.Is(err, sandpit.ErrUnsupported) {
			u.t.Fatal(err)
		}
		return func(u *upgrade) {
			testkit.Need(u.t, "a driver that can pause", err)
		}
	}
	return func(u *upgrade) {
		t := u.t
		u.is(sb, sandpit.StatePaused)
		before := u.shell(sb, "cat /tmp/n") // which resumes it
		u.is(sb, sandpit.StateRunning)
		u.until("it counts on", func() bool { return u.shell(sb, "cat /tmp/n") != before })
		if err := sb.(sandpit.Lifecycle).Pause(t.Context()); err != nil {
			t.Error(err)
		}
		again, err := sb.(sandpit.ProcessKeeper).Attach(t.Context(), p.ID(), sandpit.AttachOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Kill(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func upgradeLife(u *upgrade) func(*upgrade) {
	limits := u.limits
	limits.Life = time.Hour
	sb := u.box(sandpit.Spec{Name: "life", Limits: limits, OnExpiry: sandpit.ExpiryStop})
	before, err := sb.Info(u.t.Context())
	if err != nil {
		u.t.Fatal(err)
	}
	return func(u *upgrade) {
		t := u.t
		if now, err := sb.Info(t.Context()); err != nil || !now.ExpiresAt.Equal(before.ExpiresAt) {
			t.Errorf("it was to expire at %s, and now at %s, %v", before.ExpiresAt, now.ExpiresAt, err)
		}
		if err := sb.(sandpit.Lifecycle).SetLifetime(t.Context(), sandpit.Lifetime{Life: 50 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		u.becomes(sb, sandpit.StateStopped)
	}
}

func upgradeIdle(u *upgrade) func(*upgrade) {
	sb := u.box(sandpit.Spec{Name: "idle", Idle: time.Hour, OnExpiry: sandpit.ExpiryStop})
	info, err := sb.Info(u.t.Context())
	if err != nil || info.Idle != time.Hour {
		u.t.Fatal(info, err)
	}
	return func(u *upgrade) {
		t := u.t
		if now, err := sb.Info(t.Context()); err != nil || now.Idle != info.Idle || now.OnExpiry != info.OnExpiry {
			t.Errorf("it was %+v, is %+v, %v", info, now, err)
		}
		if err := sb.(sandpit.Lifecycle).SetLifetime(t.Context(), sandpit.Lifetime{Idle: 50 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		u.becomes(sb, sandpit.StateStopped)
	}
}
