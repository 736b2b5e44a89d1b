package linux

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/claim"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// idMap maps the ids of a sandbox to those of the host.
type idMap struct {
	kind           idKind
	uidMap, gidMap string // the lines of uid_map and gid_map, user_namespaces(7)
	uid, gid       uint32 // inside, of the guest
	multi          bool   // more than one user exists inside
	mapped         bool   // mount trees are given to the child with their ids mapped
	helpers        bool   // the maps must be written by newuidmap and newgidmap

	// otherUID and otherGID are the last ids that exist inside, if there is more than
	// one: those least likely to own files of the host.
	otherUID, otherGID uint32

	// base is the first host id of a range that is the sandbox's own, held by
	// lock, or 0. It is also the user who owns its user namespace, by whom the
	// kernel counts what all its users have together.
	base uint32
	lock int
}

// close releases the range of host ids.
func (m *idMap) close() {
	if m.lock >= 0 {
		unix.Close(m.lock)
		m.lock = -1
	}
}

const (
	// rangeSize is how many ids a sandbox has: all of 16 bits, so that
	// nobody (65534) exists.
	rangeSize = 1 << 16

	// The ranges lie above those that systemd and subordinate ids use and
	// below 2^31, where programs and file systems begin to fail:
	// systemd's UIDS-GIDS.md calls 0x70000000 to 0x7FFDFFFF unused.
	firstRange = 0x70000000
	ranges     = (0x7FFE0000 - 0x70000000) / rangeSize
)

// idClaims is the file in which sandboxes claim their ranges, by number. Like
// idRecords it is the machine's. Only root may open it: nobody else can take
// ranges away.
const idClaims = "/run/sandpit/ids.lock"

// chooseRange takes a range of host ids that no other sandbox on this machine
// has. It is held by a claim, which the kernel drops when the last holder has
// gone, whatever it died of.
func chooseRange() (base uint32, lock int, err error) {
	fd, err := openClaims()
	if err != nil {
		return 0, -1, err
	}
	base, err = claimRange(fd)
	if err != nil {
		unix.Close(fd)
		return 0, -1, fmt.Errorf("choosing user ids: %w", err)
	}
	return base, fd, nil
}

func claimRange(fd int) (base uint32, err error) {
	start := rand.IntN(ranges)
	for i := range ranges {
		n := (start + i) % ranges
		err := claim.Take(fd, int64(n))
		if errors.Is(err, claim.ErrTaken) {
			continue
		}
		if err != nil {
			return 0, err
		}
		base := uint32(firstRange + n*rangeSize)
		if !rangeTaken(base) {
			return base, nil
		}
		if err := claim.Drop(fd, int64(n)); err != nil {
			return 0, err
		}
	}
	return 0, fault.Errorf(sandpit.ErrExhausted, "all %d ranges of user ids are in use", ranges)
}

func openClaims() (int, error) {
	fd, err := claim.Open(idClaims)
	if err == nil {
		return fd, nil
	}
	hint := "make /run writable for root; in a container, mount a tmpfs there"
	if more := sandpit.Hint(err); more != "" {
		hint = more
	}
	return -1, sandpit.WithHint(fmt.Errorf("choosing user ids: %w", err), hint)
}

// rangeNumber is the number of a range, from 0.
func rangeNumber(base uint32) int { return int(base-firstRange) / rangeSize }

// idKind is a way to map the ids of sandboxes.
type idKind int

const (
	idsOwn    idKind = iota // a range of the sandbox's own, and mounts mapped to it
	idsSame                 // those of the host
	idsShared               // the subordinate ids of this user
	idsSingle               // one user
)

// idKind decides how the ids of a sandbox map. multi asks for others beside its
// user, mappable says that the ids of its layers and binds can be mapped.
func (h *host) idKind(multi, mappable bool) idKind {
	switch {
	case h.allIDs && mappable:
		return idsOwn
	case h.privileged:
		// No mount can have its ids mapped here (a file system below the
		// store can't, or this is a container with few ids of its own): the
		// ids inside are those outside.
		return idsSame
	case multi && h.subIDs() == nil:
		return idsShared
	}
	return idsSingle
}

// chooseIDs chooses the ids of a sandbox. uid and gid are those of its user.
func (h *host) chooseIDs(uid, gid uint32, kind idKind) (idMap, error) {
	m := idMap{kind: kind, lock: -1}
	switch kind {
	case idsOwn:
		var err error
		if m.base, m.lock, err = chooseRange(); err != nil {
			return m, err
		}
		line := fmt.Sprintf("0 %d %d\n", m.base, rangeSize)
		m.uidMap, m.gidMap, m.multi, m.mapped = line, line, true, true
		m.otherUID, m.otherGID = rangeSize-1, rangeSize-1
	case idsSame:
		if h.allIDs {
			// None of them exists inside, but the counters are its own.
			var err error
			if m.base, m.lock, err = chooseRange(); err != nil {
				return m, err
			}
		}
		line := func(n uint32) string { return fmt.Sprintf("0 0 %d\n", n) }
		m.uidMap, m.gidMap, m.multi = line(h.uids), line(h.gids), true
		m.otherUID, m.otherGID = h.uids-1, h.gids-1
	case idsShared:
		m.helpers, m.multi = true, true
		m.otherUID, m.otherGID = min(h.subuid.count, rangeSize-1), min(h.subgid.count, rangeSize-1)
		m.uidMap = fmt.Sprintf("0 %d 1 1 %d %d", h.euid, h.subuid.first, m.otherUID)
		m.gidMap = fmt.Sprintf("0 %d 1 1 %d %d", h.egid, h.subgid.first, m.otherGID)
	case idsSingle:
		m.uid, m.gid = uid, gid
		m.uidMap = fmt.Sprintf("%d %d 1\n", uid, h.euid)
		m.gidMap = fmt.Sprintf("%d %d 1\n", gid, h.egid)
	}
	return m, nil
}

