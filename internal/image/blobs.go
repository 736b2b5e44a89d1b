package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"syscall"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/diskfull"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// A Source provides an image. Its data is not trusted.
type Source interface {
	// Root returns the requested manifest or index, with its media type, which may be
	// empty. It holds at most MaxManifest bytes.
	Root(ctx context.Context) (data []byte, mediaType string, err error)

	// Blob opens content at an offset, or at 0 if it can't, and returns which. It also
	// opens manifests of an index.
	Blob(ctx context.Context, d Descriptor, offset int64) (r io.ReadCloser, at int64, err error)

	// Tries is the number of consecutive temporary failures before a caller gives up.
	Tries() int

	// Close closes the source.
	Close()
}

// A leased file in the store: open, with a shared lock.
type held struct {
	fds []int
}

func (h *held) add(fd int) { h.fds = append(h.fds, fd) }

func (h *held) release() {
	for _, fd := range h.fds {
		_ = syscall.Close(fd)
	}
	h.fds = nil
}

func (s *Store) blobPath(hex string) string  { return s.dir + "/blobs/" + hex }
func (s *Store) layerPath(hex string) string { return s.dir + "/layers/" + hex }

// haveBlob takes a lock on a blob that is in the store.
func (s *Store) haveBlob(d Descriptor) (fd int, ok bool) {
	fd, err := openShared(s.blobPath(d.hex()))
	if err != nil {
		return -1, false
	}
	var st syscall.Stat_t
	if syscall.Fstat(fd, &st) != nil || st.Size != d.Size {
		syscall.Close(fd)
		return -1, false
	}
	return fd, true
}

// putBlob stores bytes whose digest has been checked, and locks them.
func (s *Store) putBlob(data []byte) (fd int, err error) {
	d := Descriptor{Digest: DigestOf(data), Size: int64(len(data))}
	if fd, ok := s.haveBlob(d); ok {
		return fd, nil
	}
	if err := s.ensure("blobs"); err != nil {
		return -1, err
	}
	tmp, err := s.tempFile()
	if err != nil {
		return -1, err
	}
	defer tmp.discard()
	if _, err := tmp.Write(data); err != nil {
		return -1, s.diskError(fmt.Errorf("storing blob: %w", err))
	}
	return s.commitBlob(tmp, d)
}

// commitBlob moves a file whose content has been checked into its place.
func (s *Store) commitBlob(tmp *temp, d Descriptor) (fd int, err error) {
	if !s.opt.NoSync {
		if err := tmp.Sync(); err != nil {
			return -1, s.diskError(fmt.Errorf("storing blob: %w", err))
		}
	}
	path := s.blobPath(d.hex())
	if err := tmp.moveTo(path); err != nil {
		return -1, s.diskError(fmt.Errorf("storing blob: %w", err))
	}
	// From the maker's lock to a user's; a prune may come in between.
	if err := tmp.share(); err != nil {
		return -1, fmt.Errorf("storing blob: %w", err)
	}
	if !isAt(int(tmp.Fd()), path) {
		return -1, errPruned
	}
	// The same open file, and thus the same lock, under a descriptor of its own.
	fd, err = dupCloexec(int(tmp.Fd()))
	if err != nil {
		return -1, fmt.Errorf("storing blob: %w", err)
	}
	return fd, nil
}

// pruneTries bounds how often a blob is fetched again that was pruned while it was made: on a busy
// machine, frequent pruning may win a few times.
const pruneTries = 100

// errPruned says that something was pruned in the moment in which it was made.
var errPruned = sandpit.WithHint(fault.Kind{Err: errors.New("storing in image store: the store was pruned meanwhile"), Kind: sandpit.ErrUnavailable}, "try again")

// fetchBlob brings a blob into the store, if it is not there, and locks it. A
// transfer that breaks is taken up where it was, now or by a later call.
func (s *Store) fetchBlob(ctx context.Context, src Source, d Descriptor, progress func(done int64)) (fd int, err error) {
	if err := s.ensure("blobs"); err != nil {
		return -1, err
	}
	if fd, ok := s.haveBlob(d); ok {
		return fd, nil
	}
	err = s.withLock(ctx, "blob-"+d.hex(), func() error {
		var ok bool
		if fd, ok = s.haveBlob(d); ok { // somebody else was quicker
			return nil
		}
		for range pruneTries {
			if fd, err = s.receive(ctx, src, d, progress); err != errPruned {
				break
			}
		}
		return err
	})
	return fd, err
}

// receive writes what a source gives into the partial file of a blob until it
// is whole. The caller holds the blob's lock.
func (s *Store) receive(ctx context.Context, src Source, d Descriptor, progress func(done int64)) (int, error) {
	path := s.blobPath(d.hex()) + ".partial"
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return -1, s.diskError(fmt.Errorf("storing blob: %w", err))
	}
	part := &temp{File: f, path: path}
	keep := false
	defer func() {
		if keep {
			part.path = "" // for a later call to go on with
		}
		part.discard()
	}()
	// A prune may hold it for a moment; then it is gone.
	if err := flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return -1, fmt.Errorf("storing blob: %w", err)
	}
	if !isAt(int(f.Fd()), path) {
		return -1, errPruned
	}

	t := transfer{file: f, want: d, hash: sha256.New(), progress: progress}
	if err := t.resume(); err != nil {
		return -1, s.diskError(fmt.Errorf("reading partial blob: %w", err))
	}
	resumed := t.n > 0
	for stalls := 0; ; {
		before := t.n
		err := t.run(ctx, src)
		if err == nil && t.n < d.Size {
			err = &fault.Temporary{Err: fault.Integrityf("fetching %s: its content ends after %d of %d bytes", d.Digest, t.n, d.Size)}
		}
		if err == nil {
			if hex.EncodeToString(t.hash.Sum(nil)) == d.hex() {
				break
			}
			if !resumed {
				return -1, fault.Integrityf("fetching %s: the digest of its content does not match", d.Digest)
			}
			resumed = false // what an earlier call has left may be at fault
			if err := t.restart(); err != nil {
				return -1, s.diskError(fmt.Errorf("storing blob: %w", err))
			}
			continue
		}
		if stalls++; t.n > before {
			stalls = 1
		}
		var temporary *fault.Temporary
		if errors.As(err, &temporary) && stalls < src.Tries() && ctx.Err() == nil {
			if fault.Backoff(ctx, stalls, err) == nil {
				continue
			}
		}
		keep = t.n > 0 && !errors.Is(err, sandpit.ErrIntegrity) && !diskfull.Is(err)
		if ctx.Err() != nil {
			return -1, ctx.Err()
		}
		return -1, s.diskError(err)
	}
	return s.commitBlob(part, d)
}

