// Package driver is the contract between the engine and the backends that make
// sandboxes. There is one driver for each kind of backend.
//
// A driver makes an isolated place with a guest in it, and a byte stream to that
// guest. It does not start programs in the sandbox or touch its files. The guest does
// that, over the guest protocol, in the same way on every driver. So the host never
// resolves a path of a sandbox, and a path that is swapped between check and use, which is
// behind most container escapes, does no harm.
//
// Package drivertest tests every promise that this package states. An interface that
// is marked as optional is found by type assertion.
package driver

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

// A Driver makes sandboxes on one kind of backend. All methods are safe for concurrent use.
type Driver interface {
	// Name returns the driver's name: "linux", "oci", …
	Name() string

	// Probe returns what the driver can enforce on this machine for this user. It
	// makes no sandbox and leaves nothing behind. It may be called often, so a driver
	// remembers what can't change while it runs.
	Probe(ctx context.Context) Capabilities

	// Create makes a sandbox exactly as the plan says and returns when its guest can
	// be dialled. If it returns an error, which it also does when ctx ends first,
	// nothing is left of the sandbox: no process, mount, namespace, cgroup or file.
	// If the plan asks for something that the driver can't do, the error matches
	// sandpit.ErrUnsupported. Nothing in a plan is ever ignored.
	Create(ctx context.Context, plan Plan) (Instance, error)
}

// An Examiner is a driver that can look more closely than Probe, at some cost, for a user who asks
// what works here. Optional.
type Examiner interface {
	// Examine returns what Probe returns, with Facts, and with what it found out by
	// trying. It leaves nothing behind.
	Examine(ctx context.Context) Capabilities
}

// A Recoverer is a driver whose instances outlive the process that made them, unless
// their Plan is Ephemeral. Its instances are Leavers. Optional.
type Recoverer interface {
	// Recover takes over an instance whose owner has died or has left it. The
	// processes of the sandbox notice nothing. The error matches
	//
	//   - sandpit.ErrNotFound if the instance no longer exists. Recover has then
	//     removed what was left of it. The error also matches ErrRestarted if the
	//     machine was restarted meanwhile.
	//   - sandpit.ErrExists if its owner is alive. A driver that can't always tell
	//     says so in its documentation.
	//   - sandpit.ErrState if the instance belongs to another data directory, of which
	//     this one is a copy.
	//   - sandpit.ErrUnsupported if the handle has a newer version, and
	//     sandpit.ErrInvalid if it is not one of this driver or of an Ephemeral
	//     instance.
	//
	// A handle without a State stands for an instance whose Create may have been
	// interrupted at any point, or that is recovered only to be destroyed.
	Recover(ctx context.Context, h Handle) (Instance, error)

	// Persistent returns the IDs of the instances that can outlive their owner and whose
	// guests still run. It needs no handles, so it also finds instances whose handles
	// were lost. A Handle without a State is enough to recover them. Persistent changes
	// nothing.
	Persistent(ctx context.Context) ([]string, error)
}

// ErrRestarted says that the machine of an instance was restarted.
var ErrRestarted = errors.New("the machine was restarted")

// An Exposer is an Instance that knows whether its sandbox sees a data directory.
// Optional.
type Exposer interface {
	// Exposed returns a data directory that a mount of the sandbox shows, or "". Only
	// a sandbox that an older version made, or one made without knowledge of that
	// directory, can show one.
	Exposed() string
}

// A Leaver is an Instance that can be given up without being touched. Optional, except
// for instances of a Recoverer.
type Leaver interface {
	// Leave closes what this process holds of the instance, which lives on for
	// Recover. Every later call that can fail returns sandpit.ErrClosed. Leave is
	// idempotent. After Destroy it does nothing.
	Leave()
}

// An OOMCounter is an Instance that can count out-of-memory kills and refused processes at
// little cost, since the engine asks after every command. Optional; Stats has the same numbers.
type OOMCounter interface {
	// OOMKills returns what Metrics.OOMKills would be, -1 if it is unknown.
	OOMKills() (int64, error)

	// PidsRefused returns what Metrics.PidsRefused would be, -1 if it is unknown.
	PidsRefused() (int64, error)
}

