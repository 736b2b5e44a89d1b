package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/imagetest"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// An entry of a tar, in short: path, type by its last byte or by kind.
type entry struct {
	name string
	kind byte
	link string
	body string
	mode int64
	uid  int
	pax  map[string]string
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{
			Name: e.name, Typeflag: e.kind, Linkname: e.link, Size: int64(len(e.body)), Mode: e.mode, Uid: e.uid, Gid: e.uid,
			PAXRecords: e.pax, ModTime: time.Unix(1_600_000_000, 0), Format: tar.FormatPAX,
		}
		if e.kind == 0 {
			h.Typeflag = tar.TypeReg
			if strings.HasSuffix(e.name, "/") {
				h.Typeflag = tar.TypeDir
			}
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		if h.Typeflag == tar.TypeChar {
			h.Devmajor, h.Devminor = 0, 0
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatalf("%+v: %v", e, err)
		}
		if _, err := tw.Write([]byte(e.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func layerOf(t testing.TB, data []byte) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func imageOf(t testing.TB, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return withConfig(t, img, image.DefaultPlatform(), v1.Config{})
}

// unpackLayers pulls an image made of tars from a registry.
func unpackLayers(t testing.TB, opt image.Options, tars ...[]byte) (*image.Store, image.Rootfs, error) {
	t.Helper()
	reg := imagetest.Registry(t, imagetest.RegistryOptions{})
	var layers []v1.Layer
	for _, data := range tars {
		layers = append(layers, layerOf(t, data))
	}
	return pullInto(t, opt, reg.Push(t, "x:1", imageOf(t, layers...)))
}

func pullInto(t testing.TB, opt image.Options, ref string) (*image.Store, image.Rootfs, error) {
	t.Helper()
	opt.NoSync, opt.Fetcher = true, fetcher(nil)
	s := image.Open(filepath.Join(t.TempDir(), "images"), opt)
	l, err := s.Acquire(t.Context(), ref, plainHTTP)
	if err != nil {
		return s, image.Rootfs{}, err
	}
	t.Cleanup(l.Release)
	return s, l.Rootfs(), nil
}

// shape lists an unpacked layer: whiteouts, opaque directories, contents.
func shape(t testing.TB, dir string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if rel == "." {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		switch {
		case info.Mode()&fs.ModeCharDevice != 0 && st.Rdev == 0:
			rel += " whiteout"
		case info.IsDir():
			rel += "/"
			var v [8]byte
			if n, err := unix.Lgetxattr(p, "user.overlay.opaque", v[:]); err == nil && string(v[:n]) == "y" {
				rel += " opaque"
			}
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(p)
			rel += " -> " + target
		case info.Mode().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			rel += " " + string(b)
		default:
			rel += " " + info.Mode().String()
		}
		lines = append(lines, rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// What well-meant layers look like when they are unpacked.
func TestUnpack(t *testing.T) {
	deep := strings.Repeat("d/", 300) + "f"
	long := strings.Repeat("n", 255)
	for _, c := range []struct {
		name    string
		entries []entry
		want    []string
	}{
		{
			"files",
			[]entry{{name: "./"}, {name: "a/"}, {name: "a/f", body: "x"}, {name: "/abs", body: "y"}, {name: "./a//./g", body: ""}},
			[]string{"a/", "a/f x", "a/g ", "abs y"},
		},
		{"missing parents", []entry{{name: "a/b/c", body: "x"}}, []string{"a/", "a/b/", "a/b/c x"}},
		{
			"replaced",
			[]entry{
				{name: "f", body: "1"},
				{name: "f", body: "2"},
				{name: "d/x", body: "1"},
				{name: "d", body: "file"},
				{name: "s", kind: tar.TypeSymlink, link: "d"},
				{name: "s", body: "not through the link"},
			},
			[]string{"d file", "f 2", "s not through the link"},
		},
		{
			"whiteouts",
			[]entry{
				{name: "a/.wh.gone"},
				{name: "b/.wh..wh..opq"},
				{name: "b/new", body: "x"},
				{name: ".wh..wh.plnk/"},
				{name: ".wh..wh.aufs"},
				{name: ".wh.", body: ""},
				{name: ".wh..."},
				{name: ".wh.x/y", body: "skipped"},
			},
			[]string{"a/", "a/gone whiteout", "b/ opaque", "b/new x"},
		},
		{
			"whiteouts hide only what is below",
			[]entry{
				{name: "f", body: "mine"},
				{name: ".wh.f"},
				{name: "d/"},
				{name: "d/x", body: "mine"},
				{name: ".wh.d"},
				{name: ".wh.g"},
				{name: "g", body: "mine"},
				{name: ".wh.h"},
				{name: "h/"},
				{name: ".wh.i"},
				{name: "i/x", body: "mine"},
			},
			[]string{"d/ opaque", "d/x mine", "f mine", "g mine", "h/ opaque", "i/ opaque", "i/x mine"},
		},
		{
			"links",
			[]entry{
				{name: "f", body: "x"},
				{name: "h", kind: tar.TypeLink, link: "/f"},
				{name: "s", kind: tar.TypeSymlink, link: "f"},
				{name: "hs", kind: tar.TypeLink, link: "s"},
				{name: "f", kind: tar.TypeLink, link: "f"},
			},
			[]string{"f x", "h x", "hs -> f", "s -> f"},
		},
		{
			"through links of the layer",
			[]entry{
				{name: "usr/lib/"},
				{name: "lib", kind: tar.TypeSymlink, link: "usr/lib"},
				{name: "lib/f", body: "x"},
				{name: "abs", kind: tar.TypeSymlink, link: "/usr/new"},
				{name: "abs/g", body: "y"},
				{name: "up", kind: tar.TypeSymlink, link: "../../../usr"},
				{name: "up/h", body: "z"},
			},
			[]string{"abs -> /usr/new", "lib -> usr/lib", "up -> ../../../usr", "usr/", "usr/h z", "usr/lib/", "usr/lib/f x", "usr/new/", "usr/new/g y"},
		},
		{
			"devices and others are left out",
			[]entry{
				{name: "null", kind: tar.TypeChar},
				{name: "sda", kind: tar.TypeBlock},
				{name: "fifo", kind: tar.TypeFifo},
				{name: "f", body: "x"},
				{name: "f", kind: tar.TypeChar},
			},
			[]string{"f x"},
		},
		{
			"odd names",
			[]entry{{name: " a ", body: "1"}, {name: `b\..\c`, body: "2"}, {name: "n\nl", body: "3"}, {name: "\xff", body: "4"}, {name: "...", body: "5"}, {name: long, body: "6"}, {name: "A", body: "7"}, {name: "a", body: "8"}},
			[]string{" a  1", "... 5", "A 7", "a 8", `b\..\c 2`, "n\nl 3", long + " 6", "\xff 4"},
		},
		{"deep", []entry{{name: deep, body: "x"}}, nil},
		{
			"a file in the place of links",
			[]entry{
				{name: "x/y/"}, {name: "a", kind: tar.TypeSymlink, link: "x"}, {name: "a/y/f", body: "1"}, {name: "a", kind: tar.TypeSymlink, link: "x/y"}, {name: "a/g", body: "2"},
			},
			[]string{"a -> x/y", "x/", "x/y/", "x/y/f 1", "x/y/g 2"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, root, err := unpackLayers(t, image.Options{}, tarOf(t, c.entries...))
			if err != nil {
				t.Fatal(err)
			}
			if got := shape(t, root.Layers[0]); c.want != nil && !slices.Equal(got, c.want) {
				t.Errorf("unpacked (-want +got):\n%s", cmp.Diff(c.want, got))
			}
		})
	}
}

// Layers that try to get out, or to break something. Each is refused in one
// line, and leaves nothing.
func TestUnpackHostileLayers(t *testing.T) {
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o644); err != nil {
		t.Fatal(err)
	}
	rel := strings.Repeat("../", 20) + outside[1:]
	link := func(name, target string) entry { return entry{name: name, kind: tar.TypeSymlink, link: target} }
	hard := func(name, target string) entry { return entry{name: name, kind: tar.TypeLink, link: target} }
	ladder := []entry{}
	for i := range 41 {
		ladder = append(ladder, link(fmt.Sprintf("l%d", i), fmt.Sprintf("l%d", i+1)))
	}
	var tower []entry // each link leads deeper than the last one
	for i := range 40 {
		base := ""
		if i > 0 {
			base = fmt.Sprintf("t%d/", i-1)
		}
		tower = append(tower, entry{name: base + strings.Repeat("d/", 30)}, link(fmt.Sprintf("t%d", i), base+strings.Repeat("d/", 30)))
	}
	for _, c := range []struct {
		name    string
		entries []entry
		refused bool
	}{
		{"dot-dot", []entry{{name: "../x", body: "x"}}, true},
		{"dot-dot inside", []entry{{name: "a/../../x", body: "x"}}, true},
		{"dot-dot that stays", []entry{{name: "a/../x", body: "x"}}, true},
		{"absolute into place", []entry{{name: victim, body: "x"}}, false},
		{"symlink, then write", []entry{link("a", outside), {name: "a/victim", body: "x"}}, false},
		{"relative symlink, then write", []entry{link("a", rel), {name: "a/victim", body: "x"}}, false},
		{"symlink as the file", []entry{link("v", victim), {name: "v", body: "x"}}, false},
		{"symlink as the directory", []entry{link("v", outside), {name: "v/", mode: 0o777}}, false},
		{"hard link outside", []entry{hard("v", victim)}, true},
		{"hard link by dot-dot", []entry{hard("v", rel+"/victim")}, true},
		{"hard link through a symlink", []entry{link("a", outside), hard("v", "a/victim"), {name: "v", body: "x"}}, true},
		{"hard link through a chain", []entry{
			{name: "a/b/c/"}, link("a/b/c/up", "../.."), link("a/b/escape", "c/up/../../"+rel), hard("v", "a/b/escape/victim"),
		}, true},
		{"hard link to a symlink, then write", []entry{link("s", victim), hard("h", "s"), {name: "h", body: "x"}}, false},
		{"hard link to a directory", []entry{{name: "d/"}, hard("h", "d")}, true},
		{"hard link to the root", []entry{hard("h", "/")}, true},
		{"hard link to a whiteout", []entry{{name: ".wh.w"}, hard("h", "w")}, true},
		{"hard link to a marker", []entry{hard("h", ".wh.w")}, true},
		{"hard link to what it replaces", []entry{{name: "d/f", body: "x"}, hard("d", "d/f")}, true},
		{"whiteout through a symlink", []entry{link("etc", outside), {name: "etc/.wh.victim"}}, false},
		{"opaque through a symlink", []entry{link("etc", outside), {name: "etc/.wh..wh..opq"}}, false},
		{"whiteout of dot-dot", []entry{{name: "a/.wh..."}, {name: "a/.wh.."}}, false},
		{"too many links", append(ladder, entry{name: "l0/f", body: "x"}), true},
		{"a link to itself", []entry{link("l", "l"), {name: "l/f", body: "x"}}, true},
		{"a file as a directory", []entry{{name: "f", body: "x"}, {name: "f/g", body: "y"}}, true},
		{"a root that is a file", []entry{link(".", outside)}, true},
		{"a long component", []entry{{name: strings.Repeat("n", 256), body: "x"}}, true},
		{"a name of 64 KiB", []entry{{name: strings.Repeat("n/", 32<<10) + "x", body: "x"}}, true},
		{"513 directories deep", []entry{{name: strings.Repeat("d/", 513), body: ""}}, true},
		{"deeper by links", tower, true},
		{"a symlink to nothing", []entry{{name: "s", kind: tar.TypeSymlink, link: ""}}, true},
		{"a long symlink", []entry{link("s", strings.Repeat("x", 5000))}, true},
		{"xattrs", []entry{{name: "f", body: "x", pax: map[string]string{
			"SCHILY.xattr.security.capability": "x", "SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.user.overlay.redirect": "/etc",
			"SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.user.ok": "fine", "SCHILY.xattr.system.posix_acl_access": "x",
		}}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, root, err := unpackLayers(t, image.Options{}, tarOf(t, c.entries...))
			if c.refused {
				wantError(t, err, sandpit.ErrInvalid, false)
				wantEmpty(t, s)
			} else if err != nil {
				t.Errorf("refused: %v", err)
			}
			if c.name == "xattrs" && err == nil {
				wantAttributes(t, s, root)
			}
			left, err := os.ReadDir(outside)
			b, rerr := os.ReadFile(victim)
			if err != nil || rerr != nil || len(left) != 1 || string(b) != "untouched" {
				t.Errorf("outside: %v, %q, %v, %v", left, b, err, rerr)
			}
			var st syscall.Stat_t
			if err := syscall.Stat(victim, &st); err != nil || st.Nlink != 1 {
				t.Errorf("the victim has %d names, %v", st.Nlink, err)
			}
		})
	}
}

func wantAttributes(t *testing.T, s *image.Store, root image.Rootfs) {
	t.Helper()
	var b [1024]byte
	n, err := unix.Llistxattr(filepath.Join(root.Layers[0], "f"), b[:])
	if err != nil || string(b[:n]) != "user.ok\x00" {
		t.Errorf("extended attributes are %q, %v; want user.ok alone", b[:n], err)
	}
	d, err := s.Inspect(t.Context(), root.Digest)
	if err != nil || d.Layers[0].LeftOut != 5 || len(d.Layers[0].Reasons) != 5 {
		t.Errorf("left out %+v, %v; want 5", d.Layers, err)
	}
}

func TestUnpackLimits(t *testing.T) {
	testkit.NeedFull(t, "it unpacks large layers")
	many, dirs := []entry{}, []entry{}
	for i := range 100 {
		many = append(many, entry{name: fmt.Sprintf("a%d/b/c/d", i)})
		dirs = append(dirs, entry{name: fmt.Sprintf("d%d", i), kind: tar.TypeDir})
	}
	sparse := append([]byte(nil), sparseTar(t)...)
	for _, c := range []struct {
		name string
		opt  image.Limits
		data []byte
	}{
		{"entries", image.Limits{Entries: 99}, tarOf(t, many...)},
		{"entries, with directories on the way", image.Limits{Entries: 399}, tarOf(t, many...)},
		{"names of directories", image.Limits{Names: 10 << 10}, tarOf(t, dirs...)},
		{"bytes of a layer", image.Limits{LayerBytes: 1 << 20}, tarOf(t, entry{name: "f", body: strings.Repeat("x", 1<<20)})},
		{"ratio", image.Limits{RatioFloor: 1 << 20}, tarOf(t, entry{name: "f", body: strings.Repeat("x", 8<<20)})},
		{"ratio of what follows the archive", image.Limits{RatioFloor: 1 << 20}, append(tarOf(t), make([]byte, 8<<20)...)},
		{"a sparse file", image.Limits{LayerBytes: 1 << 30}, sparse},
		{"a sparse file, by ratio", image.Limits{}, sparse},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _, err := unpackLayers(t, image.Options{Limits: c.opt}, c.data)
			wantError(t, err, sandpit.ErrInvalid, false)
			wantEmpty(t, s)
		})
	}
	t.Run("bytes of an image", func(t *testing.T) {
		a := tarOf(t, entry{name: "f", body: "a"})
		s, _, err := unpackLayers(t, image.Options{Limits: image.Limits{ImageBytes: 150}}, a, tarOf(t, entry{name: "f", body: "b"}))
		wantError(t, err, sandpit.ErrInvalid, false)
		wantEmpty(t, s)
	})
	t.Run("gzip bomb", func(t *testing.T) {
		var b bytes.Buffer
		zw, _ := gzip.NewWriterLevel(&b, 9)
		tw := tar.NewWriter(zw)
		_ = tw.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: 1 << 30, Mode: 0o644})
		if _, err := io.CopyN(tw, zeros{}, 1<<30); err != nil {
			t.Fatal(err)
		}
		if tw.Close() != nil || zw.Close() != nil {
			t.Fatal("closing")
		}
		testRawLayer(t, b.Bytes(), types.OCILayer, sandpit.ErrInvalid)
	})
	t.Run("zstd with a huge window", func(t *testing.T) {
		// A frame header alone (RFC 8878, 3.1.1.1): window descriptor 0xff is 3.75 TiB.
		testRawLayer(t, []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xff, 0x01, 0x00, 0x00}, types.OCILayerZStd, sandpit.ErrInvalid)
	})
	t.Run("cut gzip", func(t *testing.T) {
		var b bytes.Buffer
		zw := gzip.NewWriter(&b)
		_, _ = zw.Write(tarOf(t, entry{name: "f", body: strings.Repeat("x", 1000)}))
		_ = zw.Close()
		testRawLayer(t, b.Bytes()[:b.Len()-20], types.OCILayer, sandpit.ErrInvalid)
	})
	t.Run("xz", func(t *testing.T) {
		testRawLayer(t, []byte("\xfd7zXZ\x00 and so on"), types.OCILayer, sandpit.ErrUnsupported)
	})
	t.Run("no tar", func(t *testing.T) {
		testRawLayer(t, bytes.Repeat([]byte("no tar at all "), 100), types.OCIUncompressedLayer, sandpit.ErrInvalid)
	})
}

// sparseTar is a file of 1 TiB in a few KiB (GNU sparse format 1.0 in PAX).
func sparseTar(t testing.TB) []byte {
	t.Helper()
	testkit.NeedProgram(t, "tar")
	dir := t.TempDir()
	f := filepath.Join(dir, "sparse")
	if err := os.WriteFile(f, []byte("start"), 0o644); err != nil {
		t.Fatal(err)
	}
	testkit.Need(t, "a file system with sparse files of 1 TiB", os.Truncate(f, 1<<40))
	out, err := exec.Command("tar", "-C", dir, "--sparse", "--format=pax", "-cf", "-", "sparse").Output()
	testkit.Need(t, "a tar with --sparse", err)
	return out
}

// testRawLayer pulls an image with a layer of any bytes.
func testRawLayer(t *testing.T, blob []byte, mediaType types.MediaType, kind error) {
	t.Helper()
	reg := imagetest.Registry(t, imagetest.RegistryOptions{})
	ref := reg.Push(t, "x:1", rawImage(t, blob, mediaType, ""))
	s, _, err := pullInto(t, image.Options{}, ref)
	wantError(t, err, kind, false)
	wantEmpty(t, s)
}

// rawImage has one layer of any bytes, and any diff-id.
func rawImage(t testing.TB, blob []byte, mediaType types.MediaType, diffID string) v1.Image {
	t.Helper()
	img, err := mutate.Append(empty.Image, mutate.Addendum{Layer: static.NewLayer(blob, mediaType)})
	if err != nil {
		t.Fatal(err)
	}
	img = withConfig(t, img, image.DefaultPlatform(), v1.Config{})
	if diffID == "" {
		return img
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	h, err := v1.NewHash(diffID)
	if err != nil {
		t.Fatal(err)
	}
	cf.RootFS.DiffIDs = []v1.Hash{h}
	img, err = mutate.ConfigFile(img, cf)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestUnpackChecksTheDiffID(t *testing.T) {
	reg := imagetest.Registry(t, imagetest.RegistryOptions{})
	ref := reg.Push(t, "x:1", rawImage(t, tarOf(t, entry{name: "f"}), types.OCIUncompressedLayer, "sha256:"+strings.Repeat("1", 64)))
	s, _, err := pullInto(t, image.Options{}, ref)
	wantError(t, err, sandpit.ErrIntegrity, false)
	wantEmpty(t, s)
}

func TestUnpackCompressions(t *testing.T) {
	plain := tarOf(t, entry{name: "f", body: "x"})
	l := layerOf(t, plain)
	diffID, err := l.DiffID()
	if err != nil {
		t.Fatal(err)
	}
	var z bytes.Buffer
	zw, err := zstd.NewWriter(&z)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := zw.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	var g bytes.Buffer
	for _, half := range [][]byte{plain[:100], plain[100:]} { // two members, as pigz and estargz make
		gw := gzip.NewWriter(&g)
		_, _ = gw.Write(half)
		_ = gw.Close()
	}
	for name, blob := range map[string][]byte{"plain": plain, "zstd": z.Bytes(), "gzip": g.Bytes()} {
		t.Run(name, func(t *testing.T) {
			reg := imagetest.Registry(t, imagetest.RegistryOptions{})
			// The media type is wrong for most: the content decides.
			ref := reg.Push(t, "x:1", rawImage(t, blob, types.OCILayer, diffID.String()))
			_, root, err := pullInto(t, image.Options{}, ref)
			if err != nil {
				t.Fatal(err)
			}
			if got := shape(t, root.Layers[0]); !slices.Equal(got, []string{"f x"}) {
				t.Errorf("unpacked %q", got)
			}
		})
	}
}

func TestUnpackAttributes(t *testing.T) {
	_, root, err := unpackLayers(t, image.Options{}, tarOf(t,
		entry{name: "suid", body: "x", mode: 0o4755, uid: 7}, entry{name: "none", body: "x", mode: 0o000001 &^ 1, uid: 1 << 30},
		entry{name: "dir/", mode: 0o1777, uid: 65534}, entry{name: "dir/f", body: "x", mode: 0o400}, entry{name: "tmp/f", body: "x"},
		entry{name: "link", kind: tar.TypeSymlink, link: "x", uid: 7}))
	if err != nil {
		t.Fatal(err)
	}
	dir := root.Layers[0]
	for name, want := range map[string]struct {
		mode fs.FileMode
		uid  uint32
	}{
		"suid": {0o755 | fs.ModeSetuid, 7}, "none": {0o644, 65534}, "dir": {0o777 | fs.ModeSticky | fs.ModeDir, 65534},
		"tmp": {0o777 | fs.ModeSticky | fs.ModeDir, 0}, "dir/f": {0o400, 0}, "link": {0o777 | fs.ModeSymlink, 7},
	} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		uid := info.Sys().(*syscall.Stat_t).Uid
		if os.Getuid() != 0 {
			want.uid = uint32(os.Getuid())
			if info.Mode().IsRegular() {
				want.mode |= 0o600
			}
		}
		if info.Mode() != want.mode || uid != want.uid {
			t.Errorf("%s: mode %v of %d, want %v of %d", name, info.Mode(), uid, want.mode, want.uid)
		}
		if name != "tmp" && !info.ModTime().Equal(time.Unix(1_600_000_000, 0)) {
			t.Errorf("%s: time %v", name, info.ModTime())
		}
	}
}

// The same layers through overlayfs give what Docker would show.
func TestUnpackedLayersStack(t *testing.T) {
	testkit.NeedRoot(t, "to mount an overlay")
	_, root, err := unpackLayers(t, image.Options{},
		tarOf(t, entry{name: "a/keep", body: "1"}, entry{name: "a/gone", body: "1"}, entry{name: "b/old", body: "1"}, entry{name: "c", body: "1"}, entry{name: "d/x", body: "1"}),
		tarOf(t, entry{name: "a/.wh.gone"}, entry{name: "b/.wh..wh..opq"}, entry{name: "b/new", body: "2"}, entry{name: ".wh.d"}),
		tarOf(t, entry{name: "d/y", body: "3"}, entry{name: "c/"}, entry{name: "c/in", body: "3"}))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	opts := "lowerdir=" + strings.Join(root.Layers, ":") + ",userxattr"
	if err := syscall.Mount("overlay", dir, "overlay", syscall.MS_RDONLY, opts); err != nil {
		if errors.Is(err, syscall.EPERM) {
			testkit.Need(t, "the right to mount an overlay", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	want := []string{"a/", "a/keep 1", "b/", "b/new 2", "c/", "c/in 3", "d/", "d/y 3"}
	var got []string
	for _, line := range shape(t, dir) {
		got = append(got, strings.TrimSuffix(line, " opaque"))
	}
	if !slices.Equal(got, want) {
		t.Errorf("stacked (-want +got):\n%s", cmp.Diff(want, got))
	}
}
