package api

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
)

func fileRoutes() []Route {
	const (
		tag   = "Files"
		files = oneSandbox + "/files"
	)
	mode := Param{Name: "mode", Type: "string", Doc: "In octal"}
	recursive := flag("recursive", "Include the contents of directories")
	from, to := Param{Name: "from", Type: "string", Required: true}, Param{Name: "to", Type: "string", Required: true}
	return []Route{
		{Method: http.MethodGet, Path: files, ID: "readFile", Tag: tag, Summary: "Read a file", Text: "Supports a single byte range. The header X-Sandpit-Mode has the permission bits. HEAD returns the same status and headers without reading the file.", Query: []Param{path("")}, Headers: []Param{{Name: "Range", Type: "string", Doc: "bytes=FROM-TO"}}, Status: http.StatusOK, Other: []string{octets}, Guarded: true, Also: []int{http.StatusPartialContent}, Fails: []string{errcode.InvalidRange}, handle: readFile},
		{
			Method: http.MethodPut, Path: files, ID: "writeFile", Tag: tag, Summary: "Write a file", Text: "The file is replaced atomically, unless the content is appended or has an offset. To repeat a request that appends is safe with an Idempotency-Key only.",
			Query: []Param{path(""), mode, flag("append", "Append to the file"), {Name: "offset", Type: "integer", Doc: "Write into the file from this byte on; the rest of it remains"}, {Name: "xattr", Type: "string", Many: true, Doc: "NAME=VALUE: an extended attribute user.NAME of the new file; a file that is replaced loses those that it had"}, flag("parents", "Create missing parent directories")}, Raw: octets, Status: http.StatusOK, Out: v1.Written{}, Guarded: true, Appends: true, handle: asJSON(writeFile),
		},
		{Method: http.MethodDelete, Path: files, ID: "removeFile", Tag: tag, Summary: "Remove a file or directory", Query: []Param{path(""), recursive}, Status: http.StatusNoContent, Guarded: true, handle: only(removeFile)},
		{Method: http.MethodGet, Path: files + "/stat", ID: "statFile", Tag: tag, Summary: "Describe a file", Query: []Param{path(""), {Name: "follow", Type: "boolean", Doc: "false: describe a symbolic link itself"}}, Status: http.StatusOK, Out: v1.FileInfo{}, handle: asJSON(statFile)},
		{Method: http.MethodGet, Path: files + "/list", ID: "listFiles", Tag: tag, Summary: "List a directory, sorted by name", Query: pageParams(path("")), Status: http.StatusOK, Out: v1.FileList{}, handle: asJSON(listFiles)},
		{Method: http.MethodGet, Path: files + "/find", ID: "findFiles", Tag: tag, Summary: "List all files below a directory", Query: pageParams(path(""), Param{Name: "glob", Type: "string", Doc: "Pattern for the relative path; ** spans directories"}, Param{Name: "depth", Type: "integer", Doc: "Maximum number of levels; default unlimited"}, flag("xattrs", "Return extended attributes")), Status: http.StatusOK, Out: v1.FileList{}, handle: asJSON(findFiles)},
		{Method: http.MethodPost, Path: files + "/grep", ID: "grepFiles", IgnoresIdempotency: true, Tag: tag, Summary: "Search the files below a directory", Query: []Param{path("")}, In: v1.Grep{}, Status: http.StatusOK, Out: v1.GrepResult{}, Guarded: true, handle: fromJSON(grepFiles)},
		{Method: http.MethodPost, Path: files + "/edit", ID: "editFile", Tag: tag, Summary: "Replace exact text in a file", Query: []Param{path("")}, In: v1.FileEdits{}, Status: http.StatusNoContent, Guarded: true, handle: fromJSONOnly(editFile)},
		{Method: http.MethodPost, Path: files + "/mkdir", ID: "makeDirectory", Tag: tag, Summary: "Create a directory", Query: []Param{path(""), mode, flag("parents", "Create missing parents; an existing directory is not an error")}, Status: http.StatusNoContent, Guarded: true, handle: only(makeDirectory)},
		{Method: http.MethodPost, Path: files + "/rename", ID: "renameFile", Tag: tag, Summary: "Rename a file", Query: []Param{from, to}, Status: http.StatusNoContent, Guarded: true, selfAudited: true, handle: only(renameFile)},
		{Method: http.MethodPost, Path: files + "/copy", ID: "copyFile", Tag: tag, Summary: "Copy a file", Query: []Param{from, to, recursive}, Status: http.StatusNoContent, Guarded: true, selfAudited: true, handle: only(copyFile)},
		{Method: http.MethodPost, Path: files + "/symlink", ID: "linkFile", Tag: tag, Summary: "Create a symbolic link", Query: []Param{path(""), {Name: "target", Type: "string", Required: true}}, Status: http.StatusNoContent, Guarded: true, handle: only(linkFile)},
		{Method: http.MethodGet, Path: files + "/readlink", ID: "readLink", Tag: tag, Summary: "Read the target of a symbolic link", Query: []Param{path("")}, Status: http.StatusOK, Out: v1.Link{}, handle: asJSON(readLink)},
		{
			Method: http.MethodPatch, Path: files, ID: "changeFile", Tag: tag, Summary: "Change size, owner, permission bits or times of a file", Text: "They are changed in the order of the parameters. If one fails, those before it remain changed.",
			Query: []Param{
				path(""),
				{Name: "follow", Type: "boolean", Doc: "false: change a symbolic link itself"},
				{Name: "size", Type: "integer", Doc: "Cut a regular file, or extend it with zeros"},
				{Name: "uid", Type: "integer", Doc: "Only root of the sandbox may change the owner"},
				{Name: "gid", Type: "integer"},
				mode,
				{Name: "mod_time", Type: "string", Doc: "In RFC 3339 format"},
				{Name: "access_time", Type: "string", Doc: "In RFC 3339 format"},
			},
			Status: http.StatusNoContent, Guarded: true, handle: only(changeFile),
		},
		{Method: http.MethodGet, Path: files + "/watch", ID: "watchFiles", Ticket: true, Tag: tag, Summary: "Watch a directory for changes", Text: "The first event is ready; all changes after it are reported. An overflow event means that some were lost.", Query: []Param{path(""), flag("recursive", "Also watch directories below it")}, Status: http.StatusOK, Other: []string{stream.Events}, Feed: fileFeed(), handle: watchFiles},
	}
}

