package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// records returns all records that can be read, by their name.
func (s *Store) records() map[string]*record {
	paths, _ := filepath.Glob(s.path("images", "*"))
	m := make(map[string]*record, len(paths))
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		if rec, err := decodeRecord(data); err == nil {
			m[filepath.Base(p)] = rec
		}
	}
	return m
}

// collect removes those of some blobs or layers that no record names and
// that are not in use, and returns the bytes freed.
//
// The locks come first: whoever makes a record holds all that it names, so what
// can be locked exclusively is named by a record by now, or will not be.
func (s *Store) collect(kind string, hexes []string) int64 {
	var freed int64
	const atOnce = 256 // open files
	for len(hexes) > 0 {
		batch := hexes[:min(atOnce, len(hexes))]
		hexes = hexes[len(batch):]
		locked := make(map[string]int, len(batch))
		for _, hex := range batch {
			if _, twice := locked[hex]; twice {
				continue
			}
			if fd, ok := openExclusive(s.path(kind, hex)); ok {
				locked[hex] = fd
			}
		}
		if len(locked) == 0 {
			continue
		}
		for _, rec := range s.records() {
			names := rec.blobs
			if kind == "layers" {
				names = rec.layers
			}
			for _, hex := range names {
				if fd, ok := locked[hex]; ok {
					closeFD(fd)
					delete(locked, hex)
				}
			}
		}
		for hex, fd := range locked {
			path := s.path(kind, hex)
			n := diskUsage(path)
			var err error
			if kind == "layers" {
				err = s.removeTree(path)
			} else {
				err = os.Remove(path)
			}
			if err == nil {
				freed += n
			}
			closeFD(fd)
		}
	}
	return freed
}

// Removed is the result of Remove.
type Removed struct {
	Name  string // the name that was removed, in full
	Image string // digest of the image, if it is gone too, else empty
	Bytes int64  // freed on disk
}

// Remove removes a name, and the image if it has no other. ref is a name, or the digest of
// an image, which is then removed with all of its names. The error matches
// sandpit.ErrNotFound if there is none, and sandpit.ErrState if the image is in use; then
// nothing is removed.
func (s *Store) Remove(ctx context.Context, ref string) (Removed, error) {
	var out Removed
	err := s.withLock(ctx, "refs", func() (err error) {
		out, err = s.remove(ref)
		return err
	})
	return out, err
}

func (s *Store) remove(ref string) (Removed, error) {
	if ref == "host" || ref == "" {
		return Removed{}, fault.Invalidf("removing image \"host\": it is this machine itself, not a stored image")
	}
	entries, err := s.find(ref)
	if err != nil {
		return Removed{}, fmt.Errorf("removing image %q: %w", fault.Clip(ref), err)
	}
	hex := entries[0].image
	others := false
	for _, e := range s.refs() {
		if e.image != hex {
			continue
		}
		named := false
		for _, mine := range entries {
			named = named || mine.name == e.name && mine.platform == e.platform
		}
		others = others || !named
	}
	out := Removed{Name: entries[0].name}
	path := s.path("images", hex)
	if !others {
		fd, ok := s.openUnused(path)
		if !ok {
			if _, err := os.Lstat(path); err == nil {
				return Removed{}, sandpit.WithHint(fault.Kind{Err: fmt.Errorf("removing image %q: it is in use", fault.Clip(ref)), Kind: sandpit.ErrState},
					"remove the sandboxes that use it first")
			}
		} else {
			defer closeFD(fd)
		}
	}
	for _, e := range entries {
		if e.name == "" {
			continue
		}
		if err := os.Remove(s.refPath(e.name, e.platform)); err != nil && !os.IsNotExist(err) {
			return Removed{}, s.diskError(fmt.Errorf("removing image %q: %w", fault.Clip(ref), err))
		}
	}
	if others {
		return out, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return out, nil // there was only the name
	}
	if err := os.Remove(path); err != nil {
		return out, s.diskError(fmt.Errorf("removing image %q: %w", fault.Clip(ref), err))
	}
	out.Image = DigestPrefix + hex
	if rec, err := decodeRecord(data); err == nil {
		out.Bytes = s.collect("layers", rec.layers) + s.collect("blobs", rec.blobs)
	}
	return out, nil
}

// find returns the names that ref means: at least one. An image without a name
// has an entry without one.
func (s *Store) find(ref string) ([]refEntry, error) {
	unknown := sandpit.WithHint(fault.NotFoundf("it is not in the store"), "run 'sandpit images ls' to list stored images")
	if hex, ok := strings.CutPrefix(ref, DigestPrefix); ok {
		hex, err := s.wholeDigest(hex)
		if err != nil {
			return nil, err
		}
		var list []refEntry
		for _, e := range s.refs() {
			if e.image == hex {
				list = append(list, e)
			}
		}
		if list == nil && validHex(hex) {
			if _, err := os.Lstat(s.path("images", hex)); err == nil {
				list = []refEntry{{image: hex}}
			}
		}
		if list == nil {
			return nil, unknown
		}
		return list, nil
	}
	name, image, err := storedName(ref)
	if err != nil {
		return nil, err
	}
	var list []refEntry
	for _, e := range s.refs() {
		if e.name == name && (image == "" || image == e.image) {
			list = append(list, e)
		}
	}
	if list == nil {
		return nil, s.orSaved(unknown, "", ref)
	}
	// The same name may have been fetched for two platforms: this machine's
	// comes first, then the others one by one.
	for _, e := range list {
		if e.platform == DefaultPlatform() {
			return []refEntry{e}, nil
		}
	}
	return list[:1], nil
}

