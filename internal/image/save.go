package image

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// A saved image is what a sandbox was made of, with one layer more: the files that it has changed. It
// belongs to a namespace, whose name is part of its own. No other namespace finds it, neither by that
// name nor by its digest, which holds a random number and so can't be guessed.
//
// The layer is stored as a tar that is not compressed: the sandbox stands still while it is written.
//
// What a namespace saves counts against its quota as what it takes on disk: the tar of each layer, as much
// again for the files in it, a block for each file, which may be empty, and the files of the image itself.

// SavedScheme begins the references of saved images: "saved:NAME".
const SavedScheme = "saved"

// maxSaved bounds the saved images of a namespace.
const maxSaved = 1000

// entryBytes is what each file counts beside its content, its name and its attributes: a block. A directory or an
// attribute takes one, and so do the ends of files.
const entryBytes = 4 << 10

// imageBytes is what each image counts besides: it has some files and directories, however small.
const imageBytes = 8 * entryBytes

// savingSuffix ends the names of files in tmp that name what a save puts into the store, see unsave.
const savingSuffix = ".saving"

// annotationSaved makes each saved image unique.
const annotationSaved = "dev.sandpit.saved"

// LocalNamespace is the namespace of callers without a key, on the machine of the server.
const LocalNamespace = "local"

// savedName returns the name under which a saved image is kept: NAME or NAME:TAG, behind which the
// owner may be written as OWNER/NAME. Without an owner that is LocalNamespace, also for what is saved
// without a server.
func savedName(owner, name string) (string, error) {
	owner = cmp.Or(owner, LocalNamespace)
	name = strings.TrimPrefix(name, owner+"/")
	base, tag, tagged := strings.Cut(name, ":")
	if !notation.IsName(base) || tagged && !notation.IsName(tag) || !notation.IsName(owner) {
		return "", sandpit.WithHint(fault.Invalidf("%q is not a valid name of a saved image", fault.Clip(name)), "write saved:NAME or saved:NAME:TAG; "+notation.NameHint)
	}
	return SavedScheme + ":" + owner + "/" + name, nil
}

// shownSaved returns the reference by which its namespace names a saved image.
func shownSaved(stored string) string {
	_, name, _ := strings.Cut(stored, "/")
	return SavedScheme + ":" + name
}

// storedSaved returns the stored name that a reference means for an owner, and the digest that its image
// must have, in hexadecimal, or "" for any.
func storedSaved(ref, owner string) (name, hex string, err error) {
	rest, digest, pinned := strings.Cut(strings.TrimPrefix(ref, SavedScheme+":"), "@")
	if pinned && !ValidDigest(digest) {
		return "", "", fault.Invalidf("the digest of %q is not sha256: and 64 lower-case hexadecimal digits", fault.Clip(ref))
	}
	switch of, _, ok := strings.Cut(rest, "/"); {
	case ok && owner == "":
		owner = of
	case ok && owner != of && notation.IsName(of):
		return "", "", sandpit.WithHint(fault.NotFoundf("namespace %q has no image %q", owner, fault.Clip(ref)), "write saved:NAME; only sandboxes of its own namespace use a saved image")
	}
	name, err = savedName(owner, rest)
	return name, strings.TrimPrefix(digest, DigestPrefix), err
}

// acquireSaved leases a saved image.
func (s *Store) acquireSaved(ref, owner string) (*Lease, error) {
	name, hex, err := storedSaved(ref, owner)
	if err != nil {
		return nil, err
	}
	if e, ok := s.readRef(name, DefaultPlatform()); ok && (hex == "" || hex == e.image) {
		if l, ok := s.open(e.image, ref); ok {
			return l, nil
		}
	}
	return nil, noneSaved(ref)
}

// noneSaved is the error of a reference to a saved image that does not exist.
func noneSaved(ref string) error {
	return sandpit.WithHint(fault.NotFoundf("no image was saved as %q", fault.Clip(ref)), "run 'sandpit images ls' to list stored images, or 'sandpit images commit' to save one")
}

