package sandpit

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
