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
	return e
}
