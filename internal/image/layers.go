package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"github.com/sandpit-dev/sandpit/internal/fault"
)

// about describes an unpacked layer.
type about struct {
	bytes   int64 // of file content
	entries int64
	left    int64    // entries and attributes left out
	notes   []string // why, for the first of them
}

const (
	aboutHeader = "sandpit-layer 1"
	maxNotes    = 32
)

// note records that something was left out of a layer.
func (a *about) note(format string, args ...any) {
	a.left++
	if len(a.notes) < maxNotes {
		a.notes = append(a.notes, fmt.Sprintf(format, args...))
	}
}

func (a *about) encode() []byte {
	b := fmt.Appendf(nil, "%s\nbytes \"%d\"\nentries \"%d\"\nleft \"%d\"\n", aboutHeader, a.bytes, a.entries, a.left)
	for _, n := range a.notes {
		b = append(b, "note "...)
		b = append(strconv.AppendQuote(b, n), '\n')
	}
	return append(b, "end\n"...)
}

// readAbout returns the description of a layer in the store, or nothing if it can't be read.
func (s *Store) readAbout(hex string) about {
	var a about
	data, err := os.ReadFile(s.layerPath(hex) + "/about")
	if err != nil {
		return a
	}
	_ = lines(data, aboutHeader, func(key string, v []string) {
		n, _ := strconv.ParseInt(first(v), 10, 64)
		switch key {
		case "bytes":
			a.bytes = n
		case "entries":
			a.entries = n
		case "left":
			a.left = n
		case "note":
			a.notes = append(a.notes, first(v))
		}
	})
	return a
}

// haveLayer takes a lock on a layer that is in the store.
func (s *Store) haveLayer(hex string) (fd int, ok bool) {
	fd, err := openShared(s.layerPath(hex))
	return fd, err == nil
}

// unpack unpacks a layer whose blob is in the store, if it is not there yet,
// and locks it. It is done once, however many ask for it at the same time.
func (s *Store) unpack(ctx context.Context, blob Descriptor, diffID string, progress func(done int64)) (fd int, err error) {
	if err := s.ensure("layers"); err != nil {
		return -1, err
	}
	if fd, ok := s.haveLayer(diffID); ok {
		return fd, nil
	}
	err = s.withLock(ctx, "layer-"+diffID, func() error {
		for range 5 {
			var ok bool
			if fd, ok = s.haveLayer(diffID); ok { // somebody else was quicker
				return nil
			}
			if fd, err = s.makeLayer(ctx, blob, diffID, progress); err != errPruned {
				return err
			}
		}
		return err
	})
	return fd, err
}

// makeLayer unpacks a layer and puts it into its place.
func (s *Store) makeLayer(ctx context.Context, blob Descriptor, diffID string, progress func(done int64)) (int, error) {
	in, err := os.Open(s.blobPath(blob.hex()))
	if err != nil {
		return -1, fmt.Errorf("unpacking layer %s: %w", blob.Digest, err)
	}
	defer in.Close()
	tmp, err := s.tempDir()
	if err != nil {
		return -1, err
	}
	defer tmp.discard()

	fail := func(err error) (int, error) {
		return -1, s.diskError(fmt.Errorf("unpacking layer %s: %w", blob.Digest, err))
	}
	dir := tmp.path + "/fs"
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fail(err)
	}
	stream := s.openLayer(ctx, &countingReader{in, 0, progress}, blob.Size, s.opt.Limits)
	defer stream.Close()
	a, err := unpackTar(dir, stream, s.opt.Limits, blob.Size)
	if err != nil {
		return fail(err)
	}
	got, err := stream.digest()
	if err != nil {
		return fail(err)
	}
	if got != diffID {
		return fail(fault.Integrityf("its tar has the digest sha256:%s, but the image's config expects sha256:%s", got, diffID))
	}
	if err := os.WriteFile(tmp.path+"/about", a.encode(), 0o600); err != nil {
		return fail(err)
	}
	if !s.opt.NoSync {
		if err := syncFS(int(tmp.Fd())); err != nil {
			return fail(err)
		}
	}
	path := s.layerPath(diffID)
	if err := tmp.moveTo(path); err != nil {
		if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) {
			return -1, errPruned // look again
		}
		return fail(err)
	}
	if err := tmp.share(); err != nil {
		return fail(err)
	}
	if !isAt(int(tmp.Fd()), path) {
		return -1, errPruned
	}
	fd, err := dupCloexec(int(tmp.Fd()))
	if err != nil {
		return fail(err)
	}
	return fd, nil
}

// countingReader tells how far a file has been read.
type countingReader struct {
	f        *os.File
	n        int64
	progress func(done int64)
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.f.Read(p)
	r.n += int64(n)
	if r.progress != nil {
		r.progress(r.n)
	}
	return n, err
}