// A transfer is the receiving of one blob.
type transfer struct {
	file     *os.File
	want     Descriptor
	hash     hash.Hash
	n        int64 // bytes in the file and in the hash
	progress func(done int64)
}

// resume counts what an earlier transfer has left.
func (t *transfer) resume() error {
	st, err := t.file.Stat()
	if err != nil {
		return err
	}
	if st.Size() == 0 || st.Size() > t.want.Size {
		return t.restart()
	}
	t.n, err = io.Copy(t.hash, t.file)
	return err
}

func (t *transfer) restart() error {
	t.n = 0
	t.hash.Reset()
	if err := t.file.Truncate(0); err != nil {
		return err
	}
	_, err := t.file.Seek(0, io.SeekStart)
	return err
}

// run receives until the source ends, breaks, or gives too much.
func (t *transfer) run(ctx context.Context, src Source) error {
	if t.n == t.want.Size {
		return nil
	}
	r, at, err := src.Blob(ctx, t.want, t.n)
	if err != nil {
		return err
	}
	defer r.Close()
	if at != t.n {
		if err := t.restart(); err != nil {
			return err
		}
		if at != 0 {
			return errors.New("fetching blob: the source did not start at the requested offset")
		}
	}
	buf := make([]byte, 128<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if t.n+int64(n) > t.want.Size {
				return fault.Integrityf("fetching %s: its content is longer than the expected %d bytes", t.want.Digest, t.want.Size)
			}
			if _, werr := t.file.Write(buf[:n]); werr != nil {
				return fmt.Errorf("storing blob: %w", werr)
			}
			t.hash.Write(buf[:n])
			t.n += int64(n)
			_ = fault.Move(ctx) // reading ends with ctx
			if t.progress != nil {
				t.progress(t.n)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fault.Temporaryf(0, "fetching %s: %w", t.want.Digest, err)
		}
	}
}

// fetchSmall returns a manifest or config: checked, and stored under a lock.
func (s *Store) fetchSmall(ctx context.Context, src Source, d Descriptor, h *held) (data []byte, err error) {
	if fd, ok := s.haveBlob(d); ok {
		h.add(fd)
		data := make([]byte, d.Size)
		if _, err := io.ReadFull(io.NewSectionReader(fdReader(fd), 0, d.Size), data); err == nil && DigestOf(data) == d.Digest {
			return data, nil
		}
	}
	for stalls := 0; ; {
		err := func() error {
			r, at, err := src.Blob(ctx, d, 0)
			if err != nil {
				return err
			}
			defer r.Close()
			if at != 0 {
				return errors.New("fetching blob: the source did not start at the requested offset")
			}
			data, err = io.ReadAll(io.LimitReader(r, d.Size+1))
			if err != nil {
				return fault.Temporaryf(0, "fetching %s: %w", d.Digest, err)
			}
			return nil
		}()
		if err == nil {
			break
		}
		var temporary *fault.Temporary
		if stalls++; stalls >= src.Tries() || !errors.As(err, &temporary) {
			return nil, err
		}
		if err := fault.Backoff(ctx, stalls, err); err != nil {
			return nil, err
		}
	}
	if int64(len(data)) != d.Size {
		return nil, fault.Integrityf("fetching %s: its content does not have the expected %d bytes", d.Digest, d.Size)
	}
	if DigestOf(data) != d.Digest {
		return nil, fault.Integrityf("fetching %s: the digest of its content does not match", d.Digest)
	}
	for range pruneTries {
		var fd int
		if fd, err = s.putBlob(data); err == nil {
			h.add(fd)
			return data, nil
		} else if err != errPruned {
			break
		}
	}
	return nil, err
}

// fdReader reads a bare descriptor at offsets.
type fdReader int

func (fd fdReader) ReadAt(p []byte, off int64) (int, error) {
	total := 0
	for total < len(p) {
		n, err := syscall.Pread(int(fd), p[total:], off+int64(total))
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return total, os.NewSyscallError("read", err)
		}
		if n == 0 {
			return total, io.EOF
		}
		total += n
	}
	return total, nil
}

// readBlob reads a small blob that is in the store and checks its digest.
func (s *Store) readBlob(hex string, limit int64) ([]byte, error) {
	f, err := os.Open(s.blobPath(hex))
	if err != nil {
		return nil, fmt.Errorf("reading image store: %w", err)
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
		return nil, fmt.Errorf("reading image store: %w", err)
	}
	if int64(b.Len()) > limit || DigestOf(b.Bytes()) != DigestPrefix+hex {
		return nil, fault.Integrityf("reading image store: blob sha256:%s has been changed", hex)
	}
	return b.Bytes(), nil
}
