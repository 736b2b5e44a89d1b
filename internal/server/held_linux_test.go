package server_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// holds waits until one sandbox is held.
func (s *served) holds() {
	s.t.Helper()
	testkit.Until(s.t, "a sandbox is held", func() bool { return s.figure(`sandpit_pool{kind="held"}`) == 1 })
}

// What the policy file says of pool.warm is held, for the creates of every namespace with that policy. A
// sandbox that was held outlives the server as others do, and what is held does not.
func TestHeld(t *testing.T) {
	t.Parallel()
	testkit.NeedProgram(t, "python3")
	s := newServed(t)
	s.change = func(opt *server.Options) { opt.Network = network.InProcess{} }
	s.policy(`pool:
  blanks: 0
  warm:
  - {image: host, policy: team, modules: [wave]}
policies:
  default:
  team: {defaults: {memory: 200m}, egress: ["a.example.com:443"]}
`)
	s.start()
	c := s.with(s.keyOf("one", "team"))
	defer c.Close()
	code := func(id, source string) string {
		t.Helper()
		sb, err := c.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		res, err := sb.(sandpit.Coder).RunCode(t.Context(), sandpit.Code{Source: source, Stdout: &out})
		if err != nil || res.Error != nil || res.StateLost != "" {
			t.Fatalf("running %q: %+v, %v", source, res, err)
		}
		return out.String()
	}
	s.holds()
	if page, err := c.List(t.Context(), sandpit.ListQuery{}); err != nil || len(page.Sandboxes) > 0 {
		t.Errorf("a held sandbox is listed: %+v, %v", page, err)
	}
	sb := createOf(t, c, sandpit.Spec{Egress: sandpit.Egress{Allow: []string{"a.example.com:443"}}})
	if got := code(sb.ID(), "import sys\nx = 6*7\nprint('wave' in sys.modules)"); got != "True\n" {
		t.Errorf("got %q", got)
	}
	if out, err := sandpit.Shell(t.Context(), sb, "cat /proc/net/dev"); err != nil || !strings.Contains(string(out.Stdout), "eth0:") {
		t.Errorf("its interfaces: %q, %v", out.Stdout, err)
	}
	if e, err := sb.Egress(t.Context()); err != nil || len(e.Allow) != 1 {
		t.Errorf("it may reach %+v, %v", e, err)
	}
	s.holds()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.holds()
	if got := code(sb.ID(), "print(x)"); got != "42\n" {
		t.Errorf("after the restart: %q", got)
	}
}

// The creates of E2B's clients get what is held for them.
func TestHeldForE2B(t *testing.T) {
	t.Parallel()
	testkit.NeedProgram(t, "python3")
	s := newServed(t)
	users := linux.New(linux.Options{}).Probe(t.Context()).Features[feature.Users]
	s.policy(fmt.Sprintf("pool: {warm: [{image: host, root-inside: %v, modules: [wave]}]}", users))
	url, key := s.withE2B()
	s.holds()
	var made struct{ SandboxID string }
	if err := json.Unmarshal([]byte(s.e2bCall(t, 201, "", "POST", url+"/sandboxes", `{"templateID":"code-interpreter-v1","timeout":600,"metadata":{"a":"b"}}`, "X-API-KEY", key)), &made); err != nil {
		t.Fatal(err)
	}
	c := s.with(key)
	defer c.Close()
	sb, err := c.Get(t.Context(), made.SandboxID)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	res, err := sb.(sandpit.Coder).RunCode(t.Context(), sandpit.Code{Source: "import sys\nprint('wave' in sys.modules)", Stdout: &out})
	if err != nil || res.Error != nil || out.String() != "True\n" {
		t.Errorf("%q, %+v, %v", out.String(), res, err)
	}
	if users {
		if out, err := sandpit.Shell(t.Context(), sb, "sudo id -u"); err != nil || string(out.Stdout) != "0\n" {
			t.Errorf("sudo: %q, %q, %v", out.Stdout, out.Stderr, err)
		}
	}
}
