package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

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
		if res := list[0].Result; res != nil {
			t.Fatalf("it has ended: %+v", res)
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
