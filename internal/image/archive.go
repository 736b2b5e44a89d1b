package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// annotationRefName holds the tag of a manifest in the index of an OCI layout
// (image-spec v1.1, annotations.md).
const annotationRefName = "org.opencontainers.image.ref.name"

// A fileRef is a reference to an image in a file or directory.
type fileRef struct {
	kind string // "oci-archive", "docker-archive", "oci"
	path string // absolute
	tag  string
}

// parseFileRef reads what follows "oci-archive:" and the like: a path, and
// perhaps a tag, which may have colons too. The shortest path that exists is
// meant, unless the whole is one.
func parseFileRef(kind, rest string) (fileRef, error) {
	if rest == "" || strings.IndexByte(rest, 0) >= 0 || len(rest) > maxPath {
		return fileRef{}, fault.Invalidf("reading image reference %q: the file name is missing", fault.Clip(kind+":"+rest))
	}
	f := fileRef{kind: kind, path: rest}
	if _, err := os.Stat(rest); err != nil {
		for i := 1; i < len(rest); i++ {
			if rest[i] != ':' {
				continue
			}
			if _, err := os.Stat(rest[:i]); err == nil {
				f.path, f.tag = rest[:i], rest[i+1:]
				break
			}
		}
	}
	abs, err := filepath.Abs(f.path)
	if err != nil {
		return f, fmt.Errorf("reading image reference: %w", err)
	}
	f.path = abs
	return f, nil
}

func (f fileRef) name() string {
	s := f.kind + ":" + f.path
	if f.tag != "" {
		s += ":" + f.tag
	}
	return s
}

// stamp tells whether a file is still the one that has been read.
func (f fileRef) stamp() (string, error) {
	p := f.path
	if f.kind == "oci" {
		p += "/index.json"
	}
	info, err := os.Stat(p)
	if err != nil {
		return "", err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", errors.New("no inode")
	}
	return fmt.Sprintf("%d %d %d %d %d", st.Dev, st.Ino, info.Size(), info.ModTime().UnixNano(), changeTime(st)), nil
}

// acquireFile leases an image of an archive or layout. It is read once, and
// again when the file changes.
func (s *Store) acquireFile(ctx context.Context, ref, kind, rest string, want platform, opt AcquireOptions) (*Lease, error) {
	f, err := parseFileRef(kind, rest)
	if err != nil {
		return nil, err
	}
	stamp, err := f.stamp()
	if err != nil {
		return nil, fileError("using image", ref, err)
	}
	if e, ok := s.readRef(f.name(), want.String()); ok && e.stamp == stamp {
		if l, ok := s.open(e.image, ref); ok {
			return l, nil
		}
	}
	if s.opt.Fetcher == nil {
		return nil, ErrNoFetcher
	}
	src, err := s.openFile(ctx, f)
	if err != nil {
		return nil, fileError("using image", ref, err)
	}
	defer src.Close()
	l, err := s.ingestAs(ctx, src, refEntry{name: f.name(), platform: want.String(), stamp: stamp}, ref, want, false, opt.Progress)
	if err != nil {
		return nil, fmt.Errorf("using image %q: %w", fault.Clip(ref), err)
	}
	return l, nil
}

func fileError(what, ref string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return sandpit.WithHint(fault.NotFoundf("%s %q: no such file", what, fault.Clip(ref)), "check the path")
	}
	return fmt.Errorf("%s %q: %w", what, fault.Clip(ref), err)
}

// A fileSource is an image in files.
type fileSource interface {
	Source
	// names returns what the image calls itself: references, if it says any.
	names() []string
}

func (s *Store) openFile(ctx context.Context, f fileRef) (fileSource, error) {
	if f.kind == "oci" {
		root, err := os.OpenRoot(f.path)
		if err != nil {
			return nil, err
		}
		return &layoutSource{tree: dirTree{root}, tag: f.tag}, nil
	}
	t, err := s.openTar(ctx, f.path)
	if err != nil {
		return nil, err
	}
	if f.kind == "oci-archive" {
		return &layoutSource{tree: t, tag: f.tag}, nil
	}
	return &dockerSource{tree: t, tag: f.tag}, nil
}

