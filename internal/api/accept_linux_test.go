package api_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// A stream comes only if Accept prefers it to the usual form of the response.
func TestAccept(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	const whole, events, lines = "application/json", "text/event-stream", "application/x-ndjson"
	exec := ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Argv: []string{"true"}}}}
	logs := ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/logs"}
	for _, tt := range []struct {
		ask          ask
		accept, want string
	}{
		{exec, "", whole},
		{exec, "*/*", whole},
		{exec, events, events},
		{exec, "TEXT/Event-Stream; charset=utf-8", events},
		{exec, v1.StreamType, v1.StreamType},
		{exec, events + ", " + v1.StreamType, v1.StreamType},
		{exec, events + ", " + v1.StreamType + ";q=0.9", events},
		{exec, whole + ";q=1, " + v1.StreamType + ";q=0.1", whole},
		{exec, whole + ";q=0.5, " + events + ";q=0.6", events},
		{exec, events + ";q=0, " + whole, whole},
		{exec, events + ";q=0", whole},
		{exec, events + ";q=x", whole},
		{exec, whole + ", " + events, whole},
		{exec, events + ", " + whole, whole},
		{exec, events + ", */*", events},
		{exec, events + ";q=0.1, */*", whole},
		{exec, events + ";q=0.5, application/*;q=0.1, */*", events},
		{exec, "x-text/event-stream", whole},
		{logs, "", lines},
		{logs, events, events},
		{logs, whole + ", " + events, events},
		{logs, lines + ", " + events, lines},
	} {
		tt.ask.header = map[string]string{"Accept": tt.accept}
		status, body, h := s.get(tt.ask)
		if got := h.Get("Content-Type"); status != 200 || got != tt.want {
			t.Errorf("Accept: %s: %d %s, want %s (%.200s)", tt.accept, status, got, tt.want, body)
		}
	}
}

// HEAD of a stream is answered, and so is the next request on its connection.
func TestHeadOfStreams(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	base := "/v1/sandboxes/" + sb.ID
	var p v1.Process
	s.want(201, &p, ask{method: "POST", path: base + "/processes", body: v1.Command{Argv: []string{"sleep", "7661"}}})
	conn := s.dial()
	in := bufio.NewReader(conn)
	for path, kind := range map[string]string{
		"/v1/events":                            "text/event-stream",
		base + "/logs?follow=true":              "application/x-ndjson",
		base + "/files/watch?path=/tmp":         "text/event-stream",
		base + "/processes/" + p.ID + "/output": v1.StreamType,
	} {
		for _, method := range []string{"HEAD", "GET"} {
			if method == "GET" {
				path = base
				kind = "application/json"
			}
			fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: sandpit\r\n\r\n", method, path)
			resp, err := http.ReadResponse(in, &http.Request{Method: method})
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), kind) {
				t.Errorf("%s %s: %s %v", method, path, resp.Status, resp.Header)
			}
			if method == "GET" {
				var got v1.Sandbox
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				strict(t, body, &got)
			}
			resp.Body.Close()
		}
	}
	s.refused(404, "file_not_found", ask{method: "GET", path: base + "/files/watch?path=/none"})
	if resp := s.do(ask{method: "HEAD", path: base + "/files/watch?path=/none"}); resp.StatusCode != 404 {
		t.Errorf("HEAD of what can't be watched: %s", resp.Status)
	}
}
