package linux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/claim"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

var _ driver.Recoverer = (*Driver)(nil)

// Recover takes over a sandbox. See driver.Recoverer.
func (d *Driver) Recover(ctx context.Context, h driver.Handle) (driver.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c, err := d.recall(ctx, h)
	if err != nil {
		return nil, err
	}
	if err := c.step(ctx, "open"); err != nil {
		return nil, err
	}
	if c.socket, err = d.ours(c.id, state{identity: c.first, Socket: c.socket, Place: c.place}); err != nil {
		return nil, fmt.Errorf("adopting sandbox %s: %w", h.ID, err)
	}
	layout, err := d.layout()
	if err != nil {
		return nil, err
	}
	d.reserved.hold() // before there are more descriptors
	defer func() {
		if !c.holdsFDs {
			d.reserved.drop()
		}
	}()
	if c.saved != nil {
		c.group, err = layout.Reopen(*c.saved)
		switch {
		case errors.Is(err, sandpit.ErrNotFound):
			// The kernel keeps a group as long as a process is in it, so
			// there is none.
		case err != nil:
			return nil, err
		}
	}
	lives, err := c.openPersistent()
	if err == nil && lives && c.ids.base != 0 {
		err = c.ids.hold()
	}
	if err != nil {
		// Nothing is known of it, or it lives: it stays as it is.
		if c.child.PidFD >= 0 {
			unix.Close(c.child.PidFD)
		}
		if c.group != nil {
			c.group.Leave()
		}
		return nil, fmt.Errorf("adopting sandbox %s: %w", h.ID, err)
	}
	if lives {
		c.holdsFDs = true
		return newInstance(c, true), nil
	}
	cleaned := c.forgetPersistent()
	if c.group != nil {
		_ = c.at("remove-cgroup")
		cleaned = errors.Join(cleaned, c.group.Remove())
	}
	switch {
	case cleaned != nil:
		return nil, fmt.Errorf("removing the remains of sandbox %s: %w", h.ID, cleaned)
	case c.first.restarted():
		return nil, fault.Errorf(sandpit.ErrNotFound, "adopting sandbox %s: %w", h.ID, driver.ErrRestarted)
	}
	return nil, fault.Errorf(sandpit.ErrNotFound, "adopting sandbox %s: its guest has exited", h.ID)
}

// Persistent returns the IDs of the sandboxes in KeepDir whose guests run. See driver.Recoverer.
func (d *Driver) Persistent(ctx context.Context) ([]string, error) {
	entries, err := os.ReadDir(d.opts.KeepDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("looking for running sandboxes: %w", err)
	}
	var ids []string
	for _, entry := range entries {
		// The note is written before the socket is made, and removed after it.
		id, ok := strings.CutSuffix(entry.Name(), ".json")
		if !ok {
			id, ok = strings.CutSuffix(entry.Name(), ".sock")
		}
		if ok && !slices.Contains(ids, id) && d.mayRun(id) {
			ids = append(ids, id)
		}
	}
	return ids, ctx.Err()
}

// mayRun reports whether the guest of a sandbox in KeepDir runs, or may: by its
// note, and where the note tells nothing by whether its socket is listened on.
func (d *Driver) mayRun(id string) bool {
	var st state
	data, err := os.ReadFile(noted(d.opts.KeepDir, id))
	if err == nil && json.Unmarshal(data, &st) == nil && st.PID > 1 {
		if _, err := d.ours(id, st); errors.Is(err, errElsewhere) {
			return false
		}
		lives, err := st.lives()
		return lives || err != nil
	}
	listens, err := listensAt(filepath.Join(d.opts.KeepDir, id+".sock"))
	return listens || err != nil
}

// errElsewhere is in the error of a sandbox of another data directory that is known.
var errElsewhere = fmt.Errorf("%w", sandpit.ErrState)

// place identifies a directory, also after it was renamed. Neither a copy nor a snapshot
// of it is the same place. The socket on which a guest listens keeps the kernel from using
// the numbers again.
type place struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// placeOf identifies a directory, or returns nil if that is impossible.
func placeOf(dir string) *place {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return nil
	}
	return &place{uint64(st.Dev), st.Ino}
}

func (p *place) is(other *place) bool { return p != nil && other != nil && *p == *other }

