package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Bounds of open handles of a channel.
const (
	maxHandles = 256
	maxPath    = 4096 // bytes (limits.h, PATH_MAX)
	handleCost = 512  // bytes of memory, besides the path

	uploadBuffer = 256 << 10 // bytes of content on the way to the sandbox (guest/client: uploads)

	defaultPage = 128 // entries of one ReadDir
)

// handles are the open files and directories of a channel.
type handles struct {
	mu   sync.Mutex
	last uint64
	all  map[uint64]*handle
}

// handle is an open file or directory. It is a path here: each use opens it again.
type handle struct {
	files               sandpit.Files
	path                string
	dir                 bool
	read, write, append bool

	mu    sync.Mutex // held during a ReadDir
	after string     // the last entry that was read of a directory
	done  bool       // all were
}

// changes reports whether opening with the options may change something.
func (o *openOptions) changes() bool {
	return o.Write || o.Append || o.Create || o.CreateNew || o.Truncate
}

// open adds a handle, which the call holds.
func (ch *channel) open(h *handle) (any, error) {
	if err := ch.budget.take(ch.ctx, windows, h.cost()); err != nil {
		return nil, err
	}
	id, err := ch.files.add(h)
	if err != nil {
		ch.budget.give(windows, h.cost())
	}
	return id, err
}

// cost returns the memory that an open handle takes.
func (h *handle) cost() int64 { return int64(len(h.path)) + handleCost }

func (hs *handles) add(h *handle) (any, error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	switch {
	case len(hs.all) >= maxHandles:
		return nil, &gate.Refusal{Code: errcode.QuotaExceeded, Message: fmt.Sprintf("too many open filesystem handles: %d", maxHandles)}
	case hs.all == nil:
		hs.all = map[uint64]*handle{}
	}
	hs.last++
	hs.all[hs.last] = h
	return hs.last, nil
}

func (hs *handles) get(id uint64) (*handle, error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h := hs.all[id]; h != nil {
		return h, nil
	}
	return nil, errHandle(id)
}

func errHandle(id uint64) error { return gate.Invalid(fmt.Sprintf("invalid handle: %d", id), "") }

// openFile opens a file, which it creates or empties at once if the options say so.
func openFile(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	o := in.Options
	h := &handle{files: op.as(o.User), path: absolute(in.Path), read: o.Read, write: o.Write || o.Append, append: o.Append}
	i, err := h.files.Stat(ctx, h.path)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && (!missing || !o.Create && !o.CreateNew):
		return nil, err
	case !missing && o.CreateNew:
		return nil, errnoError(fs.ErrExist)
	case !missing && i.IsDir():
		return nil, errnoError(sandpit.ErrIsDirectory)
	case (missing || o.Truncate) && !h.write:
		return nil, gate.Invalid("Invalid argument (os error 22)", "")
	}
	if missing || o.Truncate {
		opt := sandpit.WriteOptions{}
		if o.Mode != nil {
			opt.Mode = notation.ParseModeBits(uint64(*o.Mode))
		}
		if _, err := h.files.Write(ctx, h.path, strings.NewReader(""), opt); err != nil {
			return nil, err
		}
	}
	return op.ch.open(h)
}

func openDir(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	h := &handle{files: op.as(nil), path: absolute(in.Path), dir: true}
	if i, err := h.files.Stat(ctx, h.path); err != nil {
		return nil, err
	} else if !i.IsDir() {
		return nil, errnoError(sandpit.ErrNotDirectory)
	}
	return op.ch.open(h)
}

func closeHandle(_ context.Context, op *operation, in *filesArgs) (any, error) {
	hs := &op.ch.files
	hs.mu.Lock()
	h := hs.all[in.Handle]
	delete(hs.all, in.Handle)
	hs.mu.Unlock()
	if h == nil {
		return nil, errHandle(in.Handle)
	}
	op.ch.budget.give(windows, h.cost())
	return nil, nil
}

// file returns an open file.
func (hs *handles) file(id uint64) (*handle, error) {
	h, err := hs.get(id)
	if err == nil && h.dir {
		return nil, gate.Invalid(fmt.Sprintf("handle %d is a directory", id), "")
	}
	return h, err
}