// write writes the id maps of a child. While this program is not dumpable an
// ordinary user may not.
func (m *idMap) write(ctx context.Context, pid int) error {
	if m.helpers {
		for _, f := range []struct{ tool, lines string }{{"newuidmap", m.uidMap}, {"newgidmap", m.gidMap}} {
			cmd := exec.CommandContext(ctx, f.tool, append([]string{strconv.Itoa(pid)}, strings.Fields(f.lines)...)...)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("mapping ids with %s: %w: %s", f.tool, err, bytes.TrimSpace(out))
			}
		}
		return nil
	}
	write := func(name, data string) (err error) {
		for range 100 {
			err = writeProc("/proc/"+strconv.Itoa(pid)+"/"+name, data)
			if !errors.Is(err, unix.EACCES) || !processDumpable.restore() {
				break
			}
		}
		return err
	}
	if err := write("uid_map", m.uidMap); err != nil {
		return err
	}
	if !m.multi {
		// Without it an ordinary user may not write gid_map, user_namespaces(7).
		if err := write("setgroups", "deny"); err != nil {
			return err
		}
	}
	return write("gid_map", m.gidMap)
}

// writeProc writes a file of a child in /proc.
func writeProc(name, data string) error {
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte(data))
		unix.Close(fd)
	}
	if err != nil {
		return &fs.PathError{Op: "writing", Path: name, Err: err}
	}
	return nil
}

// subRange is a line of /etc/subuid or /etc/subgid, subuid(5).
type subRange struct{ first, count uint32 }

// subIDs finds the subordinate ids of an ordinary user, and the set-uid tools
// that map them. A nil error says that they can be used.
func (h *host) subIDs() error {
	h.subOnce.Do(func() {
		h.subErr = func() error {
			name := strconv.Itoa(h.euid)
			if u, err := user.LookupId(name); err == nil {
				name = u.Username
			}
			for _, f := range []struct {
				file, tool string
				r          *subRange
			}{{"/etc/subuid", "newuidmap", &h.subuid}, {"/etc/subgid", "newgidmap", &h.subgid}} {
				if _, err := exec.LookPath(f.tool); err != nil {
					return fmt.Errorf("%s is not installed (Debian's package uidmap)", f.tool)
				}
				data, err := os.ReadFile(f.file)
				if err != nil {
					return err
				}
				r, ok := parseSubIDs(data, name, h.euid)
				if !ok {
					return fmt.Errorf("%s has no range of at least 1000 ids for %s", f.file, name)
				}
				*f.r = r
			}
			return nil
		}()
	})
	return h.subErr
}

// parseSubIDs finds the first range of at least 1,000 ids of a user in the
// text of /etc/subuid: "name:first:count" lines.
func parseSubIDs(data []byte, name string, uid int) (subRange, bool) {
	sc := bufio.NewScanner(bytes.NewReader(data))
	for sc.Scan() {
		f := strings.Split(strings.TrimSpace(sc.Text()), ":")
		if len(f) != 3 || (f[0] != name && f[0] != strconv.Itoa(uid)) {
			continue
		}
		first, err1 := strconv.ParseUint(f[1], 10, 32)
		count, err2 := strconv.ParseUint(f[2], 10, 32)
		if err1 == nil && err2 == nil && first > 0 && count >= 1000 {
			return subRange{uint32(first), uint32(count)}, true
		}
	}
	return subRange{}, false
}

// idNamespace makes a user namespace that maps the host's uid and gid to those
// of a sandbox's user, for a mount whose owner is that user. It returns a
// descriptor of the namespace.
func idNamespace(hostUID, hostGID, uid, gid uint32) (int, error) {
	var p sysprog.Program
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, os.NewSyscallError("pipe2", err)
	}
	defer unix.Close(fds[1])
	defer unix.Close(fds[0])
	// The child only waits, for a byte that never comes: it is killed. Its
	// parent is this thread, which no other goroutine may end meanwhile.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p.Call("dying with the owner", unix.SYS_PRCTL, sysprog.Int(unix.PR_SET_PDEATHSIG), sysprog.Int(int(unix.SIGKILL)))
	p.Call("waiting", unix.SYS_READ, sysprog.Int(fds[0]), p.Bytes(make([]byte, 1)), sysprog.Int(1))
	child, err := p.Fork(sysprog.ForkOptions{Flags: unix.CLONE_NEWUSER, Cgroup: -1, Report: -1})
	if err != nil {
		return -1, err
	}
	defer func() {
		_ = unix.Kill(child.PID, unix.SIGKILL)
		reap(child.PID)
		child.Release()
	}()
	dir := "/proc/" + strconv.Itoa(child.PID)
	if err := writeProc(dir+"/uid_map", fmt.Sprintf("%d %d 1\n", hostUID, uid)); err != nil {
		return -1, err
	}
	if err := writeProc(dir+"/gid_map", fmt.Sprintf("%d %d 1\n", hostGID, gid)); err != nil {
		return -1, err
	}
	fd, err := unix.Open(dir+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "opening", Path: dir + "/ns/user", Err: err}
	}
	return fd, nil
}

// reap waits for a dying child, and returns its exit status: 0 if all its steps succeeded.
func reap(pid int) syscall.WaitStatus {
	for {
		status := syscall.WaitStatus(^uint32(0))
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != syscall.EINTR {
			return status
		}
	}
}
