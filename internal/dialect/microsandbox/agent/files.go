package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"syscall"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// filesOp is an operation on files.
type filesOp struct {
	verb string // in errors, as the real agent has it

	// of what is recorded: an operation by its ID, or none, of an open handle. That counts against the rate of the key.
	records string

	about func(*filesArgs) string // for the audit; nil: the path

	do func(ctx context.Context, op *operation, in *filesArgs) (any, error)
}

// filesOps returns the operations on files. Opening is what is recorded of handles.
func filesOps() map[string]filesOp {
	both := func(in *filesArgs) string { return in.Src + " to " + in.Dst }
	return map[string]filesOp{
		"RealPath":    {"realpath", opRead, nil, realPath},
		"Stat":        {"stat", opRead, nil, stat},
		"SetStat":     {"setstat", opChange, nil, setStat},
		"List":        {"readdir", opRead, nil, list},
		"ReadLink":    {"readlink", opRead, nil, readLink},
		"Symlink":     {"symlink", opChange, func(in *filesArgs) string { return in.LinkPath }, symlink},
		"Mkdir":       {"mkdir", opChange, nil, mkdir},
		"Remove":      {"remove", opChange, nil, remove},
		"RemoveDir":   {"remove_dir", opChange, nil, removeDir},
		"Copy":        {"copy", opChange, both, copyFile},
		"Rename":      {"rename", opChange, both, rename},
		"OpenFile":    {"open", opRead, nil, openFile}, // or opChange
		"OpenDir":     {"opendir", opRead, nil, openDir},
		"CloseHandle": {"close", "", nil, closeHandle},
		"Read":        {"read", "", nil, readHandle},
		"Write":       {"write", "", nil, writeHandle},
		"ReadDir":     {"readdir", "", nil, readDir},
		"FStat":       {"fstat", "", nil, fstat},
		"FSetStat":    {"fsetstat", opChange, func(in *filesArgs) string { return fmt.Sprintf("handle %d", in.Handle) }, fsetStat},
	}
}

// files carries out an operation on files.
func (op *operation) files(m message) {
	ch := op.ch
	name, in, err := parseFiles(m.payload)
	ch.budget.give(frames, m.size)
	if err != nil {
		op.end()
		_ = ch.sendError(op.id, errPayload, err.Error(), m.kind)
		return
	}
	what, ok := filesOps()[name]
	if !ok {
		op.end()
		_ = ch.answer(op.id, nil, fmt.Errorf("the operation %.40q is not supported", name))
		return
	}
	if max(len(in.Path), len(in.Src), len(in.Dst), len(in.Target), len(in.LinkPath)) > maxPath {
		op.end()
		_ = ch.answer(op.id, nil, errors.New(what.verb+": File name too long (os error 36)"))
		return
	}
	records := what.records
	if name == "OpenFile" && in.Options.changes() {
		records = opChange
	}
	part := ch.call
	var f gate.Failure
	if records != "" {
		about := in.Path
		if what.about != nil {
			about = what.about(&in)
		}
		part, err = op.begin(records, name+" "+gate.Bounded(about))
	} else if name != "CloseHandle" { // which the sandbox has no part in
		err = ch.await(ch.call.Count)
	}
	var data any
	if err != nil {
		f = ch.call.Describe(err)
	} else {
		ctx, cancel := context.WithCancel(part.Ctx)
		stop := context.AfterFunc(ch.ctx, cancel)
		data, err = what.do(ctx, op, &in)
		stop()
		cancel()
		switch {
		case records != "":
			f = part.End(err)
		case err != nil:
			f = ch.call.Describe(err)
		}
	}
	op.end()
	if err != nil {
		err = errors.New(what.verb + ": " + errorText(f))
	}
	_ = ch.answer(op.id, data, err)
	ch.budget.give(windows, op.held)
}

// parseFiles reads a request about files.
func parseFiles(payload []byte) (name string, in filesArgs, err error) {
	var req filesRequest
	if err := decoder().Unmarshal(payload, &req); err != nil {
		return "", in, err
	}
	if len(req.Op) != 1 {
		return "", in, errors.New("the request must have one operation")
	}
	for n, args := range req.Op {
		name, err = n, decoder().Unmarshal(args, &in)
	}
	in.bulk = req.Bulk
	return name, in, err
}

