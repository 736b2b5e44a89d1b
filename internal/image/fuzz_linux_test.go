package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// Whatever a layer is, nothing outside of its directory changes, and what is
// inside can be removed.
func FuzzUnpack(f *testing.F) {
	add := func(entries ...tar.Header) {
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		for _, h := range entries {
			h.Mode = 0o755
			if h.Typeflag == tar.TypeReg {
				h.Size = 1
			}
			if tw.WriteHeader(&h) == nil && h.Size == 1 {
				_, _ = tw.Write([]byte("x"))
			}
		}
		_ = tw.Close()
		f.Add(b.Bytes())
	}
	add(tar.Header{Name: "a/b", Typeflag: tar.TypeReg}, tar.Header{Name: "a/.wh.b", Typeflag: tar.TypeReg})
	add(tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, tar.Header{Name: "l/x", Typeflag: tar.TypeReg})
	add(tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/"}, tar.Header{Name: "l/.wh..wh..opq", Typeflag: tar.TypeReg})
	add(tar.Header{Name: "f", Typeflag: tar.TypeReg}, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "f"}, tar.Header{Name: "f", Typeflag: tar.TypeDir})
	add(tar.Header{Name: "c", Typeflag: tar.TypeChar}, tar.Header{Name: ".wh.c", Typeflag: tar.TypeReg}, tar.Header{Name: "c/d", Typeflag: tar.TypeReg})
	add(tar.Header{Name: "x", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.user.x": "y"}})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		top := t.TempDir()
		dir := filepath.Join(top, "layer")
		outside := filepath.Join(top, "outside")
		for _, d := range []string{dir, outside} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(outside, "victim"), []byte("untouched"), 0o644); err != nil {
			t.Fatal(err)
		}
		lim := Limits{LayerBytes: 1 << 20, Entries: 1000}.withDefaults()
		_, err := unpackTar(dir, bytes.NewReader(data), lim, int64(len(data)))
		_ = err

		top1, _ := os.ReadDir(top)
		in, _ := os.ReadDir(outside)
		b, _ := os.ReadFile(filepath.Join(outside, "victim"))
		var st syscall.Stat_t
		if len(top1) != 2 || len(in) != 1 || string(b) != "untouched" || syscall.Stat(filepath.Join(outside, "victim"), &st) != nil || st.Nlink != 1 {
			t.Fatalf("changed outside: %v, %v, %q", top1, in, b)
		}
		_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				t.Fatal(err)
			}
			info, err := d.Info()
			if err != nil {
				t.Fatal(err)
			}
			st := info.Sys().(*syscall.Stat_t)
			kind := info.Mode().Type()
			if kind != 0 && kind != fs.ModeDir && kind != fs.ModeSymlink && (kind != fs.ModeDevice|fs.ModeCharDevice || st.Rdev != 0) {
				t.Fatalf("%q is a %v", p, kind)
			}
			return nil
		})
		if err := removeAll(dir); err != nil {
			t.Fatal(err)
		}
	})
}

// Whatever a config or manifest is, it is read within bounds or refused as
// what it is.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"architecture":"amd64","os":"linux","config":{"Env":["A=b"],"Cmd":["x"],"User":"0:0","Volumes":{"/v":{}},"WorkingDir":"../x"},"rootfs":{"type":"layers","diff_ids":["sha256:` + strings.Repeat("0", 64) + `"]}}`))
	f.Add([]byte(`{"config":null,"rootfs":{"diff_ids":[null]}}`))
	f.Add([]byte(`{"schemaVersion":2,"config":{"digest":"sha256:` + strings.Repeat("0", 64) + `"},"layers":[{"digest":"x","size":-1}]}`))
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"platform":{"os":"linux","architecture":"arm","variant":"v7"}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := parseConfig(data)
		if err != nil && !errors.Is(err, sandpit.ErrInvalid) {
			t.Fatalf("unkind error: %v", err)
		}
		if err == nil {
			rec := &record{digest: DigestOf(data), layers: []string{strings.Repeat("0", 64)}, config: cfg.config, platform: cfg.platform.String()}
			again, err := decodeRecord(rec.encode())
			if err != nil {
				t.Fatalf("the record can't be read: %v", err)
			}
			if !bytes.Equal(again.encode(), rec.encode()) {
				t.Fatalf("the record reads as another:\n%s\n%s", rec.encode(), again.encode())
			}
			for _, v := range append(cfg.config.Volumes, cfg.config.WorkingDir) {
				if v != "" && (!filepath.IsAbs(v) || filepath.Clean(v) != v) {
					t.Fatalf("unclean path %q", v)
				}
			}
		}
		doc, err := parseDocument(data, "")
		if err != nil && !errors.Is(err, sandpit.ErrInvalid) && !errors.Is(err, sandpit.ErrUnsupported) {
			t.Fatalf("unkind error: %v", err)
		}
		if err == nil && doc.Manifests != nil {
			for _, p := range []platform{{"linux", "amd64", ""}, {"linux", "arm", ""}, {"linux", "arm", "v7"}, {"linux", "amd64", "v3"}} {
				_, _ = doc.pick(p)
			}
		}
	})
}

// A reference that is taken reads the same again in its canonical form, and is
// safe in a URL and a file name.
func FuzzReference(f *testing.F) {
	for _, s := range []string{
		"debian", "debian:13", "a/b", "ghcr.io/a/b:c", "localhost:5000/x", "[::1]:5000/x", "x@sha256:" + strings.Repeat("a", 64),
		"docker.io/library/x", "a..b", "a__b", "a___b", "A/b", "x:", "x@", "/x", "x/", "-x", "x:-y", "host", "..", "a/../b", "a:b:c", "é",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := ParseReference(s)
		if err != nil {
			if !errors.Is(err, sandpit.ErrInvalid) {
				t.Fatalf("unkind error: %v", err)
			}
			return
		}
		for _, form := range []string{ref.String(), ref.Familiar()} {
			if strings.ContainsAny(form, " \t\r\n\x00?#%\\") || strings.Contains(form, "..") || strings.Contains(form, "//") {
				t.Fatalf("%q is taken as %q", s, form)
			}
			again, err := ParseReference(form)
			if err != nil || again != ref {
				t.Fatalf("%q reads as %+v, and its form %q as %+v (%v)", s, ref, form, again, err)
			}
		}
	})
}

// Whatever lies in the store, reading it does no harm.
func FuzzRecord(f *testing.F) {
	rec := &record{digest: DigestPrefix + strings.Repeat("0", 64), layers: []string{strings.Repeat("1", 64)}, config: Config{Env: []string{"A=\n\""}, Labels: map[string]string{"a": "b"}}}
	f.Add(rec.encode())
	f.Add(refEntry{name: "x", image: strings.Repeat("0", 64)}.encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := decodeRecord(data); err == nil {
			if _, err := decodeRecord(r.encode()); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = decodeRef(data)
	})
}
