// Package dialect is the door for wire APIs of other projects, which their clients use unmodified.
//
// A dialect stands behind the gate of the server, as /v1 does. It brings routes, the place of
// the caller's key, and the form of its errors (gate.Dialect). The gate authenticates callers, bounds
// their rates and memory, records calls in the audit, and drains. The engine applies the policy of the
// caller. A dialect translates. It grants nothing that the policy of the caller does not allow.
//
// Its package is internal/dialect/NAME, with a function that returns the Dialect. The list in
// cmd/sandpit/dialects_linux.go makes it a service of `listen` in server.yaml and a flag of
// 'sandpit serve', both of that name. Paths of dialects collide, so each is served from the root
// path of listeners of its own, and by host name where Sandpit's own API is. A new form of keys is a
// case in each function of internal/keys/format.go and in keys.In, and a value of the enum in api/v1.NewKey. Names of
// images that clients send by default are aliases in policy/file.BuiltIn. The unmodified clients are tested by
// internal/server with programs in tools/clients, from which docs/COMPATIBILITY.md is made. docs/server.md says what
// clients get.
//
// # Rules for routes
//
//   - The ID of a route is NAME.OPERATION: "e2b.createSandbox". The audit, metrics and traces have it.
//   - All routes but those of GET are Guarded: recorded before they are carried out. The server checks
//     that. Unless the route is
//     SelfAudited, and calls gate.Call.Intend when it has read what it is about, the gate does that.
//     Routes that only end something or take rights away are Vital, too.
//   - A route whose callers have no key, but a signature or token, has a Proof, which
//     returns who makes the request. Open is for health checks.
//   - Bodies are read by gate.Call.Body, and what is held of them is charged by gate.Call.Hold.
//     Answers that take long are streams (gate.Call.OpenStream).
//   - Goroutines that a handler starts defer Server.Protect.
//   - What must be remembered about a sandbox is its data of a dialect: Tenant.CreateFor,
//     Box.SetDialect and Box.Dialect of the engine, with Dialect.Name as the name. They are bounded,
//     charged to the namespace, and survive kill -9. They are never secrets.
package dialect

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/keys"
	"github.com/sandpit-dev/sandpit/internal/ledger"
)

// Dialect is a wire API of another project.
type Dialect struct {
	// Name is that of the service and of the flag: lower-case letters and digits, such as "e2b".
	Name string

	// Title is the name of the project, for people: "E2B".
	Title string

	// KeyFormat is the form of keys that clients expect.
	KeyFormat keys.Format

	// Settings returns the environment variables that point clients at the server, which serves this dialect
	// at a URL without a path. nil: there are none.
	Settings func(url string) []Setting

	// New returns the API as a server serves it. It is called once for each server.
	New func(Server) gate.Dialect

	// Error returns the JSON of an error outside of a call. The server sends it on connections that it has no room for.
	Error func(gate.Failure) []byte
}

// Setting is an environment variable of clients.
type Setting struct {
	Name  string
	Value string // empty if Key is set
	Key   bool   // its value is the key of the caller
}

// Label returns the part of a host name (see gate.HostName) before a domain: "3000-abc" for 3000-abc.e2b.localhost and the
// domain e2b.localhost. That of the domain itself is "".
func Label(host, domain string) (label string, ok bool) {
	if host == domain {
		return "", true
	}
	return strings.CutSuffix(host, "."+domain)
}

// Rate and Burst are the bounds of a key in a dialect that sets none: requests per second and at once. They are
// three times those of /v1, since clients of other projects need up to three requests for one of /v1.
const (
	Rate  = 300
	Burst = 600
)