// answer sends the result of an operation on files.
func (ch *channel) answer(id uint32, data any, err error) error {
	a := answerMessage{OK: err == nil}
	switch v := data.(type) {
	case entry:
		a.Data = map[string]any{"Stat": v}
	case []entry:
		a.Data = map[string]any{"List": v}
	case uint64:
		a.Data = map[string]any{"Handle": v}
	case string:
		a.Data = map[string]any{"Path": v}
	}
	if err != nil {
		a.Error = new(err.Error())
	}
	payload, err := cbor.Marshal(a)
	if err == nil && len(payload) > maxFrame-1024 {
		payload, err = cbor.Marshal(answerMessage{Error: new("readdir: " + errEntries.Message + " (" + errEntries.Hint + ")")})
	}
	if err != nil {
		return err
	}
	return ch.send(id, flagTerminal, kindAnswer, payload)
}

// as returns the files with the rights of a user. Without one they are those of root, where the sandbox has it
// beside its user.
func (op *operation) as(user *string) sandpit.Files {
	if user != nil {
		return op.ch.box.Files().As(*user)
	}
	return op.ch.box.RootFiles("")
}

// absolute returns a path as the agent takes it, whose working directory is the root.
func absolute(p string) string {
	if path.IsAbs(p) {
		return p
	}
	return "/" + p
}

// errnoError is an error of a kind that files have.
func errnoError(e error) error { return &fs.PathError{Op: "", Path: "", Err: e} }

// entryOf describes a file.
func entryOf(p string, i sandpit.FileInfo) entry {
	e := entry{Path: p, Kind: "other", Size: uint64(i.Size), Mode: uint32(notation.ModeBits(i.Mode)), Modified: i.ModTime.Unix(), Mtime: i.ModTime.Unix(), UID: i.UID, GID: i.GID}
	switch i.Mode.Type() {
	case 0:
		e.Kind = "file"
		e.Mode |= syscall.S_IFREG
	case fs.ModeDir:
		e.Kind = "dir"
		e.Mode |= syscall.S_IFDIR
	case fs.ModeSymlink:
		e.Kind = "symlink"
		e.Mode |= syscall.S_IFLNK
	}
	return e
}

// look is Stat or Lstat.
func look(ctx context.Context, f sandpit.Files, p string, follow bool) (sandpit.FileInfo, error) {
	if follow {
		return f.Stat(ctx, p)
	}
	return f.Lstat(ctx, p)
}

func stat(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	i, err := look(ctx, op.as(nil), absolute(in.Path), in.Follow)
	if err != nil {
		return nil, err
	}
	return entryOf(in.Path, i), nil
}

var errLoop = gate.Invalid("Too many levels of symbolic links (os error 40)", "")

// realPath resolves a path. The last element may be missing.
func realPath(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	found, err := dialect.RealPath(ctx, op.as(nil), absolute(in.Path))
	switch {
	case errors.Is(err, dialect.ErrLinks):
		return nil, errLoop
	case err != nil:
		return nil, err
	}
	return found, nil
}

// Memory of the entries of a directory, until they are sent.
const (
	maxEntries = 20_000 // of one list
	entryCost  = 512    // of an entry, besides its path
)

// errEntries is the error of a list that is too long for its answer, which is one frame.
var errEntries = &gate.Refusal{Code: errcode.TooLarge, Message: "the directory has too many entries for one message", Hint: "open it and read it in parts"}

func list(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	return listOf((&handle{files: op.as(nil), path: absolute(in.Path), dir: true}).list(ctx, op))
}

// list returns all entries of a directory.
func (h *handle) list(ctx context.Context, op *operation) ([]entry, error) {
	all := []entry{}
	size := 0
	for {
		part, err := h.page(ctx, op, 1000)
		if err != nil || len(part) == 0 {
			return all, err
		}
		for _, e := range part {
			size += len(e.Path)
		}
		if all = append(all, part...); len(all) > maxEntries || size > maxFrame {
			return nil, errEntries
		}
	}
}

func readLink(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	return stringOf(op.as(nil).Readlink(ctx, absolute(in.Path)))
}

