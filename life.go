package sandpit

import (
	"context"
	"io"
	"iter"
	"net"
	"time"
)

// Expiry is what happens to a sandbox whose time is over.
type Expiry string

// What may happen at the end of a lifetime or of an idle time.
const (
	ExpiryRemove Expiry = "remove" // it is removed with everything in it; the default
	ExpiryStop   Expiry = "stop"   // its processes are ended; its files are kept
	ExpiryPause  Expiry = "pause"  // it is frozen, and goes on with the next request
)

// Lifetime says how long a sandbox lives. Its guest keeps it too, so that it
// holds when the program that made the sandbox is dead.
type Lifetime struct {
	// Life is how much longer the sandbox may live, from now on. 0: as it was.
	Life time.Duration

	// Idle is how long it may be idle: no process runs that somebody waits for
	// or that writes, no stream, no traffic to its ports. 0: as it was;
	// NoIdle: for ever.
	Idle time.Duration

	// OnExpiry is what happens then. Empty: as it was.
	OnExpiry Expiry
}

// NoIdle is an idle time that never ends.
const NoIdle time.Duration = -1

// A Lifecycle is a sandbox whose state can be changed. Every method returns
// when the state is reached. ErrState when it can't be reached from the present
// one; reaching the present one is no error.
type Lifecycle interface {
	// Stop ends every process: SIGTERM, and after grace SIGKILL. The files are
	// kept. Start and file calls are ErrState until Restart.
	Stop(ctx context.Context, grace time.Duration) error

	// Restart makes a stopped sandbox run again, with no process in it.
	Restart(ctx context.Context) error

	// Pause freezes all processes. A paused sandbox uses no processor time.
	Pause(ctx context.Context) error

	// Resume thaws it. Any other request to a paused sandbox does so first.
	Resume(ctx context.Context) error

	// SetLifetime changes when the sandbox expires. ErrForbidden beyond what
	// policy allows. After an error nothing has changed.
	SetLifetime(ctx context.Context, life Lifetime) error
}

// A ProcessKeeper is a sandbox whose processes can be found again.
type ProcessKeeper interface {
	// Processes lists the processes that were started through Start, oldest
	// first: those that run, and the latest that have ended: 256 at least, or
	// fewer where the memory for what is kept of them is full.
	Processes(ctx context.Context) ([]ProcessInfo, error)

	// Attach gives a process by its ID or, when that is a number, by its pid
	// (the latest of that pid). Any number of callers may be attached. The
	// process goes on when they leave, with Detacher. ErrNotFound when there is
	// none.
	Attach(ctx context.Context, process string, opt AttachOptions) (Process, error)

	// Logs gives what processes have written, oldest first.
	Logs(ctx context.Context, q LogQuery) iter.Seq2[LogEntry, error]
}

// ProcessInfo describes a process.
type ProcessInfo struct {
	ID         string // unique in its sandbox, never reused
	PID        int
	Argv       []string // as started; a script is /bin/sh -c SCRIPT
	ArgvCut    bool     // Argv is only the beginning: at most 8 KiB are kept, where each argument counts 16 bytes more than its length
	User       string
	Background bool
	StartedAt  time.Time
	Terminal   bool
	Result     *Result // of one that has ended, else nil
}

// AttachOptions say what is wanted of a process.
type AttachOptions struct {
	// Stdout and Stderr receive the output kept so far and then what comes, as
	// Command's do; nil wants none. Of a caller that is too slow, no process
	// waits: it loses the oldest of what it has not taken.
	Stdout, Stderr io.Writer

	// Lost is told, from the goroutine that calls Stdout, that so many bytes
	// were not kept, in the place where they are missing. May be nil.
	Lost func(bytes int64)

	// NoHistory leaves out the output kept so far.
	NoHistory bool

	// Stdin makes Process.Stdin usable, if the process was started with one.
	Stdin bool
}

// A Detacher is a Process that its caller can give up without an end: it gets no
// more output, Stdin and Wait are not to be used any more, and the process goes
// on. What Attach and Start return is one, with a background process or in a
// server. It is optional, found by type assertion.
type Detacher interface {
	Detach()
}

// LogQuery picks entries of a sandbox's log.
type LogQuery struct {
	Process string    // ID; empty: all
	Stream  string    // "stdout" or "stderr"; empty: both
	Since   time.Time // zero: from the oldest kept
	After   uint64    // entries with a greater Seq only
	Tail    int       // the latest so many entries, then what follows; 0: all
	Follow  bool      // go on until ctx ends or the sandbox is gone
}

// LogEntry is a piece of output: a line, or a part of one that is longer than
// 16 KiB, or that was not ended for a while. Data is at most 64 KiB.
type LogEntry struct {
	Seq     uint64    `json:"seq"` // grows by 1; a gap says that entries were lost
	Time    time.Time `json:"time"`
	Process string    `json:"process"`
	PID     int       `json:"pid"`
	Stream  string    `json:"stream"` // "stdout", "stderr"
	Data    []byte    `json:"data"`   // with its newline, if it has one
}

// A Networker is a sandbox whose ports can be reached from outside.
type Networker interface {
	// Dial connects to a TCP port on the sandbox's loopback. Half-close works:
	// the connection has CloseWrite. ErrUnavailable when nothing listens.
	Dial(ctx context.Context, port uint16) (net.Conn, error)

	// Ports lists the TCP ports on which a process inside listens.
	Ports(ctx context.Context) ([]Port, error)
}

// Port is a port that something in a sandbox listens on.
type Port struct {
	Port    uint16 `json:"port"`
	Address string `json:"address"` // "127.0.0.1", "::", …
}

// A Meter keeps what a sandbox has used.
type Meter interface {
	// History returns samples since a time, oldest first, at most 1,000.
	History(ctx context.Context, since time.Time) ([]Sample, error)
}

// Sample is what a sandbox used at one time.
type Sample struct {
	Time time.Time
	Metrics
}

// Event is a change in the life of a sandbox or of one of its processes.
type Event struct {
	Seq     uint64            `json:"seq"` // grows; unique on a server
	Time    time.Time         `json:"time"`
	Kind    EventKind         `json:"kind"`
	Sandbox string            `json:"sandbox"` // ID
	Name    string            `json:"name"`
	State   State             `json:"state,omitempty"`   // after it
	Reason  string            `json:"reason,omitempty"`  // of an end: "asked", "life", "idle", "failed: …"
	Process string            `json:"process,omitempty"` // ID
	PID     int               `json:"pid,omitempty"`
	Exit    *int              `json:"exit,omitempty"` // exit code
	Labels  map[string]string `json:"labels,omitempty"`
}

// EventKind names what happened.
type EventKind string

// The kinds of events.
const (
	EventCreated  EventKind = "sandbox.created"
	EventStopped  EventKind = "sandbox.stopped"
	EventStarted  EventKind = "sandbox.started"
	EventPaused   EventKind = "sandbox.paused"
	EventResumed  EventKind = "sandbox.resumed"
	EventExtended EventKind = "sandbox.extended"
	EventFailed   EventKind = "sandbox.failed"
	EventRemoved  EventKind = "sandbox.removed"
	EventProcess  EventKind = "process.started"
	EventExit     EventKind = "process.exited"
	EventLost     EventKind = "events.lost" // the listener was too slow, or asked for what is not kept any more
)

// A Watcher is a client that tells what happens.
type Watcher interface {
	// Events gives the events of the sandboxes that this client may see, from
	// after a Seq on (0: from now on), until ctx ends. The latest 10,000 are
	// kept; what was lost is told by EventLost.
	Events(ctx context.Context, after uint64) iter.Seq2[Event, error]
}
