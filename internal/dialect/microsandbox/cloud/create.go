package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// newSandbox is the request to create a sandbox. Until 0.6 it had an image, and since 0.7 a source.
type newSandbox struct {
	Name      string             `json:"name"`
	Slug      *string            `json:"slug"`
	Image     *source            `json:"image"`
	Source    string             `json:"source"`
	Reference string             `json:"reference"`
	Registry  *registry          `json:"registry"`
	Pull      string             `json:"pull_policy"`
	Resources exactly[resources] `json:"resources"`
	Runtime   runtime            `json:"runtime"`
	Env       []variable         `json:"env"`
	Labels    map[string]string  `json:"labels"`
	Rlimits   []exactly[rlimit]  `json:"rlimits"`
	Mounts    []exactly[mount]   `json:"mounts"`
	Patches   []patch            `json:"patches"`
	Network   exactly[network]   `json:"network"`
	Init      json.RawMessage    `json:"init"`
	Profile   string             `json:"security_profile"`
	Lifecycle lifecycle          `json:"lifecycle"`
}

// source is the root file system.
type source struct {
	Type      string `json:"type"`
	Reference string `json:"reference"`
}

// registry is the choice of credentials for a registry.
type registry struct {
	Mode string `json:"mode"`
}

// resources are limits of the sandbox.
type resources struct {
	CPUs   float64 `json:"vcpus"`
	Memory int64   `json:"memory_mib"`
	Disk   *int64  `json:"disk_size_mib,omitempty"`
}

// runtime says how commands run. Clients send all of it again with each command, but not those that have
// found the sandbox by its name, unless the description of the sandbox has it.
type runtime struct {
	WorkDir    *string           `json:"workdir"`
	Shell      *string           `json:"shell"`
	Scripts    map[string]string `json:"scripts"`
	Entrypoint []string          `json:"entrypoint"`
	Cmd        []string          `json:"cmd"`
	User       *string           `json:"user"`
	LogLevel   *string           `json:"log_level"`
}

// variable is an environment variable.
type variable struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// rlimit is a limit of each process.
type rlimit struct {
	Resource string `json:"resource"`
	Soft     uint64 `json:"soft"`
	Hard     uint64 `json:"hard"`
}

// mount is a mount of one of several types.
type mount struct {
	Type    string `json:"type"`
	Guest   string `json:"guest"`
	Size    *int64 `json:"size_mib,omitempty"`
	Options struct {
		ReadOnly bool `json:"readonly"`
		NoExec   bool `json:"noexec"`
		NoSUID   bool `json:"nosuid"` // always so here, as the next one
		NoDev    bool `json:"nodev"`
	} `json:"options"`

	// Of other types, which are refused.
	Host           json.RawMessage `json:"host,omitempty"`
	Name           json.RawMessage `json:"name,omitempty"`
	Format         json.RawMessage `json:"format,omitempty"`
	FSType         json.RawMessage `json:"fstype,omitempty"`
	Quota          json.RawMessage `json:"quota_mib,omitempty"`
	Storage        json.RawMessage `json:"storage,omitempty"`
	Virtualization json.RawMessage `json:"stat_virtualization,omitempty"`
	Permissions    json.RawMessage `json:"host_permissions,omitempty"`
}

// lifecycle says how long a sandbox lives, and whether it goes when it stops.
type lifecycle struct {
	Ephemeral   bool   `json:"ephemeral"`
	MaxDuration *int64 `json:"max_duration_secs"`
	IdleTimeout *int64 `json:"idle_timeout_secs"`
}

// exactly decodes JSON into a T, and refuses fields that T does not have instead of ignoring them.
type exactly[T any] struct{ is T }

// UnmarshalJSON is json.Unmarshaler.
func (e *exactly[T]) UnmarshalJSON(data []byte) error {
	return dialect.Exactly("the body is not valid", data, &e.is)
}

// MarshalJSON is json.Marshaler.
func (e exactly[T]) MarshalJSON() ([]byte, error) { return json.Marshal(e.is) }

// state is what the API must know about a sandbox later: its data of the dialect. The rest of what it was created
// with is not in it: secrets, files and variables, which may be secrets.
type state struct {
	Reference string            `json:"reference"`
	Pull      string            `json:"pull_policy,omitempty"`
	Resources resources         `json:"resources"`
	Runtime   runtime           `json:"runtime"`
	Rlimits   []exactly[rlimit] `json:"rlimits,omitempty"`         // which package agent reads
	Each      bool              `json:"rlimits_of_each,omitempty"` // Rlimits are for each program; before there was this field, they were Spec.Limits alone
	Mounts    []exactly[mount]  `json:"mounts,omitempty"`
	Profile   string            `json:"security_profile,omitempty"`
	Lifecycle lifecycle         `json:"lifecycle"`
}

