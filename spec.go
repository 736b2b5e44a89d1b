package sandpit

import "time"

// Spec is what a caller asks for. The zero Spec is a sandbox with the host image
// and all defaults.
type Spec struct {
	// Name is unique among the live sandboxes of one user. It consists of at most
	// 63 letters, digits, '_', '.' and '-', and starts with a letter or digit.
	// Default: the ID.
	Name string

	// Image names the root file system: "host" (the default: this machine's
	// toolchain, read-only), an OCI reference ("debian:13",
	// "ghcr.io/org/app@sha256:…"), "oci-archive:FILE", "docker-archive:FILE"
	// or "dir:DIRECTORY".
	Image string

	// Pull says when the image is pulled. Default: PullMissing.
	Pull PullPolicy

	// Hostname is the host name inside the sandbox. Default: Name.
	Hostname string

	// Env has variables, as "KEY=VALUE", that are added to the image's environment
	// for every process.
	Env []string

	// WorkDir is the working directory of processes. Default: the image's, or
	// else the user's home. It must exist in the image or in a mount.
	WorkDir string

	// User is the user that runs processes: "name", "uid", "name:group" or
	// "uid:gid". Without a group it has that of its line in the image's /etc/passwd, or
	// group 0. Default: the image's user, or else an unprivileged user ("user",
	// uid 1000). "root" is uid 0 only inside the sandbox.
	User string

	// RootInside asks for uid 0 and other users beside User, whose rights commands and
	// file operations may have: see Command.User and Files.As. Programs of User get them
	// by the program sudo, in /usr/local/bin. Default: they exist if User
	// is root, or where every sandbox has all users. ErrUnsupported where only one user can
	// exist.
	RootInside bool `json:",omitempty"` // as Egress

	// Limits are the limits of the sandbox. A zero limit is set to its default; see
	// DefaultLimits. If a limit that is set can't be enforced, the Spec is refused,
	// even if the limit equals the default.
	Limits Limits

	// Rlimits are limits of every command, and of the interpreters of code. A command replaces
	// those of the same resource by its own Rlimits or NoFile. Commands of sudo have those of the program that uses it.
	Rlimits []Rlimit `json:",omitempty"` // as Egress

	// Mounts are host directories and files that are mounted in the sandbox.
	Mounts []Mount

	// Tmpfs are empty in-memory directories, each with its own size.
	Tmpfs []Tmpfs

	// NoStart leaves the sandbox in StateCreated until Lifecycle.Restart: its name is taken and
	// its image stored, and it counts as a sandbox of its policy, but takes no memory, CPU and
	// disk of the machine. Its lifetime and idle time begin with its start. It can't have Secrets.
	NoStart bool `json:",omitempty"` // as Egress

	// ReadOnly makes the root file system read-only. /tmp, /dev/shm, Tmpfs and
	// writable Mounts stay writable.
	ReadOnly bool

	// Write lists the only writable paths. Writing anywhere else, including /tmp,
	// fails with EROFS or EACCES. A directory that does not exist is created.
	// Write and ReadOnly can't be combined. Neither "/" nor a path in a read-only mount
	// can be in the list.
	Write []string

	// Egress says what the sandbox may reach outside. Default: nothing; it has a loopback
	// interface only.
	Egress Egress `json:",omitzero"` // records of sandboxes without any are as before

	// Secrets are the credentials that the sandbox may use. Each name and each variable must
	// be unique.
	Secrets []Secret `json:",omitempty"` // as Egress

	// Labels are set by the caller for its own use.
	Labels map[string]string

	// Idle is the idle time after which the sandbox expires; see Lifetime.
	// Default: that of the policy, by default unlimited.
	Idle time.Duration

	// OnExpiry is what happens when Limits.Life or Idle has passed. Default:
	// ExpiryRemove.
	OnExpiry Expiry
}

// PullPolicy says when an image is pulled from its registry.
type PullPolicy string

// The pull policies.
const (
	PullMissing PullPolicy = "missing" // if it is not in the store
	PullAlways  PullPolicy = "always"  // every time
	PullNever   PullPolicy = "never"   // never; it must be in the store
)

// Limits bound the resource usage of a sandbox. The kernel enforces them.
// Zero means the default; a negative limit is ErrInvalid.
type Limits struct {
	Memory int64         // bytes, including swap, tmpfs files and page cache; at least MinMemory
	CPUs   float64       // CPUs, for example 0.5; at least MinCPUs
	Pids   int64         // processes and threads; at least MinPids
	Disk   int64         // bytes in the sandbox's own file system, including /tmp
	Files  int64         // inodes in the sandbox's own file system
	NoFile int64         // open file descriptors per process
	Output int64         // bytes of output per process, both streams together; the rest is counted and dropped
	Life   time.Duration // lifetime of the sandbox, and with it of its processes
}

// The minimum limits, with which the guest, a shell and one program can run.
const (
	MinMemory = 16 << 20 // bytes
	MinPids   = 16       // processes and threads; each command that runs has one more, its helper
	MinDisk   = 1 << 20  // bytes
	MinFiles  = 64       // inodes
	MinNoFile = 16       // descriptors
	MinCPUs   = 0.01     // CPUs
)

// DefaultLimits returns the default limits: enough for a build or a test run,
// and small enough for several sandboxes on a laptop.
func DefaultLimits() Limits {
	return Limits{
		Memory: 2 << 30,
		CPUs:   2,
		Pids:   1024,
		Disk:   1 << 30,
		Files:  1 << 18,
		NoFile: 4096,
		Output: 1 << 30,
		Life:   24 * time.Hour,
	}
}

// A Mount is a host path that is mounted in the sandbox. Files that the sandbox
// creates in a writable mount belong, on the host, to the owner of Source. A writable
// mount that contains a data directory, a directory on the way to one, or a mount of
// the host is refused.
type Mount struct {
	Source   string // absolute host path of an existing directory or regular file; not a symbolic link
	Target   string // absolute path inside; created if missing
	ReadOnly bool

	// NoSockets disables the host's unix sockets and named pipes in a read-only
	// mount: they exist, but have no peer. Without it, a sandbox can connect to
	// every socket in Source to which the owner of Source can connect, even though
	// the mount is read-only. With it, mounts below Source are not visible, and
	// later changes that the host makes may not be visible. It requires ReadOnly.
	NoSockets bool
}

// Tmpfs is an empty in-memory directory. Its contents count as memory.
type Tmpfs struct {
	Target string // absolute path inside; created if missing
	Size   int64  // bytes; default 64 MiB
}