// orSaved returns an error about a reference with the saved image of an owner that may be meant, if there is one.
func (s *Store) orSaved(err error, owner, ref string) error {
	name, invalid := savedName(owner, ref)
	if err == nil || invalid != nil {
		return err
	}
	if _, ok := s.readRef(name, DefaultPlatform()); !ok {
		return err
	}
	return sandpit.WithHint(err, "did you mean "+shownSaved(name)+"?")
}

// SaveOptions say what is saved.
type SaveOptions struct {
	// Owner is the namespace of the image and Name its name there, NAME or NAME:TAG. An image that
	// has the name loses it, and is removed once nobody uses it.
	Owner, Name string

	// Quota bounds all that the namespace has saved, in bytes.
	Quota int64

	// Bytes bounds the changed files; 0: as Limits does.
	Bytes int64

	// Configure changes the configuration that the image inherits from what it was made of.
	Configure func(*Config)

	// Read is called when the files have been read: the sandbox may go on.
	Read func()

	// Moves as in AcquireOptions.
	Moves func()
}

// Save saves what a sandbox has changed as an image of the store: a layer over what it was made of.
// The error matches sandpit.ErrQuota if the namespace would have more than its quota, and
// sandpit.ErrInvalid if a layer can't have the files. After an error nothing is left. If the process is
// killed, the next Sweep, save, pull or prune removes what is left.
func (s *Store) Save(ctx context.Context, base *Lease, tree Tree, opt SaveOptions) (sum Summary, left []string, err error) {
	opt.Owner = cmp.Or(opt.Owner, LocalNamespace)
	name, err := savedName(opt.Owner, opt.Name)
	if err != nil {
		return Summary{}, nil, err
	}
	ctx = fault.WithMoves(ctx, opt.Moves)
	err = s.withSaving(ctx, opt.Owner, func() (err error) {
		sum, left, err = s.save(ctx, base, tree, name, opt)
		return err
	})
	return sum, left, err
}

// withSaving serializes calls of f for a namespace, so that its saved images do not change while f runs.
func (s *Store) withSaving(ctx context.Context, owner string, f func() error) error {
	sum := sha256.Sum256([]byte(owner))
	return s.withLock(ctx, "save-"+hex.EncodeToString(sum[:]), f)
}

func (s *Store) save(ctx context.Context, base *Lease, tree Tree, name string, opt SaveOptions) (Summary, []string, error) {
	s.sweep()
	used, count := s.savedBy(opt.Owner)
	_, replaces := s.readRef(name, DefaultPlatform())
	if count >= maxSaved && !replaces {
		return Summary{}, nil, sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "the namespace has %d saved images, which is the maximum", count), "remove some of them")
	}
	src, err := s.savedOver(base, opt)
	if err != nil {
		return Summary{}, nil, err
	}
	lim := s.opt.Limits
	if opt.Bytes > 0 {
		lim.LayerBytes = min(lim.LayerBytes, opt.Bytes)
	}
	tmp, err := s.tempFile()
	if err != nil {
		return Summary{}, nil, err
	}
	defer tmp.discard()
	sum := sha256.New()
	out := &quotaWriter{w: io.MultiWriter(tmp, sum), left: opt.Quota - used, used: used, quota: opt.Quota}
	a, err := packChanges(ctx, out, tree, base.root.Layers, lim)
	if opt.Read != nil {
		opt.Read()
	}
	if err != nil {
		return Summary{}, nil, s.diskError(err)
	}
	if err := src.add(tmp.File, hex.EncodeToString(sum.Sum(nil))); err != nil {
		return Summary{}, nil, err
	}
	// Its record has what the config has.
	if err := out.take(imageBytes + int64(2*len(src.config)+len(src.manifest))); err != nil {
		return Summary{}, nil, err
	}
	saved, err := s.putSaved(ctx, src, tmp, name)
	if err != nil {
		return Summary{}, nil, err
	}
	saved.Name, saved.InUse = shownSaved(name), false
	notes := a.notes
	if a.left > int64(len(notes)) {
		notes = append(notes, fmt.Sprintf("and %d more", a.left-int64(len(notes))))
	}
	return saved, notes, nil
}

