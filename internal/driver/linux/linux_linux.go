package linux

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cgroup"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

// Name is the driver's name.
const Name = "linux"

// namespaces are those that clone makes. The child makes its cgroup namespace
// once it is in its cgroup, and its network namespace while its owner is busy.
const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// Options configure a driver.
type Options struct {
	// Dir is the directory of the embedded guest program. It is made if it is missing.
	Dir string

	// Guest is the guest program. If it is nil, this program is its own guest, and its
	// main function must provide for that (see GuestName).
	Guest []byte

	// GuestDigest identifies the build of Guest, in hexadecimal. If it is empty, it is
	// computed, which takes a few milliseconds.
	GuestDigest string

	// KeepDir is the directory of the sockets of sandboxes that outlive their maker
	// (driver.Plan.Ephemeral). It is made if it is missing. If it is empty, such sandboxes
	// are refused.
	KeepDir string

	// Private are the data directories of this user, which no sandbox may see, whether
	// they exist or not. They are covered in mounts that contain them, and made if they
	// are missing. Nothing in them can be mounted.
	Private []string

	// PrivateOfOthers, if set, returns those of other users, and others that must not be
	// made, each with its owner's id: links on the way lead only to directories of this
	// owner, or nowhere if it is -1.
	PrivateOfOthers func() map[string][]int

	// Fault, if set, is called before each step of Create, Destroy and Recover with its
	// name. An error makes a step of Create fail. It is for tests of cleanup and of steps
	// that never end.
	Fault func(step string) error
}

// Driver makes sandboxes on this machine. It implements driver.Driver.
type Driver struct {
	opts     Options
	host     func() (*host, error)
	layout   func() (*cgroup.Layout, error)
	parent   parent
	reserved reservedFDs
	low      lowered
	ending   *turnstile

	storing sync.Mutex // held while the guest program is looked for and stored: see guestFile
}

var _ driver.Driver = (*Driver)(nil)

// New returns a driver.
func New(opts Options) *Driver {
	return &Driver{
		opts:     opts,
		host:     sync.OnceValues(findHost),
		layout:   sync.OnceValues(cgroup.Detect),
		ending:   newTurnstile(maxEnding),
		reserved: reservedFDs{lent: make(chan struct{}, 1)},
	}
}

// Name returns "linux".
func (d *Driver) Name() string { return Name }

// leastDescriptors is the minimum of descriptors for this program: those of a sandbox in
// the making, on a machine with all hierarchies of cgroup v1, and of a few mounts.
const leastDescriptors = 64

// checkDescriptors reports a limit that would otherwise fail later with an unclear error.
func checkDescriptors() error {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err == nil && lim.Cur < leastDescriptors {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrExhausted, "creating a sandbox: this program may open only %d files", lim.Cur),
			fmt.Sprintf("raise the limit to at least %d (ulimit -n)", leastDescriptors))
	}
	return nil
}

// refuseMissing refuses features that this driver does not know, or can't do here.
// Limits that it can't enforce are refused where they are set.
func (d *Driver) refuseMissing(ctx context.Context, enforce feature.Set) error {
	for f, on := range enforce {
		if !on || f.IsLimit() {
			continue
		}
		if !slices.Contains(feature.All(), f) {
			return fault.Errorf(sandpit.ErrUnsupported, "enforcing %s: this driver does not support it", f)
		}
		if _, _, err := d.Probe(ctx).Negotiate([]feature.Feature{f}, &sandpit.Limits{}); err != nil {
			return err
		}
	}
	return nil
}

// baseDirs are directories that exist on every Linux machine. The sandbox is
// built on one of them, in a mount namespace of its own.
var baseDirs = []string{"/tmp", "/run", "/mnt", "/proc"}

func baseDir() string {
	i := slices.IndexFunc(baseDirs, func(d string) bool {
		var st unix.Stat_t
		return unix.Stat(d, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
	})
	return baseDirs[max(i, 0)]
}
