package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// ImportOptions are settings of Import.
type ImportOptions struct {
	// Platform selects an image of an archive with several. Default: this machine's; the
	// only image of an archive is taken whatever its platform.
	Platform string

	// Progress as in AcquireOptions.
	Progress func(Progress)
}

// Import puts an image into the store under a name, as if it had been pulled. src is an
// archive or directory: "oci-archive:FILE", "docker-archive:FILE", "oci:DIRECTORY",
// "dir:DIRECTORY", or a bare path, whose form is detected and may also be a tar of a root
// file system. Without a name the image must have one itself.
func (s *Store) Import(ctx context.Context, src, name string, opt ImportOptions) (Summary, error) {
	sum, err := s.importImage(ctx, src, name, opt)
	if err != nil {
		return sum, fileError("importing", src, err)
	}
	return sum, nil
}

func (s *Store) importImage(ctx context.Context, src, name string, opt ImportOptions) (Summary, error) {
	if s.opt.Fetcher == nil {
		return Summary{}, ErrNoFetcher
	}
	want, err := parsePlatform(opt.Platform)
	if err != nil {
		return Summary{}, err
	}
	var ref Reference
	if name != "" {
		if ref, err = importName(name); err != nil {
			return Summary{}, err
		}
	}
	in, err := s.openImport(ctx, src, want)
	if err != nil {
		return Summary{}, err
	}
	defer in.Close()
	rec, fd, err := s.ingest(ctx, in, want, opt.Platform == "", opt.Progress)
	if err != nil {
		return Summary{}, err
	}
	defer closeFD(fd)
	if name == "" {
		if ref, err = ownName(in.names()); err != nil {
			s.collectRecord(rec, fd)
			return Summary{}, err
		}
	}
	e := refEntry{name: ref.String(), platform: want.String(), image: rec.hex(), at: time.Now()}
	if got, err := parsePlatform(rec.platform); err == nil && want.rank(got) == 0 {
		e.platform = got.String()
	}
	if err := s.writeRef(e); err != nil {
		return Summary{}, err
	}
	return s.summary(e, rec), nil
}

// importName reads the name that an image is to have.
func importName(name string) (Reference, error) {
	if name == "host" {
		return Reference{}, sandpit.WithHint(fault.Invalidf("the name host always means this machine"), "choose another name")
	}
	kind, _, _ := strings.Cut(name, ":")
	if kind == SavedScheme {
		return Reference{}, sandpit.WithHint(fault.Invalidf("only an image that was saved from a sandbox has a name like %q", fault.Clip(name)), "choose a name like my/app:1, or save a sandbox of the image with 'sandpit images commit'")
	}
	if isScheme(kind) {
		return Reference{}, sandpit.WithHint(fault.Invalidf("the name %q would not be found: %s: at the beginning of an image says where it is", fault.Clip(name), kind), "choose a name like my/app:1")
	}
	ref, err := ParseReference(name)
	if err != nil {
		return ref, err
	}
	if ref.Digest != "" {
		return ref, fault.Invalidf("the name %s must not contain a digest", name)
	}
	return ref, nil
}

// ownName finds the name that an image gives itself.
func ownName(names []string) (Reference, error) {
	for _, n := range names {
		if strings.ContainsAny(n, "/:") { // a bare tag names nothing
			if ref, err := importName(n); err == nil {
				return ref, nil
			}
		}
	}
	return Reference{}, sandpit.WithHint(fault.Invalidf("the image has no name of its own"), "give it a name")
}

// collectRecord removes an image that has just been made and got no name.
func (s *Store) collectRecord(rec *record, fd int) {
	path := s.path("images", rec.hex())
	if slices.ContainsFunc(s.refs(), func(e refEntry) bool { return e.image == rec.hex() }) {
		return
	}
	if flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) == nil && isAt(fd, path) && os.Remove(path) == nil {
		s.collect("layers", rec.layers)
		s.collect("blobs", rec.blobs)
	}
}

// errEmpty is the error of an archive without a byte.
var errEmpty = fault.Errorf(sandpit.ErrInvalid, "the file is empty")

// openImport opens the source of an import.
func (s *Store) openImport(ctx context.Context, src string, want platform) (fileSource, error) {
	kind, rest, _ := strings.Cut(src, ":")
	switch kind {
	case "oci-archive", "docker-archive", "oci":
		f, err := parseFileRef(kind, rest)
		if err != nil {
			return nil, err
		}
		return s.openFile(ctx, f)
	case "dir":
		return s.packDirectory(ctx, rest, want)
	}
	info, err := os.Stat(src)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		if _, err := os.Stat(filepath.Join(src, "oci-layout")); err == nil {
			return s.openFile(ctx, fileRef{kind: "oci", path: src})
		}
		return s.packDirectory(ctx, src, want)
	}
	t, err := s.openTar(ctx, src)
	if err != nil {
		return nil, err
	}
	if _, ok := t.files["index.json"]; ok {
		return &layoutSource{tree: t}, nil
	}
	if _, ok := t.files["manifest.json"]; ok {
		return &dockerSource{tree: t}, nil
	}
	t.close()
	return s.singleLayer(ctx, src, want)
}

// A layerSource is an image made of one layer in a file.
type layerSource struct {
	config, manifest []byte
	layer            *os.File
	tmp              *temp // of layer, when it has been made for this
}

func (l *layerSource) Close() {
	if l.tmp != nil {
		l.tmp.discard()
		return
	}
	_ = l.layer.Close()
}

