package linux

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cgroup"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// A sandbox that outlives its maker has three things on the host beside its
// processes and cgroups: a socket on which its guest listens, by which another
// process finds it; its cgroups' names in the handle; and, where it has a range
// of ids, a record that the range is taken, since the claim that holds it for
// others ends with the maker.

// identity identifies a process, even if its pid is reused.
type identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since the machine started, field 22 of proc_pid_stat(5)
	Boot  string `json:"boot"`  // of the machine: /proc/sys/kernel/random/boot_id
}

// identify returns the identity of a process. The error matches fs.ErrNotExist if there is
// none, or it is dead and not yet reaped.
func identify(pid int) (identity, error) {
	name := "/proc/" + strconv.Itoa(pid) + "/stat"
	data, err := os.ReadFile(name)
	if errors.Is(err, unix.ESRCH) {
		err = &fs.PathError{Op: "reading", Path: name, Err: fs.ErrNotExist}
	}
	if err != nil {
		return identity{}, err
	}
	// The name of the program, in brackets, may hold anything.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	const state, threads, start = 0, 17, 19 // the third, the 20th and the 22nd: the first after the name is the third
	if len(fields) <= start {
		return identity{}, fmt.Errorf("reading %s: %q is not understood", name, data)
	}
	// Its first thread may be dead while another waits in the kernel.
	if s := fields[state]; (s == "Z" || s == "X") && fields[threads] <= "1" {
		return identity{}, &fs.PathError{Op: "reading", Path: name, Err: fs.ErrNotExist}
	}
	id := identity{PID: pid}
	if id.Start, err = strconv.ParseUint(fields[start], 10, 64); err != nil {
		return identity{}, fmt.Errorf("reading %s: %w", name, err)
	}
	id.Boot, err = bootID()
	return id, err
}

// bootID identifies this boot of the machine.
func bootID() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(boot)), err
}

// restarted reports whether the machine was restarted since the process existed.
func (id identity) restarted() bool {
	now, err := bootID()
	return err == nil && now != id.Boot
}

// lives reports whether the process exists. An error means that this is unknown.
func (id identity) lives() (bool, error) {
	now, err := identify(id.PID)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && now == id, err
}

// idRecords is the directory with a file for each range of ids of a sandbox that may have
// lost its maker. Like the ranges, it is per machine, and empty after a restart of the
// machine.
const idRecords = "/run/sandpit/ids"

func idRecord(base uint32) string {
	return filepath.Join(idRecords, strconv.Itoa(rangeNumber(base)))
}

// rangeTaken reports whether a sandbox without a maker has the range, of which
// the caller holds the claim.
func rangeTaken(base uint32) bool {
	data, err := os.ReadFile(idRecord(base))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	var id identity
	if json.Unmarshal(data, &id) != nil {
		return false // it was being written by a maker that died
	}
	lives, err := id.lives()
	return lives || err != nil
}

// recordRange records the owner of the range.
func recordRange(base uint32, id identity) error {
	data, err := json.Marshal(id)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(idRecords, 0o755); err != nil {
		return fmt.Errorf("recording the sandbox's ids: %w", err)
	}
	if err := os.WriteFile(idRecord(base), data, 0o600); err != nil {
		return fmt.Errorf("recording the sandbox's ids: %w", err)
	}
	return nil
}

// keep gives the guest a socket of its own to listen on and writes down what
// another process needs, so that the sandbox outlives this one. Up to its last
// step the guest ends with this process.
func (c *creation) keep() error {
	dir := c.driver.opts.KeepDir
	if dir == "" {
		return fault.Errorf(sandpit.ErrUnsupported, "making a sandbox persistent: this driver has no directory for it")
	}
	var err error
	if c.first, err = identify(c.child.PID); err != nil {
		return c.explainDeath(err)
	}
	if c.ids.base != 0 {
		if err := recordRange(c.ids.base, c.first); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making a sandbox persistent: %w", err)
	}
	c.socket, c.place = filepath.Join(dir, c.id+".sock"), placeOf(dir)
	if err := c.note(); err != nil {
		return fmt.Errorf("recording the sandbox: %w", err)
	}
	l, err := listenAt(c.socket)
	if err != nil {
		return fmt.Errorf("creating the sandbox's socket: %w", err)
	}
	defer unix.Close(l)
	if err := send(c.socks[0], listenMessage, []int{l}); err != nil {
		return c.explainDeath(err)
	}
	return nil
}

// noted is the file that has a sandbox's state before its guest outlives this
// process: its maker may be killed before it could write the handle down.
func noted(dir, id string) string { return filepath.Join(dir, id+".json") }

// note writes that file atomically.
func (c *creation) note() error {
	name := noted(filepath.Dir(c.socket), c.id)
	if err := os.WriteFile(name+"~", c.state(), 0o600); err != nil {
		return err
	}
	return os.Rename(name+"~", name)
}