// A fileTree is a set of named files: those of a directory or of a tar.
type fileTree interface {
	// open returns a regular file; fs.ErrNotExist if there is none. It is
	// good until the tree is closed.
	open(name string) (*io.SectionReader, io.Closer, error)
	close()
}

type dirTree struct{ root *os.Root }

func (d dirTree) close() { _ = d.root.Close() }

func (d dirTree) open(name string) (*io.SectionReader, io.Closer, error) {
	// O_NONBLOCK: a FIFO would block.
	f, err := d.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fault.Invalidf("%s is not a regular file", fault.Clip(name))
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return io.NewSectionReader(f, 0, info.Size()), f, nil
}

// A tarTree finds files in an uncompressed tar by their place.
type tarTree struct {
	f     *os.File
	tmp   *temp // of f, when it had to be decompressed
	files map[string][2]int64
	links map[string]string
}

const maxTarTreeFiles = 100_000

func (t *tarTree) close() {
	if t.tmp != nil {
		t.tmp.discard()
		return
	}
	_ = t.f.Close()
}

func (t *tarTree) open(name string) (*io.SectionReader, io.Closer, error) {
	name = path.Clean(name)
	for range 8 { // old archives link equal layers to each other
		if at, ok := t.files[name]; ok {
			return io.NewSectionReader(t.f, at[0], at[1]), io.NopCloser(nil), nil
		}
		target, ok := t.links[name]
		if !ok {
			break
		}
		name = path.Join(path.Dir(name), target)
	}
	return nil, nil, &fs.PathError{Op: "open", Path: fault.Clip(name), Err: fs.ErrNotExist}
}

// openTar indexes a tar file. A compressed one is decompressed first, into the
// store.
func (s *Store) openTar(ctx context.Context, name string) (*tarTree, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	t := &tarTree{f: f, files: make(map[string][2]int64), links: make(map[string]string)}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fault.Invalidf("it is not a regular file")
	}
	if err == nil && info.Size() == 0 {
		err = errEmpty
	}
	if err == nil {
		err = s.plainTar(ctx, t, info.Size())
	}
	if err == nil {
		err = t.index(ctx)
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// plainTar replaces a compressed file by a decompressed copy.
func (s *Store) plainTar(ctx context.Context, t *tarTree, size int64) error {
	var magic [4]byte
	n, err := t.f.ReadAt(magic[:], 0)
	if err != nil && err != io.EOF {
		return err
	}
	if !bytes.HasPrefix(magic[:n], []byte{0x1f, 0x8b}) && !bytes.Equal(magic[:n], []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return nil
	}
	tmp, err := s.tempFile()
	if err != nil {
		return err
	}
	lim := s.opt.Limits
	lim.LayerBytes = lim.ImageBytes
	stream := s.openLayer(ctx, t.f, size, lim)
	_, err = io.Copy(tmp, stream)
	stream.Close()
	if err != nil {
		tmp.discard()
		return s.diskError(fmt.Errorf("decompressing archive: %w", err))
	}
	_ = t.f.Close()
	t.f, t.tmp = tmp.File, tmp
	_, err = t.f.Seek(0, io.SeekStart)
	return err
}

func (t *tarTree) index(ctx context.Context) error {
	tr := tar.NewReader(t.f)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return badTar(err)
		}
		if err := fault.Move(ctx); err != nil {
			return err
		}
		if len(t.files)+len(t.links) >= maxTarTreeFiles {
			return fault.Invalidf("the archive has more than %d files", maxTarTreeFiles)
		}
		name := path.Clean("/" + hdr.Name)[1:]
		switch hdr.Typeflag {
		case tar.TypeReg, tar.TypeRegA: //nolint:staticcheck // old archives have it
			// The reader takes from the file only what it needs, so it is now
			// where the content starts. Not so for sparse files.
			at, err := t.f.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			if !sparse(hdr) {
				t.files[name] = [2]int64{at, hdr.Size}
			}
		case tar.TypeSymlink:
			t.links[name] = hdr.Linkname
		}
	}
}

// badTar says that it is the archive that is wrong, unless it is not.
func badTar(err error) error {
	if errors.Is(err, tar.ErrHeader) {
		return fault.Invalidf("reading tar: it is not a tar archive, or it is damaged")
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrFieldTooLong) {
		return fault.Invalidf("reading tar: %w", err)
	}
	return fmt.Errorf("reading tar: %w", err)
}

