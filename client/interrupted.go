package client

import (
	"encoding/json"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// InterruptedError reports that a stream broke off before its end and could not be resumed,
// for example because the connection was cut or the server was killed. It matches what Err,
// the reason, matches: sandpit.ErrUnavailable unless the server refused to go on.
type InterruptedError struct {
	// After is the position after which to resume: for Events, or as LogQuery.After.
	// 0: nothing has come, or the stream has no positions.
	After uint64

	Err error
}

func (e *InterruptedError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *InterruptedError) Unwrap() error { return e.Err }

// interrupted adds the position to the error of a stream that could not be resumed. A stream
// that was refused at once has none, unless the caller gave one.
func interrupted(err error, after uint64) error {
	if after == 0 && !passing(err) {
		return err
	}
	return &InterruptedError{After: after, Err: err}
}

// errLost ends a stream of events of which some are missing.
var errLost = fault.Errorf(sandpit.ErrUnavailable, "events are missing")

// endError returns why a stream has ended, by its last event; nil if there was no more.
func endError(b []byte) error {
	var end v1.End
	if err := json.Unmarshal(b, &end); err != nil {
		return badAnswer("unreadable JSON: " + err.Error())
	}
	switch {
	case end.Reason == v1.EndEnded:
		return nil
	case end.Reason == v1.EndLost:
		return errLost
	case end.Error == nil:
		return badAnswer("a stream that ended for no reason")
	}
	return hinted(told(*end.Error), end.Error.Hint)
}
