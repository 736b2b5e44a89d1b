package engine_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// A sandbox and its processes outlive an engine, and the next one finds them as
// they were, with what has been written meanwhile.
func TestAdopt(t *testing.T) {
	srv := newSurvivor(t)
	first := srv.open(t)
	sb := made(t, first, sandpit.Spec{Name: "box", Labels: map[string]string{"a": "b"}})
	running := background(t, sb, `i=0; while [ $i -lt 10 ]; do echo line $i; i=$((i+1)); sleep 0.05; done; read x; echo got $x`)
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
	time.Sleep(100 * time.Millisecond) // it writes while there is no engine

	second := srv.open(t)
	report, err := second.Adopt(t.Context())
	if err != nil || report.Adopted != 1 || report.Processes != 2 || report.Refused != nil {
		t.Fatalf("got %+v, %v", report, err)
	}
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
	if want := strings.Fields("0 1 2 3 4 5 6 7 8 9"); !slices.EqualFunc(lines[:10], want, func(a, b string) bool { return a == "line "+b+"\n" }) || lines[10] != "got\n" {
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