// minDigest is the number of hexadecimal digits that name an image, if only one begins with them.
const minDigest = 12

// wholeDigest returns the digits of the one stored image whose digest begins with start, or
// start if there is none.
func (s *Store) wholeDigest(start string) (string, error) {
	if len(start) < minDigest {
		return start, nil
	}
	whole := start
	for hex := range s.records() {
		switch {
		case !strings.HasPrefix(hex, start):
		case whole != start:
			return "", sandpit.WithHint(fault.Invalidf("several images have digests that begin like this"), "give more of the digest; 'sandpit images ls --format {{.Digest}}' prints all of it")
		default:
			whole = hex
		}
	}
	return whole, nil
}

// storedName returns the name under which a reference is kept, and the digest that its image must have,
// in hexadecimal, or "" for any.
func storedName(ref string) (name, image string, err error) {
	kind, rest, _ := strings.Cut(ref, ":")
	switch kind {
	case "oci-archive", "docker-archive", "oci":
		f, err := parseFileRef(kind, rest)
		if err != nil {
			return "", "", err
		}
		return f.name(), "", nil
	case SavedScheme:
		return storedSaved(ref, "")
	}
	r, err := ParseReference(ref)
	if err != nil {
		return "", "", err
	}
	return r.String(), "", nil
}

// PruneOptions say what Prune removes.
type PruneOptions struct {
	// All removes also named images, those that are not in use.
	All bool
}

// Pruned is the result of Prune.
type Pruned struct {
	Names  []string // in full, sorted
	Images int
	Layers int
	Blobs  int
	Bytes  int64 // freed on disk, with what was left of broken transfers and crashes
}

// Prune removes images without a name and lease, layers without an image, partial
// transfers, and remains of crashes. It removes nothing that is in use, by this process or
// another, and does not wait for it.
func (s *Store) Prune(ctx context.Context, opt PruneOptions) (Pruned, error) {
	var out Pruned
	if _, err := os.Lstat(s.dir); os.IsNotExist(err) {
		return out, nil
	}
	err := s.withLock(ctx, "refs", func() error {
		out = s.prune(opt)
		return nil
	})
	return out, err
}

func (s *Store) prune(opt PruneOptions) Pruned {
	var out Pruned
	names := make(map[string][]refEntry)
	for _, e := range s.refs() {
		names[e.image] = append(names[e.image], e)
	}
	// Names of images that are gone.
	for hex, entries := range names {
		if _, err := os.Lstat(s.path("images", hex)); os.IsNotExist(err) {
			for _, e := range entries {
				_ = os.Remove(s.refPath(e.name, e.platform))
			}
		}
	}
	paths, _ := filepath.Glob(s.path("images", "*"))
	records := s.records()
	for _, path := range paths {
		hex := filepath.Base(path)
		if rec := records[hex]; len(names[hex]) > 0 && (!opt.All || rec != nil && rec.saved) {
			continue
		}
		fd, ok := s.openUnused(path)
		if !ok {
			continue
		}
		for _, e := range names[hex] {
			if os.Remove(s.refPath(e.name, e.platform)) == nil {
				out.Names = append(out.Names, e.name)
			}
		}
		// A pull that has just made the record holds it until it has named it:
		// with the lock in hand, the names are final.
		named := false
		if !opt.All {
			for _, e := range s.refs() {
				named = named || e.image == hex
			}
		}
		if !named {
			if os.Remove(path) == nil {
				out.Images++
			}
		}
		closeFD(fd)
	}
	count := func(kind string) int {
		n, _ := os.ReadDir(s.path(kind))
		return len(n)
	}
	before := count("layers")
	out.Bytes += s.collect("layers", s.list("layers"))
	out.Layers = before - count("layers")
	before = count("blobs")
	out.Bytes += s.collect("blobs", s.list("blobs"))
	out.Blobs = before - count("blobs")
	out.Bytes += s.pruneHost()
	out.Bytes += s.sweep()
	s.sweepLocks()
	return out
}

func (s *Store) list(kind string) []string {
	entries, _ := os.ReadDir(s.path(kind))
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// sweepLocks removes lock files that crashed holders have left.
func (s *Store) sweepLocks() {
	for _, name := range s.list("locks") {
		path := s.path("locks", name)
		info, err := os.Lstat(path)
		if err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		if flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) == nil && isAt(fd, path) {
			_ = os.Remove(path)
		}
		closeFD(fd)
	}
}
