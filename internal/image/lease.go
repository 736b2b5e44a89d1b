package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// AcquireOptions say how to find an image.
type AcquireOptions struct {
	// Pull says when to use a registry. Default sandpit.PullMissing.
	Pull sandpit.PullPolicy

	// Platform is "os/architecture" or "os/architecture/variant". Default
	// DefaultPlatform.
	Platform string

	// Progress, if set, is called as layers arrive. Calls do not overlap.
	Progress func(Progress)

	// PlainHTTP allows HTTP without TLS to the registry of the reference.
	PlainHTTP bool

	// Proxy, NoProxy and CABundle are as in package upstream; CABundle is a file. Without Proxy
	// the environment's proxy is used.
	Proxy, NoProxy, CABundle string

	// Moves, if set, is called on every progress: bytes, or another try. An operation
	// without a call for a long time hangs. Calls may overlap.
	Moves func()

	// Asking, if set, is called before a registry is used, and the function that it
	// returns afterwards. Its error is that of Acquire.
	Asking func(ctx context.Context) (over func(), err error)

	// PublicOnly is for references of untrusted callers: a registry that they name must
	// have public addresses, or else ErrForbidden. Mirrors, which they don't name, may be
	// anywhere. If there is a proxy, that decides.
	PublicOnly bool

	// Owner is the namespace whose saved images may be used. "" is the owner of the machine, who may
	// use all of them.
	Owner string

	// Mirrors maps the host of a registry, as in a full reference ("docker.io", "ghcr.io",
	// "localhost:5000"), to base URLs that are tried before it, in this order:
	// "https://mirror.example/prefix". "http://" means without TLS. Content that a mirror
	// does not have is taken from the registry.
	Mirrors map[string][]string
}

// Progress is the progress of a pull or import with one layer.
type Progress struct {
	Layer string // digest of the layer as it is transferred
	Index int    // its place among Count layers, from 0, lowest first
	Count int
	Phase Phase
	Done  int64 // bytes transferred, or unpacked (of the compressed layer)
	Total int64 // bytes in all; 0 when not known
}

// Phase is a step in the handling of a layer.
type Phase string

// The phases of a layer, in their order. PhaseDone comes exactly once per layer.
const (
	PhaseDownload Phase = "download"
	PhaseUnpack   Phase = "unpack"
	PhaseDone     Phase = "done"
)

// A Lease keeps a root file system in the store while it is used. It ends with Release, or
// with the process.
type Lease struct {
	root Rootfs
	once sync.Once
	fds  []int // open and locked; shared with nobody

	// Of an image that was saved from a sandbox; see record.
	saved, host bool
	owner       string
}

// Rootfs returns the leased root file system. Don't change it.
func (l *Lease) Rootfs() Rootfs { return l.root }

// Release ends the lease. The root file system must not be used any more. Release is
// idempotent.
func (l *Lease) Release() {
	l.once.Do(func() {
		for _, fd := range l.fds {
			_ = syscall.Close(fd)
		}
	})
}

// Acquire finds an image, fetches it if need be, and leases it. These are the
// forms of ref:
//
//	"" or "host"                this machine's own toolchain
//	debian:13, ghcr.io/a/b@sha256:…   an image of a registry, or one imported under a name
//	sha256:…                    an image in the store, by its digest
//	oci-archive:FILE[:TAG]      an OCI layout in a tar file
//	docker-archive:FILE[:TAG]   what "docker save" writes
//	oci:DIRECTORY[:TAG]         an OCI layout
//	dir:DIRECTORY               a root file system, used in place
//	saved:NAME                  an image that was saved from a sandbox of opt.Owner's namespace; the
//	                            owner of the machine writes saved:NAMESPACE/NAME
//
// A name is resolved once: moving a tag later does not change the Lease. The error matches
// sandpit.ErrNotFound if the image does not exist, sandpit.ErrUnavailable if the registry can't be
// reached, sandpit.ErrIntegrity if content does not match its digest, sandpit.ErrInvalid if the
// reference or image is invalid, and sandpit.ErrExhausted if the disk is full. After an error
// nothing is left, except complete layers and the received part of one, from which the next try
// resumes.
func (s *Store) Acquire(ctx context.Context, ref string, opt AcquireOptions) (*Lease, error) {
	l, err := s.acquire(ctx, ref, opt)
	if err != nil || !l.host {
		return l, err
	}
	// Saved over the host image, which is used as it is now.
	host, err := s.acquireHost(ctx)
	if err != nil {
		l.Release()
		return nil, err
	}
	l.putOver(host)
	return l, nil
}

