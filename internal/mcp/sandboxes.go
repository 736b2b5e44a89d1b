package mcp

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

type createIn struct {
	Name     string   `json:"name,omitempty" jsonschema:"name of the sandbox: letters, digits, '_', '.' and '-'. Default: a random one"`
	Image    string   `json:"image,omitempty" jsonschema:"image of a registry, such as python:3.13 or node:22. Default: the tools of the machine, read-only"`
	Memory   string   `json:"memory,omitempty" jsonschema:"memory limit, such as 512m or 2g"`
	CPUs     float64  `json:"cpus,omitempty" jsonschema:"CPU limit, such as 0.5 or 2"`
	Disk     string   `json:"disk,omitempty" jsonschema:"limit of the files that the sandbox may write, such as 2g"`
	Lifetime float64  `json:"lifetime_seconds,omitempty" jsonschema:"seconds after which the sandbox is removed with everything in it, whether or not you are still there"`
	Network  string   `json:"network,omitempty" jsonschema:"what it may reach: none; registries (of packages, and hosts of Git repositories); public (any public address). Default: none. Ask for the least that the work needs"`
	Allow    []string `json:"allow,omitempty" jsonschema:"further hosts that it may reach, such as example.com, *.example.com or example.com:443"`
	Env      []string `json:"env,omitempty" jsonschema:"environment variables as NAME=VALUE"`
}

type listIn struct {
	After string `json:"after,omitempty" jsonschema:"position that an earlier result has named for the next page"`
}

type removeIn struct {
	Sandbox string `json:"sandbox" jsonschema:"name or ID of the sandbox"`
}

func (r *registry) addSandboxes() {
	add(r, tool{
		name: "create_sandbox", group: groupSandboxes, title: "Create a sandbox", openWorld: true,
		text: "Create a sandbox: an isolated computer with files, processes and limits of its own, which can't touch the user's machine. Returns its name, which all other tools take. It takes well under a second, or longer if an image must be fetched first. Create one for a task and use it for all of its steps; remove it at the end.",
		tune: r.tuneCreate,
	}, r.create)
	add(r, tool{
		name: "list_sandboxes", group: groupSandboxes, title: "List sandboxes", readOnly: true, idempotent: true,
		text: "List the sandboxes that you can use, with their states, images and expiry. Also those that earlier conversations or the user have created.",
	}, list)
	add(r, tool{
		name: "remove_sandbox", group: groupSandboxes, title: "Remove a sandbox", destructive: true, idempotent: true,
		text: "Remove a sandbox with all of its files and processes, at once and for good. Save what the user wants to keep first. Remove only sandboxes that you created, unless the user asks for it.",
	}, remove)
}

// tuneCreate narrows the images to those of the options.
func (r *registry) tuneCreate(s *jsonschema.Schema) {
	oneOf(s, "network", string(sandpit.EgressNone), string(sandpit.EgressRegistries), string(sandpit.EgressPublic))
	between(s, "cpus", sandpit.MinCPUs, 1<<10)
	between(s, "lifetime_seconds", 1, 365*24*60*60)
	switch images := r.opt.Images; len(images) {
	case 0:
	case 1:
		delete(s.Properties, "image")
		s.PropertyOrder = slices.DeleteFunc(s.PropertyOrder, func(name string) bool { return name == "image" })
	default:
		oneOf(s, "image", images...)
		property(s, "image").Description = "image of the sandbox. Default: " + images[0]
	}
}