// A Limiter is an Instance whose limits can be changed while it runs, also while it is
// frozen. A driver with Capabilities.Changeable makes only Limiters. Optional otherwise.
type Limiter interface {
	// SetLimits changes the limits that are not 0. The error matches
	// sandpit.ErrUnsupported if one of them is not in Capabilities.Changeable or the
	// instance was made without it, and sandpit.ErrState if more memory is in use than
	// the new limit allows, of which the kernel can free none. In both cases nothing has
	// changed. After any other error, set the former limits again.
	SetLimits(ctx context.Context, limits sandpit.Limits) error
}

// A Freezer is an Instance whose processes, including its guest, can be stopped and
// resumed. A driver with feature.Pause makes only Freezers. Optional otherwise.
type Freezer interface {
	// Freeze stops all processes and returns when they have stopped. They then use no
	// processor time and the guest answers nothing. If a process can't be stopped
	// within seconds, all run on and Freeze returns an error. The error matches
	// sandpit.ErrUnsupported if this machine can't freeze. Freezing a frozen instance
	// is a no-op.
	Freeze(ctx context.Context) error

	// Thaw resumes a frozen instance. Thawing a running instance is a no-op.
	Thaw(ctx context.Context) error

	// Frozen reports whether the processes are stopped.
	Frozen(ctx context.Context) (bool, error)
}

// A Viewer is an Instance whose root file system this process can read, also while it is frozen.
// Optional.
type Viewer interface {
	// View opens the root file system. The error matches sandpit.ErrUnsupported if this process
	// may not read it, and sandpit.ErrClosed if the guest has died.
	View() (View, error)
}

// View is the root file system of an instance. Everything in it is hostile.
type View struct {
	// Root is the root directory as the sandbox sees it, with its mounts, and opened with O_PATH
	// (open(2)). The caller closes it. Until then the files exist, even if the instance does not.
	Root *os.File

	// UIDMap and GIDMap tell which ids inside the owners of files have: uid_map and gid_map of the
	// guest, see user_namespaces(7).
	UIDMap, GIDMap string
}

// A Linker is an Instance that can be given a network interface beside its loopback. A driver
// with feature.Egress makes only Linkers. Optional otherwise.
type Linker interface {
	// Link makes the interface, or attaches to the one that is there, and returns its other
	// end: a Read returns an IP packet that the sandbox sends, and a Write delivers one to
	// it. If PacketHeader says so each of them is behind a struct virtio_net_hdr, and sums of
	// TCP and UDP may be missing. The file is non-blocking. When it is closed the interface stays, and packets are
	// lost until the next Link. As on any network, the first packets may be lost, too.
	// Destroy does not close the file: until that is closed, the kernel keeps the empty
	// network namespace. The error matches sandpit.ErrUnsupported if this machine
	// has no such interfaces, and sandpit.ErrExists if another file is open. It may be
	// called while the sandbox runs, also in another process after Recover.
	Link(ctx context.Context, l Link) (*os.File, error)

	// AllowPing says whether programs may open ICMP sockets for echo requests, which they may not
	// from the start. Sockets that are open stay. The error matches sandpit.ErrUnsupported
	// if this machine does not let it be changed, or not back. Like Link, it may be called at any time.
	AllowPing(ctx context.Context, allow bool) error
}

// Link describes a network interface. Every destination is routed to it.
type Link struct {
	MTU        int          // bytes
	IPv4, IPv6 netip.Prefix // the address inside with its network; IPv6 is left out where the machine has none
}

// A Preparer is a driver that can do part of Create ahead, before the plan is known.
// Optional.
type Preparer interface {
	// Prepare makes a blank. The id is like Plan.ID. If it returns an error, which it
	// also does when ctx ends first, nothing is left. The error matches
	// sandpit.ErrUnsupported if nothing can be done ahead, or if b enforces what this
	// driver can't.
	//
	// A blank ends with the process that made it, however that process ends. Sweep
	// removes what may then be left of it.
	Prepare(ctx context.Context, id string, b BlankPlan) (Blank, error)
}

// A Sweeper is a driver that can remove what is left of processes that were killed
// while they made something. Optional.
type Sweeper interface {
	// Sweep removes everything that belongs neither to a live process nor to an
	// instance that could be recovered. It returns the number of removed entries.
	Sweep(ctx context.Context) int
}

// BlankPlan is what must be known of a sandbox before its blank is made.
type BlankPlan struct {
	Ephemeral bool // as in Plan, and final

	// UID and GID are the user that the blank will fit, and MultiUser says whether
	// others exist beside it. Where every sandbox has all users, any blank fits.
	UID, GID  uint32
	MultiUser bool

	// Limits and Enforce are as in Plan. Bind may be given other amounts, but not
	// another set of enforced limits.
	Limits  sandpit.Limits
	Enforce feature.Set
}