func (l *layerSource) Tries() int      { return 1 }
func (l *layerSource) names() []string { return nil }

func (l *layerSource) Root(context.Context) ([]byte, string, error) {
	return l.manifest, typeOCIManifest, nil
}

func (l *layerSource) Blob(_ context.Context, d Descriptor, offset int64) (io.ReadCloser, int64, error) {
	if d.Digest == DigestOf(l.config) {
		return io.NopCloser(strings.NewReader(string(l.config))), 0, nil
	}
	return io.NopCloser(io.NewSectionReader(l.layer, offset, d.Size-offset)), offset, nil
}

// describe makes config and manifest of a layer with a digest, size and diff-id.
func (l *layerSource) describe(want platform, layer Descriptor, diffID string) error {
	cfg := jsonConfig{Architecture: want.arch, OS: want.os, Variant: want.variant}
	cfg.RootFS.Type, cfg.RootFS.DiffIDs = "layers", []string{DigestPrefix + diffID}
	var err error
	if l.config, err = json.Marshal(cfg); err != nil {
		return err
	}
	l.manifest, err = json.Marshal(document{
		SchemaVersion: 2, MediaType: typeOCIManifest,
		Config: &Descriptor{MediaType: typeOCIConfig, Digest: DigestOf(l.config), Size: int64(len(l.config))},
		Layers: []Descriptor{layer},
	})
	return err
}

// singleLayer makes an image of a tar, compressed or not.
func (s *Store) singleLayer(ctx context.Context, name string, want platform) (fileSource, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	l := &layerSource{layer: f}
	info, err := f.Stat()
	if err != nil {
		l.Close()
		return nil, err
	}
	h := sha256.New()
	stream := s.openLayer(ctx, io.TeeReader(f, h), info.Size(), s.opt.Limits)
	diffID, err := stream.digest()
	stream.Close()
	if err == nil && diffID == hex.EncodeToString(sha256.New().Sum(nil)) { // compressed, too
		err = errEmpty
	}
	if err == nil {
		_, err = io.Copy(h, f) // what follows the compressed data
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	var magic [2]byte
	_, _ = f.ReadAt(magic[:], 0)
	mediaType := typeOCILayerTar
	switch magic {
	case [2]byte{0x1f, 0x8b}:
		mediaType = typeOCILayerGzip
	case [2]byte{0x28, 0xb5}:
		mediaType = typeOCILayerTar + "+zstd"
	}
	d := Descriptor{MediaType: mediaType, Digest: DigestPrefix + hex.EncodeToString(h.Sum(nil)), Size: info.Size()}
	if err := l.describe(want, d, diffID); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// packDirectory makes an image of a directory: a copy, that later changes of
// the directory don't touch.
func (s *Store) packDirectory(ctx context.Context, dir string, want platform) (fileSource, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fault.Invalidf("it is not a directory")
	}
	tmp, err := s.tempFile()
	if err != nil {
		return nil, err
	}
	l := &layerSource{layer: tmp.File, tmp: tmp}
	plain, packed := sha256.New(), sha256.New()
	zw := s.opt.Fetcher.Compress(io.MultiWriter(tmp, packed))
	err = packTree(ctx, io.MultiWriter(zw, plain), dir)
	if err == nil {
		err = zw.Close()
	}
	var size int64
	if err == nil {
		size, err = tmp.Seek(0, io.SeekCurrent)
	}
	if err == nil {
		err = l.describe(want, Descriptor{
			MediaType: typeOCILayerGzip, Digest: DigestPrefix + hex.EncodeToString(packed.Sum(nil)), Size: size,
		}, hex.EncodeToString(plain.Sum(nil)))
	}
	if err != nil {
		l.Close()
		return nil, s.diskError(fmt.Errorf("packing directory: %w", err))
	}
	return l, nil
}

// packTree writes a directory as a tar, in the order of names. It stays on the
// directory's file system; devices, FIFOs and sockets are left out, as they
// would be when unpacking.
func packTree(ctx context.Context, w io.Writer, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	tw := tar.NewWriter(w)
	inodes := make(map[[2]uint64]string) // of files with several names
	var dev uint64
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		info, err := root.Lstat(name)
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return fault.Unsupportedf("only on Unix")
		}
		if name == "." {
			dev = uint64(st.Dev)
		} else if uint64(st.Dev) != dev {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		hdr := &tar.Header{
			Name: name, Mode: int64(notation.ModeBits(info.Mode())), ModTime: info.ModTime().Truncate(time.Second),
			Uid: int(st.Uid), Gid: int(st.Gid), Format: tar.FormatPAX,
		}
		switch {
		case info.IsDir():
			hdr.Typeflag, hdr.Name = tar.TypeDir, name+"/"
			return tw.WriteHeader(hdr)
		case info.Mode()&fs.ModeSymlink != 0:
			hdr.Typeflag = tar.TypeSymlink
			if hdr.Linkname, err = root.Readlink(name); err != nil {
				return err
			}
			return tw.WriteHeader(hdr)
		case !info.Mode().IsRegular():
			return nil
		}
		if st.Nlink > 1 {
			key := [2]uint64{uint64(st.Dev), st.Ino}
			if first, ok := inodes[key]; ok {
				hdr.Typeflag, hdr.Linkname = tar.TypeLink, first
				return tw.WriteHeader(hdr)
			}
			inodes[key] = name
		}
		f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		return packFile(ctx, tw, f, hdr) // unless it was replaced meanwhile
	})
	if err != nil {
		return err
	}
	return tw.Close()
}
