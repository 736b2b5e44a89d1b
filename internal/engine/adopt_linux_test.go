package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// A sandbox and its processes outlive an engine, and the next one finds them as
// they were, with what has been written meanwhile.
func TestAdopt(t *testing.T) {
	srv := newSurvivor(t)
	first := srv.open(t)
	sb := made(t, first, sandpit.Spec{Name: "box", Labels: map[string]string{"a": "b"}})
	// It writes while there is no engine, and goes on when there is one again: it
	// has the files of this machine.
	path := func(name string) string { return filepath.Join(srv.dir, name) }
	running := background(t, sb, "until [ -e "+path("closed")+" ]; do sleep 0.02; done; i=0; while [ $i -lt 10 ]; do echo line $i; i=$((i+1)); done; "+
		"echo >"+path("written")+"; until [ -e "+path("adopted")+" ]; do sleep 0.02; done; echo over")
	in, err := sb.Start(t.Context(), sandpit.Command{Script: "read x; echo got $x; exit 4", Stdin: true, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	ended := background(t, sb, "echo over; exit 7")
	if res, err := ended.Wait(t.Context()); err != nil || res.ExitCode != 7 {
		t.Fatalf("got %+v, %v", res, err)
	}
	before, err := sb.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Wait(t.Context()); err == nil {
		t.Error("a process can be waited for through an engine that is closed")
	}
	touch := func(name string) {
		t.Helper()
		if err := os.WriteFile(path(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	touch("closed")
	eventually(t, "it has written", func() bool {
		_, err := os.Stat(path("written"))
		return err == nil
	})

	second := srv.open(t)
	report, err := second.Adopt(t.Context())
	if err != nil || report.Adopted != 1 || report.Processes != 2 || report.Refused != nil {
		t.Fatalf("got %+v, %v", report, err)
	}
	touch("adopted")
	sb, err = second.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	after, err := sb.Info(t.Context())
	if err != nil || after.ID != before.ID || !after.CreatedAt.Equal(before.CreatedAt) || after.Labels["a"] != "b" ||
		after.State != sandpit.StateRunning || !after.ExpiresAt.Equal(before.ExpiresAt) || after.Limits != before.Limits {
		t.Errorf("got %+v, %v; want %+v", after, err, before)
	}
	var out, old bytes.Buffer
	p, err := sb.Attach(t.Context(), in.ID(), sandpit.AttachOptions{Stdin: true, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stdin().Write([]byte("it\n")); err != nil {
		t.Fatal(err)
	}
	if res, err := p.Wait(t.Context()); err != nil || res.ExitCode != 4 || out.String() != "got it\n" {
		t.Errorf("got %+v, %v and %q", res, err, out.String())
	}
	p, err = sb.Attach(t.Context(), ended.ID(), sandpit.AttachOptions{Stdout: &old})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := p.Wait(t.Context()); err != nil || res.ExitCode != 7 || old.String() != "over\n" {
		t.Errorf("got %+v, %v and %q", res, err, old.String())
	}
	var lines []string
	for e, err := range sb.Logs(t.Context(), sandpit.LogQuery{Process: running.ID(), Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if lines = append(lines, string(e.Data)); len(lines) == 11 {
			break
		}
	}
	if want := strings.Fields("0 1 2 3 4 5 6 7 8 9"); !slices.EqualFunc(lines[:10], want, func(a, b string) bool { return a == "line "+b+"\n" }) || lines[10] != "over\n" {
		t.Errorf("the log has %q", lines)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if len(srv.store.records) != 0 {
		t.Errorf("records are left: %v", srv.store.records)
	}
	if _, err := second.Get(t.Context(), "box"); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// The end of a server, unlike that of a client, says nothing about what the
// client wants: a process in the foreground goes on, in the background, so that
// an upgrade breaks no build, and he who comes again attaches to it.
func TestForegroundGoesOnWithoutEngine(t *testing.T) {
	srv := newSurvivor(t)
	first := srv.open(t)
	sb := made(t, first, sandpit.Spec{Name: "box"})
	p, err := sb.Start(t.Context(), sandpit.Command{Script: "echo begun; read x; echo got $x; exit 3", Stdin: true, Stdout: &bytes.Buffer{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err == nil {
		t.Error("who waited for it is told nothing")
	}
	second, report := adopt(t, srv)
	if report.Adopted != 1 || report.Processes != 1 {
		t.Errorf("the report is %+v", report)
	}
	if sb, err = second.Get(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	if all, err := sb.Processes(t.Context()); err != nil || len(all) != 1 || all[0].ID != p.ID() || !all[0].Background || all[0].Result != nil {
		t.Errorf("the processes are %+v, %v", all, err)
	}
	var out bytes.Buffer
	again, err := sb.Attach(t.Context(), p.ID(), sandpit.AttachOptions{Stdin: true, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Stdin().Write([]byte("it\n")); err != nil {
		t.Fatal(err)
	}
	if res, err := again.Wait(t.Context()); err != nil || res.ExitCode != 3 || out.String() != "begun\ngot it\n" {
		t.Errorf("it ended with %+v, %v and wrote %q", res, err, out.String())
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// A guest keeps the latest output of its processes while there is no engine. Of
// what is more than that, who attaches and who reads the log is told.
func TestOutputThatNobodyKept(t *testing.T) {
	srv := newSurvivor(t)
	first := srv.open(t)
	sb := made(t, first, sandpit.Spec{Name: "box"})
	p := background(t, sb, "echo begun; while ! test -e /tmp/"+sb.ID()+"; do sleep 0.01; done; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); echo line $i; done; rm /tmp/"+sb.ID()+"; read x")
	eventually(t, "it has begun", func() bool {
		for range sb.Logs(t.Context(), sandpit.LogQuery{}) {
			return true
		}
		return false
	})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	const lines = 100000
	whole := int64(len("begun\n"))
	for i := 1; i <= lines; i++ {
		whole += int64(len(fmt.Sprintf("line %d\n", i)))
	}
	flag := filepath.Join("/tmp", sb.ID()) // bare's sandboxes have the files of this machine
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(flag)
	eventually(t, "it has written", func() bool {
		_, err := os.Lstat(flag)
		return err != nil
	})

	second, _ := adopt(t, srv)
	sb, err := second.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	var entries []sandpit.LogEntry
	for e, err := range sb.Logs(t.Context(), sandpit.LogQuery{Process: p.ID(), Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if entries = append(entries, e); string(e.Data) == fmt.Sprintf("line %d\n", lines) {
			break
		}
	}
	if len(entries) < 3 || string(entries[0].Data) != "begun\n" {
		t.Fatalf("the log begins with %q, of %d", entries[0].Data, len(entries))
	}
	gaps := 0
	for i, e := range entries[1:] {
		if e.Seq != entries[i].Seq+1 {
			gaps++
		}
	}
	if gaps != 1 || entries[1].Seq == entries[0].Seq+1 || len(entries) > lines {
		t.Errorf("of %d entries, the first with the numbers %d and %d, are %d gaps", len(entries), entries[0].Seq, entries[1].Seq, gaps)
	}
	var out testkit.Buffer
	var lost atomic.Int64
	again, err := sb.Attach(t.Context(), p.ID(), sandpit.AttachOptions{Stdout: &out, Lost: func(n int64) { lost.Add(n) }})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is given or lost", func() bool { return lost.Load()+int64(len(out.String())) >= whole })
	if n := lost.Load(); n == 0 || n+int64(len(out.String())) != whole {
		t.Errorf("%d bytes are lost, %d are given, and %d were written", n, len(out.String()), whole)
	}
	if err := again.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// A process has the same command line after a restart of the server, however long
// that is.
func TestCommandLinesAfterARestart(t *testing.T) {
	srv := newSurvivor(t)
	first := srv.open(t)
	sb := made(t, first, sandpit.Spec{Name: "box"})
	shell := []string{"/bin/sh", "-c", "exec sleep 10000", "sh"}
	for _, args := range [][]string{{"short"}, slices.Repeat([]string{"many"}, 40), slices.Repeat([]string{"more"}, 2000), {strings.Repeat("é", 200)}, {"a\nb\xff\x1b"}, {strings.Repeat("é", 20_000)}} {
		if _, err := sb.Start(t.Context(), sandpit.Command{Argv: slices.Concat(shell, args), Background: true}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sb.Start(t.Context(), sandpit.Command{Argv: shell, Dir: "/tmp", Tag: "né", Background: true}); err != nil {
		t.Fatal(err)
	}
	before, err := sb.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if last := before[len(before)-1]; last.Dir != "/tmp" || last.Tag != "né" {
		t.Errorf("got %+v", last)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := srv.open(t)
	if report, err := second.Adopt(t.Context()); err != nil || report.Adopted != 1 {
		t.Fatalf("got %+v, %v", report, err)
	}
	if sb, err = second.Get(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	after, err := sb.Processes(t.Context())
	if err != nil || len(after) != len(before) {
		t.Fatalf("%d processes are %d, %v", len(before), len(after), err)
	}
	for i, p := range before {
		if q := after[i]; p.User == "" || q.User != p.User {
			t.Errorf("process %d had the user %q, and has %q", i, p.User, q.User)
		} else if q.Dir != p.Dir || q.Tag != p.Tag {
			t.Errorf("process %d had the directory %q and tag %q, and has %q and %q", i, p.Dir, p.Tag, q.Dir, q.Tag)
		} else if !slices.Equal(p.Argv, q.Argv) || p.ArgvCut != q.ArgvCut {
			t.Errorf("process %d had %d bytes (cut: %v), and has %d (cut: %v)", i, len(strings.Join(p.Argv, "")), p.ArgvCut, len(strings.Join(q.Argv, "")), q.ArgvCut)
		}
	}
}

// The next engine lists a process as ended from the first look on, also while its output is still being read.
func TestEndedProcessesAreListedAsEnded(t *testing.T) {
	srv := newSurvivor(t)
	first := srv.open(t)
	sb := made(t, first, sandpit.Spec{Name: "box"})
	for range 30 {
		p, err := sb.Start(t.Context(), sandpit.Command{Script: "head -c 300000 /dev/zero; exit 3", Background: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := srv.open(t)
	if _, err := second.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	sb, err := second.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	all, err := sb.Processes(t.Context())
	if err != nil || len(all) != 30 {
		t.Fatalf("%d processes, %v", len(all), err)
	}
	for _, p := range all {
		if p.Result == nil || p.Result.ExitCode != 3 {
			t.Errorf("%s: %+v", p.ID, p.Result)
		}
	}
}
