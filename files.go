package sandpit

import (
	"context"
	"io"
	"io/fs"
	"iter"
	"time"
)

// Files is the file system of a sandbox. All work is done inside the sandbox,
// by its guest: no path is ever resolved on the host.
//
// Paths are absolute inside the sandbox; a relative one is resolved from the
// sandbox's WorkDir. They are bytes: any but NUL. Calls act with the rights of
// the sandbox's user, and obey Spec.Write.
//
// Errors are *fs.PathError and match fs.ErrNotExist, fs.ErrExist and
// fs.ErrPermission, or the kinds ErrIsDirectory, ErrNotDirectory, ErrNotEmpty,
// ErrNoSpace and ErrInvalid of this package.
type Files interface {
	// Stat follows symbolic links; Lstat does not.
	Stat(ctx context.Context, path string) (FileInfo, error)
	Lstat(ctx context.Context, path string) (FileInfo, error)

	// ReadDir returns the entries of a directory, sorted by name, as Lstat
	// would. It returns at most limit entries with names greater than after;
	// a limit of 0 is 1,000, and no more than 10,000 are given at once. When
	// more is true, ask again with the last name.
	ReadDir(ctx context.Context, path, after string, limit int) (entries []FileInfo, more bool, err error)

	// Open reads length bytes of a regular file from offset on; a length of -1
	// reads to its end. Anything else than a regular file is ErrInvalid or
	// ErrIsDirectory, and never blocks. Close it.
	Open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error)

	// Write makes or replaces a file with what r gives, and returns the bytes
	// written. The new content appears at once or not at all, unless
	// WriteOptions.Append is set.
	Write(ctx context.Context, path string, r io.Reader, opt WriteOptions) (int64, error)

	// Mkdir makes a directory. With parents it makes those above it too, and
	// one that exists is not an error.
	Mkdir(ctx context.Context, path string, mode fs.FileMode, parents bool) error

	// Remove removes a file, a link or an empty directory. With recursive it
	// removes a directory with all that is in it, and what does not exist is
	// not an error. It never follows links.
	Remove(ctx context.Context, path string, recursive bool) error

	// Rename moves oldpath to newpath, replacing a file that is there.
	Rename(ctx context.Context, oldpath, newpath string) error

	// Symlink makes path a symbolic link to target.
	Symlink(ctx context.Context, target, path string) error

	// Readlink returns the target of a symbolic link.
	Readlink(ctx context.Context, path string) (string, error)

	// Chmod changes permission bits; it follows symbolic links.
	Chmod(ctx context.Context, path string, mode fs.FileMode) error

	// Copy copies a file, a link or, with recursive, a directory with all that
	// is in it. Modes and links are kept; sockets, pipes and devices are
	// ErrInvalid. A file that is there is replaced.
	Copy(ctx context.Context, from, to string, recursive bool) error

	// Find lists what is below a directory, in lexical order, links not
	// followed. FileInfo.Name is the path relative to root.
	Find(ctx context.Context, root string, q FindQuery) (entries []FileInfo, more bool, err error)

	// Grep searches the regular files below root.
	Grep(ctx context.Context, root string, q GrepQuery) (GrepResult, error)

	// Edit replaces exact strings in a file, all of them at once or none.
	// ErrInvalid when one does not occur, or more than once without All.
	Edit(ctx context.Context, path string, edits []Edit) error

	// Watch tells what changes in a directory, with recursive also below it,
	// until ctx ends. Changes from the moment on at which it gives its first
	// event, of kind WatchReady, are told.
	Watch(ctx context.Context, path string, recursive bool) iter.Seq2[FileEvent, error]

	// Download writes a directory or file as a tar stream to w. Names in it
	// start with the base name of path.
	Download(ctx context.Context, path string, w io.Writer) error

	// Upload unpacks a tar stream (uncompressed) below a directory that
	// exists. Nothing is written outside of it, whatever the archive says.
	Upload(ctx context.Context, dir string, r io.Reader) error
}

// WriteOptions say how Files.Write writes.
type WriteOptions struct {
	Mode    fs.FileMode // of a new file, before the umask 022; default 0644. An existing file keeps its own.
	Append  bool        // add to the end of the file instead of replacing it
	Parents bool        // make missing directories above it, mode 0755
}

// FileInfo describes a file in a sandbox.
type FileInfo struct {
	Name    string      // base name
	Size    int64       // bytes; for a link, the length of its target
	Mode    fs.FileMode // type and permission bits
	ModTime time.Time
	UID     uint32 // as seen inside
	GID     uint32
	Target  string // of a symbolic link, else empty
}

// IsDir reports whether it is a directory.
func (i FileInfo) IsDir() bool { return i.Mode.IsDir() }