// state returns what must be known later of the sandbox that n asks for.
func (n *newSandbox) state() state {
	s := state{
		Reference: n.reference(), Pull: n.Pull, Resources: n.Resources.is, Runtime: n.Runtime, Rlimits: n.Rlimits, Each: true, Mounts: n.Mounts,
		Profile: n.Profile, Lifecycle: n.Lifecycle,
	}
	s.Runtime.Scripts = nil
	return s
}

// reference returns the image.
func (n *newSandbox) reference() string {
	if n.Image != nil {
		return n.Image.Reference
	}
	return n.Reference
}

// spec returns the Spec that a request stands for, without its image.
func (n *newSandbox) spec() (sandpit.Spec, error) {
	kind := n.Source
	if n.Image != nil {
		kind = n.Image.Type
	}
	switch {
	case kind != "oci":
		return sandpit.Spec{}, dialect.Unsupported(fmt.Sprintf("the source %.40q of a root file system is", kind))
	case n.reference() == "":
		return sandpit.Spec{}, gate.Invalid("the reference of the image is missing", "")
	case n.Slug != nil:
		return sandpit.Spec{}, dialect.Unsupported("slug is")
	case n.Registry != nil && n.Registry.Mode != "anonymous":
		return sandpit.Spec{}, dialect.Unsupported("registry credentials of a sandbox are")
	case dialect.Given(n.Init):
		return sandpit.Spec{}, dialect.Unsupported("init is")
	}
	r := n.Resources.is
	spec := sandpit.Spec{
		Name: n.Name, Labels: n.Labels, User: "root",
		Limits: sandpit.Limits{CPUs: r.CPUs, Memory: r.Memory << 20},
	}
	if r.Disk != nil {
		spec.Limits.Disk = *r.Disk << 20
	}
	if r.CPUs < 0 || spec.Limits.Memory>>20 != r.Memory || r.Disk != nil && spec.Limits.Disk>>20 != *r.Disk {
		return spec, gate.Invalid("resources are out of range", "")
	}
	if u := n.Runtime.User; u != nil && *u != "" {
		spec.User, spec.RootInside = *u, true // patches are made by root
	}
	if dir := n.Runtime.WorkDir; dir != nil {
		spec.WorkDir = *dir
	}
	for _, v := range n.Env {
		spec.Env = append(spec.Env, v.Key+"="+v.Value)
	}
	limits := n.rlimits()
	if err := notation.CheckRlimits(limits); err != nil {
		return spec, err
	}
	for _, l := range limits {
		if l.Resource == "nofile" { // programs can have no more
			spec.Limits.NoFile = max(sandpit.MinNoFile, int64(min(l.Hard, math.MaxInt64)))
		}
	}
	for _, m := range n.Mounts {
		t, err := m.is.tmpfs()
		if err != nil {
			return spec, err
		}
		spec.Tmpfs = append(spec.Tmpfs, t)
	}
	var ok bool
	if spec.Pull, ok = map[string]sandpit.PullPolicy{"": "", "if_missing": sandpit.PullMissing, "always": sandpit.PullAlways, "never": sandpit.PullNever}[n.Pull]; !ok {
		return spec, gate.Invalid(fmt.Sprintf("the pull_policy %.40q is not known", n.Pull), "use if_missing, always or never")
	}
	if n.Profile != "" && n.Profile != "default" && n.Profile != "restricted" {
		return spec, gate.Invalid(fmt.Sprintf("the security_profile %.40q is not known", n.Profile), "use default or restricted")
	}
	return spec, n.Lifecycle.apply(&spec)
}

// rlimits returns the limits of each program, without one of no core files: there are none.
func (n *newSandbox) rlimits() []sandpit.Rlimit {
	var limits []sandpit.Rlimit
	for _, l := range n.Rlimits {
		if l.is.Resource != "core" || l.is.Soft > 0 {
			limits = append(limits, sandpit.Rlimit(l.is))
		}
	}
	return limits
}

// tryRlimits returns an error if the sandbox does not allow the limits. They are looked at before the program,
// which does not exist.
func tryRlimits(ctx context.Context, sb engine.Box, limits []sandpit.Rlimit) error {
	p, err := sb.Start(ctx, sandpit.Command{Argv: []string{"/.msb/nonesuch"}, Dir: "/", Rlimits: limits})
	if err == nil { // a limit of 0 has killed it
		return p.Kill(ctx)
	}
	if _, looked := errors.AsType[*sandpit.StartError](err); looked {
		return nil
	}
	return err
}

