package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Saved is the stored form of a group, with which another process can take it over when its
// owner is dead.
type Saved struct {
	ID     string     `json:"id"`
	Dirs   []SavedDir `json:"dirs"` // the primary first
	Shared string     `json:"shared,omitempty"`
}

// SavedDir is a directory of a Saved group.
type SavedDir struct {
	Path        string `json:"path"`
	Controllers uint8  `json:"controllers"` // bits of this package's own
	V2          bool   `json:"v2,omitempty"`
	Work        bool   `json:"work,omitempty"` // all processes but the first are in a child; earlier versions made none, or only that of the limit of processes
}

// Save returns what Reopen needs.
func (g *Group) Save() Saved {
	s := Saved{ID: g.id, Shared: g.shared}
	for _, d := range g.dirs {
		s.Dirs = append(s.Dirs, SavedDir{Path: d.path, Controllers: uint8(d.ctrls), V2: d.v2, Work: d.work})
	}
	return s
}

// Reopen takes over a group whose owner is dead. The group need not be where this process
// would make one. The error matches sandpit.ErrNotFound if it is gone, sandpit.ErrExists if
// its owner lives, and sandpit.ErrInvalid if the stored form is invalid.
func (l *Layout) Reopen(s Saved) (*Group, error) {
	if err := checkID(s.ID); err != nil {
		return nil, err
	}
	g := &Group{l: l, id: s.ID, fd: -1, shared: s.Shared, adopted: true}
	for _, d := range s.Dirs {
		// What was written down decides what is killed and removed.
		if !filepath.IsAbs(d.Path) || filepath.Clean(d.Path) != d.Path || !strings.HasSuffix(d.Path, "/"+prefix+s.ID) {
			return nil, fault.Errorf(sandpit.ErrInvalid, "taking over cgroup %s: %q is not one of its directories", s.ID, d.Path)
		}
		g.dirs = append(g.dirs, groupDir{path: d.Path, ctrls: ctrls(d.Controllers), v2: d.V2, work: d.Work})
	}
	if len(g.dirs) == 0 {
		return g, nil
	}
	fd, err := open(g.dirs[0].path, unix.O_RDONLY|unix.O_DIRECTORY)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("taking over cgroup %s: %w", s.ID, sandpit.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("taking over cgroup %s: %w", s.ID, err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		return nil, fault.Errorf(sandpit.ErrExists, "taking over cgroup %s: another process owns it", s.ID)
	}
	g.fd = fd
	return g, nil
}

// Discard kills and removes a group of which only the id is known, because its owner died
// while it was made. It is a no-op if there is none. The error matches sandpit.ErrExists if
// its owner lives.
func (l *Layout) Discard(id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	s := Saved{ID: id}
	l.mu.Lock()
	for i, p := range l.places {
		path := p.dir + "/" + prefix + id
		if p.dir == "" {
			continue // a scope that this process has not asked for
		}
		if i == 0 {
			// The claim to the id, also when only other directories are left.
			_ = mkdir(path)
		}
		if unix.Access(path, unix.F_OK) == nil {
			s.Dirs = append(s.Dirs, SavedDir{Path: path, Controllers: uint8(p.ctrls), V2: p.v2})
		}
	}
	l.mu.Unlock()
	if len(s.Dirs) == 0 {
		return nil
	}
	g, err := l.Reopen(s)
	if errors.Is(err, sandpit.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return g.Remove()
}

// Leave gives the group up without touching it, so that it can be reopened. Afterwards
// every method except Save returns sandpit.ErrClosed. This process stays in the leaf that
// it may have moved to, because the group needs it there.
func (g *Group) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed.Load() {
		return
	}
	g.close()
	g.removed.Store(true)
}