func readHandle(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	h, err := op.ch.files.file(in.Handle)
	if err != nil {
		return nil, err
	}
	if !h.read {
		return nil, gate.Invalid(fmt.Sprintf("handle %d is not open for reading", in.Handle), "")
	}
	length := int64(-1)
	if in.Len != nil {
		length = int64(min(*in.Len, math.MaxInt64))
	}
	held := int64(wire.HostWindow) // what waits; the buffer is of either kind of transfer
	if length >= 0 {
		held = min(held, length)
	}
	held += bulkRecord
	if err := op.ch.budget.take(op.ch.ctx, windows, held); err != nil {
		return nil, err
	}
	defer op.ch.budget.give(windows, held)
	r, err := h.files.Open(ctx, h.path, int64(min(in.Offset, math.MaxInt64)), length)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := op.accept(in.bulk, bulkFiles, bulkOut, 0)
	if err != nil {
		return nil, err
	}
	if b != nil {
		if _, err = stream.Copy(b, r); err == nil {
			err = b.finish()
		}
		return nil, err
	}
	_, err = stream.Copy(contentWriter{op}, r)
	return nil, err
}

func writeHandle(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	h, err := op.ch.files.file(in.Handle)
	if err != nil {
		return nil, err
	}
	if !h.write {
		return nil, gate.Invalid(fmt.Sprintf("handle %d is not open for writing", in.Handle), "")
	}
	opt := sandpit.WriteOptions{Append: true}
	if !h.append {
		opt = sandpit.WriteOptions{InPlace: true, Offset: int64(min(in.Offset, math.MaxInt64))}
	}
	held := int64(uploadBuffer)
	if in.bulk != nil {
		held += 2 * filesWindow // what waits, and the buffer that it grows in
	}
	if err := op.ch.budget.take(op.ch.ctx, windows, held); err != nil {
		return nil, err
	}
	defer op.ch.budget.give(windows, held)
	b, err := op.accept(in.bulk, bulkFiles, bulkIn, filesWindow)
	if err != nil {
		return nil, err
	}
	r := &contentReader{op: op, bulk: b, want: in.Len}
	defer r.close()
	_, err = h.files.Write(ctx, h.path, r, opt)
	return nil, err
}

// page returns the next entries of a directory for the answer of op, none after the last.
func (h *handle) page(ctx context.Context, op *operation, limit int) ([]entry, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.done {
		return []entry{}, nil
	}
	infos, more, err := h.files.ReadDir(ctx, h.path, h.after, limit)
	if err != nil {
		return nil, err
	}
	cost := int64(0)
	for _, i := range infos {
		cost += int64(len(h.path)+len(i.Name)) + entryCost
	}
	if err := op.hold(cost); err != nil {
		return nil, err
	}
	all := make([]entry, 0, len(infos))
	for _, i := range infos {
		all = append(all, entryOf(path.Join(h.path, i.Name), i))
		h.after = i.Name
	}
	h.done = !more
	return all, nil
}

func readDir(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	h, err := op.ch.files.get(in.Handle)
	if err != nil {
		return nil, err
	}
	if !h.dir {
		return nil, gate.Invalid(fmt.Sprintf("handle %d is a file", in.Handle), "")
	}
	limit := uint32(defaultPage)
	if in.Limit != nil {
		limit = min(max(*in.Limit, 1), 1000)
	}
	return listOf(h.page(ctx, op, int(limit)))
}

// listOf makes the result of an operation of entries.
func listOf(all []entry, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return all, nil
}

func fstat(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	h, err := op.ch.files.get(in.Handle)
	if err != nil {
		return nil, err
	}
	i, err := h.files.Stat(ctx, h.path)
	if err != nil {
		return nil, err
	}
	return entryOf(h.path, i), nil
}

func fsetStat(ctx context.Context, op *operation, in *filesArgs) (any, error) {
	h, err := op.ch.files.file(in.Handle)
	if err != nil {
		return nil, err
	}
	return nil, in.Attrs.set(ctx, h.files, h.path, true)
}
