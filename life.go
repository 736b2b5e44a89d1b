package sandpit

import (
	"context"
	"io"
	"iter"
	"net"
	"slices"
	"time"
)

// Expiry is the action when a sandbox expires.
type Expiry string

// The actions at the end of a lifetime or idle time.
const (
	ExpiryRemove Expiry = "remove" // remove the sandbox; the default
	ExpiryStop   Expiry = "stop"   // end its processes and keep its files
	ExpiryPause  Expiry = "pause"  // freeze it until the next request
)

// Lifetime says how long a sandbox lives. The guest enforces it too, so that it
// holds even after the program that created the sandbox has died.
type Lifetime struct {
	// Life is the remaining lifetime, counted from now. 0: unchanged.
	Life time.Duration

	// Idle is the maximum idle time. A sandbox is idle while no process writes
	// output, no caller waits for a process, no stream is open, and no traffic
	// goes to its ports. 0: unchanged; NoIdle: unlimited.
	Idle time.Duration

	// OnExpiry is the action at expiry. Empty: unchanged.
	OnExpiry Expiry
}

// Change is a change of a sandbox. Fields that are empty or zero change nothing.
type Change struct {
	// Name is the new name, in the form of Spec.Name. The old name is then free. The
	// host name inside does not change.
	Name string

	// Labels are added, or replace those of the same name, after the labels named by
	// RemoveLabels were removed.
	Labels       map[string]string
	RemoveLabels []string

	// Limits has new limits. Only Memory, CPUs and Pids can be changed. Memory can't
	// become less than is in use. Limits.Disk stays as it is: files can take up all of
	// the memory if it is larger.
	Limits Limits
}

// NoIdle is an unlimited idle time.
const NoIdle time.Duration = -1

// A Lifecycle is a sandbox whose state can be changed. Every method returns when
// the new state is reached. It is a no-op if the sandbox is in that state already,
// and returns ErrState if the current state does not allow the change.
type Lifecycle interface {
	// Stop ends all processes with SIGTERM and, after grace, with SIGKILL. The files
	// stay. Start and file operations return ErrState until Restart.
	Stop(ctx context.Context, grace time.Duration) error

	// Restart starts a sandbox that is stopped, or was created with Spec.NoStart. It then has
	// no processes. Starting one for the first time is what Create does otherwise, with the
	// same errors; after an error it can be started again.
	Restart(ctx context.Context) error

	// Pause freezes all processes. A paused sandbox uses no CPU time.
	Pause(ctx context.Context) error

	// Resume thaws all processes. Any other request to a paused sandbox
	// resumes it first.
	Resume(ctx context.Context) error

	// Update changes the name, labels and limits of the sandbox: all that c asks for,
	// or nothing if it fails. It returns ErrExists if the name is in use, ErrForbidden
	// if the policy does not allow the change, ErrUnsupported if this machine can't
	// change a limit, ErrState if more memory is in use than the new limit allows, and
	// ErrExhausted if the machine has no room for the new limits.
	Update(ctx context.Context, c Change) error

	// SetLifetime changes when the sandbox expires. It returns ErrForbidden if the
	// policy does not allow it. If it fails, nothing has changed.
	SetLifetime(ctx context.Context, life Lifetime) error
}

// A ProcessKeeper is a sandbox whose processes can be found again.
type ProcessKeeper interface {
	// Processes returns the processes that Start has started, oldest first: all
	// running ones, and those that exited last. At least 256 exited ones are kept,
	// or fewer if the memory for their output is full.
	Processes(ctx context.Context) ([]ProcessInfo, error)

	// Attach returns the process with this ID or, if it is a number, the latest
	// process with this pid. Any number of callers can be attached. The process
	// continues when they detach; see Detacher. Attach returns ErrNotFound if
	// there is no such process.
	Attach(ctx context.Context, process string, opt AttachOptions) (Process, error)

	// Logs returns the output of processes, oldest first.
	Logs(ctx context.Context, q LogQuery) iter.Seq2[LogEntry, error]
}

