package api_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// A server that ends invites no client to do again what it may have done: it says 503 only if the
// same request later does no more than this one.
func TestDrainingInvitesNoRepetition(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	var reader v1.Process
	base := "/v1/sandboxes/" + sb.ID
	s.want(201, &reader, ask{method: "POST", path: base + "/processes", body: v1.Command{Script: "head -c 1 >/tmp/read; exec sleep 7651", Stdin: true}})
	run := func(mark string) ask {
		return ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: "echo >/tmp/" + mark + "; exec sleep 7652"}}}
	}
	type answer struct {
		status int
		e      v1.Error
		header http.Header
	}
	input, more := io.Pipe() // which never ends
	defer more.Close()
	go func() { _, _ = io.WriteString(more, "xx") }()
	asks := map[string]ask{
		"exec":  run("plain"),
		"keyed": keyed("k", run("keyed")),
		"stdin": {method: "POST", path: base + "/processes/" + reader.ID + "/stdin", body: input},
	}
	answers := map[string]chan answer{}
	for name, a := range asks {
		answers[name] = make(chan answer, 1)
		go func() {
			var got answer
			var body []byte
			got.status, body, got.header = s.get(a)
			strict(t, body, &got.e)
			answers[name] <- got
		}()
	}
	eventually(t, "all are under way", func() bool {
		return s.shell(sb, "cd /tmp; ls plain keyed read 2>/dev/null | wc -w") == "3\n" && len(s.shell(sb, "cat /tmp/read")) == 1
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.gate.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close says %v", err)
	}
	codes, want := map[string]string{}, map[string]string{"exec": "outcome_unknown", "keyed": "unavailable", "stdin": "outcome_unknown"}
	for name := range asks {
		got := <-answers[name]
		codes[name] = got.e.Code
		retry := got.header.Get("Retry-After") != ""
		if wanted := got.e.Code == "unavailable"; retry != wanted || (got.status == 503) != wanted || got.e.Hint == "" {
			t.Errorf("%s: %+v", name, got)
		}
		if name == "exec" && !strings.Contains(got.e.Message, "process p") {
			t.Errorf("the message names no process: %q", got.e.Message)
		}
	}
	if diff := cmp.Diff(want, codes); diff != "" {
		t.Error(diff)
	}
	box, err := s.engine.As("local", defaultPolicy()).Get(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	all, err := box.Processes(t.Context())
	running := 0
	for _, p := range all {
		if p.Result == nil {
			running++
		}
	}
	if err != nil || running != 3 {
		t.Errorf("its processes are %+v, %v", all, err)
	}
}

// breaking is a backend whose sandboxes start and change nothing until the call is broken off, and
// don't say then how far they came.
type breaking struct {
	api.Backend
	under chan<- struct{}
}

type breakingClient struct {
	sandpit.Client
	under chan<- struct{}
}

type breakingSandbox struct {
	sandpit.Sandbox
	under chan<- struct{}
}

func (b breaking) Client(c gate.Caller) sandpit.Client {
	return breakingClient{b.Backend.Client(c), b.under}
}

func (c breakingClient) Get(ctx context.Context, name string) (sandpit.Sandbox, error) {
	sb, err := c.Client.Get(ctx, name)
	return breakingSandbox{sb, c.under}, err
}

func (s breakingSandbox) Start(ctx context.Context, _ sandpit.Command) (sandpit.Process, error) {
	s.under <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (s breakingSandbox) Update(ctx context.Context, _ sandpit.Change) error {
	s.under <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

// Nor does a server that ends before the start of a command, or a change, has an outcome.
func TestDrainingDuringStartsAndChanges(t *testing.T) {
	under := make(chan struct{}, 2)
	s := serve(t, func(o *options) { o.Backend = breaking{o.Backend, under} })
	sb := s.create("", v1.Spec{})
	var all sync.WaitGroup
	for _, a := range []ask{
		{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Argv: []string{"true"}}}},
		{method: "PATCH", path: "/v1/sandboxes/" + sb.ID, body: `{"name":"other"}`, header: asJSON()},
	} {
		all.Go(func() { s.refused(409, "outcome_unknown", a) })
	}
	<-under
	<-under
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.gate.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close says %v", err)
	}
	all.Wait()
}