// putSaved puts an image whose layer was packed into the store, and names it.
func (s *Store) putSaved(ctx context.Context, src *savedSource, tar *temp, name string) (sum Summary, err error) {
	layer := src.doc.Layers[len(src.doc.Layers)-1]
	made := []string{strings.TrimPrefix(DigestOf(src.manifest), DigestPrefix), src.doc.Config.hex(), layer.hex()}
	mark, err := s.makeTemp(savingSuffix, newFile)
	if err != nil {
		return sum, err
	}
	defer mark.discard()
	var hold held
	defer func() {
		hold.release()
		if err != nil {
			tar.discard()
			s.unsave(made)
		}
	}()
	if _, err := mark.WriteString(strings.Join(made, "\n")); err != nil {
		return sum, s.diskError(fmt.Errorf("storing image: %w", err))
	}
	// The tar becomes the blob. If it was pruned at once, ingest makes it again of the open file.
	if err := s.ensure("blobs"); err != nil {
		return sum, err
	}
	err = s.withLock(ctx, "blob-"+layer.hex(), func() error {
		fd, ok := s.haveBlob(layer)
		if !ok {
			var err error
			if fd, err = s.commitBlob(tar, layer); err != nil {
				return err
			}
		}
		hold.add(fd)
		return nil
	})
	if err != nil && err != errPruned {
		return sum, err
	}
	want, err := parsePlatform("")
	if err != nil {
		return sum, err
	}
	rec, fd, err := s.ingest(ctx, src, want, true, nil)
	if err != nil {
		return sum, err
	}
	hold.add(fd)
	e := refEntry{name: name, platform: DefaultPlatform(), image: rec.hex(), at: time.Now()}
	if err := s.nameSaved(ctx, e); err != nil {
		return sum, err
	}
	return s.summary(e, rec), nil
}

// nameSaved gives a saved image a name. An image that has lost its last name by that is removed.
func (s *Store) nameSaved(ctx context.Context, e refEntry) error {
	old, replaces := s.readRef(e.name, e.platform)
	if err := s.writeRef(e); err != nil {
		return err
	}
	named := func(e refEntry) bool { return e.image == old.image }
	if replaces && !slices.ContainsFunc(s.refs(), named) {
		_, _ = s.Remove(ctx, DigestPrefix+old.image) // one that is in use goes with the next prune
	}
	return nil
}

// SavedWith returns an image that a namespace has saved with a label of a value, as NAME@DIGEST of its newest name, to a second. The error
// matches sandpit.ErrNotFound if there is none.
func (s *Store) SavedWith(owner, label, value string) (ref string, err error) {
	prefix := SavedScheme + ":" + cmp.Or(owner, LocalNamespace) + "/"
	records := s.records()
	var newest time.Time
	for _, e := range s.refs() {
		name, own := strings.CutPrefix(e.name, prefix)
		if rec := records[e.image]; own && rec != nil && rec.config.Labels[label] == value && (ref == "" || e.at.After(newest)) {
			ref, newest = name+"@"+rec.digest, e.at
		}
	}
	if ref == "" {
		return "", fault.NotFoundf("no saved image has the label %s=%s", label, fault.Clip(value))
	}
	return ref, nil
}

// TagSaved gives an image that a namespace has saved, NAME or NAME@DIGEST, other names there. Images that have these names lose
// them, and are removed once nobody uses them. It returns the digest of the image. The error matches
// sandpit.ErrNotFound if there is none, and sandpit.ErrQuota if the namespace would have too many names.
func (s *Store) TagSaved(ctx context.Context, owner, name string, names []string) (digest string, err error) {
	owner = cmp.Or(owner, LocalNamespace)
	from, hex, err := storedSaved(name, owner)
	if err != nil {
		return "", err
	}
	to := make([]string, len(names))
	for i, n := range names {
		if to[i], err = savedName(owner, n); err != nil {
			return "", err
		}
	}
	err = s.withSaving(ctx, owner, func() error {
		e, ok := s.readRef(from, DefaultPlatform())
		if ok = ok && (hex == "" || hex == e.image); ok {
			var lease *Lease
			if lease, ok = s.open(e.image, name); ok { // a held image is not removed before it has its names
				defer lease.Release()
			}
		}
		if !ok {
			return fault.NotFoundf("no image was saved as %q", fault.Clip(name))
		}
		all := map[string]bool{}
		for _, r := range s.refs() {
			if strings.HasPrefix(r.name, SavedScheme+":"+owner+"/") {
				all[r.name] = true
			}
		}
		for _, n := range to {
			all[n] = true
		}
		if len(all) > maxSaved {
			return sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "the namespace may have %d names of saved images", maxSaved), "remove some of them")
		}
		digest = DigestPrefix + e.image
		for _, n := range to {
			if err := s.nameSaved(ctx, refEntry{name: n, platform: e.platform, image: e.image, at: time.Now()}); err != nil {
				return err
			}
		}
		return nil
	})
	return digest, err
}