// ProcessInfo describes a process. It has no environment, because lists are shown and logged,
// and environments carry passwords.
type ProcessInfo struct {
	ID         string // unique in its sandbox, never reused
	PID        int
	Argv       []string // a script is /bin/sh -c SCRIPT
	ArgvCut    bool     // Argv is truncated: at most 8 KiB are kept, and each argument counts 16 bytes in addition to its length
	User       string   // as Command.User names it; by default the name or id of the sandbox's
	Dir        string   // as Command.Dir names it, at most 4,096 bytes; empty: the sandbox's
	Tag        string   // Command.Tag
	Background bool
	StartedAt  time.Time
	Terminal   bool
	Stdin      bool          // it was started with Command.Stdin or a terminal: Attach can write to it
	Timeout    time.Duration // Command.Timeout; 0: none, or unknown because the server was restarted
	Result     *Result       // nil while the process is running
}

// AttachOptions are the options of ProcessKeeper.Attach.
type AttachOptions struct {
	// Stdout and Stderr receive the stored output and then new output, as those of
	// Command do; nil discards it. A slow writer never blocks the process: it
	// loses the oldest output that it has not received.
	Stdout, Stderr io.Writer

	// Lost is called with the number of lost bytes at the place where they are
	// missing, by the goroutine that calls Stdout. It may be nil.
	Lost func(bytes int64)

	// NoHistory omits the stored output.
	NoHistory bool

	// Stdin makes Process.Stdin usable, if the process was started with one.
	Stdin bool
}

// A Detacher is a Process from which its caller can detach. After Detach the caller
// gets no more output and must not use Stdin and Wait, and the process continues.
// The processes that Attach returns, and background processes that Start returns,
// implement it. It is optional; use a type assertion.
type Detacher interface {
	Detach()
}

// A Backgrounder is a Process that can be moved to the background: it then outlives its
// client as with Command.Background. Until its client detaches or goes, the process still
// waits for it to read the output. Moving a process that is in the background, or has
// exited, is a no-op. Background returns ErrUnsupported if the sandbox ends with its client.
// It is optional; use a type assertion.
type Backgrounder interface {
	Background(ctx context.Context) error
}

// LogQuery selects entries of a sandbox's log.
type LogQuery struct {
	Process string    // ID; empty: all
	Stream  string    // "stdout" or "stderr"; empty: both
	Since   time.Time // written at this time or later; zero: start with the oldest
	Until   time.Time // written before this time; zero: any time. It can't be combined with Follow
	After   uint64    // only entries with a greater Seq
	Tail    int       // only this number of latest entries, and those that follow; 0: all
	Follow  bool      // wait for new entries until ctx ends or the sandbox is removed
}

// LogEntry is a piece of output: a line, or a part of a line that is longer than
// 16 KiB or stayed incomplete for a while.
type LogEntry struct {
	Seq     uint64    `json:"seq"` // increases by 1; a gap means that entries were lost
	Time    time.Time `json:"time"`
	Process string    `json:"process"`
	PID     int       `json:"pid"`
	Stream  string    `json:"stream"` // "stdout", "stderr"
	Data    []byte    `json:"data"`   // at most 64 KiB, with the newline if there is one
}

// A Networker is a sandbox whose ports can be reached from outside.
type Networker interface {
	// Dial connects to a TCP port on the sandbox's loopback. The connection has a
	// CloseWrite method. Dial returns ErrUnavailable if no process listens.
	Dial(ctx context.Context, port uint16) (net.Conn, error)

	// Ports returns the TCP ports on which processes in the sandbox listen.
	Ports(ctx context.Context) ([]Port, error)
}

// Port is a TCP port on which a process in a sandbox listens.
type Port struct {
	Port    uint16 `json:"port"`
	Address string `json:"address"` // "127.0.0.1", "::", …
}

// A Previewer is a sandbox whose ports can be opened in a browser without a key. Sandboxes of
// the remote client implement it. It is optional; use a type assertion.
type Previewer interface {
	// Preview creates a preview of a TCP port, which lasts for the given time. 0: one hour, or
	// the policy's maximum if that is less. Nothing needs to listen yet. It returns
	// ErrForbidden if the policy does not allow the preview, ErrQuota if there are too many,
	// and ErrUnsupported if browsers can't reach the server.
	Preview(ctx context.Context, port uint16, life time.Duration) (Preview, error)

	// Previews returns the previews of the sandbox that have not ended, oldest first.
	Previews(ctx context.Context) ([]Preview, error)

	// RevokePreview ends a preview at once, with all that it has opened. It returns
	// ErrNotFound if the sandbox has no preview with this ID.
	RevokePreview(ctx context.Context, id string) error
}