// create carries out create_sandbox.
func (r *registry) create(ctx context.Context, c *call, in createIn) (*answer, error) {
	spec := sandpit.Spec{Name: in.Name, Image: in.Image, Env: in.Env, Egress: sandpit.Egress{Preset: sandpit.EgressPreset(in.Network), Allow: in.Allow}}
	if len(r.opt.Images) > 0 && spec.Image == "" {
		spec.Image = r.opt.Images[0]
	}
	if len(r.opt.Images) == 0 {
		if err := fromRegistry(in.Image); err != nil {
			return nil, err
		}
	}
	if spec.Egress.Preset == sandpit.EgressNone && len(in.Allow) == 0 {
		spec.Egress = sandpit.Egress{}
	}
	if err := byName(in.Allow); err != nil {
		return nil, err
	}
	spec.Limits = sandpit.Limits{CPUs: in.CPUs, Life: seconds(in.Lifetime)}
	for _, l := range [...]struct {
		name, text string
		to         *int64
	}{{"memory", in.Memory, &spec.Limits.Memory}, {"disk", in.Disk, &spec.Limits.Disk}} {
		if l.text == "" {
			continue
		}
		n, err := notation.ParseSize(l.text)
		if err != nil {
			return nil, badArgument(l.name, "%v", err)
		}
		*l.to = n
	}
	stop := c.progress(ctx, func() string { return "creating the sandbox" })
	defer stop()
	sb, err := c.client.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	info, err := sb.Info(ctx)
	if err != nil {
		return nil, err
	}
	a := say("sandbox %q is %s\n", info.Name, info.State)
	describe(a, info)
	return a, nil
}

// fromRegistry refuses images in files and directories of the machine, which a model must not choose.
func fromRegistry(image string) error {
	kind, _, ok := strings.Cut(image, ":")
	if ok && (kind == "dir" || strings.HasSuffix(kind, "-archive")) {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "image %q is on the machine of the server", fault.Clip(image)), "use an image of a registry; the user may offer another one with --image")
	}
	return nil
}

// byName refuses rules of addresses, which lead to machines near the server.
func byName(rules []string) error {
	for _, text := range rules {
		parsed, err := egress.ParseRule(text)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(parsed, func(rule egress.Rule) bool { return rule.Host == "" }) {
			return sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "allowing %q: a sandbox of this server may reach only hosts by their names", fault.Clip(text)), "name a host, such as example.com:443")
		}
	}
	return nil
}

// seconds returns a time in seconds, as arguments have them.
func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// describe says what a sandbox is.
func describe(a *answer, info sandpit.Info) {
	a.addf("id: %s\nimage: %s\n", info.ID, info.Image)
	if info.Reason != "" {
		a.addf("reason: %s\n", info.Reason)
	}
	l := info.Limits
	a.addf("limits: memory %s, %g CPUs, %d processes, disk %s\n", notation.FormatSize(l.Memory), l.CPUs, l.Pids, notation.FormatSize(l.Disk))
	if !info.ExpiresAt.IsZero() {
		a.addf("expires: %s (in %s), then: %s\n", info.ExpiresAt.UTC().Format(time.RFC3339), time.Until(info.ExpiresAt).Round(time.Second), info.OnExpiry)
	}
	for _, gap := range info.NotEnforced {
		a.addf("not enforced on this machine: %s (%s)\n", gap.What, gap.Why)
	}
}

// list carries out list_sandboxes.
func list(ctx context.Context, c *call, in listIn) (*answer, error) {
	page, err := c.client.List(ctx, sandpit.ListQuery{After: in.After})
	if err != nil {
		return nil, err
	}
	if len(page.Sandboxes) == 0 {
		return say("there are no sandboxes"), nil
	}
	a := new(answer)
	for _, info := range page.Sandboxes {
		a.addf("%s\t%s\t%s", info.Name, info.State, info.Image)
		if !info.ExpiresAt.IsZero() {
			a.addf("\texpires in %s", time.Until(info.ExpiresAt).Round(time.Second))
		}
		a.addf("\n")
	}
	if page.Next != "" {
		a.addf("[there are more: call list_sandboxes with after=%q]\n", page.Next)
	}
	return a, nil
}

// remove carries out remove_sandbox.
func remove(ctx context.Context, c *call, in removeIn) (*answer, error) {
	if err := c.client.Remove(ctx, in.Sandbox); err != nil {
		return nil, err
	}
	return say("sandbox %q is removed", in.Sandbox), nil
}
