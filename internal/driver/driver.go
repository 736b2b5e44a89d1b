// Package driver holds the contract between the engine and the backends that
// make places for sandboxes: a driver per kind of backend.
//
// A driver makes an isolated place with a guest in it, and a byte stream to
// that guest. It starts no programs and touches no files of the sandbox: the
// guest does that, over the guest protocol, in the same way on every driver.
package driver

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

// A Driver makes sandboxes on one kind of backend. Package drivertest holds
// every promise below.
//
// All methods may be called from many goroutines at once.
type Driver interface {
	// Name is the driver's name: "linux", "oci", …
	Name() string

	// Probe says what can be enforced on this machine for this user. It makes
	// no sandbox and leaves nothing behind; it may be called often, so a
	// driver remembers what can't change while it runs.
	Probe(ctx context.Context) Capabilities

	// Create makes a sandbox exactly as the plan says and returns when its
	// guest can be dialled. On any error, and when ctx ends first, nothing is
	// left: no process, mount, namespace, cgroup or file. What the plan asks
	// for and the driver can't do is sandpit.ErrUnsupported, never dropped.
	Create(ctx context.Context, plan Plan) (Instance, error)
}

// An Examiner is a driver that can take a closer look than Probe, at some
// cost, for a person who asks what works here. Optional, found by type
// assertion.
type Examiner interface {
	// Examine is Probe with Facts, and with what only trying tells. It leaves
	// nothing behind.
	Examine(ctx context.Context) Capabilities
}

// A Recoverer is a driver whose instances outlive the program that made them,
// unless their Plan is Ephemeral. Optional, found by type assertion; its
// instances are Leavers.
type Recoverer interface {
	// Recover takes over an instance whose owner is dead, or has left it.
	// ErrNotFound when it no longer exists; then what was left of it has been
	// removed; ErrRestarted, too, when the machine has been restarted since.
	// ErrExists when its owner lives. ErrStranded when nobody can reach it. A
	// handle without a State is that of an instance whose Create may have been
	// interrupted at any point, or that is recovered to be destroyed: a stranded
	// one, too.
	Recover(ctx context.Context, h Handle) (Instance, error)

	// Kept returns the IDs of the instances that can outlive their owner and whose
	// guests still run. It needs no handles, so that instances whose handles were lost
	// are found, too. A Handle without a State is enough to recover them. Kept changes
	// nothing.
	Kept(ctx context.Context) ([]string, error)
}

// A Strander is a Recoverer whose instances can be stranded: their guests run, and
// nobody can reach them. Optional, found by type assertion.
type Strander interface {
	// Stranded returns the IDs of the instances that are stranded. Kept has them, too.
	Stranded(ctx context.Context) ([]string, error)
}

// ErrStranded is in the error of Recover for a stranded instance.
var ErrStranded = errors.New("nothing can reach it")

// ErrRestarted says that the machine on which an instance was has been restarted.
var ErrRestarted = errors.New("the machine was restarted")

// An Exposer is an Instance that knows whether its sandbox sees a data directory.
type Exposer interface {
	// Exposed returns a data directory that a mount of the sandbox shows, or "".
	// That can be so where an older version has made the sandbox.
	Exposed() string
}

// A Leaver is an instance that can be given up without being touched.
type Leaver interface {
	// Leave closes what this process holds of the instance, which lives on
	// for Recover. Every other call then gives sandpit.ErrClosed. It is
	// idempotent; after Destroy it does nothing.
	Leave()
}

// An OOMCounter is an instance that can tell at little cost what is asked after
// every command. Optional, found by type assertion; else Stats tells it.
type OOMCounter interface {
	// OOMKills returns Metrics.OOMKills, -1 where it can't be had.
	OOMKills() (int64, error)
}

// A Freezer is an instance whose processes, its guest among them, can be made
// to stand still. Optional, found by type assertion.
type Freezer interface {
	// Freeze returns when all processes stand still: they use no processor
	// time, and Dial and everything asked of the guest waits. What can't be
	// frozen within seconds runs on, and that is an error. ErrUnsupported where
	// this machine can't do it. Freezing what is frozen is no error.
	Freeze(ctx context.Context) error

	// Thaw lets them run on. Thawing what runs is no error.
	Thaw(ctx context.Context) error

	// Frozen reports whether they stand still.
	Frozen(ctx context.Context) (bool, error)
}

// A Preparer is a driver that can do a part of Create ahead, before it is known
// for what: all that does not depend on the plan. Optional, found by type
// assertion.
type Preparer interface {
	// Prepare makes a blank. id is as Plan.ID. On any error, and when ctx ends
	// first, nothing is left. ErrUnsupported where nothing can be done ahead.
	//
	// A blank ends with the process that made it, whatever that dies of; what
	// then may be left of it, Sweep removes.
	Prepare(ctx context.Context, id string, b BlankPlan) (Blank, error)
}

// A Sweeper is a driver that can remove what was left by processes that were
// killed while they made something. Optional, found by type assertion.
type Sweeper interface {
	// Sweep removes what belongs to no process that lives and to no instance
	// that could be recovered, and returns of how many something was removed.
	Sweep(ctx context.Context) int
}

// BlankPlan is what must be known of a sandbox before its blank is made.
type BlankPlan struct {
	Ephemeral bool // as in Plan, and final

	// The user for whom the blank will fit, and whether others exist beside
	// it. On machines on which every sandbox has all users, any will.
	UID, GID  uint32
	MultiUser bool

	// Limits and Enforce are as in Plan. The figures that the blank is bound
	// with may be others; what is enforced may not.
	Limits  sandpit.Limits
	Enforce feature.Set
}