// asUser returns routes whose query may name a user.
func asUser(routes []Route) []Route {
	for i := range routes {
		routes[i].Query = append(slices.Clip(routes[i].Query), Param{Name: "user", Type: "string", Doc: "Act with the rights of this user of the sandbox, as in Command; default the sandbox's user"})
	}
	return routes
}

// files returns the file system of the sandbox, with the rights of the user that the query
// names. The handler has read the query before.
func (c *call) files() (sandpit.Files, error) {
	sb, err := c.sandbox()
	if err != nil {
		return nil, err
	}
	return sb.Files().As(c.R.URL.Query().Get("user")), nil
}

// streamFiles returns the files of the sandbox for a call that transfers content.
func (c *call) streamFiles() (sandpit.Files, error) {
	if err := c.OpenStream(); err != nil {
		return nil, err
	}
	return c.files()
}

// onFiles reads the query and does file work.
func (c *call) onFiles(f func(q *query, files sandpit.Files) error) error {
	q := c.query()
	if q.err != nil {
		return q.err
	}
	files, err := c.files()
	if err != nil {
		return err
	}
	return f(q, files)
}

func statFile(c *call) (v1.FileInfo, error) {
	q := c.query()
	path, follow := q.text("path"), q.flag("follow", true)
	if q.err != nil {
		return v1.FileInfo{}, q.err
	}
	files, err := c.files()
	if err != nil {
		return v1.FileInfo{}, err
	}
	stat := files.Lstat
	if follow {
		stat = files.Stat
	}
	info, err := stat(c.Ctx, path)
	return v1.FromFile(info), err
}

