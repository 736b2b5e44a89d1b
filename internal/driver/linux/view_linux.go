package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

var _ driver.Viewer = (*instance)(nil)

// View opens the root of the guest, an overlay. See driver.Viewer. The guest is not asked.
func (i *instance) View() (driver.View, error) {
	if err := i.owned(); err != nil {
		return driver.View{}, err
	}
	v, err := i.view()
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			err = fault.Errorf(sandpit.ErrUnsupported, "%w", err)
		}
		return v, fmt.Errorf("reading the files of sandbox %s: %w", i.id, err)
	}
	return v, nil
}

func (i *instance) view() (v driver.View, err error) {
	raw, err := i.pidfd.SyscallConn()
	if err != nil {
		return v, err
	}
	proc := "/proc/" + strconv.Itoa(i.child.PID)
	fd, err := unix.Open(proc+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return v, i.orDied(&fs.PathError{Op: "open", Path: proc + "/root", Err: err})
	}
	v.Root = os.NewFile(uintptr(fd), proc+"/root")
	uids, uidErr := os.ReadFile(proc + "/uid_map")
	gids, gidErr := os.ReadFile(proc + "/gid_map")
	v.UIDMap, v.GIDMap = string(uids), string(gids)
	err = errors.Join(uidErr, gidErr)
	var st unix.Statfs_t
	if err == nil {
		err = unix.Fstatfs(fd, &st)
	}
	if err == nil && st.Type != unix.OVERLAYFS_SUPER_MAGIC {
		err = errors.New("its root is not an overlay")
	}
	// A process that lives now was there all the time, and is the guest.
	var alive error
	if cerr := raw.Control(func(pidfd uintptr) { alive = unix.PidfdSendSignal(int(pidfd), 0, nil, 0) }); cerr != nil || alive != nil {
		err = fault.Errorf(sandpit.ErrClosed, "it has ended")
	}
	if err != nil {
		v.Root.Close()
		return driver.View{}, err
	}
	return v, nil
}

// orDied returns err, or that the guest has died, of which err is a consequence.
func (i *instance) orDied(err error) error {
	select {
	case <-i.done:
		return fault.Errorf(sandpit.ErrClosed, "it has ended")
	default:
		return err
	}
}
