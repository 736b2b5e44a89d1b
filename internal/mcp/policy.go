package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

type policyIn struct {
	Sandbox string `json:"sandbox,omitempty" jsonschema:"name or ID of a sandbox: show what holds for it, and what it was denied. Default: show the policy for new sandboxes"`
}

func (r *registry) addPolicy() {
	add(r, tool{
		name: "show_policy", group: groupPolicy, title: "Show the policy", readOnly: true, idempotent: true,
		text: "Show what you and your sandboxes may do: without a sandbox, the policy for new ones; with one, its limits, what it may reach in the network, and the connections that it was denied. Call it when something is refused or can't be reached, before you try another way.",
	}, showPolicy)
}

// maxDenials bounds the denials of a result.
const maxDenials = 50

// showPolicy carries out show_policy.
func showPolicy(ctx context.Context, c *call, in policyIn) (*answer, error) {
	if in.Sandbox == "" {
		raw, err := c.host.Policy(ctx)
		if err != nil {
			return nil, err
		}
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, raw, "", "  "); err != nil {
			return nil, err
		}
		text, _ := clipText(pretty.String(), budget)
		return say("%s", text), nil
	}
	sb, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	info, err := sb.Info(ctx)
	if err != nil {
		return nil, err
	}
	a := say("sandbox %q is %s\n", info.Name, info.State)
	if info.Policy != "" {
		a.addf("policy: %s\n", info.Policy)
	}
	describe(a, info)
	e, err := sb.Egress(ctx)
	if err != nil && !errors.Is(err, sandpit.ErrUnsupported) {
		return nil, err
	}
	if !e.Asked() {
		a.addf("network: none\n")
		return a, nil
	}
	a.addf("network: %s\n", e.Preset)
	for _, rules := range [...]struct {
		name string
		all  []string
	}{{"allow", e.Allow}, {"deny", e.Deny}} {
		if len(rules.all) > 0 {
			text, _ := clipText(strings.Join(rules.all, ", "), budget/4)
			a.addf("%s: %s\n", rules.name, text)
		}
	}
	log, err := sb.EgressLog(ctx)
	if err != nil {
		return nil, err
	}
	for i, d := range log.Denials {
		if i == maxDenials {
			a.addf("[%d more denials are left out]\n", len(log.Denials)-i)
			break
		}
		a.addf("denied %d times: %s (%s)\n", d.Count, printable(fault.Clip(d.Destination)), fault.Clip(d.Why))
	}
	if len(log.Denials) == 0 {
		a.addf("nothing was denied\n")
	}
	return a, nil
}
