package v1

import (
	"errors"
	"io/fs"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// FromError converts an error to the form of the API, without a request id.
func FromError(err error) Error {
	e := Error{Code: errcode.Of(err), Message: err.Error(), Hint: sandpit.Hint(err)}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		e.Path = pe.Path
	}
	var start *sandpit.StartError
	if errors.As(err, &start) {
		e.ExitCode, e.Errno = start.ExitCode, start.Errno
	}
	e.Stage = string(sandpit.StageOf(err))
	return e
}

// Kind returns the kind of error that e is, or nil. That of a program that could not be
// started is a *sandpit.StartError, and that of another error with a stage a *sandpit.StageError.
func (e *Error) Kind() error {
	if e.Code == errcode.StartFailed {
		return &sandpit.StartError{ExitCode: e.ExitCode, Reason: e.Message, Stage: sandpit.Stage(e.Stage), Errno: e.Errno}
	}
	kind := errcode.Kind(e.Code)
	if e.Stage != "" && kind != nil {
		return &sandpit.StageError{Stage: sandpit.Stage(e.Stage), Err: kind}
	}
	return kind
}