// putOver puts the layers of a lease over those of another one, which it takes over.
func (l *Lease) putOver(under *Lease) {
	l.fds = append(l.fds, under.fds...)
	l.root.Layers = append(l.root.Layers, under.root.Layers...)
	l.root.Binds = under.root.Binds
}

func (s *Store) acquire(ctx context.Context, ref string, opt AcquireOptions) (*Lease, error) {
	if err := s.checkOwners(); err != nil {
		return nil, err
	}
	ctx = fault.WithMoves(ctx, opt.Moves)
	if ref == "" || ref == "host" {
		return s.acquireHost(ctx)
	}
	switch opt.Pull {
	case "", sandpit.PullMissing, sandpit.PullAlways, sandpit.PullNever:
	default:
		return nil, sandpit.WithHint(fault.Invalidf("using image %q: unknown pull policy %q", fault.Clip(ref), fault.Clip(string(opt.Pull))),
			"use missing, always or never")
	}
	want, err := parsePlatform(opt.Platform)
	if err != nil {
		return nil, err
	}
	kind, rest, _ := strings.Cut(ref, ":")
	switch kind {
	case "dir":
		return acquireDir(ref, rest)
	case "oci-archive", "docker-archive", "oci":
		return s.acquireFile(ctx, ref, kind, rest, want, opt)
	case SavedScheme:
		return s.acquireSaved(ref, opt.Owner)
	case "sha256":
		if !ValidDigest(ref) {
			return nil, sandpit.WithHint(fault.Invalidf("using image %q: the digest is not sha256: and 64 lower-case hexadecimal digits", fault.Clip(ref)),
				"give all of it, which 'sandpit images ls --format {{.Digest}}' prints")
		}
		if l, ok := s.openFor(opt.Owner, rest, ref); ok {
			return l, nil
		}
		return nil, sandpit.WithHint(fault.NotFoundf("using image %q: it is not in the store", ref), "run 'sandpit images ls' to list stored images")
	}
	return s.acquireNamed(ctx, ref, want, opt)
}

// open leases an image that is in the store, by the digest of its manifest, in
// hexadecimal. It is not ok when the image is missing, or a layer of it.
func (s *Store) open(hex, ref string) (*Lease, bool) {
	fd, err := openShared(s.dir + "/images/" + hex)
	if err != nil {
		return nil, false
	}
	data, err := readFD(fd)
	if err == nil {
		if rec, err := decodeRecord(data); err == nil {
			if l, ok := s.lease(rec, fd, ref); ok {
				return l, true
			}
		}
	}
	closeFD(fd)
	return nil, false
}

// openFor is open for a namespace, which may not use what others have saved.
func (s *Store) openFor(owner, hex, ref string) (*Lease, bool) {
	l, ok := s.open(hex, ref)
	if ok && l.saved && owner != "" && l.owner != owner {
		l.Release()
		return nil, false
	}
	return l, ok
}

