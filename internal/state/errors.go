package state

import (
	"errors"
	"syscall"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/diskfull"
	"github.com/sandpit-dev/sandpit/internal/groupcommit"
)

// code is the primary result code of SQLite in an error (sqlite.org/rescode.html),
// or 0.
func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// isDatabase reports whether an error is one of the database and not of the request.
func isDatabase(err error) bool {
	c := code(err)
	return c != 0 && c != sqlite3.SQLITE_CONSTRAINT
}

// isFull reports whether an error may be that of a full disk. SQLite reports
// SQLITE_IOERR_WRITE for a used-up quota.
func isFull(err error) bool {
	var e *sqlite.Error
	if errors.As(err, &e) {
		c := e.Code()
		return c&0xff == sqlite3.SQLITE_FULL || c == sqlite3.SQLITE_IOERR_WRITE
	}
	return diskfull.Is(err)
}

// isTaken reports whether a row could not be added because of another.
func isTaken(err error) bool { return code(err) == sqlite3.SQLITE_CONSTRAINT }

const (
	hintFull     = "free some space on its disk; no data was lost, and no restart is needed"
	hintReadOnly = "make its disk writable again; no data was lost, and no restart is needed"
	hintDamaged  = "restore the directory from a backup, or move it away to start with an empty state"
	hintDisk     = "check the kernel log for disk errors"
	hintHangs    = "try again later, and check the kernel log (dmesg) for disk problems"
	hintFew      = "raise the limit on open files, or free some memory"
	hintBusy     = "close the other program that uses the database"
	hintNotOurs  = "move the file away, or use another directory"
)

// kindOf returns the kind and the hint for an error of SQLite or of the system, or nil for
// any other.
func kindOf(err error) (hint string, kind error) {
	switch {
	case isFull(err):
		return hintFull, sandpit.ErrDiskFull
	case errors.Is(err, groupcommit.ErrHangs):
		return hintHangs, sandpit.ErrUnavailable
	case errors.Is(err, syscall.EROFS):
		return hintReadOnly, sandpit.ErrUnavailable
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM):
		return hintFew, sandpit.ErrExhausted
	}
	switch code(err) {
	case 0:
		return "", nil
	case sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CANTOPEN:
		return hintFew, sandpit.ErrExhausted
	case sqlite3.SQLITE_READONLY:
		return hintReadOnly, sandpit.ErrUnavailable
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return hintBusy, sandpit.ErrUnavailable
	case sqlite3.SQLITE_CORRUPT:
		return hintDamaged, sandpit.ErrIntegrity
	case sqlite3.SQLITE_NOTADB:
		return hintNotOurs, sandpit.ErrIntegrity
	}
	return hintDisk, sandpit.ErrUnavailable
}
