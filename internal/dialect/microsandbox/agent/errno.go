package agent

import (
	"cmp"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// systemError is an error of a file as the system call has it, and as clients know it: the protocol has only texts.
type systemError struct {
	errno syscall.Errno
	name  string
	text  string // that of the C library, as Rust's standard library shows it
}

// systemErrors are the errors of files, by code.
func systemErrors() map[string]systemError {
	return map[string]systemError{
		errcode.FileNotFound: {syscall.ENOENT, "ENOENT", "No such file or directory (os error 2)"},
		errcode.FileExists:   {syscall.EEXIST, "EEXIST", "File exists (os error 17)"},
		errcode.Permission:   {syscall.EACCES, "EACCES", "Permission denied (os error 13)"},
		errcode.IsDirectory:  {syscall.EISDIR, "EISDIR", "Is a directory (os error 21)"},
		errcode.NotDirectory: {syscall.ENOTDIR, "ENOTDIR", "Not a directory (os error 20)"},
		errcode.NotEmpty:     {syscall.ENOTEMPTY, "ENOTEMPTY", "Directory not empty (os error 39)"},
		errcode.NoSpace:      {syscall.ENOSPC, "ENOSPC", "No space left on device (os error 28)"},
	}
}

// errorText returns the text of an error of files.
func errorText(f gate.Failure) string {
	if e, ok := systemErrors()[f.Code]; ok {
		return e.text
	}
	return f.Text()
}

// errnoName returns the name of an errno of a start, or of a standard input.
func errnoName(e syscall.Errno) string {
	return cmp.Or(unix.ErrnoName(e), "EINVAL")
}
