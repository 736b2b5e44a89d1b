package sandpit

import (
	"context"
	"io"
	"iter"
)

// MoreFiles is file work beyond Files, done inside the sandbox, with the same
// rules for paths, rights and errors.
type MoreFiles interface {
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

// FindQuery picks what Files.Find lists.
type FindQuery struct {
	Glob  string // matched against the relative path; '**' spans directories; empty: all
	Depth int    // levels below root; 0: any
	After string // entries behind this relative path
	Limit int    // default 1,000, at most 10,000
}

// GrepQuery says what Files.Grep looks for.
type GrepQuery struct {
	Pattern    string // RE2, or a string with Fixed
	Fixed      bool
	IgnoreCase bool
	Glob       string // as in FindQuery
	Context    int    // lines before and after, at most 20
	Limit      int    // matching lines; default 1,000, at most 10,000
}

// GrepResult is what Grep found.
type GrepResult struct {
	Lines     []GrepLine
	Truncated bool // there was more than Limit, or than could be held
}

// GrepLine is a line of a file.
type GrepLine struct {
	Path  string `json:"path"` // relative to root
	Line  int    `json:"line"` // from 1
	Text  string `json:"text"` // at most 2,000 bytes
	Match bool   `json:"match"`
}

// Edit is one replacement of exact text.
type Edit struct {
	Old string `json:"old"`
	New string `json:"new"`
	All bool   `json:"all,omitempty"` // every occurrence; otherwise there must be just one
}

// FileEvent is a change of a file.
type FileEvent struct {
	Kind WatchKind `json:"kind"`
	Path string    `json:"path"`           // relative to what is watched
	From string    `json:"from,omitempty"` // of WatchRename: the old path, when it was watched too
}

// WatchKind names a change.
type WatchKind string

// The kinds of changes.
const (
	WatchReady    WatchKind = "ready"
	WatchCreate   WatchKind = "create"
	WatchWrite    WatchKind = "write"
	WatchRemove   WatchKind = "remove"
	WatchRename   WatchKind = "rename"
	WatchChmod    WatchKind = "chmod"
	WatchOverflow WatchKind = "overflow" // changes were lost
)
