// Package local is the [sandpit.Client] that makes its sandboxes itself, in
// this process and with nothing but the kernel: there is no server and nothing
// to install. It works on Linux. The sandboxes end with it.
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
// The first process of a sandbox is a small program, the guest. This program
// can be its own: the sandbox then starts it once more, under another name, and
// [Guest] makes a guest of it before anything else has happened. A program
// that is linked dynamically, as one with cgo is, can be the guest only of
// images with the same libraries, such as "host"; build with CGO_ENABLED=0.
// What `make build` of Sandpit makes carries a smaller guest of its own (build
// tag guestembed); Guest then has nothing to do.
//
// # Limits of this program
//
// While the first process of a sandbox is made, for less than a millisecond
// unless the kernel holds that up, this program's soft limits RLIMIT_SIGPENDING
// and RLIMIT_MSGQUEUE are lower: at most 4,096 and 800 KiB for root, half of what
// they were otherwise. The sandbox takes its own from there, and the kernel knows
// no other way. Meanwhile timer_create(2), sigqueue(3) and mq_open(3) may fail in
// a program whose user has more of these than that. A process that is started by
// other means than Go's, as by a library in C, may inherit the lower limits, and
// can raise them again: the hard limits stay. A program that changes these two
// limits itself should do so before it makes sandboxes.
//
// The program stays as dumpable as it was (PR_SET_DUMPABLE of prctl(2)); but for
// moments, while sandboxes are made, a dumpable one of root, or of a user with
// subordinate ids, is not. One that chooses not to be dumpable should do so before
// it makes sandboxes. It must be root's: sandboxes of an ordinary user's program that
// is not dumpable are refused, because the kernel keeps the files of its children in
// /proc from it.
package local

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/datadir"
)

// Options say what a client works with.
type Options struct {
	// Guest is what the function Guest has returned.
	Guest IsGuest

	// Home is the data directory, with images and the guest. It is made when
	// it is missing, and may be shared with other programs. Default:
	// $SANDPIT_HOME, else /var/lib/sandpit for root, else $XDG_DATA_HOME/sandpit,
	// else ~/.local/share/sandpit. They are the command line's, which a file of
	// its own may also tell another.
	Home string

	// Default has the limits of a Spec that sets none, and Max the most that
	// may be asked for. Fields that are zero are those of
	// sandpit.DefaultLimits, and no maximum.
	Default, Max sandpit.Limits

	// PlainHTTP allows http without TLS to registries, and Mirrors maps the
	// host of a registry ("docker.io") to base URLs that are asked before it.
	PlainHTTP bool
	Mirrors   map[string][]string
}

// IsGuest says that a program can be its own guest.
type IsGuest struct{ yes bool }

// Guest makes a guest of this program when it was started as one, and then
// does not return. It must be the first thing in main, before anything has
// been printed, read or opened.
func Guest() IsGuest {
	beGuest(os.Args)
	return IsGuest{true}
}

// New returns a client. ErrUnsupported where this machine can't make
// sandboxes, or when the program does not call Guest and has none embedded.
func New(opt Options) (sandpit.Client, error) {
	if opt.Home == "" {
		opt.Home = os.Getenv("SANDPIT_HOME")
	}
	if opt.Home == "" {
		home, err := datadir.Default(os.LookupEnv)
		if err != nil {
			return nil, sandpit.WithHint(fmt.Errorf("%w: %w", err, sandpit.ErrInvalid), "set Options.Home to a directory")
		}
		opt.Home = home
	}
	if !filepath.IsAbs(opt.Home) {
		return nil, fmt.Errorf("using the data directory %q: it is not absolute: %w", opt.Home, sandpit.ErrInvalid)
	}
	return open(opt)
}
