package sandpit

import (
	"context"
	"io"
	"syscall"
	"time"
)

// Command says what to start.
type Command struct {
	// Argv is the program and its arguments. A program without a slash is
	// looked for in the PATH of the process. Exactly one of Argv and Script is set.
	Argv []string

	// Script is run by the sandbox's /bin/sh -c.
	Script string

	// FromImage completes Argv with what the image says about running it, as
	// Docker does: the image's Entrypoint comes before Argv, and the image's Cmd
	// stands in for an empty Argv, so that both Argv and Script may be empty.
	// ErrInvalid when nothing is left to run, or with Script.
	FromImage bool

	// Entrypoint, unless nil, replaces the image's Entrypoint, and its Cmd is
	// then not used; an empty one is none. It means FromImage.
	Entrypoint []string

	// Env is added to the sandbox's environment: "KEY=VALUE"; a later one wins.
	Env []string

	// Dir is where the process starts. Default: the sandbox's WorkDir. One that
	// does not exist makes the process exit with 126, StartError saying why.
	Dir string

	// User as in Spec.User. Default: the sandbox's.
	User string

	// Stdin keeps standard input open for Process.Stdin. Otherwise the process
	// reads an empty input.
	Stdin bool

	// Terminal, when set, gives the process a new terminal of this size as its
	// controlling terminal. Its output is all on Stdout.
	Terminal *TerminalSize

	// Stdout and Stderr receive the output as it comes; nil discards it. They
	// are called by one goroutine, in the order in which output arrived. A
	// writer that blocks slows the process down; it loses nothing. A writer
	// that fails gets no more; the rest is discarded.
	Stdout, Stderr io.Writer

	// Timeout, counted from the start, after which the process and everything
	// that it started is killed, also what has detached itself. 0: none but
	// Limits.Life.
	Timeout time.Duration

	// OutputLimit replaces Limits.Output when positive and smaller.
	OutputLimit int64

	// NoFile replaces Limits.NoFile when positive and smaller.
	NoFile int64

	// Background lets the process outlive its starter: it goes on when the
	// client is closed or vanishes, and can be attached to. Its output is kept
	// as ProcessKeeper says, and a slow Stdout or Stderr doesn't slow it down.
	Background bool
}

// TerminalSize is in character cells.
type TerminalSize struct {
	Rows, Cols uint16
}

// A Process is something started in a sandbox.
type Process interface {
	// ID identifies the process for ProcessKeeper. It is unique in the sandbox and
	// never reused. Empty for a program that could not be started.
	ID() string

	// PID is the process id inside the sandbox, or 0 if the program could not be started.
	PID() int

	// Stdin writes to standard input. Write blocks while the process does not
	// read. Close ends the input. Nil unless Command.Stdin or Terminal was set.
	Stdin() io.WriteCloser

	// Signal sends a signal to the process; with a terminal, to its
	// foreground process group. ErrNotFound when it has exited.
	Signal(ctx context.Context, sig syscall.Signal) error

	// Resize changes the terminal's size. ErrInvalid without a terminal.
	Resize(ctx context.Context, size TerminalSize) error

	// Kill kills the process and everything that it started, also what has
	// detached itself. Killing what has exited is not an error.
	Kill(ctx context.Context) error

	// Wait returns when the process has exited and its output has been
	// delivered. It may be called many times, by many. The exit is reported
	// at once, also when a child still holds the output open. When ctx ends
	// first, Wait returns its error and the process goes on.
	Wait(ctx context.Context) (Result, error)
}

// A GroupSignaler is a Process that can signal the whole process group that its
// program leads: what a terminal does to a foreground job on Ctrl-C. It is
// optional, found by type assertion, and has the errors of Process.Signal.
type GroupSignaler interface {
	SignalGroup(ctx context.Context, sig syscall.Signal) error
}

// Result says how a process ended.
type Result struct {
	ExitCode   int    // 0–255; 128+n when killed by signal n; 126, 127 when not started
	Signal     int    // the signal that killed it, else 0
	StartError string // why it could not be started, else empty
	TimedOut   bool   // killed by Command.Timeout or the lifetime
	OOMKilled  bool   // killed by the kernel because of the memory limit
	Truncated  bool   // output went over its limit

	StdoutBytes  int64 // bytes written by the process, dropped ones included
	StderrBytes  int64
	DroppedBytes int64 // bytes over the limit

	Wall       time.Duration // start to exit
	UserCPU    time.Duration // of the process and the children it waited for
	SystemCPU  time.Duration
	PeakMemory int64 // bytes; the largest resident size of one of them
}

// Success reports whether the program ran and exited with 0.
func (r Result) Success() bool { return r.ExitCode == 0 && r.StartError == "" }
