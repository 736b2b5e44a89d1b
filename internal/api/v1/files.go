package v1

import (
	"encoding/base64"

	"github.com/sandpit-dev/sandpit"
)

// Paths are bytes, which JSON strings can't hold: every path of a request is a
// parameter of its query ("path", of two "from" and "to", a link's "target"),
// percent-encoded. So are small settings: "mode" in octal, and "recursive",
// "parents", "append", "follow" as true or false.

// FileList is a page of a directory or of a search.
type FileList struct {
	Entries []FileInfo `json:"entries"`
	Next    string     `json:"next,omitempty" doc:"Pass it as after to get the next page; absent on the last page"`
}

// FilePosition returns FileList.Next of a page that ends with the entry of a name, which may
// be any bytes.
func FilePosition(name string) string { return base64.RawURLEncoding.EncodeToString([]byte(name)) }

// ParseFilePosition returns the name of a FilePosition.
func ParseFilePosition(text string) (name string, err error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	return string(b), err
}

// Grep is a search in the files below a directory. See sandpit.GrepQuery.
type Grep struct {
	Pattern    string `json:"pattern" doc:"An RE2 expression; with fixed, a plain string"`
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

// FileEdits are replacements of exact text, applied all or none.
type FileEdits struct {
	Edits []sandpit.Edit `json:"edits"`
}

// Written is the number of bytes that were written.
type Written struct {
	Bytes int64 `json:"bytes"`
}