// tmpfs returns the mount as it is here.
func (m *mount) tmpfs() (t sandpit.Tmpfs, err error) {
	switch {
	case m.Type != "tmpfs":
		return t, dialect.Unsupported(fmt.Sprintf("mounts of type %.40q are", m.Type))
	case m.Options.ReadOnly:
		return t, dialect.Unsupported("the mount option readonly of a tmpfs is")
	case m.Options.NoExec:
		return t, dialect.Unsupported("the mount option noexec of a tmpfs is")
	}
	t.Target = m.Guest
	if m.Size != nil {
		if t.Size = *m.Size << 20; *m.Size <= 0 || t.Size>>20 != *m.Size {
			return t, gate.Invalid("the size_mib of a mount is out of range", "")
		}
	}
	return t, nil
}

// apply sets the lifetime of a Spec.
func (l *lifecycle) apply(spec *sandpit.Spec) error {
	spec.OnExpiry = sandpit.ExpiryStop
	if l.Ephemeral {
		spec.OnExpiry = sandpit.ExpiryRemove
	}
	for _, of := range []struct {
		name string
		asks *int64
		to   *time.Duration
	}{{"max_duration_secs", l.MaxDuration, &spec.Limits.Life}, {"idle_timeout_secs", l.IdleTimeout, &spec.Idle}} {
		if of.asks == nil {
			continue
		}
		const most = 100 * 365 * 24 * 60 * 60
		if *of.asks <= 0 || *of.asks > most {
			return gate.Invalid(of.name+" is out of range", "")
		}
		*of.to = time.Duration(*of.asks) * time.Second
	}
	return nil
}

// maxBody bounds the body of a request to create a sandbox, in bytes: patches have the contents of files, of
// which those that are not text take about four bytes for each.
const maxBody = 16 << 20

// createSandbox creates a sandbox, and starts it unless the query lacks start=true.
func createSandbox(c *call) error {
	in := new(newSandbox)
	if err := dialect.ReadJSON(c.Call, in, maxBody); err != nil {
		return c.Untouched(err)
	}
	if err := c.Intend(fmt.Sprintf("name %.80q, image %.80q", in.Name, in.reference())); err != nil {
		return err
	}
	sb, err := c.create(in)
	if errors.Is(err, sandpit.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
		return gate.Invalid(err.Error(), sandpit.Hint(err)) // else clients would take it for that of a sandbox
	}
	if err != nil {
		return err
	}
	c.Target = sb.ID() // for the audit
	out, err := c.describe(sb)
	if err != nil {
		return err
	}
	return codec.Report(c.Call, http.StatusCreated, out)
}

// create makes the sandbox that a request asks for, with its files.
func (c *call) create(in *newSandbox) (engine.Box, error) {
	spec, err := in.spec()
	if err != nil {
		return nil, err
	}
	patches := append(in.Patches, scripts(in.Runtime.Scripts)...)
	for i := range patches {
		if err := patches[i].check(); err != nil {
			return nil, err
		}
	}
	var asked bool
	if spec.Egress, asked, err = in.Network.is.egress(); err != nil {
		return nil, err
	}
	if spec.Secrets, err = in.Network.is.Secrets.uses(); err != nil {
		return nil, err
	}
	spec.Image = c.server.Reference(in.reference())
	if spec.NoStart = c.R.URL.Query().Get("start") != "true"; spec.NoStart && len(patches) > 0 {
		return nil, dialect.Unsupported("patches and scripts of a sandbox that is not started are")
	}
	data, err := json.Marshal(in.state())
	if err != nil {
		return nil, err
	}
	spec.RootInside = spec.RootInside && c.server.Features(c.Ctx)[feature.Users]
	sb, err := c.server.Create(c.Ctx, c.tenant(), spec, asked || len(spec.Secrets) > 0, c.server.Name, data)
	if err != nil {
		return nil, err
	}
	if limits := in.rlimits(); len(limits) > 0 && !spec.NoStart {
		if err := tryRlimits(c.Ctx, sb, limits); err != nil {
			_ = sb.Remove(context.WithoutCancel(c.Ctx))
			return nil, err
		}
	}
	files := sb.RootFiles("")
	for i := range patches {
		if err := patches[i].apply(c.Ctx, files); err != nil {
			_ = sb.Remove(context.WithoutCancel(c.Ctx))
			return nil, fmt.Errorf("the patch %s of %s: %w", patches[i].Type, patches[i].at(), err)
		}
	}
	return sb, nil
}
