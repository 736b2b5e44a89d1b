package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/fault"
)

// A lease ends with its process. What has to outlive that is kept: a file
// kept/ID says what the sandbox ID uses, and what any of these files names is
// in use. Who removes something looks there once he has its lock; who keeps
// something has a lease of it. So it is never removed in between.

// Keep keeps a leased image in the store for a sandbox until Unkeep, even if this process
// dies. The id is [a-z0-9]+. For a root that is not in the store, such as a directory that
// is used in place, Keep is a no-op.
func (s *Store) Keep(id string, l *Lease) error {
	names := ""
	if l.root.Digest != "" {
		names = "images/" + strings.TrimPrefix(l.root.Digest, DigestPrefix) + "\n"
	}
	if l.host || l.root.Reference == "host" {
		names += "host/" + filepath.Base(l.root.Layers[len(l.root.Layers)-1]) + "\n"
	}
	if names == "" {
		return nil
	}
	if strings.ContainsAny(id, "/.") || id == "" {
		return fault.Invalidf("keeping an image: %q is not an id", fault.Clip(id))
	}
	if err := s.ensure("kept"); err != nil {
		return err
	}
	// A name that is not whole keeps nothing, and its sandbox is not made then.
	if err := os.WriteFile(s.path("kept", id), []byte(names), 0o600); err != nil {
		_ = os.Remove(s.path("kept", id))
		return s.diskError(fmt.Errorf("keeping an image: %w", err))
	}
	return nil
}

// Kept leases again what a sandbox keeps. The error matches sandpit.ErrUnsupported if that is nothing
// in the store.
func (s *Store) Kept(id string) (*Lease, error) {
	data, err := os.ReadFile(s.path("kept", filepath.Base(id)))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.Unsupportedf("its image is not in the store")
	}
	if err != nil {
		return nil, s.diskError(fmt.Errorf("finding its image: %w", err))
	}
	var all *Lease
	for line := range strings.Lines(string(data)) {
		kind, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "/")
		var l *Lease
		ok := false
		switch kind {
		case "images":
			l, ok = s.open(name, DigestPrefix+name)
		case "host":
			if fd, err := openShared(s.path("host", name)); err == nil {
				l, ok = &Lease{fds: []int{fd}, root: Rootfs{Reference: "host", Layers: []string{s.path("host", name)}, Binds: s.hostBinds(), Config: hostConfig()}}, true
			}
		}
		switch {
		case !ok:
			if all != nil {
				all.Release()
			}
			return nil, fault.NotFoundf("a part of its image is missing in the store")
		case all == nil:
			all = l
		default:
			all.putOver(l)
		}
	}
	if all == nil {
		return nil, fault.Unsupportedf("its image is not in the store")
	}
	return all, nil
}

// Unkeep undoes Keep. It is a no-op if nothing is kept.
func (s *Store) Unkeep(id string) error {
	if err := os.Remove(s.path("kept", id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("releasing an image: %w", err)
	}
	return nil
}

// kept reports whether a sandbox keeps the file at a path of the store.
func (s *Store) kept(path string) bool {
	for _, id := range s.list("kept") {
		data, err := os.ReadFile(s.path("kept", id))
		for name := range strings.Lines(string(data)) {
			if err == nil && s.path(strings.TrimSuffix(name, "\n")) == path {
				return true
			}
		}
	}
	return false
}

// openUnused is openExclusive for what may be kept.
func (s *Store) openUnused(path string) (fd int, ok bool) {
	fd, ok = openExclusive(path)
	if ok && s.kept(path) {
		closeFD(fd)
		return -1, false
	}
	return fd, ok
}