func fileList(entries []sandpit.FileInfo, more bool) v1.FileList {
	out := v1.FileList{Entries: make([]v1.FileInfo, len(entries))}
	for i, e := range entries {
		out.Entries[i] = v1.FromFile(e)
	}
	if more && len(entries) > 0 {
		out.Next = v1.FilePosition(entries[len(entries)-1].Name)
	}
	return out
}

// filePage returns a page of files, whose position is a name.
func (q *query) filePage() page {
	p := q.page()
	var err error
	if p.after, err = v1.ParseFilePosition(p.after); err != nil {
		q.fail("after", "is not the next of a page")
	}
	return p
}

func listFiles(c *call) (v1.FileList, error) {
	q := c.query()
	p := q.filePage()
	if q.err != nil {
		return v1.FileList{}, q.err
	}
	files, err := c.files()
	if err != nil {
		return v1.FileList{}, err
	}
	entries, more, err := files.ReadDir(c.Ctx, q.text("path"), p.after, p.limit)
	return fileList(entries, more), err
}

func findFiles(c *call) (v1.FileList, error) {
	q := c.query()
	p := q.filePage()
	find := sandpit.FindQuery{Glob: q.text("glob"), Depth: int(q.number("depth", 1<<20)), After: p.after, Limit: p.limit, Xattrs: q.flag("xattrs", false)}
	if q.err != nil {
		return v1.FileList{}, q.err
	}
	files, err := c.files()
	if err != nil {
		return v1.FileList{}, err
	}
	entries, more, err := files.Find(c.Ctx, q.text("path"), find)
	return fileList(entries, more), err
}

func grepFiles(c *call, in *v1.Grep) (v1.GrepResult, error) {
	q := c.query()
	if q.err != nil {
		return v1.GrepResult{}, q.err
	}
	files, err := c.files()
	if err != nil {
		return v1.GrepResult{}, err
	}
	res, err := files.Grep(c.Ctx, q.text("path"), sandpit.GrepQuery(*in))
	if res.Lines == nil {
		res.Lines = []sandpit.GrepLine{}
	}
	return v1.GrepResult{Lines: res.Lines, Truncated: res.Truncated}, err
}

func editFile(c *call, in *v1.FileEdits) error {
	q := c.query()
	if q.err != nil {
		return q.err
	}
	files, err := c.files()
	if err != nil {
		return err
	}
	return files.Edit(c.Ctx, q.text("path"), in.Edits)
}

func removeFile(c *call) error {
	return c.onFiles(func(q *query, files sandpit.Files) error {
		recursive := q.flag("recursive", false)
		if q.err != nil {
			return q.err
		}
		return files.Remove(c.Ctx, q.text("path"), recursive)
	})
}

func makeDirectory(c *call) error {
	return c.onFiles(func(q *query, files sandpit.Files) error {
		mode, parents := q.mode("mode", 0o755), q.flag("parents", false)
		if q.err != nil {
			return q.err
		}
		return files.Mkdir(c.Ctx, q.text("path"), mode, parents)
	})
}

func renameFile(c *call) error {
	return c.onFiles(func(q *query, files sandpit.Files) error {
		if err := c.Intend(q.text("from") + " to " + q.text("to") + ofUser(c.R)); err != nil {
			return err
		}
		return files.Rename(c.Ctx, q.text("from"), q.text("to"))
	})
}

func copyFile(c *call) error {
	return c.onFiles(func(q *query, files sandpit.Files) error {
		recursive := q.flag("recursive", false)
		if q.err != nil {
			return q.err
		}
		if err := c.Intend(q.text("from") + " to " + q.text("to") + ofUser(c.R)); err != nil {
			return err
		}
		return files.Copy(c.Ctx, q.text("from"), q.text("to"), recursive)
	})
}

func linkFile(c *call) error {
	return c.onFiles(func(q *query, files sandpit.Files) error {
		return files.Symlink(c.Ctx, q.text("target"), q.text("path"))
	})
}

