package sandpit

import (
	"errors"
	"time"
)

// The kinds of errors. Match them with errors.Is. One edge maps them to status
// codes (the HTTP API) or exit codes (the command line).
var (
	ErrInvalid     = errors.New("invalid request")             // the request makes no sense
	ErrUnsupported = errors.New("not supported here")          // this machine or driver can't enforce or do it
	ErrForbidden   = errors.New("refused by policy")           // the platform does not allow it
	ErrNotFound    = errors.New("not found")                   // no such sandbox, image or process
	ErrExists      = errors.New("already exists")              // the name is taken
	ErrState       = errors.New("wrong state")                 // for example a process in a sandbox that failed
	ErrUnavailable = errors.New("unavailable")                 // a registry or server can't be reached; may pass
	ErrExhausted   = errors.New("out of capacity")             // no memory, disk, ids or slots on the host
	ErrIntegrity   = errors.New("integrity check failed")      // a digest, size or signature does not match
	ErrProtocol    = errors.New("protocol violation by guest") // the guest sent what it must not
	ErrClosed      = errors.New("sandbox is gone")             // removed, or its guest has died
)

// ErrDiskFull is the error of a full disk of the host. It matches ErrExhausted.
var ErrDiskFull error = diskFullError{}

type diskFullError struct{}

func (diskFullError) Error() string        { return "the host's disk is full" }
func (diskFullError) Is(target error) bool { return target == ErrExhausted }

// File errors that package io/fs has no kind for.
var (
	ErrIsDirectory  = errors.New("is a directory")
	ErrNotDirectory = errors.New("not a directory")
	ErrNotEmpty     = errors.New("directory not empty")
	ErrNoSpace      = errors.New("no space left in the sandbox")
)

// A HintError is an error with a way out of it.
type HintError struct {
	Err  error
	Hint string // what the person can do: one line, imperative, no full stop
}

// Error returns the text of Err, without the hint.
func (e *HintError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *HintError) Unwrap() error { return e.Err }

// WithHint returns err with a hint, or nil for a nil err.
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

// A RetryError is an error that may pass.
type RetryError struct {
	Err   error
	After time.Duration // when to try again, from when it was returned
}

// Error returns the text of Err.
func (e *RetryError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *RetryError) Unwrap() error { return e.Err }

// RetryAfter returns after what time it makes sense to try again, or 0 when err
// does not say.
func RetryAfter(err error) time.Duration {
	var r *RetryError
	if errors.As(err, &r) {
		return r.After
	}
	return 0
}
