package api_test

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// Input that a process does not take is refused for what it is.
func TestInputThatIsNotTaken(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits.Tunnel = 300 * time.Millisecond })
	sb := s.create("", v1.Spec{})
	start := func(c v1.Command) string {
		t.Helper()
		var p v1.Process
		s.want(201, &p, ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/processes", body: c})
		return "/v1/sandboxes/" + sb.ID + "/processes/" + p.ID
	}
	none := start(v1.Command{Argv: []string{"sleep", "600"}})
	s.refused(409, "state", ask{method: "POST", path: none + "/stdin", body: "x"})
	over := start(v1.Command{Argv: []string{"true"}, Stdin: true})
	s.want(200, nil, ask{method: "GET", path: over + "/wait"})
	s.refused(409, "state", ask{method: "POST", path: over + "/stdin", body: "x"})
	quiet := start(v1.Command{Argv: []string{"sleep", "600"}, Stdin: true})
	s.refused(504, "timeout", ask{method: "POST", path: quiet + "/stdin", body: strings.Repeat("x", 16<<20)})
	ended := start(v1.Command{Argv: []string{"sleep", "600"}, Stdin: true})
	s.want(204, nil, ask{method: "POST", path: ended + "/stdin?close=true", body: "x"})
	s.refused(409, "state", ask{method: "POST", path: ended + "/stdin", body: "x"})
	if log := s.log.String(); strings.Contains(log, "level=ERROR") {
		t.Error(log)
	}
}
