package sandpit

import (
	"context"
	"io"
	"io/fs"
	"iter"
	"time"
)

// Files is the file system of a sandbox. The guest carries out all operations
// inside the sandbox: no path is ever resolved on the host.
//
// Paths are absolute paths inside the sandbox, or relative to its WorkDir. They may
// contain any byte except NUL. Operations have the permissions of the sandbox's
// user, unless As names another, and obey Spec.Write.
//
// Errors have the type *fs.PathError and match fs.ErrNotExist, fs.ErrExist or
// fs.ErrPermission, or ErrIsDirectory, ErrNotDirectory, ErrNotEmpty, ErrNoSpace
// or ErrInvalid of this package.
type Files interface {
	// As returns the same files, used with the rights of another user, in the form of
	// Spec.User: what it creates belongs to that user, and relative paths begin in that
	// user's home directory if the sandbox has no WorkDir. With "" it is the sandbox's
	// user. Operations as a user that the sandbox does not have return ErrInvalid or
	// ErrUnsupported.
	As(user string) Files

	// Stat describes a file. Stat follows symbolic links; Lstat does not.
	Stat(ctx context.Context, path string) (FileInfo, error)
	Lstat(ctx context.Context, path string) (FileInfo, error)

	// ReadDir returns the entries of a directory as Lstat describes them, sorted by
	// name. It returns at most limit entries with names greater than after. The
	// default of limit is 1,000, its maximum 10,000. If more is true, call ReadDir
	// again with the last name as after.
	ReadDir(ctx context.Context, path, after string, limit int) (entries []FileInfo, more bool, err error)

	// Open returns a reader of length bytes of a regular file, starting at offset. A
	// length of -1 reads to the end. If the file is not regular, Open returns
	// ErrInvalid or ErrIsDirectory and never blocks. The caller must close the
	// reader.
	Open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error)

	// Write creates or replaces a file with the data of r, and returns the number of
	// bytes written. It replaces the file atomically, unless WriteOptions.Append
	// or WriteOptions.InPlace is set.
	Write(ctx context.Context, path string, r io.Reader, opt WriteOptions) (int64, error)

	// Mkdir creates a directory. With parents it also creates missing parents, and
	// does nothing if the directory exists.
	Mkdir(ctx context.Context, path string, mode fs.FileMode, parents bool) error

	// Remove removes a file, a link or an empty directory. With recursive it
	// also removes the contents of a directory, and does nothing if path does not
	// exist. It never follows links.
	Remove(ctx context.Context, path string, recursive bool) error

	// Rename moves oldpath to newpath, replacing an existing file. To another file
	// system it copies, and then removes what it has copied: newpath appears at once, and
	// a Rename that fails before changes nothing. Sockets, pipes and devices are not
	// copied (ErrInvalid), and set-id bits are lost.
	Rename(ctx context.Context, oldpath, newpath string) error

	// Symlink creates path as a symbolic link to target.
	Symlink(ctx context.Context, target, path string) error

	// Readlink returns the target of a symbolic link.
	Readlink(ctx context.Context, path string) (string, error)

	// Chmod changes the permission bits. It follows symbolic links.
	Chmod(ctx context.Context, path string, mode fs.FileMode) error

	// SetAttr changes attributes of a file, in the order of FileAttr's fields. If it
	// fails, the changes before the one that failed remain.
	SetAttr(ctx context.Context, path string, a FileAttr) error

	// Copy copies a file, a link or, with recursive, a directory and its contents. It
	// preserves modes, links and the extended attributes user.*, as far as the file system
	// of the copy has them, and replaces existing files. Copying a socket,
	// pipe or device is ErrInvalid.
	Copy(ctx context.Context, from, to string, recursive bool) error

	// Find lists all files below root in lexical order. It does not follow links.
	// FileInfo.Name is the path relative to root.
	Find(ctx context.Context, root string, q FindQuery) (entries []FileInfo, more bool, err error)

	// Grep searches the regular files below root.
	Grep(ctx context.Context, root string, q GrepQuery) (GrepResult, error)

	// Edit replaces exact strings in a file, either all of them or none. Owner, mode and the
	// extended attributes user.* stay. It returns
	// ErrInvalid if a string does not occur, or occurs more than once without
	// Edit.All.
	Edit(ctx context.Context, path string, edits []Edit) error

	// Watch returns the changes in a directory, with recursive also below it, until
	// ctx ends. The first event is WatchReady; all changes after it are reported.
	Watch(ctx context.Context, path string, recursive bool) iter.Seq2[FileEvent, error]

	// Download writes a directory or file to w as a tar stream. Names in it start
	// with the base name of path.
	Download(ctx context.Context, path string, w io.Writer) error

	// Upload unpacks an uncompressed tar stream below an existing directory.
	// It never writes outside of that directory.
	Upload(ctx context.Context, dir string, r io.Reader) error
}

// WriteOptions are the options of Files.Write.
type WriteOptions struct {
	Mode    fs.FileMode // mode of a new file, before the umask 022; default 0644; an existing file keeps its mode
	Append  bool        // append to the file instead of replacing it
	Parents bool        // create missing parents with mode 0755
	InPlace bool        // write into the file from Offset on instead of replacing it; other content remains
	Offset  int64       // with InPlace; content before it that was never written is zeros

	// Xattrs are the extended attributes user.* of the new file, by their names without
	// "user.", which have no "=": at most 64, of 4 KiB with their names. A file that is replaced loses those
	// that it had. If the file system can't store them, Write returns ErrUnsupported.
	// Append and InPlace set none.
	Xattrs map[string]string
}

// FileAttr are the attributes that Files.SetAttr changes. Nil pointers and zero times leave
// an attribute as it is.
type FileAttr struct {
	NoFollow bool // change a symbolic link itself, which has no size and mode to change

	Size       *int64  // of a regular file: cut it, or extend it with zeros
	UID        *uint32 // at most 65534; only root of the sandbox may change the owner
	GID        *uint32
	Mode       *fs.FileMode // permission bits
	ModTime    time.Time
	AccessTime time.Time
}

// FileInfo describes a file in a sandbox.
type FileInfo struct {
	Name    string      // base name
	Size    int64       // bytes; for a link, the length of its target
	Mode    fs.FileMode // type and permission bits
	ModTime time.Time
	UID     uint32 // as seen inside the sandbox
	GID     uint32
	Target  string // target of a symbolic link, else empty

	// Xattrs are the extended attributes user.*, as WriteOptions.Xattrs. Stat and Lstat return
	// them, and Find with FindQuery.Xattrs; those above the bounds of WriteOptions.Xattrs are
	// left out.
	Xattrs map[string]string
}

// IsDir reports whether the file is a directory.
func (i FileInfo) IsDir() bool { return i.Mode.IsDir() }