// Preview is the right to use a TCP port of a sandbox without a key, for a time. It ends
// earlier when it is revoked, and with the sandbox and the key that created it.
type Preview struct {
	ID        string
	Port      uint16
	URL       string // has the right: only Previewer.Preview returns it
	CreatedAt time.Time
	ExpiresAt time.Time
}

// A Meter records the resource usage of a sandbox.
type Meter interface {
	// History returns at most 1,000 samples since a time, oldest first.
	History(ctx context.Context, since time.Time) ([]Sample, error)
}

// Sample is the resource usage of a sandbox at one time.
type Sample struct {
	Time time.Time
	Metrics
}

// Event is a change in the life of a sandbox or of one of its processes.
type Event struct {
	Seq       uint64            `json:"seq"` // increasing; unique on a server
	Time      time.Time         `json:"time"`
	Kind      EventKind         `json:"kind"`
	Sandbox   string            `json:"sandbox"` // ID
	Name      string            `json:"name"`
	Namespace string            `json:"namespace,omitempty"` // as Info.Namespace
	State     State             `json:"state,omitempty"`     // after the event
	Reason    string            `json:"reason,omitempty"`    // why the sandbox ended: "asked", "life", "idle", "failed: …"
	Process   string            `json:"process,omitempty"`   // ID
	PID       int               `json:"pid,omitempty"`
	Exit      *int              `json:"exit,omitempty"` // exit code
	Labels    map[string]string `json:"labels,omitempty"`
}

// EventKind names what happened.
type EventKind string

// The kinds of events.
const (
	EventCreated  EventKind = "sandbox.created"
	EventUpdated  EventKind = "sandbox.updated" // its name, labels or limits have changed
	EventStopped  EventKind = "sandbox.stopped"
	EventStarted  EventKind = "sandbox.started"
	EventPaused   EventKind = "sandbox.paused"
	EventResumed  EventKind = "sandbox.resumed"
	EventExtended EventKind = "sandbox.extended"
	EventFailed   EventKind = "sandbox.failed"
	EventRemoved  EventKind = "sandbox.removed"
	EventProcess  EventKind = "process.started"
	EventExit     EventKind = "process.exited"
	EventLost     EventKind = "events.lost" // events are missing: the listener was too slow, or they are no longer stored
)

// A Watcher is a client that reports events.
type Watcher interface {
	// Events returns the events of the sandboxes that are visible to this client
	// until ctx ends. The latest 10,000 events are stored. EventLost reports that
	// events are missing; every query gets it. To list sandboxes and then follow
	// every change, pass Page.Seq as EventQuery.After.
	Events(ctx context.Context, q EventQuery) iter.Seq2[Event, error]
}

// EventQuery selects events. Empty fields select all.
type EventQuery struct {
	After     uint64            // only events with a greater Seq; 0: only new events
	Kinds     []EventKind       // of one of these kinds
	Sandbox   string            // of the sandbox with this ID, or with this name at the time of the event
	Labels    map[string]string // of sandboxes with all of these labels at the time of the event
	HasLabels []string          // and with labels of all of these names
}

// Matches reports whether q selects e, whatever its Seq.
func (q EventQuery) Matches(e Event) bool {
	return e.Kind == EventLost ||
		(len(q.Kinds) == 0 || slices.Contains(q.Kinds, e.Kind)) &&
			(q.Sandbox == "" || q.Sandbox == e.Sandbox || q.Sandbox == e.Name) &&
			HaveLabels(e.Labels, q.Labels, q.HasLabels)
}

// HaveLabels reports whether labels have all those of want, and all names of has.
func HaveLabels(labels, want map[string]string, has []string) bool {
	for k, v := range want {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	for _, k := range has {
		if _, ok := labels[k]; !ok {
			return false
		}
	}
	return true
}

// EventKinds returns the kinds of events, except EventLost.
func EventKinds() []EventKind {
	return []EventKind{
		EventCreated, EventUpdated, EventStopped, EventStarted, EventPaused, EventResumed,
		EventExtended, EventFailed, EventRemoved, EventProcess, EventExit,
	}
}
