package client

import (
	"context"
	"fmt"
	"io"
	"iter"
	"strings"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// Copy copies a file or a tree.
func (f files) Copy(ctx context.Context, from, to string, recursive bool) error {
	err := f.call(ctx, wire.OpCopy, &wire.Path{Path: from, Other: to, Flag: recursive}, nil)
	return pathError("copy", from, err)
}

// Find lists what is below a directory.
func (f files) Find(ctx context.Context, root string, q sandpit.FindQuery) ([]sandpit.FileInfo, bool, error) {
	switch {
	case q.Limit < 0 || q.Depth < 0:
		return nil, false, pathError("find", root, fmt.Errorf("%w: a negative number", sandpit.ErrInvalid))
	case q.Limit == 0:
		q.Limit = 1000
	}
	limit := min(q.Limit, wire.MaxEntries)
	after := strings.Trim(q.After, "/")
	var out []sandpit.FileInfo
	for size := 0; ; {
		var m wire.Entries
		err := f.call(ctx, wire.OpFind, &wire.Find{Root: root, Glob: q.Glob, After: after, Depth: uint64(q.Depth), Limit: uint64(limit - len(out)), Attrs: q.Xattrs}, &m)
		if err != nil {
			return nil, false, pathError("find", root, err)
		}
		for i := range m.List {
			name := m.List[i].Name
			if len(out) == limit || !pathLess(after, name) {
				err := violation("a tree that is out of order")
				f.c.fail(err)
				return nil, false, pathError("find", root, err)
			}
			after = name
			out = append(out, fileInfo(&m.List[i]))
			size += len(name) + len(m.List[i].Target) + wire.AttrBytes(m.List[i].Attrs)
		}
		if !m.More || len(out) == limit || len(m.List) == 0 || size > maxNames {
			return out, m.More, nil
		}
	}
}

// pathLess reports whether a comes before b in the order of their elements.
func pathLess(a, b string) bool {
	for i := 0; i < len(a) && i < len(b); i++ {
		switch {
		case a[i] == b[i]:
		case a[i] == '/':
			return true
		case b[i] == '/':
			return false
		default:
			return a[i] < b[i]
		}
	}
	return len(a) < len(b)
}

// maxGrepText bounds the text that Grep collects; a good guest sends less.
const maxGrepText = 16 << 20

// Grep searches files.
func (f files) Grep(ctx context.Context, root string, q sandpit.GrepQuery) (res sandpit.GrepResult, err error) {
	defer func() { err = pathError("grep", root, err) }()
	m, err := compileGrep(root, q)
	if err != nil {
		return res, err
	}
	s, err := f.open(ctx, wire.OpGrep, m, true, 0)
	if err != nil {
		return res, err
	}
	defer s.abortWith(ctx)()
	if _, err := s.wait(ctx); err != nil {
		return res, err
	}
	r := newRecordReader(s)
	text := 0
	for {
		var l wire.GrepLine
		if err := r.next(&l); err == io.EOF {
			return res, nil
		} else if err != nil {
			return sandpit.GrepResult{}, err
		}
		text += len(l.Path) + len(l.Text) + 32
		if l.Kind == wire.GrepMore || text > maxGrepText {
			res.Truncated = true
			return res, nil
		}
		res.Lines = append(res.Lines, sandpit.GrepLine{
			Path: l.Path, Line: int(min(l.Line, 1<<31-1)), Text: cutRune(l.Text), Match: l.Kind == wire.GrepMatch,
		})
	}
}

// cutRune removes a character from the end of a cut text that is not whole.
func cutRune(s string) string {
	if len(s) < wire.MaxGrepLine {
		return s
	}
	for i := 1; i < utf8.UTFMax && i <= len(s); i++ {
		if c := s[len(s)-i]; utf8.RuneStart(c) {
			if !utf8.FullRuneInString(s[len(s)-i:]) {
				return s[:len(s)-i]
			}
			break
		}
	}
	return s
}

// Edit replaces text in a file.
func (f files) Edit(ctx context.Context, path string, edits []sandpit.Edit) error {
	m := &wire.Edits{Path: path}
	for _, e := range edits {
		m.List = append(m.List, wire.Edit{Old: e.Old, New: e.New, All: e.All})
	}
	return pathError("edit", path, f.call(ctx, wire.OpEdit, m, nil))
}

// Watch tells what changes. Besides sandpit.WatchOverflow for changes that were
// lost, it says so when there are more directories than can be watched (8,192).
func (f files) Watch(ctx context.Context, path string, recursive bool) iter.Seq2[sandpit.FileEvent, error] {
	return func(yield func(sandpit.FileEvent, error) bool) {
		if err := f.watch(ctx, path, recursive, yield); err != nil && ctx.Err() == nil {
			yield(sandpit.FileEvent{}, pathError("watch", path, err))
		}
	}
}

func (f files) watch(ctx context.Context, path string, recursive bool, yield func(sandpit.FileEvent, error) bool) error {
	s, err := f.open(ctx, wire.OpWatch, &wire.Watch{Path: path, Recursive: recursive}, true, 0)
	if err != nil {
		return err
	}
	defer s.abortWith(ctx)()
	if _, err := s.wait(ctx); err != nil {
		return err
	}
	if !yield(sandpit.FileEvent{Kind: sandpit.WatchReady}, nil) {
		return nil
	}
	r := newRecordReader(s)
	for {
		var m wire.WatchEvent
		if err := r.next(&m); err == io.EOF {
			return nil // what was watched is gone
		} else if err != nil {
			return err
		}
		kinds := [...]sandpit.WatchKind{
			wire.WatchCreate: sandpit.WatchCreate, wire.WatchWrite: sandpit.WatchWrite, wire.WatchRemove: sandpit.WatchRemove,
			wire.WatchRename: sandpit.WatchRename, wire.WatchChmod: sandpit.WatchChmod, wire.WatchOverflow: sandpit.WatchOverflow,
		}
		if !yield(sandpit.FileEvent{Kind: kinds[m.Kind], Path: m.Path, From: m.From}, nil) {
			return nil
		}
	}
}
