package sandpit

import (
	"errors"
	"time"
)

// The kinds of errors. Match them with errors.Is. The HTTP API maps them to status
// codes, and the command line to exit codes.
var (
	ErrInvalid     = errors.New("invalid request")             // the request is not valid
	ErrUnsupported = errors.New("not supported here")          // this machine or driver can't do or enforce it
	ErrForbidden   = errors.New("refused by policy")           // the policy does not allow it
	ErrNotFound    = errors.New("not found")                   // the sandbox, image or process does not exist
	ErrExists      = errors.New("already exists")              // the name is in use
	ErrState       = errors.New("wrong state")                 // the sandbox is stopped, failed or busy
	ErrUnavailable = errors.New("unavailable")                 // a registry or server can't be reached; try again later
	ErrExhausted   = errors.New("out of capacity")             // a limit is reached; see the three cases below
	ErrIntegrity   = errors.New("integrity check failed")      // a digest, size or signature does not match
	ErrProtocol    = errors.New("protocol violation by guest") // the guest sent an invalid message
	ErrClosed      = errors.New("sandbox is gone")             // it was removed, or its guest has died
	ErrStart       = errors.New("not started")                 // the program does not exist or can't be executed; see StartError
)

// Cases of ErrExhausted, which they match. An error that matches none of them says that the
// host has no memory, ids or slots at the moment: trying again later helps.
var (
	ErrQuota       error = exhausted("limit reached")           // of the caller or sandbox: waiting does not help, but removing something or asking for less does
	ErrRateLimited error = exhausted("too many requests")       // of the caller: send fewer at once, or less often
	ErrDiskFull    error = exhausted("the host's disk is full") // the operator must free some space
)

// exhausted is a case of ErrExhausted.
type exhausted string

func (e exhausted) Error() string      { return string(e) }
func (exhausted) Is(target error) bool { return target == ErrExhausted }

// A StartError reports that a program could not be started: it does not exist, it can't be
// executed, or its working directory does not exist. It matches ErrStart. Nothing has run, and
// there is no process.
type StartError struct {
	ExitCode int    // what a shell exits with: 127 if the program does not exist, else 126
	Reason   string // one line that names the program or directory
	Stage    Stage  // StageDirectory, StageProgram, or "": another one, or unknown
	Errno    int    // why, by Linux's number (asm-generic/errno.h); 0: unknown
}

// Error returns the reason.
func (e *StartError) Error() string { return e.Reason }

// Is reports whether target is ErrStart.
func (e *StartError) Is(target error) bool { return target == ErrStart }

// A Stage is the step at which a sandbox fails to carry a command out.
type Stage string

// The stages. Later versions may have more.
const (
	StageUser      Stage = "user"      // finding the user or group, also that of work on files
	StageLimits    Stage = "limits"    // checking the resource limits
	StageDirectory Stage = "directory" // entering the working directory
	StageProgram   Stage = "program"   // executing the program
)

// A StageError reports that a sandbox refuses the user or the resource limits of a request. Err says why, and has the
// kind: ErrInvalid or ErrUnsupported.
type StageError struct {
	Stage Stage
	Err   error
}

// Error returns the text of Err.
func (e *StageError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *StageError) Unwrap() error { return e.Err }

// StageOf returns the stage of a StageError or StartError in err, or "". Sandboxes and servers of
// earlier versions tell none.
func StageOf(err error) Stage {
	var refused *StageError
	if errors.As(err, &refused) {
		return refused.Stage
	}
	var failed *StartError
	if errors.As(err, &failed) {
		return failed.Stage
	}
	return ""
}

// The kinds of file errors that package io/fs does not define.
var (
	ErrIsDirectory  = errors.New("is a directory")
	ErrNotDirectory = errors.New("not a directory")
	ErrNotEmpty     = errors.New("directory not empty")
	ErrNoSpace      = errors.New("no space left in the sandbox")
)

// A HintError is an error with a hint that says how to solve it.
type HintError struct {
	Err  error
	Hint string // what to do: one line, imperative, without a full stop
}

// Error returns the text of Err, without the hint.
func (e *HintError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *HintError) Unwrap() error { return e.Err }

// WithHint returns err with a hint, or nil if err is nil.
func WithHint(err error, hint string) error {
	if err == nil {
		return nil
	}
	return &HintError{Err: err, Hint: hint}
}

// Hint returns the outermost hint of err, or "".
func Hint(err error) string {
	var h *HintError
	if errors.As(err, &h) {
		return h.Hint
	}
	return ""
}

// A RetryError is a temporary error.
type RetryError struct {
	Err   error
	After time.Duration // the time to wait before the next attempt
}

// Error returns the text of Err.
func (e *RetryError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *RetryError) Unwrap() error { return e.Err }

// RetryAfter returns the time to wait before the next attempt, or 0 if err has
// none.
func RetryAfter(err error) time.Duration {
	var r *RetryError
	if errors.As(err, &r) {
		return r.After
	}
	return 0
}