func readLink(c *call) (v1.Link, error) {
	var out v1.Link
	err := c.onFiles(func(q *query, files sandpit.Files) error {
		target, err := files.Readlink(c.Ctx, q.text("path"))
		out = v1.FromLink(target)
		return err
	})
	return out, err
}

func changeFile(c *call) error {
	return c.onFiles(func(q *query, files sandpit.Files) error {
		a := sandpit.FileAttr{NoFollow: !q.flag("follow", true), ModTime: q.time("mod_time"), AccessTime: q.time("access_time")}
		if q.values.Has("size") {
			a.Size = new(int64(q.number("size", math.MaxInt64)))
		}
		if q.values.Has("uid") {
			a.UID = new(uint32(q.number("uid", math.MaxUint32)))
		}
		if q.values.Has("gid") {
			a.GID = new(uint32(q.number("gid", math.MaxUint32)))
		}
		if q.values.Has("mode") {
			if q.text("mode") == "" {
				q.fail("mode", "must be an octal mode")
			}
			a.Mode = new(q.mode("mode", 0))
		}
		if q.err != nil {
			return q.err
		}
		return files.SetAttr(c.Ctx, q.text("path"), a)
	})
}

func writeFile(c *call) (v1.Written, error) {
	var out v1.Written
	if err := c.OpenStream(); err != nil {
		return out, err
	}
	err := c.onFiles(func(q *query, files sandpit.Files) error {
		opt := sandpit.WriteOptions{Mode: q.mode("mode", 0), Append: q.flag("append", false), Parents: q.flag("parents", false), InPlace: q.values.Has("offset"), Offset: int64(q.number("offset", math.MaxInt64))}
		for _, text := range q.values["xattr"] {
			name, value, ok := strings.Cut(text, "=")
			if !ok || name == "" {
				q.fail("xattr", "must be NAME=VALUE")
			}
			if opt.Xattrs == nil {
				opt.Xattrs = map[string]string{}
			}
			opt.Xattrs[name] = value
		}
		if q.err != nil {
			return q.err
		}
		var src io.Reader = strings.NewReader("")
		if c.R.Body != http.NoBody {
			src = c.Body(-1, 0)
		}
		n, err := files.Write(c.Ctx, q.text("path"), src, opt)
		out.Bytes = n
		c.begun = opt.Append && (c.Ctx.Err() != nil || !neverBegan(err))
		return err
	})
	return out, err
}

// neverBegan reports whether a write has failed before it could change anything.
func neverBegan(err error) bool {
	return slices.ContainsFunc([]error{sandpit.ErrNotFound, fs.ErrNotExist, fs.ErrPermission, sandpit.ErrInvalid, sandpit.ErrState}, func(kind error) bool { return errors.Is(err, kind) })
}

func watchFiles(c *call) error {
	q := c.query()
	path, recursive := q.text("path"), q.flag("recursive", false)
	if q.err != nil {
		return q.err
	}
	files, err := c.files()
	if err != nil {
		return err
	}
	return stream.Follow(c.Call, stream.Events, stream.Source[sandpit.FileEvent]{
		All: func(ctx context.Context) iter.Seq2[sandpit.FileEvent, error] {
			return files.Watch(ctx, path, recursive)
		},
		Name: func(e sandpit.FileEvent) (event string, seq uint64) { return string(e.Kind), 0 },
	})
}

// readFile sends a file or a range of it.
func readFile(c *call) error {
	q := c.query()
	path := q.text("path")
	if q.err != nil {
		return q.err
	}
	files, err := c.streamFiles()
	if err != nil {
		return err
	}
	return stream.SendFile(c.Call, files, path, func(info sandpit.FileInfo, h http.Header) {
		h.Set(headerMode, v1.ModeText(info.Mode))
	})
}

// headerMode has the permission bits of a file, as v1.FileInfo.Mode.
const headerMode = "X-Sandpit-Mode"