// unsave removes what a save has put into the store, unless the image got its name: the digests of its
// manifest, its config and its layer, hexadecimal. It returns the bytes freed.
func (s *Store) unsave(made []string) (freed int64) {
	if len(made) != 3 || !validHex(made[0]) || !validHex(made[1]) || !validHex(made[2]) {
		return 0 // the save had put nothing there yet
	}
	if slices.ContainsFunc(s.refs(), func(e refEntry) bool { return e.image == made[0] }) {
		return 0
	}
	path := s.path("images", made[0])
	if fd, ok := s.openUnused(path); ok {
		_ = os.Remove(path)
		closeFD(fd)
	}
	return s.collect("layers", made[2:]) + s.collect("blobs", made)
}

// savedBy returns the bytes that a namespace has saved, and the number of its images.
func (s *Store) savedBy(owner string) (used int64, images int) {
	seen := map[string]bool{}
	for _, rec := range s.records() {
		if !rec.saved || rec.owner != owner {
			continue
		}
		images++
		for _, l := range rec.own {
			if seen[l] {
				continue
			}
			seen[l] = true
			used += 2*size(s.blobPath(l)) + s.readAbout(l).entries*entryBytes // its tar is not compressed
		}
		used += imageBytes + size(s.path("images", rec.hex()))
		for _, blob := range rec.blobs[:min(2, len(rec.blobs))] { // its manifest and config
			used += size(s.blobPath(blob))
		}
	}
	return used, images
}

// size returns the length of a file, 0 for one that does not exist.
func size(path string) int64 {
	info, err := os.Lstat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// RemoveSaved removes an image that a namespace has saved, by its name or digest.
func (s *Store) RemoveSaved(ctx context.Context, ref, owner string) (Removed, error) {
	if ValidDigest(ref) {
		rec := s.records()[strings.TrimPrefix(ref, DigestPrefix)]
		if rec == nil || !rec.saved || rec.owner != owner {
			return Removed{}, fault.NotFoundf("removing image %q: it is not in the store", fault.Clip(ref))
		}
		return s.Remove(ctx, ref)
	}
	name, hex, err := storedSaved(ref, owner)
	if err != nil {
		return Removed{}, err
	}
	if hex != "" {
		name += "@" + DigestPrefix + hex
	}
	out, err := s.Remove(ctx, name)
	if errors.Is(err, sandpit.ErrNotFound) {
		err = noneSaved(ref)
	}
	return out, err
}

// quotaWriter writes the tar of a layer, and refuses more than a namespace may still save.
type quotaWriter struct {
	w                 io.Writer
	left, used, quota int64 // bytes on disk
}

// take counts bytes on disk.
func (q *quotaWriter) take(n int64) error {
	if q.left -= n; q.left < 0 {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "the namespace may save %s in all, as layers and unpacked, where a file takes %s at least, and has saved %s",
			notation.FormatSize(q.quota), notation.FormatSize(entryBytes), notation.FormatSize(q.used)), "remove saved images, or files of the sandbox")
	}
	return nil
}

func (q *quotaWriter) Write(p []byte) (int, error) {
	if err := q.take(int64(2 * len(p))); err != nil { // in the tar, and unpacked
		return 0, err
	}
	return q.w.Write(p)
}

// A savedSource is an image with one layer more than another of the store.
type savedSource struct {
	layerSource
	cfg   jsonConfig
	doc   document
	owner string
	own   []string
	host  bool
}