// A Blank is a sandbox that is complete except for its plan: an isolated place, with a
// guest that waits. It is bound once or destroyed, and holds nothing of any other
// sandbox. All methods are safe for concurrent use.
type Blank interface {
	// ID returns the id that it was prepared with.
	ID() string

	// Fits reports whether Bind can make what Create would make of the plan. It
	// ignores the plan's ID.
	Fits(plan Plan) bool

	// Usable reports whether the blank can still be bound to some plan. It becomes
	// unusable when it is used or its guest dies, and may when the machine changes.
	// An unusable blank stays unusable; destroy it.
	Usable() bool

	// Dial opens a connection to the guest, as Instance.Dial does. The connection
	// stays good after Bind. Until Bind returns, only a greeting may be sent over it,
	// since the guest is not yet where it will be. The error matches
	// sandpit.ErrUnsupported if the guest starts only in Bind, and sandpit.ErrState if
	// the blank is used.
	Dial(ctx context.Context) (net.Conn, error)

	// Bind makes the sandbox of the plan, whose ID must be that of the blank. All
	// promises of Create hold. Bind uses the blank, even if it fails, and when it
	// fails or ctx ends first, nothing is left. The error matches sandpit.ErrState if
	// the blank was used before, which does not affect what became of it, and
	// sandpit.ErrInvalid if the plan does not fit.
	Bind(ctx context.Context, plan Plan) (Instance, error)

	// Destroy removes every trace of an unused blank and returns when that is done,
	// even if ctx has ended. It is idempotent, and a no-op once the blank is used:
	// the instance is destroyed by its own method.
	Destroy(ctx context.Context) error
}

// A BlankLinker is a Blank that can be given the interface of its plan ahead. Optional.
type BlankLinker interface {
	// Link begins to make the interface that the plan will have. Then wait is to be called, once, which
	// returns what the first Linker.Link would return, and ends when ctx does. That Link is not
	// to be called any more. All other methods may be called meanwhile, and wait for it. From then on
	// only plans with this Link fit. When it fails, the blank may be unusable. The error matches
	// sandpit.ErrState if the blank is used or has one, and sandpit.ErrUnsupported if the
	// interface can't be made ahead, which leaves the blank as it was. The caller closes the file, also
	// when the blank is destroyed.
	Link(ctx context.Context, l Link) (wait func() (*os.File, error), err error)
}

// An Instance is a sandbox, seen from outside. All methods are safe for concurrent use.
type Instance interface {
	// Handle returns what identifies the instance for Recover and for people.
	Handle() Handle

	// Dial opens a new connection to the guest. The caller closes it. The error
	// matches sandpit.ErrClosed if the guest has died.
	Dial(ctx context.Context) (net.Conn, error)

	// Stats returns what the sandbox uses now. Unknown values are -1. Disk and Files are
	// at least the limits of the plan if, and only if, nothing more fits.
	Stats(ctx context.Context) (sandpit.Metrics, error)

	// Done returns a channel that is closed when the guest has died, whatever the
	// cause.
	Done() <-chan struct{}

	// Destroy kills everything in the sandbox, removes every trace of it from the
	// machine, and returns when that is done. It is idempotent, may race with any
	// other call, and does its work even if ctx has ended.
	Destroy(ctx context.Context) error
}

// An Explainer is an Instance that may know why its guest never answered, or why it
// ended. Optional.
type Explainer interface {
	// Explain returns err with the reason, or the reason alone, or err. The caller failed
	// to reach the guest with err. Destroy has not been called yet.
	Explain(err error) error
}

// A Keeper is an Instance that may have been made with Plan.KeepLater. Optional.
type Keeper interface {
	// Keep makes the instance outlive this process, as others do from the start. Nothing has changed its
	// handle before. It is called once, before Handle. After an error the caller destroys the instance.
	Keep(ctx context.Context) error
}

// A Lacking is an Instance that may lack something that this driver enforces
// elsewhere, because an earlier version made it, or because this machine turned out to
// be unable to when it was made. Optional.
type Lacking interface {
	// Lacks returns what the sandbox lacks. Of an instance that was recovered it may
	// omit what was found out when that was made.
	Lacks() []sandpit.Gap
}

