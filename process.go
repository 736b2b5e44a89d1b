package sandpit

import (
	"context"
	"io"
	"math"
	"syscall"
	"time"
)

// Command describes a process to start.
type Command struct {
	// Argv is the program and its arguments. A program without a slash is
	// looked up in the PATH of the process. Set either Argv or Script.
	Argv []string

	// Script is run with /bin/sh -c.
	Script string

	// FromImage completes Argv from the image's configuration as Docker does: the
	// image's Entrypoint precedes Argv, and the image's Cmd replaces an empty Argv.
	// It is ErrInvalid if the resulting command is empty, or if Script is set.
	FromImage bool

	// Entrypoint, unless nil, replaces the image's Entrypoint; the image's Cmd is then
	// not used. An empty Entrypoint removes it. Setting it implies FromImage.
	Entrypoint []string

	// Env has variables, as "KEY=VALUE", that are added to the sandbox's
	// environment. A later variable replaces an earlier one.
	Env []string

	// Dir is the working directory. Default: the sandbox's WorkDir. If it does not
	// exist, Start returns a *StartError.
	Dir string

	// User is the user, in the form of Spec.User. Default: the sandbox's.
	User string

	// Stdin keeps standard input open for Process.Stdin. Otherwise the process
	// reads an empty input.
	Stdin bool

	// Terminal, if set, gives the process a new controlling terminal of this size.
	// All output is then on Stdout.
	Terminal *TerminalSize

	// Stdout and Stderr receive the output as it arrives; nil discards it. If they are
	// the same writer, it is not called twice at the same time; two different ones may be
	// called at the same time. A writer that blocks slows the process down and loses no
	// output. If both are set, and neither is a *bytes.Buffer, it does not hold up the
	// other one. After a writer fails, its output is discarded.
	Stdout, Stderr io.Writer

	// Timeout is the time after the start at which the process and all its
	// descendants are killed, including daemons. 0: as long as the sandbox lives.
	Timeout time.Duration

	// OutputLimit replaces Limits.Output if it is positive and smaller.
	OutputLimit int64

	// NoFile replaces Limits.NoFile if it is positive and smaller. It can't be combined with
	// an Rlimit of nofile.
	NoFile int64

	// Rlimits are limits of the program, which processes that it starts inherit. Resources
	// that are not named have those of the sandbox: Spec.Rlimits, or else what the sandbox allows.
	Rlimits []Rlimit

	// Tag is a name that the caller gives the process, of at most MaxTag bytes of printable
	// characters. ProcessInfo has it, so that the process can be found again. Several
	// processes may have the same one.
	Tag string

	// Background lets the process outlive the client: it continues after the client
	// is closed or disconnected, and callers can attach to it. Its output is stored
	// as ProcessKeeper describes, and a slow Stdout or Stderr does not block it: it loses
	// the oldest output that it has not received. Result has the number of bytes that were
	// written, and AttachOptions.Lost tells what is lost.
	Background bool
}

// Rlimit is a limit of a resource that the kernel keeps for each process, or nproc, msgqueue and
// sigpending for each user: see setrlimit(2). The program may lower both values, and raise Soft up to
// Hard.
//
// Start returns ErrInvalid for a resource that is unknown or given twice, for a Soft above Hard, and for a
// Hard above what the sandbox allows, and so does Create for those of a Spec. Core files are never written: a limit of core of 0 is allowed,
// and has no effect.
type Rlimit struct {
	// Resource is the kernel's name: as, core, cpu, data, fsize, locks, memlock, msgqueue,
	// nice, nofile, nproc, rss, rtprio, rttime, sigpending or stack.
	Resource string

	// Soft is enforced, and Hard is what Soft may be raised to. Both are bytes (as, core, data,
	// fsize, memlock, msgqueue, rss, stack), seconds (cpu), microseconds (rttime), or numbers.
	// They are RlimitUnlimited, or at most math.MaxInt64.
	Soft, Hard uint64
}

// RlimitUnlimited is the value of an Rlimit without a limit.
const RlimitUnlimited = math.MaxUint64

// MaxTag is the maximum length of Command.Tag, in bytes.
const MaxTag = 256

// TerminalSize is the size of a terminal in character cells.
type TerminalSize struct {
	Rows, Cols uint16
}

// A Process is a process that was started in a sandbox.
type Process interface {
	// ID returns the identifier of the process, which is unique in its sandbox and
	// never reused. It is empty if nobody else can find the process: it was killed while
	// it was being started, or its sandbox ends with it.
	ID() string

	// PID returns the process ID inside the sandbox, or 0 if ID is empty.
	PID() int

	// Stdin returns a writer to standard input. Write blocks while the process does
	// not read. Close closes the input. Stdin is nil unless Command.Stdin or
	// Command.Terminal was set.
	Stdin() io.WriteCloser

	// Signal sends a signal to the process or, if it has a terminal, to its
	// foreground process group. It returns ErrNotFound if the process has exited.
	Signal(ctx context.Context, sig syscall.Signal) error

	// Resize changes the size of the terminal. It returns ErrInvalid if there is none.
	Resize(ctx context.Context, size TerminalSize) error

	// Kill kills the process and all its descendants, including daemons. Killing a
	// process that has exited is a no-op.
	Kill(ctx context.Context) error

	// Wait returns when the process has exited and its output has been delivered,
	// even if a child still holds the output open. It may be called any number of
	// times. If ctx ends first, Wait returns its error and the process continues.
	Wait(ctx context.Context) (Result, error)
}

// A GroupSignaler is a Process that can signal the process group that its program
// leads, as a terminal signals a foreground job on Ctrl-C. It is optional; use a
// type assertion. It returns the errors of Process.Signal.
type GroupSignaler interface {
	SignalGroup(ctx context.Context, sig syscall.Signal) error
}

// Result describes how a process ended.
type Result struct {
	ExitCode  int  // 0–255; 124 if TimedOut; 128+n if signal n killed it
	Signal    int  // the signal that killed it, else 0
	TimedOut  bool // killed by Command.Timeout or the lifetime
	OOMKilled bool // killed by the kernel because of the memory limit
	Truncated bool // output exceeded its limit

	// Of a process that failed: what is likely to be the reason. False if it is unknown.
	PidsRefused bool // since its start the sandbox was refused a process or thread because of Limits.Pids
	DiskFull    bool // at its end the sandbox's own file system held as many bytes as Limits.Disk allows
	FilesFull   bool // at its end it held as many files as Limits.Files allows
	CPUExceeded bool // it, or a process that it waited for, used as much CPU time as its Rlimit of cpu allows

	StdoutBytes  int64 // bytes written by the process, including dropped ones
	StderrBytes  int64
	DroppedBytes int64 // bytes that exceeded the limit

	Wall       time.Duration // start to exit
	UserCPU    time.Duration // of the process and the children that it waited for
	SystemCPU  time.Duration
	PeakMemory int64 // bytes; the largest resident size of any of these processes
}

// Success reports whether the program exited with 0.
func (r Result) Success() bool { return r.ExitCode == 0 }
