package file

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

func named(t *testing.T, text string) policy.Policy {
	t.Helper()
	set, err := parse("f", strings.NewReader("policies:\n  team:\n    "+text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := set.Policy("team")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A sandbox may reach what the policy lists, and what that includes. A refusal names the part and
// the rule.
func TestEgressIsBounded(t *testing.T) {
	allow := func(rules ...string) sandpit.Egress { return sandpit.Egress{Allow: rules} }
	resolve := func(texts ...string) sandpit.Egress {
		return sandpit.Egress{Allow: []string{"a.example"}, Resolve: texts}
	}
	dns := func(texts ...string) sandpit.Egress { return sandpit.Egress{Allow: []string{"a.example"}, DNS: texts} }
	preset := func(p sandpit.EgressPreset) sandpit.Egress { return sandpit.Egress{Preset: p} }
	bounded := func(b sandpit.EgressBounds) sandpit.Egress { return sandpit.Egress{Bounds: b} }
	for _, tt := range []struct {
		text  string
		asked sandpit.Egress
		rule  string // that refuses it; "": it is allowed
		words string
	}{
		// Without a field: what servers allow by default.
		{"", allow("example.com"), "", ""},
		{"", preset("public"), "", ""},
		{"", preset("learn"), "", ""},
		{"", preset("all"), "team.egress", `egress to "all"`},
		{"", allow("10.0.0.0/8"), "team.egress", `egress to "10.0.0.0/8"`},
		{"", allow("127.0.0.1:22"), "team.egress", "127.0.0.1:22"},
		{"", allow("169.254.169.254"), "team.egress", "169.254.169.254"},
		{"", allow("0.0.0.0/0"), "team.egress", "0.0.0.0/0"},
		{"", allow("udp:example.com:53"), "team.egress", "udp:example.com:53"},
		{"", resolve("a.example:1.1.1.1"), "", ""},
		{"", resolve("a.example:1.1.1.1", "a.example:127.0.0.1"), "team.resolve", `resolving "a.example:127.0.0.1"`},
		{"", resolve("a.example:[::1]"), "team.resolve", "::1"},
		{"", resolve("a.example:[::ffff:127.0.0.1]"), "team.resolve", "127.0.0.1"},
		{"", resolve("a.example:10.0.0.1"), "team.resolve", "10.0.0.1"},
		{"", resolve("a.example:169.254.169.254"), "team.resolve", "169.254.169.254"},
		{"", resolve("a.example:100.64.0.1"), "team.resolve", "100.64.0.1"},
		{"", dns("9.9.9.9"), "", ""},
		{"", dns("9.9.9.9", "127.0.0.1:6379"), "team.resolve", `name server "127.0.0.1:6379"`},
		{"", bounded(sandpit.EgressBounds{Connections: 2048, NewConnections: 1000}), "", ""},
		{"", bounded(sandpit.EgressBounds{Connections: 2049}), "team.maximum.connections", "2049"},
		{"", bounded(sandpit.EgressBounds{NewConnections: 1001}), "team.maximum.new-connections", "1001"},

		{"egress: []", allow("example.com"), "team.egress", "example.com"},
		{"deny: [example.com]", allow("example.com:443"), "team.deny", `egress to "example.com:443" is denied`},
		{"deny: [pypi.org]", allow("package-registries"), "", ""}, // the others are not
		{"deny: [example.com:22]", allow("example.com"), "", ""},
		{"egress: []", preset("registries"), "team.egress", "registries"},
		{"egress: [registries]", preset("registries"), "", ""},
		{"egress: [registries]", allow("git-hosts"), "", ""},
		{"egress: [registries]", allow("pypi.org:443"), "", ""},
		{"egress: [registries]", allow("pypi.org"), "team.egress", "pypi.org"},
		{"egress: [registries]", preset("public"), "team.egress", "public"},
		{`egress: ["*.example.com:443"]`, allow("a.b.example.com:443"), "", ""},
		{`egress: ["*.example.com:443"]`, allow("example.com:443"), "team.egress", "example.com:443"},
		{"egress: [all]", allow("10.0.0.0/8", "example.com"), "", ""},
		{"egress: [all]", allow("127.0.0.1"), "team.egress", "127.0.0.1"},
		{"egress: [all]", allow("169.254.169.254"), "team.egress", "169.254.169.254"},
		{"egress: [all]", resolve("a.example:10.0.0.1"), "team.resolve", "10.0.0.1"},
		{"resolve: [127.0.0.0/8]", resolve("a.example:127.0.0.1"), "", ""},
		{"resolve: [127.0.0.0/8]", resolve("a.example:1.1.1.1"), "team.resolve", "1.1.1.1"},
		{"resolve: []", resolve("a.example:1.1.1.1"), "team.resolve", "1.1.1.1"},
		{"resolve: []", dns("1.1.1.1"), "team.resolve", "1.1.1.1"},
		{"maximum: {sent: 1m}", bounded(sandpit.EgressBounds{Sent: 1 << 20}), "", ""},
		{"maximum: {sent: 1m}", bounded(sandpit.EgressBounds{Sent: 1<<20 + 1}), "team.maximum.sent", "1 MiB"},
		{"maximum: {bandwidth: 1m}", bounded(sandpit.EgressBounds{Bandwidth: 2 << 20}), "team.maximum.bandwidth", "2 MiB"},
	} {
		p := named(t, tt.text)
		err := p.RefuseDenied(tt.asked, egress.Within)
		if err == nil {
			_, err = p.Egress(tt.asked, egress.Excess)
		}
		switch {
		case tt.rule == "" && err != nil:
			t.Errorf("%s: %+v: %v", tt.text, tt.asked, err)
		case tt.rule != "" && (!errors.Is(err, sandpit.ErrForbidden) || policy.Rule(err) != tt.rule || !strings.Contains(err.Error(), tt.words) || sandpit.Hint(err) == ""):
			t.Errorf("%s: %+v: got %v by %q, want %s", tt.text, tt.asked, err, policy.Rule(err), tt.rule)
		}
	}
	// Where a part of a preset is allowed, the hint says which.
	for text, hint := range map[string]string{
		"egress: [package-registries]": "--allow package-registries in place", "egress: [git-hosts, example.com]": "--allow git-hosts in place", "egress: [example.com]": "the policy allows example.com", "egress: []": "ask the operator",
	} {
		p := named(t, text)
		if _, err := p.Egress(preset("registries"), egress.Excess); !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(sandpit.Hint(err), hint) {
			t.Errorf("%s: %v, %s", text, err, sandpit.Hint(err))
		}
	}
	// The owner of the machine may ask for everything that makes sense.
	owner := policy.Default()
	if _, err := owner.Egress(sandpit.Egress{Preset: "all", Allow: []string{"127.0.0.1"}, Resolve: []string{"a.example:127.0.0.1"}, DNS: []string{"127.0.0.1:53"}}, egress.Excess); err != nil {
		t.Error(err)
	}
	for _, bad := range []sandpit.Egress{preset("most"), allow("*.com"), allow("nothing here"), resolve("a.example"), dns("x"), bounded(sandpit.EgressBounds{Sent: -1})} {
		if _, err := owner.Egress(bad, egress.Excess); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%+v: got %v", bad, err)
		}
	}
}

// The policy's denials and bounds are added to what a sandbox asks for, once.
func TestEgressIsCompleted(t *testing.T) {
	p := named(t, "{deny: [bad.example, git-hosts], maximum: {connections: 100, received: 1g, new-connections: 500}}")
	asked := sandpit.Egress{Preset: "public", Deny: []string{"worse.example"}}
	want := sandpit.Egress{
		Preset: "public", Deny: []string{"bad.example", "git-hosts", "worse.example"},
		Bounds: sandpit.EgressBounds{Connections: 100, Received: 1 << 30},
	}
	for range 2 { // as after a change of what was read
		got, err := p.Egress(asked, egress.Excess)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		asked = got
	}
}

// Learning allows what the policy allows, and no more.
func TestLearningIsBounded(t *testing.T) {
	for text, want := range map[string]sandpit.Egress{
		"egress: [public]":                    {Preset: "learn"},
		"egress: [all]":                       {Preset: "learn"},
		"egress: []":                          {Preset: "none"},
		"egress: [none]":                      {Preset: "none"},
		"egress: [registries]":                {Preset: "registries"},
		"egress: [llm-apis, '*.example.com']": {Preset: "none", Allow: []string{"llm-apis", "*.example.com"}},
	} {
		p := named(t, text)
		got, err := p.Egress(sandpit.Egress{Preset: "learn"}, egress.Excess)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v, %s", text, err, diff)
		}
	}
}
