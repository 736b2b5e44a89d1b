package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// Copy copies a file, a link or a directory.
func (f files) Copy(ctx context.Context, from, to string, recursive bool) error {
	query := f.query("from", from, "to", to)
	if recursive {
		query.Set("recursive", "true")
	}
	return f.work(ctx, "copy", from, request{method: http.MethodPost, path: "/copy", query: query}, nil)
}

// Find lists the files below a directory.
func (f files) Find(ctx context.Context, root string, q sandpit.FindQuery) ([]sandpit.FileInfo, bool, error) {
	query := f.query("path", root)
	if q.Glob != "" {
		query.Set("glob", q.Glob)
	}
	if q.Depth != 0 {
		query.Set("depth", strconv.Itoa(q.Depth))
	}
	if q.Xattrs {
		query.Set("xattrs", "true")
	}
	return f.list(ctx, "find", root, "/find", query, q.After, q.Limit)
}

// Grep searches the files below a directory.
func (f files) Grep(ctx context.Context, root string, q sandpit.GrepQuery) (sandpit.GrepResult, error) {
	if err := isText("pattern", q.Pattern, q.Glob); err != nil {
		return sandpit.GrepResult{}, pathError("grep", root, err)
	}
	body, err := encode(v1.Grep(q))
	if err != nil {
		return sandpit.GrepResult{}, pathError("grep", root, err)
	}
	var v v1.GrepResult
	if err := f.work(ctx, "grep", root, request{method: http.MethodPost, path: "/grep", query: f.query("path", root), body: body}, &v); err != nil {
		return sandpit.GrepResult{}, err
	}
	return sandpit.GrepResult(v), nil
}

// Edit replaces exact strings in a file.
func (f files) Edit(ctx context.Context, path string, edits []sandpit.Edit) error {
	for _, e := range edits {
		if err := isText("text", e.Old, e.New); err != nil {
			return pathError("edit", path, err)
		}
	}
	body, err := encode(v1.FileEdits{Edits: edits})
	if err != nil {
		return pathError("edit", path, err)
	}
	return f.work(ctx, "edit", path, request{method: http.MethodPost, path: "/edit", query: f.query("path", path), body: body}, nil)
}

// Download writes a directory or file as a tar stream.
func (f files) Download(ctx context.Context, path string, w io.Writer) error {
	if err := f.sb.open(); err != nil {
		return pathError("download", path, err)
	}
	ctx, cancel := f.sb.c.under(ctx)
	defer cancel()
	resp, err := f.sb.c.send(ctx, request{ //nolint:bodyclose // drain closes it
		method: http.MethodGet, path: f.sb.path + "/files/archive", query: f.query("path", path, "format", "tar"), accept: "application/x-tar",
	})
	if err != nil {
		return pathError("download", path, f.sb.explain(ctx, err))
	}
	defer drain(resp.Body)
	in := &watched{r: resp.Body}
	if _, err := io.Copy(w, in); in.err != nil {
		return pathError("download", path, f.sb.c.failed(ctx, in.err))
	} else if err != nil {
		return pathError("download", path, fmt.Errorf("writing it: %w", err))
	}
	return nil
}

// watched is a reader that keeps its error, to tell it from that of a writer.
type watched struct {
	r   io.Reader
	err error
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	if err != nil && err != io.EOF {
		w.err = err
	}
	return n, err
}

// Upload unpacks a tar stream below a directory.
func (f files) Upload(ctx context.Context, dir string, r io.Reader) error {
	src := newSource(r)
	err := f.work(ctx, "upload", dir, request{
		method: http.MethodPut, path: "/archive", query: f.query("path", dir, "format", "tar"),
		header: http.Header{"Content-Type": {"application/x-tar"}}, stream: src,
	}, nil)
	if failed := src.stop(); failed != nil && err != nil && ctx.Err() == nil {
		return pathError("upload", dir, failed)
	}
	return err
}

// Watch returns the changes in a directory.
func (f files) Watch(ctx context.Context, path string, recursive bool) iter.Seq2[sandpit.FileEvent, error] {
	return func(yield func(sandpit.FileEvent, error) bool) {
		if err := f.sb.open(); err != nil {
			yield(sandpit.FileEvent{}, pathError("watch", path, err))
			return
		}
		query := f.query("path", path)
		if recursive {
			query.Set("recursive", "true")
		}
		err := f.sb.c.events(ctx, request{method: http.MethodGet, path: f.sb.path + "/files/watch", query: query}, nil, func(e event) (bool, error) {
			var v sandpit.FileEvent
			if err := json.Unmarshal(e.data, &v); err != nil {
				return false, badAnswer("unreadable event: " + err.Error())
			}
			return yield(v, nil), nil
		})
		if err != nil && err != io.EOF && ctx.Err() == nil {
			yield(sandpit.FileEvent{}, pathError("watch", path, f.sb.explain(ctx, interrupted(err, 0))))
		}
	}
}