func sparse(hdr *tar.Header) bool {
	for k := range hdr.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// readSmall reads a whole file of a tree, of at most a number of bytes.
func readSmall(t fileTree, name string, limit int64) ([]byte, error) {
	r, c, err := t.open(name)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if r.Size() > limit {
		return nil, fault.Invalidf("%s is larger than %d MiB", fault.Clip(name), limit>>20)
	}
	return io.ReadAll(r)
}

// A layoutSource is an OCI layout (image-spec v1.1, image-layout.md).
type layoutSource struct {
	tree fileTree
	tag  string
	name string
}

func (l *layoutSource) Close() { l.tree.close() }

func (l *layoutSource) Tries() int { return 1 }

func (l *layoutSource) names() []string {
	if l.name == "" {
		return nil
	}
	return []string{l.name}
}

func (l *layoutSource) Root(context.Context) ([]byte, string, error) {
	data, err := readSmall(l.tree, "index.json", MaxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", sandpit.WithHint(fault.Invalidf("it is not an OCI layout: index.json is missing"),
			"use docker-archive: for the output of 'docker save', or dir: for a root file system")
	}
	if err != nil {
		return nil, "", err
	}
	doc, err := parseDocument(data, typeOCIIndex)
	if err != nil {
		return nil, "", err
	}
	var found []Descriptor
	var tags []string
	platforms := true
	for _, m := range doc.Manifests {
		name := m.Annotations[annotationRefName]
		if name != "" && len(tags) < 20 {
			tags = append(tags, fault.Clip(name))
		}
		if l.tag == "" || name == l.tag {
			found = append(found, m)
			platforms = platforms && m.Platform != nil
		}
	}
	hint := "use one of its tags: " + strings.Join(tags, ", ")
	switch {
	case len(found) == 0 && l.tag != "":
		return nil, "", sandpit.WithHint(fault.NotFoundf("it contains no image tagged %q", fault.Clip(l.tag)), hint)
	case len(found) == 0:
		return nil, "", fault.Invalidf("it contains no image")
	case len(found) > 1 && platforms:
		return data, typeOCIIndex, nil // one image for several platforms
	case len(found) > 1:
		return nil, "", sandpit.WithHint(fault.Invalidf("it contains %d images", len(found)), hint)
	}
	d := found[0]
	if err := checkDescriptor(d, MaxManifest); err != nil {
		return nil, "", fmt.Errorf("reading index: %w", err)
	}
	l.name = d.Annotations[annotationRefName]
	if full := d.Annotations["io.containerd.image.name"]; full != "" {
		l.name = full
	}
	data, err = readSmall(l.tree, "blobs/sha256/"+d.hex(), MaxManifest)
	if err != nil {
		return nil, "", missingBlob(d, err)
	}
	if DigestOf(data) != d.Digest {
		return nil, "", fault.Integrityf("reading manifest %s: the digest of its content does not match", d.Digest)
	}
	return data, d.MediaType, nil
}

func missingBlob(d Descriptor, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fault.Integrityf("the archive lacks %s", d.Digest)
	}
	return err
}

func (l *layoutSource) Blob(_ context.Context, d Descriptor, offset int64) (io.ReadCloser, int64, error) {
	r, c, err := l.tree.open("blobs/sha256/" + d.hex())
	if err != nil {
		return nil, 0, missingBlob(d, err)
	}
	return sectionAt(r, c, offset)
}

func sectionAt(r *io.SectionReader, c io.Closer, offset int64) (io.ReadCloser, int64, error) {
	if _, err := r.Seek(offset, io.SeekStart); err != nil {
		c.Close()
		return nil, 0, err
	}
	return struct {
		io.Reader
		io.Closer
	}{r, c}, offset, nil
}

// A dockerSource is what "docker save" writes: manifest.json, a config, and
// tars of layers. It has no manifest as registries know it: one is made.
type dockerSource struct {
	tree   fileTree
	tag    string
	tags   []string
	config []byte
	layers map[string]string // digest -> name in the archive
}

func (d *dockerSource) Close()          { d.tree.close() }
func (d *dockerSource) Tries() int      { return 1 }
func (d *dockerSource) names() []string { return d.tags }