// HandleVersion is the version of Handle that this program writes.
const HandleVersion = 1

// Handle is what is stored of an instance, as JSON. Recover refuses a handle whose
// version is newer than HandleVersion.
type Handle struct {
	Version int             `json:"version"`
	Driver  string          `json:"driver"`
	ID      string          `json:"id"`
	State   json.RawMessage `json:"state"` // private to the driver
}

// Capabilities is what a driver can do on this machine for this user.
type Capabilities struct {
	// Available is false if no sandbox can be made at all. Gaps then say why.
	Available bool

	// Features are what the driver can enforce and do here.
	Features feature.Set

	// Changeable are the limits among Features that a Limiter can change. They are some
	// of feature.Changeable.
	Changeable feature.Set

	// MaxNoFile is the largest number of open files that a process may be allowed; 0:
	// any number.
	MaxNoFile int64

	// Gaps explains each feature that is missing and each layer that is weaker
	// (feature.OtherGaps), and how to get it.
	Gaps []sandpit.Gap

	// Facts are for people: kernel, cgroup layout, user namespaces, …, in the order
	// in which they are shown. Probe may leave them out.
	Facts []Fact
}

// A Fact is one line about a machine.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Plan is a Spec resolved against policy and capabilities: exactly what will be
// enforced. Every field is final; a driver has no defaults.
type Plan struct {
	ID       string // [a-z0-9]+, unique on this machine
	Name     string
	Hostname string
	Root     Root
	Mounts   []sandpit.Mount // sources are absolute and without symbolic links; NoSockets only with ReadOnly; sorted by Target
	Tmpfs    []sandpit.Tmpfs // sorted by Target
	ReadOnly bool
	Write    []string // nil: no restriction; otherwise the only writable paths
	Limits   sandpit.Limits

	// Enforce holds the limits that must be enforced. Those that are missing are
	// defaults that this machine can't enforce. If it holds any other feature, the
	// driver must have that, too.
	Enforce feature.Set

	// UID and GID are those of ordinary processes. A driver on which only one uid
	// exists gives it this one.
	UID, GID uint32

	// MultiUser asks for a full range of uids inside. Without feature.Users it makes
	// no difference.
	MultiUser bool

	// Ephemeral sandboxes die with the process that made them.
	Ephemeral bool

	// KeepLater is for a sandbox that is not Ephemeral: until Keeper.Keep returns, it is as a blank, and
	// ends with the process that made it. A driver whose instances are not Keepers refuses it.
	KeepLater bool

	// Link, if set, is the interface that Linker.Link will be asked for first. A driver may make it
	// together with the sandbox, which takes less time.
	Link *Link

	// Trace, if set, is called with the time of each step of Create.
	Trace func(step string, took time.Duration)
}

// Root is a root file system.
type Root struct {
	// Layers are host directories, topmost first, which are never changed. They are
	// put under a writable layer that is the sandbox's own. Whiteouts are character
	// devices 0:0. Opaque directories have the extended attribute
	// user.overlay.opaque=y. There is at least one layer.
	Layers []string

	// Binds are host directories shown read-only on top of that.
	Binds []Bind

	// Dirs are made if they are missing, owned by root inside.
	Dirs []string

	// Files are written into the sandbox's own layer. Those below the target of a bind lie
	// over what it shows, unless Lacks says that the bind is shown as it is.
	Files []File
}

// Bind shows a host directory read-only at a target, which must be a directory of the
// lowest layer; what that layer has there lies over what the host has. Of the host's
// files it shows those that everybody may read. Nothing that the sandbox does with them,
// such as locking or watching, is noticed outside. Of what happens outside, only changes
// of their content are noticed inside. Where this can't be had, Probe, Examine or Lacks
// names the gap.
type Bind struct {
	Source, Target string
}

// File is a small file in the root of a new sandbox, such as /etc/hosts, owned by root
// inside. Missing directories are made. An existing file or symbolic link is replaced. Files whose Data
// and Rest are the very same bytes of memory may become one file with several names.
type File struct {
	Path       string
	Mode       uint32
	Data, Rest []byte // its content: Data, which may be shared with other plans, and then Rest
}

// GuestProgrammer is implemented by drivers that have the guest as a file of its own.
type GuestProgrammer interface {
	// GuestProgram returns the guest program, or nil if there is no such file. The caller must
	// not write to it.
	GuestProgram() []byte
}