// Server is what a dialect may use of the server.
type Server struct {
	Name string // of the dialect, and of its data of a sandbox (Tenant.CreateFor)

	Gate *gate.Gate

	// Tenant returns the engine as a caller sees it, by the caller's present policy. Call it for each
	// request. A tenant never sees anything of other namespaces.
	Tenant func(gate.Caller) *engine.Tenant

	// Domain is the domain of this dialect, such as e2b.localhost. The dialect is served for every host name at and
	// below it on addresses of Sandpit's own API, too, whose certificate must then be valid for them. Label takes such names apart.
	Domain string

	// Sandboxes returns the sandboxes of all namespaces, to find the one to which a signature belongs. A caller must not learn
	// anything about a sandbox before it has proven its right to it.
	Sandboxes func() []engine.Box

	// Sandbox is Sandboxes for one ID. It returns nil if there is none.
	Sandbox func(id string) engine.Box

	// OpenPort returns the caller for requests to a port of a sandbox that have no key: they count as those of owner, whose key
	// the sandbox belongs to. loopback says that the client is on the same machine. The error matches sandpit.ErrForbidden if
	// the policy of the key does not allow such requests. Requests in progress end when a later policy forbids them, or the key ends.
	OpenPort func(owner gate.Caller, loopback bool) (gate.Caller, error)

	// Features returns what sandboxes can have on this machine.
	Features func(ctx context.Context) feature.Set

	// IsKey reports whether a text has something in it of the form of a key of the server.
	IsKey func(text string) bool

	// Tokens are access tokens of this dialect: rights to use one sandbox without a key.
	Tokens *Tokens

	// Image returns the image that a name of the client's stands for, by the table of aliases in the policy
	// file. The error for an unknown name quotes it, and matches sandpit.ErrNotFound. The policy of the caller
	// decides about the image when a sandbox is made of it.
	Image func(name string) (image string, err error)

	// Saved returns the names of the images that the namespace of a caller has saved, NAME or NAME:TAG without
	// "saved:". RemoveSaved removes one. TagSaved gives one other names, which others lose, and returns its digest. Built
	// returns the one that was saved with a value of engine.BuildLabel, as NAME@DIGEST, which TagSaved accepts, too.
	// The error matches sandpit.ErrNotFound if there is none.
	Saved       func(context.Context, gate.Caller) (map[string]SavedImage, error)
	RemoveSaved func(ctx context.Context, caller gate.Caller, name string) error
	TagSaved    func(ctx context.Context, caller gate.Caller, name string, names []string) (digest string, err error)
	Built       func(caller gate.Caller, key string) (ref string, err error)

	// Memory returns a new account of a namespace for what stays in memory, with a bound of its own.
	Memory func(namespace string, bound int64) *ledger.Account

	Version string // of the server
	Log     *slog.Logger
}

// Create creates a sandbox with data of a dialect. Unless its creator asked for its egress, it has that only where the
// machine and the policy allow it, and otherwise none.
func (s Server) Create(ctx context.Context, t *engine.Tenant, spec sandpit.Spec, asked bool, dialect string, data json.RawMessage) (engine.Box, error) {
	if !asked && !s.Features(ctx)[feature.Egress] {
		spec.Egress = sandpit.Egress{}
	}
	sb, err := t.CreateFor(ctx, spec, dialect, data)
	if !asked && errors.Is(err, sandpit.ErrForbidden) {
		spec.Egress = sandpit.Egress{} // if the egress was not the reason, the second error is the same
		sb, err = t.CreateFor(ctx, spec, dialect, data)
	}
	return sb, err
}

// Protect recovers a panic, logs it and calls failed, so that the server goes on. Goroutines of a dialect must defer it: the gate
// protects only its handlers. what describes the work of the goroutine for the log.
func (s Server) Protect(what string, failed func(error)) {
	if p := recover(); p != nil {
		failed(gate.Panicked(s.Log, what, p))
	}
}

// Detach detaches the caller from a process, which continues. See sandpit.Detacher.
func Detach(p sandpit.Process) {
	if d, ok := p.(sandpit.Detacher); ok {
		d.Detach()
	}
}

// CPUPercent returns the CPU time used between two samples, in percent of one CPU. It is 0 if that is unknown.
func CPUPercent(was, now sandpit.Sample) float64 {
	wall := now.Time.Sub(was.Time)
	if wall <= 0 || now.CPU < was.CPU {
		return 0
	}
	return 100 * float64(now.CPU-was.CPU) / float64(wall)
}

// SavedImage is an image that was saved from a sandbox, under one of its names.
type SavedImage struct {
	Digest string    // of its manifest
	Named  time.Time // when it got the name
}

// Reference returns the image that a name of the client's stands for, or the name itself if it has no alias: it is for clients that
// take every name of an image as a reference.
func (s Server) Reference(name string) string {
	if image, err := s.Image(name); err == nil {
		return image
	}
	return name
}