type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func (d *dockerSource) Root(ctx context.Context) ([]byte, string, error) {
	data, err := readSmall(d.tree, "manifest.json", MaxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", sandpit.WithHint(fault.Invalidf("it is not a Docker archive: manifest.json is missing"),
			"use oci-archive: for an OCI layout in a tar")
	}
	if err != nil {
		return nil, "", err
	}
	var list []dockerManifest
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, "", fault.Invalidf("reading manifest.json: %w", err)
	}
	m, err := d.choose(list)
	if err != nil {
		return nil, "", err
	}
	if len(m.Layers) > maxLayers {
		return nil, "", fault.Invalidf("reading manifest.json: it has %d layers, but the limit is %d", len(m.Layers), maxLayers)
	}
	d.tags = m.RepoTags
	if d.config, err = readSmall(d.tree, m.Config, maxConfig); err != nil {
		return nil, "", fmt.Errorf("reading image config: %w", err)
	}
	doc := document{
		SchemaVersion: 2, MediaType: typeOCIManifest,
		Config: &Descriptor{MediaType: typeOCIConfig, Digest: DigestOf(d.config), Size: int64(len(d.config))},
	}
	d.layers = make(map[string]string)
	for _, name := range m.Layers {
		desc, err := hashLayer(ctx, d.tree, name)
		if err != nil {
			return nil, "", fmt.Errorf("reading layer %s: %w", fault.Clip(name), err)
		}
		d.layers[desc.Digest] = name
		doc.Layers = append(doc.Layers, desc)
	}
	data, err = json.Marshal(doc)
	return data, typeOCIManifest, err
}

// choose finds the image that the tag names, or the only one.
func (d *dockerSource) choose(list []dockerManifest) (dockerManifest, error) {
	var tags []string
	want, wantErr := ParseReference(d.tag)
	for _, m := range list {
		for _, t := range m.RepoTags {
			if len(tags) < 20 {
				tags = append(tags, fault.Clip(t))
			}
			if got, err := ParseReference(t); d.tag != "" && (t == d.tag || err == nil && wantErr == nil && got == want || err == nil && got.Tag == d.tag) {
				return m, nil
			}
		}
	}
	hint := "use one of its tags: " + strings.Join(tags, ", ")
	switch {
	case d.tag != "":
		return dockerManifest{}, sandpit.WithHint(fault.NotFoundf("it contains no image tagged %q", fault.Clip(d.tag)), hint)
	case len(list) != 1:
		return dockerManifest{}, sandpit.WithHint(fault.Invalidf("it contains %d images", len(list)), hint)
	}
	return list[0], nil
}

// hashLayer describes a layer by its content.
func hashLayer(ctx context.Context, t fileTree, name string) (Descriptor, error) {
	r, c, err := t.open(name)
	if err != nil {
		return Descriptor{}, err
	}
	defer c.Close()
	h := sha256.New()
	magic := make([]byte, 2)
	n, _ := r.ReadAt(magic, 0)
	if _, err := io.Copy(h, readerFunc(func(p []byte) (int, error) {
		if err := fault.Move(ctx); err != nil {
			return 0, err
		}
		return r.Read(p)
	})); err != nil {
		return Descriptor{}, err
	}
	mediaType := typeOCILayerTar
	if slices.Equal(magic[:n], []byte{0x1f, 0x8b}) {
		mediaType = typeOCILayerGzip
	}
	return Descriptor{MediaType: mediaType, Digest: DigestPrefix + hex.EncodeToString(h.Sum(nil)), Size: r.Size()}, nil
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func (d *dockerSource) Blob(_ context.Context, want Descriptor, offset int64) (io.ReadCloser, int64, error) {
	if d.config != nil && want.Digest == DigestOf(d.config) {
		return io.NopCloser(bytes.NewReader(d.config[min(offset, int64(len(d.config))):])), offset, nil
	}
	name, ok := d.layers[want.Digest]
	if !ok {
		return nil, 0, fault.Integrityf("the archive lacks %s", want.Digest)
	}
	r, c, err := d.tree.open(name)
	if err != nil {
		return nil, 0, missingBlob(want, err)
	}
	return sectionAt(r, c, offset)
}
