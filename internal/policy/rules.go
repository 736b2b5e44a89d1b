package policy

import (
	"math"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Rules are the rules of a policy besides limits. Anything that they do not name is
// refused. The owner of a machine has none.
type Rules struct {
	// Images are the allowed images.
	Images []Image

	// Mounts are the allowed mounts of the host. None by default.
	Mounts []MountRule

	// Write, if not nil, are the only paths in a sandbox that may be written, including a
	// tmpfs and the targets of mounts. A Spec without a list gets these; a Spec with one
	// may list these and paths below them. A read-only sandbox, in which /tmp and /dev/shm
	// stay writable, needs both in it.
	Write []string

	// Idle is the idle time-out of a Spec that sets none; 0: none. MaxIdle, if not 0, is
	// the maximum, and then every sandbox has an idle time-out.
	Idle, MaxIdle time.Duration

	// OnExpiry has the allowed actions at the end of a lifetime; the first is the default.
	// It has at least one.
	OnExpiry []sandpit.Expiry

	// Egress has the rules of egress that may be asked for, and whatever they include; a preset
	// is a rule, too. None by default. Deny is added to what each sandbox denies.
	Egress, Deny []string

	// Secrets are the names of the secrets that may be used; '*' stands for any text.
	Secrets []string

	// Resolve has the addresses that Egress.Resolve and Egress.DNS may name, as ADDRESS, CIDR
	// or "public". None by default: what a caller names may be inside of the operator's network.
	Resolve []string

	// Traffic bounds the traffic of each sandbox; 0: unlimited.
	Traffic sandpit.EgressBounds

	// Sandboxes bounds the sandboxes of a namespace; 0: by capacity only.
	Sandboxes int

	// Previews is the longest time that a preview may last; 0: none may be made or used.
	Previews time.Duration

	// OpenPorts says where ports of sandboxes need no key, if the client of a dialect wants that.
	OpenPorts OpenPorts

	// Saved bounds what a namespace saves as images, in bytes: layers and their files; 0: it may
	// save none, and use none.
	Saved int64

	// Contexts bounds the contexts of a sandbox, in which code runs; 0: none may be created.
	Contexts int

	// CreateRate bounds the sandboxes that a namespace creates per second, with a burst of
	// one second; 0: by capacity only.
	CreateRate float64
}

// MountRule allows a mount.
type MountRule struct {
	// Source is a path of the host. For reading, paths below may be mounted too; for
	// writing only the path itself: a sandbox that can write there could make a link, and
	// have its target mounted.
	Source string
	Write  bool
}

// ServerDefault is the policy of keys without another: images of any registry and the
// host's toolchain, no mounts, and a bound on everything.
func ServerDefault() Policy {
	return Policy{
		Name:    "default",
		Default: sandpit.DefaultLimits(),
		Max: sandpit.Limits{
			Memory: 64 << 30,
			CPUs:   64,
			Pids:   1 << 15,
			Disk:   256 << 30,
			Files:  1 << 24,
			NoFile: 1 << 16,
			Output: 64 << 30,
			Life:   7 * 24 * time.Hour,
		},
		Rules: &Rules{
			Images:    []Image{{kind: kindHost, text: "host"}, {kind: kindRegistry, registry: "*", repository: "*", text: "*"}},
			OnExpiry:  []sandpit.Expiry{sandpit.ExpiryRemove, sandpit.ExpiryStop, sandpit.ExpiryPause},
			Egress:    []string{string(sandpit.EgressPublic)},
			Secrets:   []string{"*"},
			Resolve:   []string{"public"},
			Traffic:   sandpit.EgressBounds{Connections: 2048, NewConnections: 1000},
			Sandboxes: 1000,
			Previews:  DefaultPreviews,
			OpenPorts: OpenOnLoopback,
			Saved:     DefaultSaved,
			Contexts:  sandpit.MaxContexts,
		},
	}
}

// Complete returns the Spec with the policy's defaults for writable paths, idle time-out
// and expiry. Call it before Resolve, which refuses a Spec without what the policy
// requires.
func (p *Policy) Complete(spec sandpit.Spec) sandpit.Spec {
	if spec.OnExpiry == "" {
		spec.OnExpiry = sandpit.ExpiryRemove
		if p.Rules != nil && len(p.Rules.OnExpiry) > 0 {
			spec.OnExpiry = p.Rules.OnExpiry[0]
		}
	}
	if p.Rules == nil {
		return spec
	}
	if spec.Idle == 0 {
		spec.Idle = p.Rules.Idle
		if spec.Idle == 0 {
			spec.Idle = p.Rules.MaxIdle
		}
	}
	if spec.Write == nil && p.Rules.Write != nil && !spec.ReadOnly {
		spec.Write = slices.Clone(p.Rules.Write)
	}
	return spec
}

// allow checks a Spec that makes sense against the rules.
func (p *Policy) allow(spec *sandpit.Spec) error {
	if p.Rules == nil {
		return nil
	}
	if err := p.allowImage(spec.Image); err != nil {
		return err
	}
	for _, m := range spec.Mounts {
		if err := p.allowMount(m); err != nil {
			return err
		}
	}
	if err := p.allowWrite(spec); err != nil {
		return err
	}
	if err := p.allowIdle(spec.Idle); err != nil {
		return err
	}
	return p.allowExpiry(spec.OnExpiry)
}

func (p *Policy) allowMount(m sandpit.Mount) error {
	source := filepath.Clean(m.Source)
	allowed := false
	for _, r := range p.Rules.Mounts {
		switch {
		case source == r.Source:
			allowed = allowed || r.Write || m.ReadOnly
		case !below(source, r.Source):
		case r.Write:
			return p.refuse("mounts", "mounts", "mount "+r.Source+" itself",
				"%s is in a directory that sandboxes can write to, and can't be mounted separately", quote(m.Source))
		default:
			allowed = allowed || m.ReadOnly
		}
	}
	if allowed {
		return nil
	}
	var may []string
	for _, r := range p.Rules.Mounts {
		mode := " (read-only)"
		if r.Write {
			mode = ""
		}
		may = append(may, r.Source+mode)
	}
	hint := "upload the files, or ask the operator to allow the mount in the policy"
	if len(may) > 0 {
		hint = "mount one of these: " + few(may)
	}
	how := ""
	if !m.ReadOnly {
		how = " for writing"
	}
	return p.refuse("mounts", "mounts", hint, "mounting %s of the host%s is not allowed", quote(m.Source), how)
}

// below reports whether a clean path is below a clean directory, which may be the root.
func below(p, dir string) bool {
	return strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// allowWrite checks all that could be written in a sandbox: the paths that a
// Spec lists, or what it leaves writable when it is read-only (see
// Spec.ReadOnly), and each tmpfs and mount that is not to be read-only, which
// would become so in silence elsewhere.
func (p *Policy) allowWrite(spec *sandpit.Spec) error {
	if p.Rules.Write == nil {
		return nil
	}
	hint := "use writable paths in: " + few(p.Rules.Write)
	if len(p.Rules.Write) == 0 {
		hint = "omit the writable paths: no path may be writable"
	}
	written := slices.Clip(spec.Write)
	switch {
	case spec.Write != nil:
	case spec.ReadOnly:
		written = []string{"/tmp", "/dev/shm"}
		hint = "omit --read-only; " + hint + ", and everything else is read-only"
	default:
		return p.refuse("write", "write-paths", hint, "a sandbox must restrict its writable paths")
	}
	for _, t := range spec.Tmpfs {
		written = append(written, t.Target)
	}
	for _, m := range spec.Mounts {
		if !m.ReadOnly {
			written = append(written, m.Target)
		}
	}
	for _, w := range written {
		// A path with .. could mean another one where links are.
		clean := path.Clean(w)
		ok := !slices.Contains(strings.Split(w, "/"), "..") &&
			slices.ContainsFunc(p.Rules.Write, func(dir string) bool { return clean == dir || below(clean, dir) })
		if !ok {
			return p.refuse("write", "write-paths", hint, "writing to %s is not allowed", quote(w))
		}
	}
	return nil
}

// few lists what is allowed, or the beginning of a long list.
func few(all []string) string {
	const shown = 6
	if len(all) > shown {
		return strings.Join(all[:shown], ", ") + ", …"
	}
	return strings.Join(all, ", ")
}

func (p *Policy) allowIdle(idle time.Duration) error {
	allowed := p.Rules.MaxIdle
	switch {
	case allowed == 0:
		return nil
	case idle <= 0:
		return p.refuse("idle", "maximum.idle", "request at most "+notation.FormatDuration(allowed), "a sandbox without an idle time is not allowed")
	case idle > allowed:
		return p.refuse("idle", "maximum.idle", "request at most "+notation.FormatDuration(allowed),
			"an idle time of %s is more than the maximum of %s", notation.FormatDuration(idle), notation.FormatDuration(allowed))
	}
	return nil
}

func (p *Policy) allowExpiry(e sandpit.Expiry) error {
	if e == "" || slices.Contains(p.Rules.OnExpiry, e) {
		return nil
	}
	var may []string
	for _, e := range p.Rules.OnExpiry {
		may = append(may, string(e))
	}
	return p.refuse("on_expiry", "on-expiry", "use one of: "+few(may), "the action %s at expiry is not allowed", quote(string(e)))
}

// Times of previews: how long they last if the caller says nothing, and at most under the built-in
// policies, and under any.
const (
	PreviewTime     = time.Hour
	DefaultPreviews = 24 * time.Hour
	MaxPreviews     = 7 * 24 * time.Hour
)

// OpenPorts says which clients need no key for the ports of a sandbox that are open to everybody.
type OpenPorts string

// Values of OpenPorts.
const (
	OpenNowhere    OpenPorts = ""         // every client needs one
	OpenOnLoopback OpenPorts = "loopback" // clients on the same machine need none
	OpenEverywhere OpenPorts = "true"     // no client needs one
)

// AllowOpenPort returns an error that matches sandpit.ErrForbidden unless ports may be open to clients that are, or are not,
// on the same machine.
func (p *Policy) AllowOpenPort(loopback bool) error {
	allowed := OpenOnLoopback
	if p.Rules != nil {
		allowed = p.Rules.OpenPorts
	}
	if allowed == OpenEverywhere || loopback && allowed == OpenOnLoopback {
		return nil
	}
	return p.refuse("ports", "open-ports", "create a preview of the port, or ask the operator to allow open-ports in the policy", "using a port without a key is not allowed here")
}

// Unlimited is the value of Rules.Saved without a bound.
const Unlimited = math.MaxInt64

// DefaultSaved bounds, in bytes, what a namespace saves as images under the built-in policy of servers.
const DefaultSaved = 20 << 30

// AllowSaving returns how many bytes a namespace may save as images. Errors match
// sandpit.ErrForbidden.
func (p *Policy) AllowSaving() (quota int64, err error) {
	switch {
	case p.Rules == nil:
		return Unlimited, nil
	case p.Rules.Saved == 0:
		return 0, p.refuse("image", "saved-images", "ask the operator to allow saved-images in the policy", "saved images are not allowed")
	}
	return p.Rules.Saved, nil
}

// AllowContexts returns how many contexts a sandbox may have. Errors match sandpit.ErrForbidden.
func (p *Policy) AllowContexts() (limit int, err error) {
	switch {
	case p.Rules == nil:
		return sandpit.MaxContexts, nil
	case p.Rules.Contexts == 0:
		return 0, p.refuse("code", "contexts", "ask the operator to allow contexts in the policy", "contexts to run code are not allowed")
	}
	return p.Rules.Contexts, nil
}

// AllowPreview returns how long a preview lasts that is requested for the given time; 0: as long as
// usual. Errors match sandpit.ErrInvalid or sandpit.ErrForbidden.
func (p *Policy) AllowPreview(life time.Duration) (time.Duration, error) {
	allowed := DefaultPreviews
	if p.Rules != nil {
		allowed = p.Rules.Previews
	}
	switch {
	case allowed <= 0:
		return 0, p.refuse("previews", "previews", "ask the operator to allow previews in the policy", "previews are not allowed")
	case life < 0:
		return 0, invalid("use a time of at most "+notation.FormatDuration(allowed), "%s is not a valid time for a preview", life)
	case life == 0:
		return min(PreviewTime, allowed), nil
	case life > allowed:
		return 0, p.refuse("previews", "previews", "request at most "+notation.FormatDuration(allowed), "a preview of %s is longer than the maximum of %s", notation.FormatDuration(life), notation.FormatDuration(allowed))
	}
	return life, nil
}

// AllowLifetime checks a change of a sandbox's lifetime. Extensions end when Max.Life has
// passed since the sandbox was made. Errors match sandpit.ErrInvalid or
// sandpit.ErrForbidden.
func (p *Policy) AllowLifetime(change sandpit.Lifetime, created, now time.Time) error {
	if err := checkLifetime(change.Idle, change.OnExpiry); err != nil {
		return err
	}
	if change.Life < 0 || change.Life > maxLife {
		return invalid("use a time between 1ms and 10 years", "%s is not a valid lifetime", change.Life)
	}
	if allowed := p.Max.Life; allowed > 0 && change.Life > 0 {
		if left := allowed - now.Sub(created); change.Life > left {
			left = max(0, left.Truncate(time.Second))
			return p.refuse("life", "maximum.life", "request at most "+notation.FormatDuration(left),
				"%s more would exceed the total lifetime of %s that a sandbox may have", notation.FormatDuration(change.Life), notation.FormatDuration(allowed))
		}
	}
	if p.Rules == nil {
		return nil
	}
	if change.Idle != 0 {
		if err := p.allowIdle(change.Idle); err != nil {
			return err
		}
	}
	return p.allowExpiry(change.OnExpiry)
}

// checkLifetime checks what makes sense of an idle time-out and an expiry.
func checkLifetime(idle time.Duration, e sandpit.Expiry) error {
	switch e {
	case "", sandpit.ExpiryRemove, sandpit.ExpiryStop, sandpit.ExpiryPause:
	default:
		return invalid("use remove, stop or pause", "%s is not an action at expiry", quote(string(e)))
	}
	if idle != sandpit.NoIdle && (idle < 0 || idle > maxLife) {
		return invalid("use a time of at most 10 years", "%s is not a valid idle time", idle)
	}
	return nil
}