// ours returns where the socket of a sandbox is. The error matches sandpit.ErrState if
// the sandbox lives and was not made in KeepDir: its note, or the record with its handle,
// came there in a copy, and moving to another disk also makes a copy. The error is
// errElsewhere if the directory in which the sandbox was made is still at its place.
func (d *Driver) ours(id string, st state) (string, error) {
	own := filepath.Join(d.opts.KeepDir, id+".sock")
	here, there := placeOf(d.opts.KeepDir), placeOf(filepath.Dir(st.Socket))
	made := st.Place
	if made == nil {
		made = there // earlier versions did not write it down
	}
	if made.is(here) {
		return own, nil
	}
	lives, err := st.lives()
	if err != nil || !lives {
		return own, err
	}
	_, err = os.Lstat(st.Socket)
	gone := errors.Is(err, fs.ErrNotExist)
	if made.is(there) && !gone {
		return "", sandpit.WithHint(fmt.Errorf("it belongs to %s in another data directory: %w", filepath.Dir(st.Socket), errElsewhere),
			"use the original data directory, or remove this one if it is a copy")
	}
	if st.Place == nil && gone {
		if listens, err := listensAt(own); listens || err != nil {
			return own, err
		}
	}
	return "", sandpit.WithHint(fault.Errorf(sandpit.ErrState, "it is running as process %d and was created in another directory, which was %s", st.PID, filepath.Dir(st.Socket)),
		fmt.Sprintf("if the original data directory exists elsewhere, use that one; if this one was moved from another disk, or the original was removed, end the sandbox with 'kill -9 %d' and restart the server", st.PID))
}

// listensAt reports whether somebody listens on a socket. An error says that it
// can't be told.
func listensAt(path string) (bool, error) {
	conn, err := dialAt(path)
	switch {
	case err == nil:
		_ = conn.Close()
		return true, nil
	case errors.Is(err, unix.EAGAIN):
		return true, nil
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, err
}

// openPersistent opens the first process of a sandbox, and reports whether it lives.
// An error, for example a lack of descriptors, means that this is unknown.
func (c *creation) openPersistent() (lives bool, err error) {
	pidfd, openErr := unix.PidfdOpen(c.first.PID, 0)
	// Asked second: the pidfd now is of what lives, or of nothing.
	lives, err = c.first.lives()
	if err == nil && lives {
		err = os.NewSyscallError("pidfd_open", openErr)
	}
	if err == nil && lives {
		c.child = sysprog.Child{PID: c.first.PID, PidFD: pidfd}
	} else if openErr == nil {
		unix.Close(pidfd)
	}
	return lives, err
}

var _ driver.Sweeper = (*Driver)(nil)

// Sweep removes the cgroups of blanks and unfinished sandboxes whose maker was killed, and
// unused records of ids. See driver.Sweeper.
func (d *Driver) Sweep(context.Context) int {
	n := 0
	if layout, err := d.layout(); err == nil {
		n = layout.Sweep()
	}
	names, _ := filepath.Glob(filepath.Join(idRecords, "*"))
	for _, name := range names {
		var id identity
		// One that is being written can't be read, or its process lives.
		if data, err := os.ReadFile(name); err != nil || json.Unmarshal(data, &id) != nil {
			continue
		}
		if lives, err := id.lives(); err == nil && !lives && os.Remove(name) == nil {
			n++
		}
	}
	return n
}

// recall makes of a handle what Create once had.
func (d *Driver) recall(ctx context.Context, h driver.Handle) (*creation, error) {
	c := d.newCreation(h.ID, driver.BlankPlan{})
	c.progress = driver.ProgressOf(ctx)
	if err := c.step(ctx, "recover"); err != nil {
		return nil, err
	}
	if h.Version > driver.HandleVersion {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "adopting sandbox %s: it was created by a newer version of Sandpit", h.ID), "use that version or a newer one")
	}
	if len(h.State) == 0 && h.Driver == Name {
		// Its maker was killed before it wrote the handle down.
		data, err := os.ReadFile(noted(d.opts.KeepDir, filepath.Base(h.ID)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("adopting sandbox %s: %w", h.ID, err)
		}
		if err != nil {
			_ = os.Remove(noted(d.opts.KeepDir, filepath.Base(h.ID)) + "~")
			// Its guest was never told to live on: it ends, and takes a while to.
			if layout, err := d.layout(); err == nil {
				if err := layout.Discard(h.ID); err != nil {
					return nil, fmt.Errorf("removing the remains of sandbox %s: %w", h.ID, err)
				}
			}
			return nil, fmt.Errorf("adopting sandbox %s: %w", h.ID, sandpit.ErrNotFound)
		}
		h.State = data
	}
	var st state
	if err := json.Unmarshal(h.State, &st); err != nil || h.Driver != Name || st.PID <= 1 || st.Boot == "" {
		return nil, fault.Errorf(sandpit.ErrInvalid, "adopting sandbox %s: its handle does not belong to this driver", h.ID)
	}
	if filepath.Base(st.Socket) != h.ID+".sock" {
		return nil, fault.Errorf(sandpit.ErrInvalid, "adopting sandbox %s: it is not persistent", h.ID)
	}
	c.ids.base, c.child.PID = st.IDBase, st.PID
	c.first, c.socket, c.saved = st.identity, st.Socket, st.Group
	c.place, c.noSetID = st.Place, st.NoSetID
	return c, nil
}

// hold claims the range again. Somebody who looks at the range at this moment
// has it, and will find that it is taken.
func (m *idMap) hold() error {
	fd, err := openClaims()
	if err != nil {
		return err
	}
	if err := claim.Take(fd, int64(rangeNumber(m.base))); err != nil && !errors.Is(err, claim.ErrTaken) {
		unix.Close(fd)
		return err
	}
	m.lock = fd
	return nil
}
