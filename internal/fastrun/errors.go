package fastrun

import (
	"errors"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Errors of a run.
var (
	// ErrDeclined says that no server runs the command, and nothing has been done.
	ErrDeclined = errors.New("no server can carry out this run")

	// ErrNoWorkDir and ErrNotWorkDir say that the working directory does not exist, or is
	// not a directory. They match sandpit.ErrInvalid.
	ErrNoWorkDir  error = workDirError("the working directory does not exist in the sandbox")
	ErrNotWorkDir error = workDirError("the working directory is not a directory")
)

type workDirError string

func (e workDirError) Error() string { return string(e) }
func (workDirError) Unwrap() error   { return sandpit.ErrInvalid }

// ServerEnded returns the error of a run whose server has ended. It matches
// sandpit.ErrUnavailable.
func ServerEnded() error {
	return sandpit.WithHint(fault.Errorf(sandpit.ErrUnavailable, "the server that ran the command has exited, and the sandbox with it"),
		"run the command again, which needs no server")
}

// EncodeError returns an error for the client, with its own text and hint, because both
// ends are the same user's.
func EncodeError(err error) v1.Error {
	e := v1.FromError(err)
	switch {
	case errors.Is(err, ErrNoWorkDir):
		e.Code = codeNoWorkDir
	case errors.Is(err, ErrNotWorkDir):
		e.Code = codeNotWorkDir
	}
	return e
}

// decodeError returns the error that was encoded.
func decodeError(e v1.Error) error {
	switch e.Code {
	case codeNoWorkDir:
		return ErrNoWorkDir
	case codeNotWorkDir:
		return ErrNotWorkDir
	}
	if e.Message == "" {
		e.Message = "the server failed without giving a reason"
	}
	var err error = &toldError{text: e.Message, kind: e.Kind()}
	if e.Hint != "" {
		err = sandpit.WithHint(err, e.Hint)
	}
	return err
}

// toldError is an error of the server.
type toldError struct {
	text string
	kind error
}

func (e *toldError) Error() string { return e.text }
func (e *toldError) Unwrap() error { return e.kind }
