package image

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Summary describes an image in the store.
type Summary struct {
	Name     string    `json:"name"`     // as people type it: "debian:13"; empty for an image without a name
	FullName string    `json:"fullName"` // "docker.io/library/debian:13"
	Digest   string    `json:"digest"`   // of its manifest
	Platform string    `json:"platform"` // "linux/amd64"
	Created  time.Time `json:"created"`  // as the image says; zero if it doesn't
	Stored   time.Time `json:"stored"`   // when the name was last pulled or imported; zero without a name
	Packed   int64     `json:"packed"`   // bytes as transferred
	Unpacked int64     `json:"unpacked"` // bytes of its files
	InUse    bool      `json:"inUse"`

	// Saved is set for an image that was saved from a sandbox. Owner is the sandbox's namespace.
	Saved bool   `json:"saved,omitempty"`
	Owner string `json:"owner,omitempty"`
}

// summary describes a name and its image.
func (s *Store) summary(e refEntry, rec *record) Summary {
	sum := Summary{
		FullName: e.name, Digest: rec.digest, Platform: rec.platform,
		Created: rec.created, Stored: e.at, Packed: rec.size, Saved: rec.saved, Owner: rec.owner,
	}
	if e.name != "" {
		sum.Name = familiar(e.name)
	}
	if sum.Platform == "" || sum.Platform == "/" {
		sum.Platform = e.platform
	}
	for _, l := range rec.layers {
		sum.Unpacked += s.readAbout(l).bytes
	}
	fd, free := s.openUnused(s.path("images", rec.hex()))
	if free {
		closeFD(fd)
	}
	sum.InUse = !free
	return sum
}

// List returns all images of the store: those with a name, by name, then the others. The
// host image is not in it.
func (s *Store) List(ctx context.Context) ([]Summary, error) {
	if _, err := os.ReadDir(s.dir); err != nil && !os.IsNotExist(err) {
		return nil, s.diskError(fmt.Errorf("listing images: %w", err))
	}
	records := s.records()
	var list []Summary
	named := make(map[string]bool)
	for _, e := range s.refs() {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if rec, ok := records[e.image]; ok {
			named[e.image] = true
			list = append(list, s.summary(e, rec))
		}
	}
	var rest []Summary
	for hex, rec := range records {
		if !named[hex] {
			rest = append(rest, s.summary(refEntry{image: hex}, rec))
		}
	}
	slices.SortFunc(rest, func(a, b Summary) int { return strings.Compare(a.Digest, b.Digest) })
	return append(list, rest...), nil
}

// Details has everything about an image.
type Details struct {
	Summary
	Names  []string    `json:"names"` // all of its names, in full
	Config Config      `json:"config"`
	Layers []LayerInfo `json:"layers"`          // lowest first
	Binds  []Bind      `json:"binds,omitempty"` // of the host image
}

// LayerInfo describes a layer.
type LayerInfo struct {
	Digest    string   `json:"digest"` // as transferred
	DiffID    string   `json:"diffID"` // of its tar
	MediaType string   `json:"mediaType"`
	Packed    int64    `json:"packed"`   // bytes as transferred
	Unpacked  int64    `json:"unpacked"` // bytes of its files
	Entries   int64    `json:"entries"`
	Directory string   `json:"directory"`         // where it lies unpacked
	LeftOut   int64    `json:"leftOut"`           // entries and attributes that were not unpacked
	Reasons   []string `json:"reasons,omitempty"` // why, for the first 32 of them
}

// Inspect returns everything about an image of the store, or about the host image. It never
// uses a registry. It returns ErrNotFound if there is no such image.
func (s *Store) Inspect(ctx context.Context, ref string) (Details, error) {
	if ref == "" || ref == "host" {
		l, err := s.acquireHost(ctx)
		if err != nil {
			return Details{}, err
		}
		defer l.Release()
		root := l.Rootfs()
		return Details{
			Summary: Summary{Name: "host", FullName: "host", Platform: DefaultPlatform()},
			Names:   []string{"host"}, Config: root.Config, Binds: root.Binds,
			Layers: []LayerInfo{{Directory: root.Layers[0]}},
		}, nil
	}
	d, err := s.inspect(ref)
	if err != nil {
		return d, fmt.Errorf("inspecting image %q: %w", fault.Clip(ref), err)
	}
	return d, nil
}

func (s *Store) inspect(ref string) (Details, error) {
	entries, err := s.find(ref)
	if err != nil {
		return Details{}, err
	}
	e := entries[0]
	rec := s.records()[e.image]
	if rec == nil {
		return Details{}, fault.NotFoundf("%s is incomplete in the store", fault.Clip(ref))
	}
	out := Details{Summary: s.summary(e, rec), Config: rec.config}
	for _, other := range s.refs() {
		if other.image == e.image {
			out.Names = append(out.Names, other.name)
		}
	}
	data, err := s.readBlob(e.image, MaxManifest)
	if err != nil {
		return out, s.missing(err)
	}
	doc, err := parseDocument(data, "")
	if err != nil {
		return out, err
	}
	configData, err := s.readBlob(doc.Config.hex(), maxConfig)
	if err != nil {
		return out, s.missing(err)
	}
	cfg, err := parseConfig(configData)
	if err != nil {
		return out, err
	}
	for i, l := range doc.Layers {
		if i >= len(cfg.diffIDs) {
			break
		}
		hex := strings.TrimPrefix(cfg.diffIDs[i], DigestPrefix)
		a := s.readAbout(hex)
		out.Layers = append(out.Layers, LayerInfo{
			Digest: l.Digest, DiffID: cfg.diffIDs[i], MediaType: l.MediaType, Packed: l.Size, Unpacked: a.bytes,
			Entries: a.entries, Directory: s.layerPath(hex) + "/fs", LeftOut: a.left, Reasons: a.notes,
		})
	}
	return out, nil
}

// Pull fetches an image, even if it is in the store unless opt.Pull is PullMissing, and
// describes it.
func (s *Store) Pull(ctx context.Context, ref string, opt AcquireOptions) (Summary, error) {
	if opt.Pull != sandpit.PullMissing {
		opt.Pull = sandpit.PullAlways
	}
	l, err := s.Acquire(ctx, ref, opt)
	if err != nil {
		return Summary{}, err
	}
	digest := l.Rootfs().Digest
	l.Release() // before InUse is looked at
	if digest == "" {
		return Summary{Name: ref, FullName: ref, Platform: DefaultPlatform()}, nil
	}
	rec := s.records()[strings.TrimPrefix(digest, DigestPrefix)]
	if rec == nil {
		return Summary{}, errPruned
	}
	name, _, err := storedName(ref)
	if err != nil {
		name = ""
	}
	for _, e := range s.refs() {
		if e.name == name && e.image == rec.hex() {
			return s.summary(e, rec), nil
		}
	}
	return s.summary(refEntry{image: rec.hex()}, rec), nil
}
