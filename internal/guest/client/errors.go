package client

import (
	"errors"
	"io/fs"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// remoteError is an error that the guest has told: its text, and what it is to
// errors.Is.
type remoteError struct {
	kind error // nil: none
	text string
	file bool
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

// guestError makes an error of a guest's ERROR message.
func guestError(m *wire.ErrorMessage) error {
	e := &remoteError{text: printable(m.Text)}
	switch m.Code {
	case wire.CodeInvalid:
		e.kind = sandpit.ErrInvalid
	case wire.CodeNotFound:
		e.kind = sandpit.ErrNotFound
	case wire.CodeState:
		e.kind = sandpit.ErrState
	case wire.CodeUnsupported:
		e.kind = sandpit.ErrUnsupported
	case wire.CodeExhausted:
		e.kind = sandpit.ErrQuota // of the sandbox
		if m.Text == wire.TooManyStreams {
			e.kind = sandpit.ErrRateLimited // until others have ended
		}
	case wire.CodeFile:
		e.kind, e.file = fileKind(m.Errno), true
	default:
		switch m.Errno {
		case eagain, enomem, enfile, emfile:
			e.kind = sandpit.ErrQuota // of the sandbox
		case enospc, edquot:
			e.kind = sandpit.ErrNoSpace
		}
	}
	if e.text == "" {
		e.text = "unknown error"
	}
	if stage := stageOf(m.Stage); stage != "" {
		return &sandpit.StageError{Stage: stage, Err: e}
	}
	return e
}

// stageOf returns the stage that a guest has told, or "" if it is not known here.
func stageOf(stage wire.Stage) sandpit.Stage {
	switch stage {
	case wire.StageUser:
		return sandpit.StageUser
	case wire.StageLimits:
		return sandpit.StageLimits
	case wire.StageDirectory:
		return sandpit.StageDirectory
	case wire.StageProgram:
		return sandpit.StageProgram
	}
	return ""
}

// errnoOf returns an error number that a guest has told, or 0 if it can't be one (errno(3)).
func errnoOf(n uint64) int {
	if n > maxErrno {
		return 0
	}
	return int(n)
}

// Linux error numbers, as the guest sends them whatever the host is
// (asm-generic/errno-base.h, errno.h).
const (
	eperm        = 1
	enoent       = 2
	e2big        = 7
	eagain       = 11
	enomem       = 12
	eacces       = 13
	ebusy        = 16
	eexist       = 17
	exdev        = 18
	enotdir      = 20
	eisdir       = 21
	einval       = 22
	enfile       = 23
	emfile       = 24
	etxtbsy      = 26
	efbig        = 27
	enospc       = 28
	erofs        = 30
	enametoolong = 36
	enotempty    = 39
	eloop        = 40
	eopnotsupp   = 95
	econnreset   = 104
	econnrefused = 111
	edquot       = 122
	maxErrno     = 4095
)

// fileKind is what an error number is to a caller, or nil.
func fileKind(errno uint64) error {
	switch errno {
	case enoent:
		return fs.ErrNotExist
	case eexist:
		return fs.ErrExist
	case eperm, eacces, erofs:
		return fs.ErrPermission
	case eisdir:
		return sandpit.ErrIsDirectory
	case enotdir:
		return sandpit.ErrNotDirectory
	case enotempty:
		return sandpit.ErrNotEmpty
	case enospc, edquot:
		return sandpit.ErrNoSpace
	case econnrefused, eagain:
		return sandpit.ErrUnavailable // nothing listens, or it takes no more
	case einval, enametoolong, eloop, exdev, efbig:
		return sandpit.ErrInvalid
	case ebusy, etxtbsy: // a mount point, a program that runs
		return sandpit.ErrState
	case eopnotsupp:
		return sandpit.ErrUnsupported
	}
	return nil
}

// pathError makes err the error of an operation on a path.
func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return err
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// maxShown bounds a text of the guest's that people see.
const maxShown = 1 << 10

// printable makes a text of a guest fit to be shown.
func printable(s string) string { return notation.Printable(s, maxShown) }