// A Blank is a sandbox that is made but for its plan: isolated, with a guest
// that waits. It is bound once, or destroyed, and holds nothing that was ever
// of another sandbox. All methods may be called from many goroutines at once.
type Blank interface {
	// ID is what it was prepared with.
	ID() string

	// Fits reports whether Bind can make of it what Create would make of the
	// plan, whose ID does not count.
	Fits(plan Plan) bool

	// Usable reports whether it can still be bound to some plan. Once it is
	// not, for example because its guest has died or what it saw of the
	// machine has changed, it never is again, and is to be destroyed.
	Usable() bool

	// Dial opens a connection to the guest, as Instance.Dial does, which is
	// good after Bind, too. Before Bind no more than a greeting may go over it:
	// the guest is not yet where it will be. ErrUnsupported where the guest
	// starts only by Bind; ErrState once the blank is used up.
	Dial(ctx context.Context) (net.Conn, error)

	// Bind makes the sandbox of the plan, whose ID is that of the blank, and
	// all of which holds as for Create: what is not as the plan says is an
	// error, never dropped. It uses the blank up, also when it fails: then, and
	// when ctx ends first, nothing is left. ErrState when it was used before;
	// that does not touch what became of it. ErrInvalid for a plan that it does
	// not fit.
	Bind(ctx context.Context, plan Plan) (Instance, error)

	// Destroy removes every trace of a blank that is not used, and returns when
	// that is so. It is idempotent, and does nothing once the blank is used: the
	// instance is destroyed by its own method.
	Destroy(ctx context.Context) error
}

// An Instance is one made sandbox, seen from outside.
type Instance interface {
	// Handle identifies the instance for Recover and for people.
	Handle() Handle

	// Dial opens a new connection to the guest. The caller closes it.
	// sandpit.ErrClosed when the guest is gone.
	Dial(ctx context.Context) (net.Conn, error)

	// Stats reads what the sandbox uses now. A figure that can't be had is -1.
	Stats(ctx context.Context) (sandpit.Metrics, error)

	// Done is closed when the guest has died, whatever the cause.
	Done() <-chan struct{}

	// Destroy kills everything in the sandbox and removes every trace of it
	// from the machine, and returns when that is so. It is idempotent, may
	// race with any other call, and does its work even when ctx has ended.
	Destroy(ctx context.Context) error
}

// Explainer is an Instance that may know why its guest has never answered.
type Explainer interface {
	// Explain returns that, or err.
	Explain(err error) error
}

// Lacking is an Instance that may lack what this version of its driver enforces
// elsewhere: an earlier version has made it, or it was found out when it was made
// that this machine can't.
type Lacking interface {
	// Lacks returns that, or nothing.
	Lacks() []sandpit.Gap
}

// HandleVersion is the version of Handle that this program writes.
const HandleVersion = 1

// Handle is what is stored of an instance. A reader refuses a version that is
// newer than its own.
type Handle struct {
	Version int             `json:"version"`
	Driver  string          `json:"driver"`
	ID      string          `json:"id"`
	State   json.RawMessage `json:"state"` // the driver's own
}

// Capabilities is what a driver can do on this machine for this user.
type Capabilities struct {
	// Available is false when no sandbox can be made at all; Gaps then say why.
	Available bool

	// Features are what the driver can enforce and do here. A missing one is false.
	Features feature.Set

	// MaxNoFile is the most open files that a process may be allowed; 0: any number.
	MaxNoFile int64

	// Gaps explains everything that can't be enforced.
	Gaps []sandpit.Gap

	// Facts are for people: kernel, cgroup layout, user namespaces, …, in the
	// order in which they are to be shown. Probe may leave them out.
	Facts []Fact
}

// A Fact is a line of what was found on a machine.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Plan is a Spec resolved against policy and capabilities: exactly what will
// be enforced. Every field is final; a driver has no defaults.
type Plan struct {
	ID       string // [a-z0-9]+, unique on this machine
	Name     string
	Hostname string
	Root     Root
	Mounts   []sandpit.Mount // sources absolute and free of symbolic links; NoSockets only with ReadOnly
	Tmpfs    []sandpit.Tmpfs
	ReadOnly bool
	Write    []string // nil: no restriction; else the only writable paths
	Limits   sandpit.Limits

	// Enforce holds the limits that must be enforced. Those not in it are defaults
	// that this machine can't enforce. Other features in it must be there, too.
	Enforce feature.Set

	// User is the uid and gid of ordinary processes. A driver on which only
	// one uid exists gives it this one.
	UID, GID uint32

	// MultiUser asks for a full range of uids inside.
	MultiUser bool

	// Ephemeral sandboxes die with the process that made them.
	Ephemeral bool

	// Trace receives the time of each step of Create, when set.
	Trace func(step string, took time.Duration)
}

// Root is a root file system.
type Root struct {
	// Layers are host directories, topmost first, never changed. They are
	// put under a writable layer that is the sandbox's own. Whiteouts are
	// character devices 0:0; opaque directories have the extended attribute
	// user.overlay.opaque=y. At least one.
	Layers []string

	// Binds are host directories shown read-only on top of that.
	Binds []Bind

	// Dirs are made where they are missing, owned by root inside.
	Dirs []string

	// Files are written into the sandbox's own layer.
	Files []File
}

// Bind shows a host directory read-only at a target, a directory of the topmost
// layer, whose content there lies over it. Of the host's files it shows what
// everybody may read. Nothing that the sandbox does with them, such as locking
// or watching, is noticed outside, and nothing done outside is noticed inside
// but changes of their content. What can't be had of this is a gap.
type Bind struct {
	Source, Target string
}

// File is a small file made in the root of a new sandbox, such as /etc/hosts,
// owned by root inside. Missing directories are made. Existing files, also
// symbolic links, are replaced.
type File struct {
	Path string
	Mode uint32
	Data []byte
}
