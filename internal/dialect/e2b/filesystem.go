package e2b

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// filesystemService is the service of files.
const filesystemService = "/filesystem.Filesystem/"

// filesystemRoutes returns the routes of the service.
func filesystemRoutes() []route {
	post := func(method, id string, handle func(*call) error) route {
		return route{method: http.MethodPost, path: filesystemService + method, id: id, audited: true, handle: handle}
	}
	return []route{
		post("Stat", "stat", unary(stat)),
		post("ListDir", "listDir", unary(listDir)),
		post("MakeDir", "makeDir", unary(makeDir)),
		post("Move", "move", unary(move)),
		post("Remove", "remove", unary(remove)),
		post("WatchDir", "watchDir", streaming(watchDir)),
		post("CreateWatcher", "createWatcher", unary(createWatcher)),
		post("GetWatcherEvents", "getWatcherEvents", unary(getWatcherEvents)),
		post("RemoveWatcher", "removeWatcher", unary(removeWatcher)),
	}
}

// files returns the files of the sandbox for a user; "" is the sandbox's own.
func (c *call) files(user string) (userFiles, error) {
	sb, err := c.running()
	if err != nil {
		return userFiles{}, err
	}
	return filesOf(sb, user), nil
}

// entry describes a file.
type entry struct {
	Name         string    `json:"name"`
	Type         string    `json:"type"`
	Path         string    `json:"path"`
	Size         string    `json:"size"`
	Mode         uint32    `json:"mode"`
	Permissions  string    `json:"permissions"`
	Owner        string    `json:"owner"`
	Group        string    `json:"group"`
	ModifiedTime time.Time `json:"modifiedTime"`
	Target       string    `json:"symlinkTarget,omitempty"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

// entryOf describes a file of which Lstat said i. A link has the type of what it leads to.
func (f userFiles) entryOf(ctx context.Context, p string, i sandpit.FileInfo) entry {
	p = f.absolute(p)
	e := entry{
		Name: path.Base(p), Path: p, Size: strconv.FormatInt(i.Size, 10), Mode: uint32(i.Mode.Perm()), Permissions: i.Mode.String(),
		Owner: ownerOf(i.UID), Group: ownerOf(i.GID), ModifiedTime: i.ModTime.UTC(), Type: typeOf(i.Mode), Metadata: metadataIn(i.Xattrs),
	}
	if i.Mode&fs.ModeSymlink != 0 {
		if e.Target = i.Target; !path.IsAbs(e.Target) {
			e.Target = path.Join(path.Dir(p), e.Target)
		}
		if to, err := f.Stat(ctx, p); err == nil {
			e.Type = typeOf(to.Mode)
		}
	}
	return e
}

func typeOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "FILE_TYPE_DIRECTORY"
	case m&fs.ModeSymlink != 0:
		return "FILE_TYPE_SYMLINK"
	}
	return "FILE_TYPE_FILE"
}

// ownerOf names a user or group. The two that every sandbox has are named as in E2B's templates.
func ownerOf(id uint32) string {
	switch id {
	case 0:
		return "root"
	case 1000:
		return "user"
	}
	return strconv.FormatUint(uint64(id), 10)
}

// look describes the file at a path.
func (f userFiles) look(ctx context.Context, p string) (entry, error) {
	i, err := f.Lstat(ctx, p)
	if err != nil {
		return entry{}, err
	}
	return f.entryOf(ctx, p, i), nil
}

// onEntry is an answer with one entry.
type onEntry struct {
	Entry entry `json:"entry"`
}

func (f userFiles) answer(ctx context.Context, p string) (any, error) {
	e, err := f.look(ctx, p)
	return onEntry{e}, err
}

// onPath is a message about a path.
type onPath struct {
	Path      string `json:"path"`
	Depth     uint32 `json:"depth"`
	Recursive bool   `json:"recursive"`
	Entry     bool   `json:"includeEntry"`
}

func (r *onPath) about() string { return r.Path }

// stat describes a file.
func stat(c *call, in *onPath) (any, error) {
	f, err := c.files(user(c.R))
	if err != nil {
		return nil, err
	}
	return f.answer(c.Ctx, f.inside(in.Path))
}

// maxEntries bounds the entries of a list, and entryCost the memory that each takes besides its path.
const (
	maxEntries = 100_000
	entryCost  = 512
)

// listDir lists a directory, and with a depth of more than 1 those in it.
func listDir(c *call, in *onPath) (any, error) {
	f, err := c.files(user(c.R))
	if err != nil {
		return nil, err
	}
	root := f.inside(in.Path)
	if i, err := f.Stat(c.Ctx, root); err != nil {
		return nil, err
	} else if !i.IsDir() {
		return nil, &fs.PathError{Op: "list", Path: in.Path, Err: sandpit.ErrNotDirectory}
	}
	if i, err := f.Lstat(c.Ctx, root); err == nil && i.Mode&fs.ModeSymlink != 0 {
		root += "/." // what the link leads to
	}
	q := sandpit.FindQuery{Depth: int(max(min(in.Depth, 1<<20), 1)), Limit: 1000, Xattrs: true}
	list := []entry{}
	held := int64(0)
	for more := true; more; {
		var part []sandpit.FileInfo
		if part, more, err = f.Find(c.Ctx, root, q); err != nil {
			return nil, err
		}
		for _, i := range part {
			q.After = i.Name
			held += int64(3*len(i.Name)+2*len(root)+2*len(i.Target)) + entryCost
			e := f.entryOf(c.Ctx, path.Join(root, i.Name), i)
			for key, value := range e.Metadata {
				held += int64(len(key)+len(value)) + entryCost/4
			}
			list = append(list, e)
		}
		if len(list) > maxEntries {
			return nil, &gate.Refusal{Code: errcode.QuotaExceeded, Message: "the directory has too many entries", Hint: "list with a smaller depth"}
		}
		if err := c.Hold(gate.InMemory, held); err != nil {
			return nil, err
		}
		more = more && len(part) > 0
	}
	return struct {
		Entries []entry `json:"entries"`
	}{list}, nil
}

// makeDir creates a directory and its parents.
func makeDir(c *call, in *onPath) (any, error) {
	f, err := c.files(user(c.R))
	if err != nil {
		return nil, err
	}
	p := f.inside(in.Path)
	switch i, err := f.Stat(c.Ctx, p); {
	case err == nil && !i.IsDir():
		return nil, &fs.PathError{Op: "mkdir", Path: in.Path, Err: sandpit.ErrNotDirectory}
	case err == nil:
		return nil, &fs.PathError{Op: "mkdir", Path: in.Path, Err: fs.ErrExist}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if err := f.Mkdir(c.Ctx, p, 0o755, true); err != nil {
		return nil, err
	}
	return f.answer(c.Ctx, p)
}

type moveRequest struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

func (r *moveRequest) about() string { return r.Source + " to " + r.Destination }

// move renames a file. It creates the parents of the destination.
func move(c *call, in *moveRequest) (any, error) {
	f, err := c.files(user(c.R))
	if err != nil {
		return nil, err
	}
	from, to := f.inside(in.Source), f.inside(in.Destination)
	if _, err := f.Lstat(c.Ctx, from); err != nil {
		return nil, err
	}
	if err := f.Mkdir(c.Ctx, path.Dir(to), 0o755, true); err != nil {
		return nil, err
	}
	if err := f.Rename(c.Ctx, from, to); err != nil {
		return nil, err
	}
	return f.answer(c.Ctx, to)
}

// remove removes a file, or a directory with what is in it.
func remove(c *call, in *onPath) (any, error) {
	f, err := c.files(user(c.R))
	if err != nil {
		return nil, err
	}
	return struct{}{}, f.Remove(c.Ctx, f.inside(in.Path), true)
}
