package sandpit

import "time"

// Spec is what a caller asks for. The zero Spec is a sandbox of the host image
// with every default.
type Spec struct {
	// Name is unique among the live sandboxes of one user. Letters, digits,
	// '_', '.' and '-', starting with a letter or digit, at most 63. Empty: the ID.
	Name string

	// Image names the root file system: "host" (the default: this machine's
	// toolchain, read-only), an OCI reference ("debian:13",
	// "ghcr.io/org/app@sha256:…"), "oci-archive:FILE", "docker-archive:FILE"
	// or "dir:DIRECTORY".
	Image string

	// Pull says when a registry is asked. Default PullMissing.
	Pull PullPolicy

	// Hostname inside. Default: the name.
	Hostname string

	// Env is added to the image's environment for every process: "KEY=VALUE".
	Env []string

	// WorkDir is the directory in which processes start. Default: the image's,
	// else the user's home. It must exist in the image, or be a mount.
	WorkDir string

	// User runs processes: "name", "uid", "name:group" or "uid:gid". Default:
	// the image's, else an ordinary user ("user", uid 1000) with no capability.
	// "root" is uid 0 inside the sandbox only.
	User string

	// Limits that are zero take their default; see DefaultLimits. A limit that is
	// set is refused where it can't be enforced, although it may equal the default.
	Limits Limits

	// Mounts are host directories and files put into the sandbox.
	Mounts []Mount

	// Tmpfs are empty in-memory directories, each with a size of its own.
	Tmpfs []Tmpfs

	// ReadOnly makes the root file system read-only. /tmp, /dev/shm, Tmpfs and
	// writable Mounts stay writable.
	ReadOnly bool

	// Write lists the only paths that may be written: all else, /tmp included,
	// is EROFS or EACCES. A directory that does not exist is made. It excludes
	// ReadOnly.
	Write []string

	// Labels are for the caller's own use.
	Labels map[string]string

	// Idle is the idle time after which the sandbox expires; see Lifetime.
	// 0: policy's default, which is none.
	Idle time.Duration

	// OnExpiry is what happens when Limits.Life or Idle is over. Default
	// ExpiryRemove.
	OnExpiry Expiry
}

// PullPolicy says when an image is fetched from its registry.
type PullPolicy string

// The pull policies.
const (
	PullMissing PullPolicy = "missing" // when it is not in the store
	PullAlways  PullPolicy = "always"  // ask the registry each time
	PullNever   PullPolicy = "never"   // only what is in the store
)

// Limits bound what a sandbox may use. Every one is enforced by the kernel.
// Zero means the default; negative is ErrInvalid.
type Limits struct {
	Memory int64         // bytes, with swap, tmpfs files and page cache; at least MinMemory
	CPUs   float64       // processors, for example 0.5; at least 0.01
	Pids   int64         // processes and threads; at least MinPids
	Disk   int64         // bytes that may be written to the sandbox's own file system, /tmp included
	Files  int64         // inodes on the same
	NoFile int64         // open descriptors of each process
	Output int64         // bytes kept of the output of one process, both streams together; the rest is counted and dropped
	Life   time.Duration // a sandbox's lifetime, and the longest time that a process may run
}

// The least that a sandbox can work with: its guest, a shell and one program.
const (
	MinMemory = 16 << 20 // bytes
	MinPids   = 16       // processes; up to 12 are threads of the guest
	MinDisk   = 1 << 20  // bytes
	MinFiles  = 64       // inodes
	MinNoFile = 16       // descriptors
	MinCPUs   = 0.01     // processors
)

// DefaultLimits returns the limits of a Spec that sets none: enough for a
// build or a test run, and small enough for several on a laptop.
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

// A Mount puts a host path into the sandbox. Files made in a writable mount
// belong, on the host, to the owner of Source. A writable mount that contains a data
// directory, a directory on the way to one, or a mount of the host is refused.
type Mount struct {
	Source   string // absolute host path of a directory or regular file; must exist, not be a symbolic link
	Target   string // absolute path inside; made when missing
	ReadOnly bool

	// NoSockets shows a read-only mount without the host's unix sockets and named
	// pipes: they are there and nobody answers. Without it a sandbox may connect to
	// every socket in Source that the owner of Source may connect to, although
	// the mount is read-only. Other mounts below Source are not shown, and changes
	// that the host makes to the tree meanwhile may not be seen. It requires ReadOnly.
	NoSockets bool
}

// Tmpfs is an empty in-memory directory. Its pages count as memory.
type Tmpfs struct {
	Target string // absolute path inside; made when missing
	Size   int64  // bytes; default 64 MiB
}