// state is the driver's part of a handle.
func (c *creation) state() json.RawMessage {
	st := state{identity: c.first, Socket: c.socket, Place: c.place, IDBase: c.ids.base, Group: c.saved, NoSetID: c.noSetID}
	if st.PID == 0 {
		st.PID = c.child.PID
	}
	if c.group != nil {
		st.Group = new(c.group.Save())
	}
	data, _ := json.Marshal(st) // of strings and numbers: can't fail
	return data
}

// listenAt makes a socket that only its owner may connect to.
func listenAt(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	dir, release, err := shortDir(filepath.Dir(path))
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: dir + "/" + filepath.Base(path)})
		release()
	}
	if err == nil {
		err = unix.Chmod(path, 0o600)
	}
	if err == nil {
		err = unix.Listen(fd, 16)
	}
	if err != nil {
		unix.Close(fd)
		return -1, &fs.PathError{Op: "listening on", Path: path, Err: err}
	}
	return fd, nil
}

// shortDir returns a name for a directory that leaves room in sun_path, which holds 108
// bytes, unix(7). It is valid until release is called.
func shortDir(dir string) (short string, release func(), err error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &fs.PathError{Op: "opening", Path: dir, Err: err}
	}
	return "/proc/self/fd/" + strconv.Itoa(fd), func() { unix.Close(fd) }, nil
}

// dialAt connects to a kept sandbox's guest.
func dialAt(path string) (net.Conn, error) {
	dir, release, err := shortDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer release()
	return net.Dial("unix", dir+"/"+filepath.Base(path))
}

func (i *instance) dialPersistent() (net.Conn, error) {
	i.mu.Lock()
	closed := i.closed
	i.mu.Unlock()
	var conn net.Conn
	err := net.ErrClosed
	if !closed {
		conn, err = dialAt(i.socket)
	}
	if err != nil {
		kind := sandpit.ErrClosed
		if errors.Is(err, unix.EAGAIN) {
			kind = sandpit.ErrExhausted // it takes none of those that wait for it
		}
		return nil, fmt.Errorf("dialling the guest of %s: %w (%w)", i.id, kind, err)
	}
	return conn, nil
}

// Leave gives the sandbox up without touching it. See driver.Leaver.
func (i *instance) Leave() {
	i.destroy.Do(func() {
		i.mu.Lock()
		i.closed, i.left = true, true
		ended := false
		select {
		case <-i.done:
			ended = true
		default:
		}
		i.mu.Unlock()
		i.destroyErr = sandpit.ErrClosed
		i.closeSockets()
		if i.group != nil {
			i.group.Leave()
		}
		if i.adopted || ended {
			i.pidfd.Close() // a child of ours is waited for until it ends
		}
		i.ids.close()
	})
}

// owned returns sandpit.ErrClosed after Leave.
func (i *instance) owned() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.left {
		return fault.Errorf(sandpit.ErrClosed, "sandbox %s was left", i.id)
	}
	return nil
}

// Freeze stops all processes of the sandbox. See driver.Freezer.
func (i *instance) Freeze(context.Context) error {
	if err := i.owned(); err != nil {
		return err
	}
	if i.group == nil {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "freezing: the sandbox has no cgroup"),
			"see 'sandpit doctor' for how to make cgroups available")
	}
	return i.group.Freeze()
}

// Thaw resumes all processes. See driver.Freezer.
func (i *instance) Thaw(context.Context) error {
	if i.group == nil {
		return i.owned()
	}
	return i.group.Thaw()
}

// Frozen reports whether the processes are stopped. See driver.Freezer.
func (i *instance) Frozen(context.Context) (bool, error) {
	if i.group == nil {
		return false, i.owned()
	}
	return i.group.Frozen()
}

var (
	_ driver.Leaver  = (*instance)(nil)
	_ driver.Exposer = (*instance)(nil)
	_ driver.Freezer = (*instance)(nil)
)

// forgetPersistent removes what keep has made.
func (c *creation) forgetPersistent() error {
	var errs []error
	if c.socket != "" {
		if err := os.Remove(c.socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		name := noted(filepath.Dir(c.socket), c.id)
		_ = os.Remove(name + "~")
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if c.first.PID != 0 && c.ids.base != 0 {
		if err := os.Remove(idRecord(c.ids.base)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// state is the driver's part of a handle.
type state struct {
	identity
	Socket string        `json:"socket,omitempty"`
	Place  *place        `json:"place,omitempty"` // of the directory of the socket
	IDBase uint32        `json:"id_base,omitempty"`
	Group  *cgroup.Saved `json:"group,omitempty"`
	// NoSetID says that no program in it can set a set-id bit on a file of the host.
	// Earlier versions did not write it, and did not see to it.
	NoSetID bool `json:"no_set_id,omitempty"`
}