// stringOf makes the result of an operation of a string.
func stringOf(s string, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

func symlink(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	return nil, op.as(in.User).Symlink(ctx, in.Target, absolute(in.LinkPath))
}

func mkdir(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	f, p := op.as(in.User), absolute(in.Path)
	if err := f.Mkdir(ctx, p, 0o755, true); err != nil || in.Mode == nil {
		return nil, err
	}
	return nil, f.Chmod(ctx, p, notation.ParseModeBits(uint64(*in.Mode)))
}

func remove(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	f, p := op.as(nil), absolute(in.Path)
	if i, err := f.Lstat(ctx, p); err != nil {
		return nil, err
	} else if i.IsDir() {
		return nil, errnoError(sandpit.ErrIsDirectory)
	}
	return nil, f.Remove(ctx, p, false)
}

func removeDir(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	f, p := op.as(nil), absolute(in.Path)
	if i, err := f.Lstat(ctx, p); err != nil {
		return nil, err
	} else if !i.IsDir() {
		return nil, errnoError(sandpit.ErrNotDirectory)
	}
	return nil, f.Remove(ctx, p, in.Recursive)
}

// copyFile copies what a path leads to.
func copyFile(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	from, err := realPath(ctx, op, &filesArgs{Path: in.Src})
	if err != nil {
		return nil, err
	}
	return nil, op.as(nil).Copy(ctx, from.(string), absolute(in.Dst), true)
}

func rename(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	return nil, op.as(nil).Rename(ctx, absolute(in.Src), absolute(in.Dst))
}

func setStat(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	return nil, in.Attrs.set(ctx, op.as(nil), absolute(in.Path), in.Follow)
}

// set changes attributes of a file.
func (a *attributes) set(ctx context.Context, f sandpit.Files, p string, follow bool) error {
	change := sandpit.FileAttr{NoFollow: !follow, UID: a.UID, GID: a.GID}
	if a.Size != nil {
		change.Size = new(int64(min(*a.Size, math.MaxInt64)))
	}
	if a.Mode != nil {
		change.Mode = new(notation.ParseModeBits(uint64(*a.Mode)))
	}
	if a.Mtime != nil {
		change.ModTime = time.Unix(*a.Mtime, 0)
	}
	if a.Atime != nil {
		change.AccessTime = time.Unix(*a.Atime, 0)
	}
	return f.SetAttr(ctx, p, change)
}

// contentReader reads the content that a client sends. An empty message ends it, or the end of the bulk transfer.
type contentReader struct {
	op   *operation
	bulk *bulk   // or nil
	want *uint64 // bytes, or nil
	n    uint64  // so far
	rest []byte
	size int64 // of the message that has rest
	err  error
}

// Read reads content.
func (r *contentReader) Read(b []byte) (int, error) {
	if r.bulk != nil {
		n, err := r.bulk.Read(b)
		r.n += uint64(n)
		if wrong := r.checkLength(err == io.EOF); wrong != nil { //nolint:errorlint // it is that value
			return 0, wrong
		}
		return n, err
	}
	for len(r.rest) == 0 {
		r.rest = nil // not a byte of it is held any more
		r.close()
		if r.err == nil {
			r.err = r.more()
		}
		if r.err != nil {
			return 0, r.err
		}
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// errNoContent is the error of a file whose client sends nothing of its content.
var errNoContent error = &gate.Refusal{Code: errcode.Timeout, Message: "the client has sent nothing of the content in time", Hint: "send the content without long pauses"}

// more takes the next message.
func (r *contentReader) more() error {
	late := time.AfterFunc(r.op.ch.call.Gate().Limits().Stall, r.op.dropInput)
	m, ok := r.op.in.next()
	switch inTime := late.Stop(); {
	case ok:
	case !inTime:
		return errNoContent
	case r.op.ch.ctx.Err() != nil:
		return context.Cause(r.op.ch.ctx)
	default:
		return io.ErrUnexpectedEOF
	}
	r.size = m.size
	var data dataMessage
	if err := decoder().Unmarshal(m.payload, &data); err != nil {
		return gate.Invalid("the content is not valid: "+err.Error(), "")
	}
	r.n += uint64(len(data.Data))
	end := len(data.Data) == 0
	if err := r.checkLength(end); err != nil {
		return err
	}
	if end {
		return io.EOF
	}
	r.rest = data.Data
	return nil
}

// checkLength returns the error of more or less content than the request says.
func (r *contentReader) checkLength(end bool) error {
	if r.want != nil && (r.n > *r.want || end && r.n < *r.want) {
		return gate.Invalid(fmt.Sprintf("write length mismatch: expected %d, received %d", *r.want, r.n), "")
	}
	return nil
}

// close gives back what the reader holds.
func (r *contentReader) close() {
	r.op.ch.budget.give(frames, r.size)
	r.size = 0
}

// contentWriter sends the content of a file.
type contentWriter struct{ op *operation }

// Write sends content.
func (w contentWriter) Write(b []byte) (int, error) { return w.op.ch.output(w.op.id, kindContent, b) }