// savedOver begins an image over what a sandbox was made of.
func (s *Store) savedOver(base *Lease, opt SaveOptions) (*savedSource, error) {
	src := &savedSource{owner: opt.Owner, doc: document{SchemaVersion: 2, MediaType: typeOCIManifest, Annotations: map[string]string{annotationSaved: rand.Text()}}}
	config := base.root.Config
	if base.root.Digest != "" {
		rec := s.records()[strings.TrimPrefix(base.root.Digest, DigestPrefix)]
		if rec == nil {
			return nil, fault.NotFoundf("the sandbox's image is missing in the store")
		}
		data, err := s.readBlob(rec.hex(), MaxManifest)
		if err != nil {
			return nil, s.missing(err)
		}
		below, err := parseDocument(data, "")
		if err != nil {
			return nil, err
		}
		if data, err = s.readBlob(below.Config.hex(), maxConfig); err != nil {
			return nil, s.missing(err)
		}
		if err := json.Unmarshal(data, &src.cfg); err != nil {
			return nil, fault.Invalidf("reading image config: %w", err)
		}
		src.doc.Layers, src.own, src.host, config = below.Layers, slices.Clone(rec.own), rec.host, rec.config
		for i := range src.doc.Layers { // of a manifest in Docker's form
			switch t := &src.doc.Layers[i].MediaType; {
			case !strings.HasPrefix(*t, "application/vnd.docker."):
			case strings.HasSuffix(*t, "gzip"):
				*t = typeOCILayerGzip
			default:
				*t = typeOCILayerTar
			}
		}
	} else {
		if base.root.Reference != "host" {
			return nil, sandpit.WithHint(fault.Unsupportedf("the sandbox's image is a directory that is used in place"), "import the directory with 'sandpit images import' and use that image")
		}
		want, err := parsePlatform("")
		if err != nil {
			return nil, err
		}
		src.host, src.cfg.Architecture, src.cfg.OS, src.cfg.Variant, src.cfg.RootFS.Type = true, want.arch, want.os, want.variant, "layers"
	}
	if len(src.doc.Layers) >= maxLayers {
		return nil, fault.Unsupportedf("the sandbox's image has %d layers, which is the maximum", maxLayers)
	}
	config.Labels = maps.Clone(config.Labels)
	if opt.Configure != nil {
		opt.Configure(&config)
	}
	c := &src.cfg.Config
	c.User, c.Env, c.Entrypoint, c.Cmd, c.WorkingDir, c.Labels, c.StopSignal = config.User, config.Env, config.Entrypoint, config.Cmd, config.WorkingDir, config.Labels, config.StopSignal
	src.cfg.Created = time.Now().UTC().Format(time.RFC3339Nano)
	return src, nil
}

// add adds the layer, and makes config and manifest. The digest of a tar that is not compressed is
// also its diff-id.
func (l *savedSource) add(tar *os.File, digest string) error {
	size, err := tar.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	l.layer, l.own = tar, append(l.own, digest)
	l.cfg.RootFS.DiffIDs = append(l.cfg.RootFS.DiffIDs, DigestPrefix+digest)
	l.doc.Layers = append(l.doc.Layers, Descriptor{MediaType: typeOCILayerTar, Digest: DigestPrefix + digest, Size: size})
	if l.config, err = json.Marshal(l.cfg); err != nil {
		return err
	}
	if _, err := parseConfig(l.config); err != nil { // also what the caller has asked for
		return err
	}
	l.doc.Config = &Descriptor{MediaType: typeOCIConfig, Digest: DigestOf(l.config), Size: int64(len(l.config))}
	l.manifest, err = json.Marshal(l.doc)
	return err
}

// Blob opens the layer or the config. The layers below are in the store.
func (l *savedSource) Blob(ctx context.Context, d Descriptor, offset int64) (io.ReadCloser, int64, error) {
	if d.Digest != DigestOf(l.config) && d.Digest != DigestPrefix+l.own[len(l.own)-1] {
		return nil, 0, fault.NotFoundf("a layer of the sandbox's image is missing in the store")
	}
	return l.layerSource.Blob(ctx, d, offset)
}

// mark completes the record of the image.
func (l *savedSource) mark(rec *record) {
	rec.saved, rec.owner, rec.own, rec.host = true, l.owner, l.own, l.host
}
