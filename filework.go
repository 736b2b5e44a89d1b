package sandpit

// FindQuery selects the files that Files.Find returns.
type FindQuery struct {
	Glob   string // pattern for the relative path; '**' spans directories; empty: all
	Depth  int    // maximum number of levels below root; 0: unlimited
	After  string // only entries after this relative path
	Limit  int    // default 1,000, at most 10,000
	Xattrs bool   // return FileInfo.Xattrs
}

// GrepQuery is what Files.Grep searches for.
type GrepQuery struct {
	Pattern    string // RE2 expression, or a string if Fixed is set
	Fixed      bool
	IgnoreCase bool
	Glob       string // as in FindQuery
	Context    int    // lines before and after, at most 20
	Limit      int    // maximum number of matching lines; default 1,000, at most 10,000
}

// GrepResult is the result of Files.Grep.
type GrepResult struct {
	Lines     []GrepLine
	Truncated bool // lines are missing because of Limit or of a bound on memory
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
	All bool   `json:"all,omitempty"` // replace every occurrence; otherwise there must be exactly one
}

// FileEvent is a change of a file.
type FileEvent struct {
	Kind WatchKind `json:"kind"`
	Path string    `json:"path"`           // relative to the watched directory
	From string    `json:"from,omitempty"` // for WatchRename: the old path, if it was watched too
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
