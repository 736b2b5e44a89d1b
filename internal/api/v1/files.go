package v1

import "github.com/sandpit-dev/sandpit"

// Paths are bytes, which JSON strings can't hold: every path of a request is a
// parameter of its query ("path", of two "from" and "to", a link's "target"),
// percent-encoded. So are small settings: "mode" in octal, and "recursive",
// "parents", "append", "follow" as true or false.

// FileList is a page of a directory or of a search.
type FileList struct {
	Entries []FileInfo `json:"entries"`
	More    bool       `json:"more" doc:"More entries follow; pass the last name as after"`
}

// Grep is a search in the files below a directory. See sandpit.GrepQuery.
type Grep struct {
	Pattern    string `json:"pattern" doc:"RE2, or a string with fixed"`
	Fixed      bool   `json:"fixed,omitempty"`
	IgnoreCase bool   `json:"ignore_case,omitempty"`
	Glob       string `json:"glob,omitempty" doc:"Pattern for the relative path"`
	Context    int    `json:"context,omitempty" doc:"Lines before and after, at most 20"`
	Limit      int    `json:"limit,omitempty" doc:"Maximum number of matching lines; default 1,000, at most 10,000"`
}

// GrepResult is the result of a Grep.
type GrepResult struct {
	Lines     []sandpit.GrepLine `json:"lines"`
	Truncated bool               `json:"truncated,omitempty"`
}

// Edits are replacements of exact text, applied all or none.
type Edits struct {
	Edits []sandpit.Edit `json:"edits"`
}

// Written is the number of bytes that were written.
type Written struct {
	Bytes int64 `json:"bytes"`
}
