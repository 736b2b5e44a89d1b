// Package local implements [sandpit.Client] in this process. It creates sandboxes
// with the kernel alone: it needs no server and nothing to install. It works only on
// Linux. The sandboxes end with the client.
//
//	func main() {
//		guest := local.Guest() // the first thing in main
//		c, err := local.New(local.Options{Guest: guest})
//		if err != nil { ... }
//		defer c.Close()
//		sb, err := c.Create(ctx, sandpit.Spec{})
//
// # The guest
//
// The first process of a sandbox is a small program, the guest. Your program can
// be its own guest: the sandbox then runs it again under another name, and [Guest]
// turns that process into a guest before anything else happens. A dynamically
// linked program, for example one that uses cgo, can be the guest only of images
// with the same libraries, such as "host"; build it with CGO_ENABLED=0. A program
// that is built with the tag guestembed, as `make build` of Sandpit does, contains a
// smaller guest, and Guest has nothing to do.
//
// # Limits of this program
//
// While the first process of a sandbox is created, the soft limits RLIMIT_SIGPENDING
// and RLIMIT_MSGQUEUE of this program are lower: at most 4,096 and 800 KiB for root,
// and half of their values for other users. This usually takes less than a
// millisecond. The sandbox inherits these limits, and the kernel offers no other way
// to set them. Meanwhile timer_create(2), sigqueue(3) and mq_open(3) may fail in a
// program whose user exceeds the lower limits. A process that is started without Go's
// os/exec, for example by a C library, may inherit the lower limits; it can raise them
// again, because the hard limits do not change. A program that changes these limits
// should do so before it creates sandboxes.
//
// If the program is dumpable (PR_SET_DUMPABLE of prctl(2)) and runs as root or as a
// user with subordinate ids, it is briefly not dumpable while it creates a sandbox. A
// program that makes itself not dumpable should do so before it creates sandboxes, and
// must run as root: for other users the kernel denies access to the /proc files of
// the children of such a program, so Create returns an error.
package local

import (
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/datadir"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Options are the options of New.
type Options struct {
	// Guest is the result of the function Guest.
	Guest IsGuest

	// Home is the data directory, which stores images and the guest. It is created
	// if it is missing, and can be shared with other programs. Default:
	// $SANDPIT_HOME, or else /var/lib/sandpit for root, $XDG_DATA_HOME/sandpit, or
	// ~/.local/share/sandpit. The command line has the same defaults, but its
	// configuration file can name another directory.
	Home string

	// Default has the default limits, and Max the maximum limits. A field of Default
	// that is zero is that of sandpit.DefaultLimits. A field of Max that is zero
	// means no maximum.
	Default, Max sandpit.Limits

	// PlainHTTP allows HTTP without TLS to registries. Mirrors maps the host of a
	// registry ("docker.io") to base URLs of mirrors that are tried first.
	PlainHTTP bool
	Mirrors   map[string][]string

	// Network is what sandboxes reach others through: see package local/network. nil: a
	// Spec with Egress is refused with sandpit.ErrUnsupported.
	Network Network
}

// Network is the result of New of package local/network.
type Network interface{ engine.Network }

// IsGuest records that the program can be its own guest.
type IsGuest struct{ yes bool }

// Guest runs the guest and does not return if this program was started as a guest.
// Otherwise it returns immediately. Call it first in main, before anything is
// printed, read or opened.
func Guest() IsGuest {
	beGuest(os.Args)
	return IsGuest{true}
}

// New returns a client. It returns sandpit.ErrUnsupported if this machine can't run
// sandboxes, or if the program neither calls Guest nor has an embedded guest.
func New(opt Options) (sandpit.Client, error) {
	if opt.Home == "" {
		opt.Home = os.Getenv("SANDPIT_HOME")
	}
	if opt.Home == "" {
		home, err := datadir.Default(os.LookupEnv)
		if err != nil {
			return nil, sandpit.WithHint(fault.Kind{Err: err, Kind: sandpit.ErrInvalid}, "set Options.Home to a directory")
		}
		opt.Home = home
	}
	if !filepath.IsAbs(opt.Home) {
		return nil, fault.Errorf(sandpit.ErrInvalid, "using the data directory %q: it is not absolute", opt.Home)
	}
	return open(opt)
}
