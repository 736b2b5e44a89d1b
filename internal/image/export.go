package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Export writes an image of the store as an OCI archive: an OCI layout in a tar (image-spec
// v1.1, image-layout.md), with the original bytes, so that its digest is the same. It never
// uses a registry. The host image and directories can't be exported; import a directory
// first.
func (s *Store) Export(ctx context.Context, ref string, w io.Writer) error {
	if err := s.export(ctx, ref, w); err != nil {
		return fmt.Errorf("exporting image %q: %w", fault.Clip(ref), err)
	}
	return nil
}

func (s *Store) export(ctx context.Context, ref string, w io.Writer) error {
	if ref == "" || ref == "host" {
		return sandpit.WithHint(fault.Unsupportedf("the host image is this machine itself"), "choose a stored image; 'sandpit images ls' lists them")
	}
	entries, err := s.find(ref)
	if err != nil {
		return err
	}
	e := entries[0]
	lease, ok := s.open(e.image, ref)
	if !ok {
		return fault.NotFoundf("it is incomplete in the store")
	}
	defer lease.Release()
	rec := s.records()[e.image]
	if rec == nil {
		return fault.NotFoundf("it is incomplete in the store")
	}
	if rec.host {
		return sandpit.WithHint(fault.Unsupportedf("it was saved over the host image, which is this machine itself"),
			"save a sandbox of another image, such as that of 'sandpit create --image debian:13', or copy its files with 'sandpit cp'")
	}
	data, err := s.readBlob(e.image, MaxManifest)
	if err != nil {
		return s.missing(err)
	}
	doc, err := parseDocument(data, "")
	if err != nil {
		return err
	}
	d := Descriptor{MediaType: doc.MediaType, Digest: rec.digest, Size: int64(len(data))}
	if d.MediaType == "" {
		d.MediaType = typeOCIManifest
	}
	if p, err := parsePlatform(rec.platform); err == nil {
		d.Platform = &jsonPlatform{OS: p.os, Architecture: p.arch, Variant: p.variant}
	}
	if r, err := ParseReference(e.name); err == nil {
		d.Annotations = map[string]string{"io.containerd.image.name": r.String()}
		if r.Tag != "" {
			d.Annotations[annotationRefName] = r.Tag
		}
	}
	index, err := json.Marshal(struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Manifests     []Descriptor `json:"manifests"`
	}{2, typeOCIIndex, []Descriptor{d}})
	if err != nil {
		return err
	}

	tw := tar.NewWriter(w)
	small := func(name string, data []byte) error {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: 0o644, Format: tar.FormatPAX}); err != nil {
			return err
		}
		_, err := tw.Write(data)
		return err
	}
	if err := small("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	if err := small("index.json", index); err != nil {
		return err
	}
	for _, dir := range []string{"blobs/", "blobs/sha256/"} {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, Format: tar.FormatPAX}); err != nil {
			return err
		}
	}
	done := make(map[string]bool)
	for _, hex := range rec.blobs {
		if done[hex] {
			continue
		}
		done[hex] = true
		if err := s.exportBlob(ctx, tw, hex); err != nil {
			return s.missing(err)
		}
	}
	return tw.Close()
}

func (s *Store) missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return sandpit.WithHint(fault.NotFoundf("a part of it is missing in the store"), "pull or import it again")
	}
	return err
}

func (s *Store) exportBlob(ctx context.Context, tw *tar.Writer, hex string) error {
	f, err := os.Open(s.blobPath(hex))
	if err != nil {
		return err
	}
	defer f.Close()
	return packFile(ctx, tw, f, &tar.Header{Name: "blobs/sha256/" + hex, Mode: 0o644, Format: tar.FormatPAX})
}

// packFile writes an open file to an archive: as many bytes as it has now.
// Files that are not regular are left out.
func packFile(ctx context.Context, tw *tar.Writer, f *os.File, hdr *tar.Header) error {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	hdr.Typeflag, hdr.Size = tar.TypeReg, info.Size()
	if err := tw.WriteHeader(hdr); err != nil {
		return err
	}
	n, err := io.Copy(tw, io.LimitReader(readerFunc(func(p []byte) (int, error) {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		return f.Read(p)
	}), hdr.Size))
	if err == nil && n < hdr.Size {
		err = errors.New(hdr.Name + " was truncated while it was read")
	}
	return err
}
