// Package sandpit gives AI agents safe computers.
//
// A [Sandbox] is one isolated computer: it has its own files, processes,
// network and limits, and it is thrown away after use. A [Client] creates
// sandboxes. There are two kinds of client with the same behavior: the engine,
// which runs inside your own program and needs no daemon, and the remote
// client, which talks to a server.
//
// The shortest program, with any client:
//
//	sb, err := client.Create(ctx, sandpit.Spec{})
//	if err != nil { ... }
//	defer sb.Remove(context.Background())
//	res, err := sandpit.Exec(ctx, sb, "python3", "-c", "print(6*7)")
//	fmt.Printf("%s", res.Stdout) // 42
//
// # Specs and policies
//
// A [Spec] is what a caller asks for. A policy is what the platform allows. Both
// are resolved against what the driver can enforce on this machine. The result is
// a plan, or an error that names the part that is not possible and matches
// [ErrUnsupported] or [ErrForbidden]. Nothing in a Spec is dropped silently.
// A default that this machine can't enforce does not prevent a sandbox;
// [Info.NotEnforced] lists it.
//
// # Errors
//
// Every error matches one of the kinds in this package with [errors.Is]. File
// errors also match the kinds of [io/fs], for example [io/fs.ErrNotExist]. If a
// program exits with a non-zero code, is killed or times out, the [Result] says
// so; that is not an error.
//
// # Concurrency
//
// All methods of all interfaces in this package are safe for concurrent use by
// multiple goroutines, unless their documentation says otherwise.
package sandpit

import (
	"context"
	"slices"
	"time"
)

// State is the state of a sandbox in its life cycle.
type State string

// The states of a sandbox. A removed sandbox has no state.
const (
	StateCreated  State = "created"  // was never started, as Spec.NoStart asks; takes nothing of the machine
	StateCreating State = "creating" // being created, or started for the first time; not yet usable
	StateRunning  State = "running"  // accepts Start and file operations
	StatePaused   State = "paused"   // frozen; keeps its memory
	StateStopped  State = "stopped"  // has no processes; keeps its files
	StateFailed   State = "failed"   // its guest died or broke the protocol
)

// A Client creates, finds and removes sandboxes.
type Client interface {
	Watcher

	// Create creates a sandbox and returns when it is running, that is, when its
	// guest responds, or at once with Spec.NoStart. If Create fails, it leaves nothing behind. The error
	// matches ErrInvalid if the Spec is not valid, ErrUnsupported if this machine
	// can't enforce it, ErrForbidden if the policy refuses it, ErrExists if the
	// name is in use, and ErrNotFound if the image does not exist.
	Create(ctx context.Context, spec Spec) (Sandbox, error)

	// Get returns the sandbox with this ID or name, or ErrNotFound.
	Get(ctx context.Context, idOrName string) (Sandbox, error)

	// List returns a page of the sandboxes that are visible to this client, in the
	// order of their creation.
	List(ctx context.Context, q ListQuery) (Page, error)

	// Remove destroys the sandbox with this ID or name and everything in it, and
	// returns when it is gone. It returns ErrNotFound if no such sandbox exists.
	Remove(ctx context.Context, idOrName string) error

	// Close releases the client's resources. The in-process engine also removes
	// the sandboxes that it created. Close is idempotent.
	Close() error
}

// AllNamespaces stands for a client's namespace with all that are nested in it. Lists, events and
// removals by filter then cover all of them; nothing can be created there.
const AllNamespaces = "*"

// Bounds of [ListQuery.Limit], which the lists of the HTTP API share.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

// ListQuery selects the sandboxes that Client.List returns.
type ListQuery struct {
	Labels    map[string]string // only sandboxes with all of these labels, which may have empty values
	HasLabels []string          // and with labels of all of these names, whatever their values
	States    []State           // in one of these states; empty: any
	Since     time.Time         // created at this time or later; zero: any time
	Until     time.Time         // created before this time; zero: any time
	After     string            // Page.Next of the previous page in the same order; empty: start with the first
	Limit     int               // 0: DefaultPage; at most MaxPage

	NewestFirst bool // the newest first; else the oldest
}

// Selects reports whether the query selects a sandbox, wherever that is in the list.
func (q ListQuery) Selects(info Info) bool {
	return (q.Since.IsZero() || !info.CreatedAt.Before(q.Since)) && (q.Until.IsZero() || info.CreatedAt.Before(q.Until)) &&
		(len(q.States) == 0 || slices.Contains(q.States, info.State)) && HaveLabels(info.Labels, q.Labels, q.HasLabels)
}