// lease makes a lease of a record whose file is open and locked. It is not ok
// when a layer is missing, which only somebody else can have removed.
func (s *Store) lease(rec *record, fd int, ref string) (*Lease, bool) {
	dirs := make([]string, len(rec.layers))
	for i, hex := range rec.layers {
		dir := s.layerPath(hex) + "/fs"
		if syscall.Access(dir, 0) != nil {
			return nil, false
		}
		dirs[len(dirs)-1-i] = dir
	}
	return &Lease{
		fds:  []int{fd},
		root: Rootfs{Reference: ref, Digest: rec.digest, Layers: dirs, Config: rec.config},

		saved: rec.saved, host: rec.host, owner: rec.owner,
	}, true
}

// acquireNamed leases an image of a registry.
func (s *Store) acquireNamed(ctx context.Context, text string, want platform, opt AcquireOptions) (*Lease, error) {
	ref, err := ParseReference(text)
	if err != nil {
		return nil, err
	}
	name := ref.String()
	if opt.Pull != sandpit.PullAlways {
		// A digest says all: it does not matter under which name it came here.
		if ref.Digest != "" {
			if l, ok := s.openFor(opt.Owner, strings.TrimPrefix(ref.Digest, DigestPrefix), name); ok {
				return l, nil
			}
		}
		if e, ok := s.readRef(name, want.String()); ok {
			if l, ok := s.open(e.image, name); ok {
				return l, nil
			}
		}
	}
	if opt.Pull == sandpit.PullNever {
		missing := sandpit.WithHint(fault.NotFoundf("using image %q: it is not in the store", ref.Familiar()),
			"run 'sandpit images pull "+ref.Familiar()+"' first")
		return nil, s.orSaved(missing, opt.Owner, text)
	}
	if s.opt.Fetcher == nil {
		return nil, ErrNoFetcher
	}
	src, err := s.opt.Fetcher.Registry(ref, opt)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	if opt.Asking != nil {
		over, err := opt.Asking(ctx)
		if err != nil {
			return nil, err
		}
		defer over()
	}
	l, err := s.ingestAs(ctx, src, refEntry{name: name, platform: want.String()}, name, want, false, opt.Progress)
	if err != nil {
		return nil, s.orSaved(fmt.Errorf("pulling image %s: %w", ref.Familiar(), err), opt.Owner, text)
	}
	return l, nil
}

// ingestAs brings an image into the store under a name, and leases it.
func (s *Store) ingestAs(ctx context.Context, src Source, e refEntry, ref string, want platform, anyPlatform bool, report func(Progress)) (*Lease, error) {
	rec, fd, err := s.ingest(ctx, src, want, anyPlatform, report)
	if err != nil {
		return nil, err
	}
	l, ok := s.lease(rec, fd, ref)
	if !ok {
		closeFD(fd)
		return nil, errPruned
	}
	e.image, e.at = rec.hex(), time.Now()
	if err := s.writeRef(e); err != nil {
		l.Release()
		return nil, err
	}
	return l, nil
}

// acquireDir leases a directory in place: nothing is copied, and nothing locked.
func acquireDir(ref, dir string) (*Lease, error) {
	if dir == "" || strings.IndexByte(dir, 0) >= 0 {
		return nil, fault.Invalidf("using image %q: the directory name is missing", ref)
	}
	abs, err := filepath.Abs(dir)
	if err == nil {
		// A layer of an overlay is a path that others may read: a fixed one,
		// without links that could be turned meanwhile.
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		if os.IsNotExist(err) {
			return nil, sandpit.WithHint(fault.NotFoundf("using image %q: no such directory", ref),
				"name a directory that holds a root file system")
		}
		return nil, fmt.Errorf("using image %q: %w", ref, err)
	}
	info, err := os.Stat(abs)
	if err != nil {
		return nil, fmt.Errorf("using image %q: %w", ref, err)
	}
	if !info.IsDir() {
		return nil, sandpit.WithHint(fault.Invalidf("using image %q: not a directory", ref),
			"use oci-archive:FILE or docker-archive:FILE for an archive")
	}
	return &Lease{root: Rootfs{Reference: ref, Layers: []string{abs}}}, nil
}
