package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/datadir"
	"github.com/sandpit-dev/sandpit/internal/diskfull"
)

// A Store keeps images on disk. Its directory looks like this:
//
//	host/INDEX           which skeleton fits the host as it is now (see host_linux.go)
//	host/NAME/           a skeleton: the one layer of the host image
//	refs/SHA256          a name: which image it means (refs.go)
//	images/SHA256        a record of an image, named by its manifest digest (record.go)
//	blobs/SHA256         manifests, configs and layers as they were received
//	blobs/SHA256.partial what was received of a blob so far
//	layers/SHA256/fs     an unpacked layer, named by the digest of its tar (the diff-id)
//	layers/SHA256/about  its size, and what was left out of it
//	tmp/                 unfinished files
//	kept/ID              what a sandbox uses that outlives its maker (keep.go)
//	locks/               files to lock
//
// # Removal
//
// A user of a file or directory holds a shared flock on it. To remove it, a process takes an
// exclusive flock without waiting, and checks that nothing names it any more. If a file is removed
// before its lock is taken, the path no longer names it, and the user tries again. The kernel drops
// the locks of a process that dies.
//
// Directories are renamed into tmp before they are emptied, so that a directory in its place is
// always complete.
//
// New files are made in tmp, locked by their maker, and renamed into place when complete. Unlocked
// files in tmp were left by a crash, and Sweep removes them, as does the next pull, save or prune. What a save had
// already put into place is named by such a file.
//
// # Modes
//
// The directory has mode 0700: a layer may hold set-user-id programs, which no
// other user of the host must reach. A driver therefore opens layers before it
// becomes someone else.
//
// All methods are safe for concurrent use, also by several processes on one directory.
type Store struct {
	dir string
	opt Options
}

// Options are settings of a Store. The zero value is good for use.
type Options struct {
	// Limits bound what is accepted; zero fields take the default.
	Limits Limits

	// Fetcher pulls images that the store does not have. If it is nil, the store has only
	// its own images, the host image and directories; methods that need more return
	// ErrNoFetcher.
	Fetcher Fetcher

	// NoSync omits the syncs that protect against a power failure. It is for tests and
	// temporary stores.
	NoSync bool

	// HostDir is the root of the host image. Default "/". For tests.
	HostDir string
}

// Limits bound images. An image over one of them is refused with sandpit.ErrInvalid, and
// nothing of it is kept.
type Limits struct {
	LayerBytes int64 // bytes of one layer's tar; default 32 GiB
	ImageBytes int64 // bytes of the tars of all layers; default 64 GiB
	Entries    int64 // entries of one layer; default 1,000,000
	Names      int64 // bytes of memory for names of one layer, mostly of directories; default 128 MiB
	Ratio      int64 // tar bytes per compressed byte, above RatioFloor; default 200
	RatioFloor int64 // tar bytes below which Ratio does not matter; default 256 MiB
}

// nameMemory returns the bytes of memory that a name takes with what is noted of it.
func nameMemory(name string) int64 { return int64(len(name)) + 192 }

// MaxManifest bounds a manifest or index, in bytes: what registries accept
// (distribution-spec v1.1, "Pushing Manifests").
const MaxManifest = 4 << 20

// Fixed bounds on what an image may be.
const (
	maxConfig    = 4 << 20 // bytes of an image config
	maxLayers    = 127     // layers; what Docker makes at most, far below the 500 that overlayfs stacks
	maxPlatforms = 1024    // manifests in an index
	maxPath      = 4095    // bytes of a file's name, as in Linux (PATH_MAX less its NUL)
)

func (l Limits) withDefaults() Limits {
	set := func(p *int64, def int64) {
		if *p <= 0 {
			*p = def
		}
	}
	set(&l.LayerBytes, 32<<30)
	set(&l.ImageBytes, 64<<30)
	set(&l.Entries, 1_000_000)
	set(&l.Names, 128<<20)
	set(&l.Ratio, 200)
	set(&l.RatioFloor, 256<<20)
	return l
}

// Open returns the store on a directory, which is made when something is first put into it.
// Open itself does nothing, and can't fail.
func Open(dir string, opt Options) *Store {
	opt.Limits = opt.Limits.withDefaults()
	if opt.HostDir == "" {
		opt.HostDir = "/"
	}
	return &Store{dir: dir, opt: opt}
}

// Dir returns the directory of the store.
func (s *Store) Dir() string { return s.dir }

// DefaultPlatform is the platform of this machine, for example "linux/amd64".
func DefaultPlatform() string { return "linux/" + runtime.GOARCH }

func (s *Store) path(parts ...string) string {
	return s.dir + "/" + filepath.Join(parts...)
}

// ensure makes the store's directory and those named under it.
func (s *Store) ensure(subs ...string) error {
	if err := os.MkdirAll(filepath.Dir(s.dir), 0o755); err != nil {
		return s.diskError(fmt.Errorf("creating the image store: %w", err))
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil && !os.IsExist(err) {
		return s.diskError(fmt.Errorf("creating the image store: %w", err))
	}
	if err := s.checkOwners(); err != nil {
		return err
	}
	for _, sub := range subs {
		if err := os.Mkdir(s.path(sub), 0o700); err != nil && !os.IsExist(err) {
			return s.diskError(fmt.Errorf("creating the image store: %w", err))
		}
	}
	return nil
}

// checkOwners refuses a store, or a data directory with it, that others may have made or
// may change: they could put another one in its place, and another guest beside it.
func (s *Store) checkOwners() error {
	if err := datadir.CheckHome(filepath.Dir(s.dir)); err != nil {
		return err
	}
	return datadir.CheckPart(s.dir)
}

// diskError gives errors of the disk that the store is on their kind and hint.
func (s *Store) diskError(err error) error {
	if diskfull.Is(err) {
		return sandpit.WithHint(diskfull.Mark(err),
			"free space where "+s.dir+" is, for example with \"sandpit images prune\"")
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrNotExist) {
		return sandpit.WithHint(err, "make it writable for this user: "+s.dir+", or set SANDPIT_HOME to another directory")
	}
	return err
}
