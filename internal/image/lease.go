package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/sandpit-dev/sandpit"
)

// AcquireOptions say how an image is found.
type AcquireOptions struct {
	// Pull says when a registry is asked. Default sandpit.PullMissing.
	Pull sandpit.PullPolicy

	// Platform is "os/architecture" or "os/architecture/variant". Default
	// DefaultPlatform.
	Platform string

	// Progress, when set, is called as layers arrive. Calls do not overlap.
	Progress func(Progress)

	// PlainHTTP allows HTTP without TLS to the registry of the reference.
	PlainHTTP bool

	// Mirrors maps the host of a registry, as in a full reference
	// ("docker.io", "ghcr.io", "localhost:5000"), to base URLs that are asked
	// before it, in this order: "https://mirror.example/prefix". One that
	// starts with "http://" is thereby asked for without TLS. What can't be had from
	// a mirror is taken from the registry itself.
	Mirrors map[string][]string
}

// Progress is how far a pull or import is with one layer.
type Progress struct {
	Layer string // digest of the layer as it is transferred
	Index int    // its place among Count layers, from 0, lowest first
	Count int
	Phase Phase
	Done  int64 // bytes transferred, or unpacked (of the compressed layer)
	Total int64 // bytes in all; 0 when not known
}

// Phase is what is done to a layer.
type Phase string

// The phases of a layer, in their order. PhaseDone comes exactly once per layer.
const (
	PhaseDownload Phase = "download"
	PhaseUnpack   Phase = "unpack"
	PhaseDone     Phase = "done"
)

// A Lease keeps a root file system in the store while it is used. It ends with
// Release, or with the process.
type Lease struct {
	root Rootfs
	once sync.Once
	fds  []int // open and locked; shared with nobody
}

// Rootfs returns what is leased. Don't change it.
func (l *Lease) Rootfs() Rootfs { return l.root }

// Release ends the lease. Nothing of the root file system may be used any
// more. It may be called many times.
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
//
// A name is resolved once: what the Lease holds does not change when a tag is
// moved later. The error matches sandpit.ErrNotFound for an image that does not
// exist, sandpit.ErrUnavailable for a registry that can't be reached,
// sandpit.ErrIntegrity for content that is not what its digest says,
// sandpit.ErrInvalid for a reference or image that makes no sense, and
// sandpit.ErrExhausted when the disk is full. Then nothing is left, except for
// whole layers and the part of one that has been received, from which a
// second try goes on.
func (s *Store) Acquire(ctx context.Context, ref string, opt AcquireOptions) (*Lease, error) {
	kind, rest, _ := strings.Cut(ref, ":")
	switch {
	case ref == "" || ref == "host":
		return s.acquireHost(ctx)
	case kind == "dir":
		return acquireDir(ref, rest)
	}
	return nil, unsupportedf("using image %q: not a known kind", ref)
}

// acquireDir leases a directory in place: nothing is copied, and nothing locked.
func acquireDir(ref, dir string) (*Lease, error) {
	if dir == "" || strings.IndexByte(dir, 0) >= 0 {
		return nil, invalidf("using image %q: no directory named", ref)
	}
	abs, err := filepath.Abs(dir)
	if err == nil {
		// A layer of an overlay is a path that others may read: a fixed one,
		// without links that could be turned meanwhile.
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		if os.IsNotExist(err) {
			return nil, sandpit.WithHint(notFoundf("using image %q: no such directory", ref),
				"name a directory that holds a root file system")
		}
		return nil, fmt.Errorf("using image %q: %w", ref, err)
	}
	info, err := os.Stat(abs)
	if err != nil {
		return nil, fmt.Errorf("using image %q: %w", ref, err)
	}
	if !info.IsDir() {
		return nil, sandpit.WithHint(invalidf("using image %q: not a directory", ref),
			"use oci-archive:FILE or docker-archive:FILE for an archive")
	}
	return &Lease{root: Rootfs{Reference: ref, Layers: []string{abs}}}, nil
}
