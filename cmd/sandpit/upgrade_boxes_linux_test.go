package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/apart"
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
		if diff := cmp.Diff(info, now); diff != "" || err != nil {
			t.Error(diff, err)
		}
		if _, err := sb.Files().Write(t.Context(), "/tmp/small", strings.NewReader("and more\n"), sandpit.WriteOptions{Append: true}); err != nil {
			t.Error(err)
		}
		more := sb.Files().(sandpit.MoreFiles)
		if err := more.Edit(t.Context(), "/tmp/small", []sandpit.Edit{{Old: "hello", New: "good day"}}); err != nil {
			t.Error(err)
		}
		if got := u.shell(sb, "cat /tmp/small"); got != "good day\nand more\n" {
			t.Errorf("the file is %q", got)
		}
		if got, err := more.Grep(t.Context(), "/tmp", sandpit.GrepQuery{Pattern: "good|never"}); err != nil || len(got.Lines) == 0 {
			t.Errorf("searching: %+v %v", got, err)
		}
		var archive bytes.Buffer
		if err := more.Download(t.Context(), "/tmp", &archive); err != nil || archive.Len() < 3000000 {
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
			if out, err := sandpit.Shell(t.Context(), sb, "i=0; while [ $i -lt 64 ]; do sleep 0.5 & i=$((i+1)); done"); err != nil || out.Success() {
				t.Errorf("64 processes where 32 may be: %+v %v", out.Result, err)
			}
		}
		if limits.Memory != 0 {
			out, err := sandpit.Shell(t.Context(), sb, "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}")
			if err != nil || out.Success() {
				t.Errorf("200 MB where 64 MiB may be: %+v %v", out.Result, err)
			}
		}
		u.until("it can be used again", func() bool { // when those who sleep have ended
			out, err := sandpit.Exec(t.Context(), sb, "echo", "well")
			return err == nil && string(out.Stdout) == "well\n"
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
	apart.Until(u.t, what, true)
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
		return func(u *upgrade) { u.t.Skipf("sandboxes can't be paused here (%v): runs where they can, as in CI", err) }
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

func upgradeInput(u *upgrade) func(*upgrade) {
	sb := u.box(sandpit.Spec{Name: "input"})
	p, err := sb.Start(u.t.Context(), sandpit.Command{Script: "cat; exit 4", Stdin: true, Background: true})
	if err != nil {
		u.t.Fatal(err)
	}
	if _, err := io.WriteString(p.Stdin(), "one\n"); err != nil {
		u.t.Fatal(err)
	}
	keeper := sb.(sandpit.ProcessKeeper)
	u.until("it has read", func() bool { return len(u.logs(sb, sandpit.LogQuery{})) > 0 })
	p.(sandpit.Detacher).Detach()
	return func(u *upgrade) {
		t := u.t
		var out bytes.Buffer
		again, err := keeper.Attach(t.Context(), p.ID(), sandpit.AttachOptions{Stdin: true, Stdout: &out})
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(again.Stdin(), "two\n")
		if err = errors.Join(err, again.Stdin().Close()); err != nil {
			t.Error(err)
		}
		if res, err := again.Wait(t.Context()); err != nil || res.ExitCode != 4 || out.String() != "one\ntwo\n" {
			t.Errorf("it ended with %+v %v, and wrote %q", res, err, out.String())
		}
	}
}

func upgradeTerminal(u *upgrade) func(*upgrade) {
	sb := u.box(sandpit.Spec{Name: "terminal"})
	p, err := sb.Start(u.t.Context(), sandpit.Command{Argv: []string{"sh", "-i"}, Stdin: true, Background: true, Terminal: &sandpit.TerminalSize{Rows: 24, Cols: 80}})
	if err != nil {
		u.t.Fatal(err)
	}
	if err := p.Resize(u.t.Context(), sandpit.TerminalSize{Rows: 31, Cols: 71}); err != nil {
		u.t.Fatal(err)
	}
	if _, err := io.WriteString(p.Stdin(), "stty -echo; mark=well; echo re''ady\n"); err != nil {
		u.t.Fatal(err)
	}
	keeper := sb.(sandpit.ProcessKeeper)
	logged := func(u *upgrade, what string) func() bool {
		return func() bool {
			var text strings.Builder
			for _, e := range u.logs(sb, sandpit.LogQuery{}) {
				text.Write(e.Data)
			}
			return strings.Contains(text.String(), what)
		}
	}
	u.until("the shell answers", logged(u, "ready"))
	p.(sandpit.Detacher).Detach()
	return func(u *upgrade) {
		t := u.t
		var out bytes.Buffer
		again, err := keeper.Attach(t.Context(), p.ID(), sandpit.AttachOptions{Stdin: true, Stdout: &out, NoHistory: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(again.Stdin(), "echo $mark-done; stty size\n"); err != nil {
			t.Error(err)
		}
		u.until("the shell answers", logged(u, "31 71"))
		if err := again.Resize(t.Context(), sandpit.TerminalSize{Rows: 32, Cols: 72}); err != nil {
			t.Error(err)
		}
		if _, err := io.WriteString(again.Stdin(), "stty size; exit 6\n"); err != nil {
			t.Error(err)
		}
		if res, err := again.Wait(t.Context()); err != nil || res.ExitCode != 6 || !strings.Contains(out.String(), "well-done") || !strings.Contains(out.String(), "32 72") {
			t.Errorf("it ended with %+v %v, and wrote %q", res, err, out.String())
		}
	}
}

// upgradeEnded has processes that were begun by commands and have ended: their
// results and output are there.
func upgradeEnded(u *upgrade) func(*upgrade) {
	sb := u.box(sandpit.Spec{Name: "ended"})
	out, err := u.oldCommand("exec", "-d", "ended", "--", "sh", "-c", "echo hello; echo trouble >&2; exit 7").Output()
	if err != nil {
		u.t.Fatal(err)
	}
	id := strings.TrimSpace(string(out))
	keeper := sb.(sandpit.ProcessKeeper)
	p, err := keeper.Attach(u.t.Context(), id, sandpit.AttachOptions{})
	if err != nil {
		u.t.Fatal(err)
	}
	if _, err := p.Wait(u.t.Context()); err != nil {
		u.t.Fatal(err)
	}
	before := u.logs(sb, sandpit.LogQuery{})
	return func(u *upgrade) {
		t := u.t
		if diff := cmp.Diff(before, u.logs(sb, sandpit.LogQuery{})); diff != "" {
			t.Error(diff)
		}
		list, err := keeper.Processes(t.Context())
		if err != nil || len(list) != 1 || list[0].ID != id || list[0].Result == nil || list[0].Result.ExitCode != 7 {
			t.Errorf("the processes are %+v, %v", list, err)
		}
		var out, errs bytes.Buffer
		again, err := keeper.Attach(t.Context(), id, sandpit.AttachOptions{Stdout: &out, Stderr: &errs})
		if err != nil {
			t.Fatal(err)
		}
		if res, err := again.Wait(t.Context()); err != nil || res.ExitCode != 7 || out.String() != "hello\n" || errs.String() != "trouble\n" {
			t.Errorf("it ended with %+v %v, and wrote %q and %q", res, err, out.String(), errs.String())
		}
		u.shell(sb, "echo later")
		if all := u.logs(sb, sandpit.LogQuery{}); len(all) != len(before)+1 || all[len(before)].Seq <= before[len(before)-1].Seq {
			t.Errorf("the log goes on with %+v", all)
		}
	}
}

// upgradeForeground has a command that somebody waits for: he is told, and what
// he ran goes on.
func upgradeForeground(u *upgrade) func(*upgrade) {
	sb := u.box(sandpit.Spec{Name: "foreground"})
	cmd := u.oldCommand("exec", "-i", "foreground", "--", "sh", "-c", "echo begun; read x; echo got $x; exit 5")
	var said bytes.Buffer
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		u.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		u.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := io.ReadFull(out, make([]byte, len("begun\n"))); err != nil {
		u.t.Fatal(err, said.String())
	}
	return func(u *upgrade) {
		t := u.t
		if _, err := io.Copy(io.Discard, out); err != nil {
			t.Error(err)
		}
		if got := exitCode(t, cmd); got != 125 || said.Len() == 0 {
			t.Errorf("who waited for it ended with %d: %s", got, &said)
		}
		keeper := sb.(sandpit.ProcessKeeper)
		list, err := keeper.Processes(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatalf("the processes are %+v, %v", list, err)
		}
		if list[0].Result != nil {
			if u.old.ref != upgradeFrom || u.signal != syscall.SIGTERM {
				t.Fatalf("it has ended: %+v", list[0].Result)
			}
			t.Skip("that program, when it is asked to end, kills what is in the foreground: later ones let it go on")
		}
		var wrote bytes.Buffer
		p, err := keeper.Attach(t.Context(), list[0].ID, sandpit.AttachOptions{Stdin: true, Stdout: &wrote})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(p.Stdin(), "it\n"); err != nil {
			t.Error(err)
		}
		if res, err := p.Wait(t.Context()); err != nil || res.ExitCode != 5 || wrote.String() != "begun\ngot it\n" {
			t.Errorf("it ended with %+v %v, and wrote %q", res, err, wrote.String())
		}
	}
}

// upgradeOutput has a process write lines all the time, and somebody who follows
// them, from one server to the next.
func upgradeOutput(u *upgrade) func(*upgrade) {
	sb := u.box(sandpit.Spec{Name: "output"})
	p, err := sb.Start(u.t.Context(), sandpit.Command{Background: true, Script: `i=0
while ! test -e /tmp/stop; do i=$((i+1)); echo line $i; test $((i%7)) != 0 || echo trouble $i >&2; sleep 0.05; done; echo last $i; exit 3`})
	if err != nil {
		u.t.Fatal(err)
	}
	keeper := sb.(sandpit.ProcessKeeper)
	var heard atomic.Int64
	type outcome struct {
		all []sandpit.LogEntry
		err error
	}
	followed := make(chan outcome, 1)
	go func() {
		var o outcome
		for last := false; !last && (o.err == nil || errors.Is(o.err, sandpit.ErrUnavailable)); {
			q := sandpit.LogQuery{Process: p.ID(), Follow: true}
			if n := len(o.all); n > 0 {
				q.After = o.all[n-1].Seq // there was no server for longer than a client waits
			}
			for e, err := range keeper.Logs(u.t.Context(), q) {
				if o.err = err; err != nil {
					break
				}
				o.all = append(o.all, e)
				heard.Add(1)
				if last = strings.HasPrefix(string(e.Data), "last "); last {
					break
				}
			}
		}
		followed <- o
	}()
	u.until("it writes", func() bool { return heard.Load() > 20 })
	return func(u *upgrade) {
		t := u.t
		before := heard.Load()
		u.until("it goes on", func() bool { return heard.Load() > before+50 || len(followed) > 0 })
		u.shell(sb, "touch /tmp/stop")
		o := <-followed
		if o.err != nil {
			t.Fatal(o.err)
		}
		var out, errs strings.Builder
		for i, e := range o.all {
			if e.Seq != o.all[0].Seq+uint64(i) {
				t.Fatalf("entry %d of %d has number %d, and the first %d", i, len(o.all), e.Seq, o.all[0].Seq)
			}
			if e.Stream == "stderr" {
				errs.Write(e.Data)
			} else {
				out.Write(e.Data)
			}
		}
		var wantOut, wantErrs strings.Builder
		n := strings.Count(out.String(), "\n") - 1
		for i := 1; i <= n; i++ {
			fmt.Fprintf(&wantOut, "line %d\n", i)
			if i%7 == 0 {
				fmt.Fprintf(&wantErrs, "trouble %d\n", i)
			}
		}
		fmt.Fprintf(&wantOut, "last %d\n", n)
		if diff := cmp.Diff(wantOut.String(), out.String()); diff != "" {
			t.Errorf("what it has written: %s", diff)
		}
		if diff := cmp.Diff(wantErrs.String(), errs.String()); diff != "" {
			t.Errorf("what it has written beside: %s", diff)
		}
		var kept, beside bytes.Buffer
		again, err := keeper.Attach(t.Context(), p.ID(), sandpit.AttachOptions{Stdout: &kept, Stderr: &beside})
		if err != nil {
			t.Fatal(err)
		}
		if res, err := again.Wait(t.Context()); err != nil || res.ExitCode != 3 || kept.String() != out.String() || beside.String() != errs.String() {
			t.Errorf("it ended with %+v %v; attached to, it gives %d bytes and %d beside, and the log has %d and %d", res, err, kept.Len(), beside.Len(), out.Len(), errs.Len())
		}
		if diff := cmp.Diff(o.all, u.logs(sb, sandpit.LogQuery{Process: p.ID()})); diff != "" {
			t.Error(diff)
		}
	}
}

// logs returns what a sandbox's log has.
func (u *upgrade) logs(sb sandpit.Sandbox, q sandpit.LogQuery) (all []sandpit.LogEntry) {
	u.t.Helper()
	for e, err := range sb.(sandpit.ProcessKeeper).Logs(u.t.Context(), q) {
		if err != nil {
			u.t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}
