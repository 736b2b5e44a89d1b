// Package sandpit gives AI agents safe computers.
//
// A [Sandbox] is one isolated computer: it has its own files, processes,
// network and limits, and it is thrown away when it has done its work. A
// [Client] makes sandboxes. There are two kinds of client with one behaviour:
// the engine, which runs inside your own program and needs no daemon, and the
// remote client, which talks to a server.
//
// The shortest use, with the engine in-process:
//
//	sb, err := client.Create(ctx, sandpit.Spec{})
//	if err != nil { ... }
//	defer sb.Remove(context.Background())
//	res, err := sandpit.Exec(ctx, sb, "python3", "-c", "print(6*7)")
//	fmt.Printf("%s", res.Stdout) // 42
//
// # Words
//
// A Spec is what a caller asks for. Policy is what the platform allows. Both,
// resolved against what the backend can enforce on this machine, give a plan,
// or a refusal that names the part that can't be had: an error that matches
// [ErrUnsupported] or [ErrForbidden]. Nothing that a Spec asks for is ever
// dropped silently. Defaults that nobody asked for and that this machine can't
// enforce do not stop a sandbox; they are listed in [Info.NotEnforced].
//
// # Errors
//
// Errors match one of the kinds in this package with [errors.Is]. File errors
// also match the kinds of [io/fs], for example [io/fs.ErrNotExist]. A program
// that ends with a non-zero code, is killed, or runs out of time is a [Result],
// not an error.
//
// # Concurrency
//
// Every method of every interface in this package may be called from many
// goroutines at once, unless its comment says otherwise.
package sandpit

import (
	"context"
	"time"
)

// State is where a sandbox is in its life.
type State string

// The states of a sandbox. A removed sandbox is gone and has no state.
const (
	StateCreating State = "creating" // being made; not yet usable
	StateRunning  State = "running"  // answers Start and file calls
	StatePaused   State = "paused"   // frozen; keeps its memory
	StateStopped  State = "stopped"  // no process; keeps its files
	StateFailed   State = "failed"   // its guest died or broke the protocol
)

// A Client makes, finds and removes sandboxes.
type Client interface {
	Watcher

	// Create makes a sandbox and returns when it is running, which is when its
	// guest has answered. On any error nothing is left behind. The error
	// matches ErrInvalid for a Spec that makes no sense, ErrUnsupported for
	// one that this machine can't enforce, ErrForbidden for one that policy
	// refuses, ErrExists for a name that is taken, ErrNotFound for an image
	// that does not exist.
	Create(ctx context.Context, spec Spec) (Sandbox, error)

	// Get finds a sandbox by id or name. ErrNotFound when there is none.
	Get(ctx context.Context, idOrName string) (Sandbox, error)

	// List returns a page of the sandboxes that this client may see, oldest
	// first.
	List(ctx context.Context, q ListQuery) (Page, error)

	// Remove destroys a sandbox by id or name, with everything in it, and
	// returns when it is gone. Removing what is already gone is ErrNotFound.
	Remove(ctx context.Context, idOrName string) error

	// Close releases what the client holds. The in-process engine removes the
	// sandboxes that it made. Close is idempotent.
	Close() error
}

// ListQuery picks what Client.List lists.
type ListQuery struct {
	Labels map[string]string // sandboxes with all of these; an empty value counts
	State  State             // empty: any
	After  string            // Page.Next of the page before; empty: from the start
	Limit  int               // default 100, at most 1,000
}

// Page is a part of a list. A sandbox that is made while pages are asked for is
// in a later one; none is in two.
type Page struct {
	Sandboxes []Info
	Next      string // for the next page; empty: there is none
}

// A Sandbox is one isolated computer.
type Sandbox interface {
	Lifecycle
	ProcessKeeper
	Networker
	Meter

	// ID returns the identity, unique on its machine, never reused.
	ID() string

	// Name returns the name given in the Spec, or the ID.
	Name() string

	// Info returns the present state and the limits that are enforced.
	Info(ctx context.Context) (Info, error)

	// Start starts a program in the sandbox. It is the one primitive under
	// everything that runs. When ctx ends before Start returns, nothing is
	// left running. Afterwards ctx has no effect on the process: use
	// Command.Timeout, Process.Kill or Process.Wait.
	//
	// A program that is missing or can't be executed is not an error of Start:
	// the process exits with 127 or 126, as in a shell, and its Result says
	// why in StartError.
	Start(ctx context.Context, cmd Command) (Process, error)

	// Files returns the sandbox's file system.
	Files() Files

	// Metrics returns what the sandbox uses now.
	Metrics(ctx context.Context) (Metrics, error)

	// Remove destroys the sandbox with everything in it and returns when it is
	// gone. A second Remove returns nil.
	Remove(ctx context.Context) error
}

// Info describes a sandbox.
type Info struct {
	ID        string
	Name      string
	State     State
	Image     string // as resolved, for example docker.io/library/debian@sha256:…
	Driver    string
	Policy    string // the name of the policy that it was made under; "" for one without a name
	Labels    map[string]string
	CreatedAt time.Time
	ExpiresAt time.Time // end of its life; zero when it is stopped
	Idle      time.Duration
	OnExpiry  Expiry
	Reason    string // why it is stopped or failed, or what it waits for while it is made; else empty
	Limits    Limits // what is enforced, every field set

	// NotEnforced lists defaults that this machine can't enforce for this
	// user. What a caller asks for is never in it: that is refused.
	NotEnforced []Gap
}

// A Gap is something that a machine can't enforce.
type Gap struct {
	What string `json:"what"` // "memory", "cpus", "pids", …; a field of Limits in lower case, or a feature's name
	Why  string `json:"why"`  // one line: the reason on this machine
	Fix  string `json:"fix"`  // one line: what the person can do
}

// Metrics is what a sandbox uses, read at one moment. A figure that the
// machine can't tell is -1.
type Metrics struct {
	CPU        time.Duration // processor time used by all processes so far
	Memory     int64         // bytes charged now, page cache and tmpfs files included
	MemoryPeak int64         // most bytes charged at once so far
	Pids       int64         // processes and threads now
	OOMKills   int64         // processes that the kernel killed because of the memory limit

	// What the sandbox has written to its own file system, /tmp and /dev/shm
	// included, and what Limits.Disk and Limits.Files bound. A Tmpfs and a Mount
	// are apart.
	Disk  int64 // bytes that are in use now
	Files int64 // inodes that are in use now, with the few that every sandbox begins with

	// What went over network interfaces other than the loopback so far. A
	// sandbox without any has 0.
	RxBytes, RxPackets int64 // received
	TxBytes, TxPackets int64 // sent
}

// UnknownMetrics returns Metrics without a figure: all are -1.
func UnknownMetrics() Metrics {
	return Metrics{
		CPU: -1, Memory: -1, MemoryPeak: -1, Pids: -1, OOMKills: -1, Disk: -1, Files: -1,
		RxBytes: -1, RxPackets: -1, TxBytes: -1, TxPackets: -1,
	}
}
