package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// Every stream sends only the events that the reference lists, with the JSON that it lists,
// and ends with end.
func TestStreamsAreAsDocumented(t *testing.T) {
	testkit.NeedProgram(t, "python3") // in the host image
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	one := "/v1/sandboxes/" + sb.ID
	var p v1.Process
	s.want(201, &p, ask{method: "POST", path: one + "/processes", body: v1.Command{Script: `echo a; printf 'b\377' >&2; exec sleep 7998`}})
	paths := map[string]string{"exec": one + "/exec", "followOutput": one + "/processes/" + p.ID + "/output", "getLogs": one + "/logs?follow=true", "followEvents": "/v1/events?after=1", "watchFiles": one + "/files/watch?path=/tmp", "runCode": one + "/code"}
	want := map[string][]string{
		"exec":         {"started", "stdout", "stderr", "result", "end ended"},
		"runCode":      {"stdout", "stderr", "output", "result", "end ended"},
		"followOutput": {"started", "stdout", "stderr", "end drained"},
		"getLogs":      {"stdout", "end drained"}, // and stderr, which has no newline, in a while
		"followEvents": {"begin", "events.lost", "end lost"},
		"watchFiles":   {"ready", "create", "end drained"},
	}
	bodies := map[string]io.Reader{}
	feeds := map[string]*api.Feed{}
	for _, r := range api.Routes() {
		if r.Feed == nil {
			continue
		}
		a := ask{method: r.Method, path: paths[r.ID], header: map[string]string{"Accept": "text/event-stream"}}
		switch r.ID {
		case "runCode":
			a.body = v1.Code{Code: "import os\nos.write(1, b'a')\nos.write(2, b'b')\ndisplay(1)"}
		case "exec":
			a.body = v1.Exec{Command: v1.Command{Script: "echo a; touch /tmp/new; echo b >&2"}}
		}
		resp := s.do(a)
		defer resp.Body.Close()
		feeds[r.ID], bodies[r.ID] = r.Feed, resp.Body
		if r.ID == "watchFiles" {
			s.want(200, nil, ask{method: "POST", path: one + "/exec", body: v1.Exec{Command: v1.Command{Script: "touch /tmp/newer"}}})
		}
		switch r.ID { // what must have come before the server drains
		case "followOutput":
			bodies[r.ID] = after(t, resp.Body, `"data":"Yv8="}`)
		case "followEvents":
			bodies[r.ID] = after(t, resp.Body, `"reason":"lost"`)
		case "getLogs":
			bodies[r.ID] = after(t, resp.Body, `"data":"YQo="}`)
		case "watchFiles":
			bodies[r.ID] = after(t, resp.Body, `"newer"}`)
		}
	}
	go func() { _ = s.gate.Close(context.Background()) }()
	for id, feed := range feeds {
		text, err := io.ReadAll(bodies[id])
		if err != nil {
			t.Errorf("%s: %v", id, err)
		}
		var got []string
		for _, event := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
			var name, data string
			for line := range strings.Lines(event) {
				if v, ok := strings.CutPrefix(line, "event: "); ok {
					name = strings.TrimSpace(v)
				} else if v, ok := strings.CutPrefix(line, "data: "); ok {
					data = v
				}
			}
			i := slices.IndexFunc(feed.Events, func(e api.Event) bool { return slices.Contains(e.Names, name) })
			if i < 0 {
				if name != "" {
					t.Errorf("%s: the event %q is not documented", id, name)
				}
				continue
			}
			strict(t, []byte(data), reflect.New(reflect.TypeOf(feed.Events[i].Of)).Interface())
			if name == "end" {
				var end v1.End
				_ = json.Unmarshal([]byte(data), &end)
				name += " " + end.Reason
			}
			if !slices.Contains(got, name) {
				got = append(got, name)
			}
		}
		for _, name := range want[id] {
			if !slices.Contains(got, name) {
				t.Errorf("%s has no event %s, but %q", id, name, got)
			}
		}
		if len(got) == 0 || !strings.HasPrefix(got[len(got)-1], "end ") {
			t.Errorf("%s ends with %q", id, got)
		}
	}
}

// after reads until a text has come, and returns that and the rest.
func after(t *testing.T, r io.Reader, text string) io.Reader {
	t.Helper()
	var got strings.Builder
	readTo(t, io.TeeReader(r, &got), text)
	return io.MultiReader(strings.NewReader(got.String()), r)
}

// The position of a stream of events goes on past events that are not selected.
func TestFilteredEventsKeepTheirPlace(t *testing.T) {
	s := serve(t, nil)
	var list v1.SandboxList
	s.want(200, &list, ask{method: "GET", path: "/v1/sandboxes"})
	s.create("", v1.Spec{})
	begun := list.Seq
	s.want(200, &list, ask{method: "GET", path: "/v1/sandboxes"})
	tries := 0
	eventually(t, "the end has the position of the latest event", func() bool {
		tries++
		id := fmt.Sprint("short", tries)
		s.keys.mu.Lock()
		s.keys.all["secret-"+id] = gate.Caller{Name: id, Key: id, Namespace: "local"}
		s.keys.mu.Unlock()
		resp := s.do(ask{method: "GET", path: fmt.Sprintf("/v1/events?kind=sandbox.paused&after=%d", begun), key: "secret-" + id})
		defer resp.Body.Close()
		if resp.StatusCode != 200 {
			return false
		}
		readTo(t, resp.Body, "begin")
		s.gate.Revoke(id, nil)
		text, _ := io.ReadAll(resp.Body)
		return strings.Contains(string(text), fmt.Sprintf(`"seq":%d`, list.Seq))
	})
}