// Page is a part of a list. A sandbox that is created between the requests for two
// pages is on a later page, or on none if the newest come first. No sandbox is on two pages.
type Page struct {
	Sandboxes []Info
	Next      string // ListQuery.After for the next page; empty: this is the last

	// Seq is a position of the events before this page was made: a caller that has listed
	// all pages and then asks for the events after the Seq of the first page misses none.
	Seq uint64
}

// A Sandbox is one isolated computer.
type Sandbox interface {
	Lifecycle
	ProcessKeeper
	Networker
	Egresser
	Meter
	Coder

	// ID returns the identifier, which is unique on its machine and never reused.
	ID() string

	// Name returns the name: that of the Spec, or of the latest Update by this
	// client, or the ID.
	Name() string

	// Info returns the current state and the limits that are enforced.
	Info(ctx context.Context) (Info, error)

	// Start starts a program in the sandbox. Everything that runs in a sandbox
	// is started with it. If ctx ends before Start returns, nothing is left
	// running. After that ctx has no effect on the process: use Command.Timeout,
	// Process.Kill or Process.Wait.
	//
	// If the program does not exist or can't be executed, the error is a
	// *StartError, which has the exit code of a shell.
	Start(ctx context.Context, cmd Command) (Process, error)

	// Files returns the sandbox's file system.
	Files() Files

	// Metrics returns the current resource usage of the sandbox.
	Metrics(ctx context.Context) (Metrics, error)

	// Remove destroys the sandbox with everything in it and returns when it is
	// gone. Remove is idempotent.
	Remove(ctx context.Context) error
}

// Info describes a sandbox.
type Info struct {
	ID        string
	Name      string
	Namespace string // the nested namespace in which Name is unique; empty: none, but the client's own
	State     State
	Image     string // as resolved, for example docker.io/library/debian@sha256:…
	Driver    string
	Policy    string // the name of the policy under which it was created, or ""
	Labels    map[string]string
	CreatedAt time.Time
	ExpiresAt time.Time // end of its lifetime; zero if it is stopped
	Idle      time.Duration
	OnExpiry  Expiry
	Reason    string   // why it is stopped or failed, or what its creation waits for; else empty
	Limits    Limits   // the limits that are enforced; every field is set
	Rlimits   []Rlimit // as Spec.Rlimits

	// NotEnforced lists defaults that this machine can't enforce for this
	// user. It never has anything that the caller asked for: a sandbox whose
	// Spec can't be enforced is refused.
	NotEnforced []Gap

	// Secrets are those that the sandbox uses. Only Sandbox.Info tells them, not List.
	Secrets []SecretUse
}

// A Gap is something that a machine can't enforce.
type Gap struct {
	What string `json:"what"` // a field of Limits in lower case ("memory", …), another missing feature ("pause", …), or a weaker layer of isolation ("own-ids", …)
	Why  string `json:"why"`  // one line: the reason
	Fix  string `json:"fix"`  // one line: how to close the gap
}

// Metrics is the resource usage of a sandbox at one time. A value that this
// machine can't measure is -1.
type Metrics struct {
	CPU        time.Duration // CPU time of all processes so far
	Memory     int64         // bytes in use, including page cache and tmpfs files
	MemoryPeak int64         // maximum of Memory so far
	Pids       int64         // processes and threads that count against the limit
	OOMKills   int64         // processes that the kernel killed because of the memory limit

	PidsRefused int64 // processes and threads that were refused because of the limit of processes

	// Disk and Files are the usage of the sandbox's own file system, including
	// /tmp and /dev/shm, which Limits.Disk and Limits.Files bound. A Tmpfs or a
	// Mount does not count.
	Disk  int64 // bytes in use
	Files int64 // inodes in use, including the few with which every sandbox starts

	// Traffic over network interfaces other than the loopback so far. It is 0 if
	// the sandbox has no such interface.
	RxBytes, RxPackets int64 // received
	TxBytes, TxPackets int64 // sent
}

// UnknownMetrics returns Metrics in which every value is -1.
func UnknownMetrics() Metrics {
	return Metrics{
		CPU: -1, Memory: -1, MemoryPeak: -1, Pids: -1, OOMKills: -1, PidsRefused: -1, Disk: -1, Files: -1,
		RxBytes: -1, RxPackets: -1, TxBytes: -1, TxPackets: -1,
	}
}
