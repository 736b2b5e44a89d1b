package image_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/imagetest"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// writeDockerArchive writes images as "docker save" does.
func writeDockerArchive(t testing.TB, images map[string]v1.Image) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "docker.tar")
	m := map[name.Tag]v1.Image{}
	for ref, img := range images {
		tag, err := name.NewTag(ref)
		if err != nil {
			t.Fatal(err)
		}
		m[tag] = img
	}
	if err := tarball.MultiWriteToFile(file, m); err != nil {
		t.Fatal(err)
	}
	return file
}

// writeLayout writes images as an OCI layout, tagged.
func writeLayout(t testing.TB, images map[string]v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for tag, img := range images {
		if err := p.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag})); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tarDirectory packs a directory with its files at the top.
func tarDirectory(t testing.TB, dir string, compress ...string) string {
	t.Helper()
	testkit.NeedProgram(t, "tar")
	file := filepath.Join(t.TempDir(), "archive.tar")
	args := append([]string{"-C", dir, "-cf", file}, append(compress, ".")...)
	if out, err := exec.Command("tar", args...).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	return file
}

func TestAcquireArchives(t *testing.T) {
	a, b := randomImage(t, 1000, 2), randomImage(t, 1000, 1)
	oci := writeLayout(t, map[string]v1.Image{"a": a, "b": b})
	one := writeLayout(t, map[string]v1.Image{"only": a})
	docker := writeDockerArchive(t, map[string]v1.Image{"a:1": a, "example.com/b:2": b})
	s := newStore(t, nil)
	for ref, img := range map[string]v1.Image{
		"oci:" + oci + ":a": a, "oci:" + oci + ":b": b, "oci:" + one: a,
		"oci-archive:" + tarDirectory(t, oci) + ":b":                             b,
		"oci-archive:" + tarDirectory(t, one):                                    a,
		"oci-archive:" + tarDirectory(t, one, "--gzip"):                          a,
		"docker-archive:" + docker + ":a:1":                                      a,
		"docker-archive:" + docker + ":example.com/b:2":                          b,
		"docker-archive:" + writeDockerArchive(t, map[string]v1.Image{"x:1": a}): a,
	} {
		root := mustAcquire(t, s, ref, image.AcquireOptions{}).Rootfs()
		cf, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if len(root.Layers) != len(cf.RootFS.DiffIDs) || filepath.Base(filepath.Dir(root.Layers[0])) != cf.RootFS.DiffIDs[len(cf.RootFS.DiffIDs)-1].Hex {
			t.Errorf("%s: unexpected layers %q", ref, root.Layers)
		}
		if strings.HasPrefix(ref, "oci") && root.Digest != digestOf(t, img) {
			t.Errorf("%s: digest is %s", ref, root.Digest)
		}
		again := mustAcquire(t, s, ref, image.AcquireOptions{}).Rootfs()
		if diff := cmp.Diff(root, again); diff != "" {
			t.Errorf("%s, again: %s", ref, diff)
		}
	}
	// The file is changed: the image is too.
	file := tarDirectory(t, one)
	mustAcquire(t, s, "oci-archive:"+file, image.AcquireOptions{})
	other, err := os.ReadFile(tarDirectory(t, writeLayout(t, map[string]v1.Image{"only": b})))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, other, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := mustAcquire(t, s, "oci-archive:"+file, image.AcquireOptions{}).Rootfs().Digest; got != digestOf(t, b) {
		t.Error("a changed archive was not read again")
	}

	empty := t.TempDir()
	fifo := filepath.Join(empty, "fifo")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	for ref, kind := range map[string]error{
		"oci-archive:" + empty + "/none": sandpit.ErrNotFound, "docker-archive:" + empty + "/none:1": sandpit.ErrNotFound,
		"oci:" + empty: sandpit.ErrNotFound, "oci:" + oci: sandpit.ErrInvalid, "oci:" + oci + ":c": sandpit.ErrNotFound,
		"docker-archive:" + docker: sandpit.ErrInvalid, "docker-archive:" + docker + ":c": sandpit.ErrNotFound,
		"docker-archive:" + file: sandpit.ErrInvalid, "oci-archive:" + docker: sandpit.ErrInvalid,
		"oci-archive:" + fifo: sandpit.ErrInvalid, "oci-archive:": sandpit.ErrInvalid,
		"dir:" + empty + "/none": sandpit.ErrNotFound, "dir:" + file: sandpit.ErrInvalid, "dir:": sandpit.ErrInvalid,
		"sha256:12": sandpit.ErrInvalid, "sha256:" + strings.Repeat("a", 64): sandpit.ErrNotFound, "UPPER": sandpit.ErrInvalid,
		"a b": sandpit.ErrInvalid, "-x": sandpit.ErrInvalid, "x:y:z": sandpit.ErrInvalid,
	} {
		_, err := s.Acquire(t.Context(), ref, image.AcquireOptions{Pull: sandpit.PullNever})
		wantError(t, err, kind, false)
		if t.Failed() {
			t.Fatalf("%s: %v", ref, err)
		}
	}
}

func TestAcquireDirectoryInPlace(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, nil)
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	root := mustAcquire(t, s, "dir:"+link, image.AcquireOptions{}).Rootfs()
	if diff := cmp.Diff(image.Rootfs{Reference: "dir:" + link, Layers: []string{real}}, root); diff != "" {
		t.Errorf("root (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(s.Dir()); !os.IsNotExist(err) {
		t.Errorf("the store was made for nothing: %v", err)
	}
}

func TestArchivesThatLie(t *testing.T) {
	img := randomImage(t, 1000, 1)
	dir := writeLayout(t, map[string]v1.Image{"x": img})
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*"))
	if err != nil || len(blobs) != 3 {
		t.Fatal(blobs, err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, b := range blobs {
		good, err := os.ReadFile(b)
		if err != nil {
			t.Fatal(err)
		}
		for what, spoil := range map[string]func() error{
			"changed": func() error { return os.WriteFile(b, bytes.Replace(good, good[5:6], []byte{good[5] ^ 1}, 1), 0o644) },
			"longer":  func() error { return os.WriteFile(b, append(slices.Clone(good), 'x'), 0o644) },
			"shorter": func() error { return os.WriteFile(b, good[:len(good)-1], 0o644) },
			"missing": func() error { return os.Remove(b) },
			"a link":  func() error { _ = os.Remove(b); return os.Symlink(secret, b) },
		} {
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			for _, ref := range []string{"oci:" + dir, "oci-archive:" + tarDirectory(t, dir)} {
				s := newStore(t, nil)
				_, err := s.Acquire(t.Context(), ref, image.AcquireOptions{})
				if err == nil {
					t.Errorf("%s is accepted, with a blob that is %s", ref, what)
				} else if what != "a link" {
					wantError(t, err, sandpit.ErrIntegrity, false)
				}
				wantEmpty(t, s)
			}
			_ = os.Remove(b)
			if err := os.WriteFile(b, good, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestImportAndExport(t *testing.T) {
	reg := imagetest.Registry(t, imagetest.RegistryOptions{})
	img := withConfig(t, randomImage(t, 20_000, 3), image.DefaultPlatform(), v1.Config{Cmd: []string{"x"}})
	s := newStore(t, nil)
	pulled := reg.Push(t, "a:1", img)
	mustAcquire(t, s, pulled, plainHTTP)

	docker := writeDockerArchive(t, map[string]v1.Image{"example.com/own:name": img})
	for _, c := range []struct{ src, name, want string }{
		{"oci:" + writeLayout(t, map[string]v1.Image{"t": img}), "one", "docker.io/library/one:latest"},
		{tarDirectory(t, writeLayout(t, map[string]v1.Image{"t": img})), "ghcr.io/x/two:2", "ghcr.io/x/two:2"},
		{docker, "", "example.com/own:name"},
		{"docker-archive:" + docker + ":example.com/own:name", "three", "docker.io/library/three:latest"},
	} {
		sum, err := s.Import(t.Context(), c.src, c.name, image.ImportOptions{})
		if err != nil {
			t.Fatalf("importing %s: %v", c.src, err)
		}
		if sum.FullName != c.want || sum.Platform != image.DefaultPlatform() || sum.Unpacked == 0 || sum.Packed == 0 {
			t.Errorf("imported %+v, want the name %s", sum, c.want)
		}
	}
	list, err := s.List(t.Context())
	if err != nil || len(list) != 5 {
		t.Errorf("%d images are listed, want 5 (%v)", len(list), err)
	}
	if got, want := s.Names("docker.io/library/t"), []string{"docker.io/library/three:latest"}; !slices.Equal(got, want) {
		t.Errorf("names are %q, want %q", got, want)
	}
	if got, want := s.Names(""), []string{reg.Host + "/a:1", "example.com/own:name", "ghcr.io/x/two:2", "host", "one:latest", "three:latest"}; !slices.Equal(got, want) {
		t.Errorf("names are %q, want %q", got, want)
	}
	// The same layers from four sources are stored once.
	if n, err := os.ReadDir(filepath.Join(s.Dir(), "layers")); err != nil || len(n) != 3 {
		t.Errorf("%d layers are stored, want 3 (%v)", len(n), err)
	}

	for _, ref := range []string{pulled, "one", "three"} {
		file := filepath.Join(t.TempDir(), "out.tar")
		exportTo(t, s, ref, file)
		d, err := s.Inspect(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		// What comes out goes in again, with the same digest.
		into := newStore(t, nil)
		sum, err := into.Import(t.Context(), "oci-archive:"+file, "", image.ImportOptions{})
		if err != nil || sum.Digest != d.Digest || sum.FullName != d.FullName {
			t.Errorf("exported %s and imported %+v (%v), want %s %s", ref, sum, err, d.FullName, d.Digest)
		}
		checkWithSkopeo(t, file, d)
	}
	for ref, kind := range map[string]error{"host": sandpit.ErrUnsupported, "none": sandpit.ErrNotFound} {
		wantError(t, s.Export(t.Context(), ref, &bytes.Buffer{}), kind, true)
	}
	_, err = s.Import(t.Context(), "oci:"+writeLayout(t, map[string]v1.Image{"t": randomImage(t, 10, 1)}), "", image.ImportOptions{})
	wantError(t, err, sandpit.ErrInvalid, true)
	_, err = s.Import(t.Context(), docker, "x@sha256:"+strings.Repeat("1", 64), image.ImportOptions{})
	wantError(t, err, sandpit.ErrInvalid, false)
	_, err = s.Import(t.Context(), "/does/not/exist", "x", image.ImportOptions{})
	wantError(t, err, sandpit.ErrNotFound, true)
}

func exportTo(t testing.TB, s *image.Store, ref, file string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := s.Export(t.Context(), ref, f); err != nil {
		t.Fatal(err)
	}
}

// checkWithSkopeo has another program read what Export has written.
func checkWithSkopeo(t *testing.T, file string, d image.Details) {
	t.Helper()
	if _, err := exec.LookPath("skopeo"); err != nil {
		t.Log("skopeo is not installed: not checked with it")
		return
	}
	out, err := exec.Command("skopeo", "inspect", "--format", "{{.Digest}}", "oci-archive:"+file).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != d.Digest {
		t.Errorf("skopeo inspect: %v: %s; want %s", err, out, d.Digest)
	}
	to := t.TempDir()
	if out, err := exec.Command("skopeo", "copy", "--insecure-policy", "oci-archive:"+file, "docker-archive:"+to+"/out.tar:x/y:z").CombinedOutput(); err != nil {
		t.Errorf("skopeo copy to docker-archive: %v: %s", err, out)
		return
	}
	// And back.
	s := newStore(t, nil)
	sum, err := s.Import(t.Context(), to+"/out.tar", "", image.ImportOptions{})
	if err != nil || sum.FullName != "docker.io/x/y:z" {
		t.Errorf("importing what skopeo has made: %+v, %v", sum, err)
	}
	if out, err := exec.Command("skopeo", "copy", "--insecure-policy", "oci-archive:"+file, "oci:"+to+"/layout:t").CombinedOutput(); err != nil {
		t.Errorf("skopeo copy to oci: %v: %s", err, out)
	}
}

func TestImportDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "etc", "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "etc", "f")
	if err := os.WriteFile(file, []byte("x"), 0o640); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.Symlink("/etc/f", filepath.Join(dir, "link")), os.Link(file, filepath.Join(dir, "hard")),
		syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644),
		os.Chmod(filepath.Join(dir, "etc", "deep"), 0o1777|fs.ModeSticky),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"etc/", "etc/deep/", "etc/f x", "hard x", "link -> /etc/f"}
	for _, src := range []string{"dir:" + dir, dir, tarDirectory(t, dir), tarDirectory(t, dir, "--gzip"), tarDirectory(t, dir, "--zstd")} {
		s := newStore(t, nil)
		if _, err := s.Import(t.Context(), src, "mine", image.ImportOptions{}); err != nil {
			t.Errorf("importing %s: %v", src, err)
			continue
		}
		root := mustAcquire(t, s, "mine", image.AcquireOptions{Pull: sandpit.PullNever}).Rootfs()
		if got := shape(t, root.Layers[0]); !slices.Equal(got, want) {
			t.Errorf("imported %s (-want +got):\n%s", src, cmp.Diff(want, got))
		}
		exportTo(t, s, "mine", filepath.Join(t.TempDir(), "out.tar"))
	}
}

func TestRemove(t *testing.T) {
	reg := imagetest.Registry(t, imagetest.RegistryOptions{})
	shared := layerOf(t, tarOf(t, entry{name: "shared", body: "x"}))
	a := imageOf(t, shared, layerOf(t, tarOf(t, entry{name: "a", body: "x"})))
	b := imageOf(t, shared, layerOf(t, tarOf(t, entry{name: "b", body: "x"})))
	s := newStore(t, nil)
	refA, refA2, refB := reg.Push(t, "a:1", a), reg.Push(t, "a:2", a), reg.Push(t, "b:1", b)
	la := mustAcquire(t, s, refA, plainHTTP)
	for _, ref := range []string{refA2, refB} {
		mustAcquire(t, s, ref, plainHTTP).Release()
	}

	// One of two names goes although the image is in use; the last one does not.
	r, err := s.Remove(t.Context(), refA2)
	if err != nil || r.Image != "" || r.Name != refA2 {
		t.Errorf("removed %+v, %v", r, err)
	}
	_, err = s.Remove(t.Context(), refA)
	wantError(t, err, sandpit.ErrState, true)
	if d, err := s.Inspect(t.Context(), refA); err != nil || !d.InUse || len(d.Names) != 1 {
		t.Errorf("inspected %+v, %v", d, err)
	}
	la.Release()
	r, err = s.Remove(t.Context(), refA)
	if err != nil || r.Image != digestOf(t, a) || r.Bytes == 0 {
		t.Errorf("removed %+v, %v", r, err)
	}
	// The layer that b shares is still there.
	lb := mustAcquire(t, s, refB, image.AcquireOptions{Pull: sandpit.PullNever})
	for _, l := range lb.Rootfs().Layers {
		if _, err := os.Stat(l); err != nil {
			t.Error(err)
		}
	}
	lb.Release()
	// As much of a digest as lists show names an image, and less does not.
	short := digestOf(t, b)[:len("sha256:")+12]
	if d, err := s.Inspect(t.Context(), short); err != nil || d.Digest != digestOf(t, b) {
		t.Errorf("inspected %+v, %v", d, err)
	}
	_, err = s.Remove(t.Context(), short[:len(short)-1])
	wantError(t, err, sandpit.ErrNotFound, true)
	_, err = s.Acquire(t.Context(), short, image.AcquireOptions{Pull: sandpit.PullNever})
	wantError(t, err, sandpit.ErrInvalid, true)
	if _, err := s.Remove(t.Context(), short); err != nil {
		t.Error(err)
	}
	for _, ref := range []string{refA, refB, "none", digestOf(t, b)} {
		_, err := s.Remove(t.Context(), ref)
		wantError(t, err, sandpit.ErrNotFound, true)
	}
	_, err = s.Remove(t.Context(), "host")
	wantError(t, err, sandpit.ErrInvalid, false)
	wantEmpty(t, s)
}

// Prune and pull at the same time: what is leased is always whole.
func TestPruneWhilePulling(t *testing.T) {
	reg := imagetest.Registry(t, imagetest.RegistryOptions{})
	var refs []string
	shared := layerOf(t, tarOf(t, entry{name: "shared", body: "x"}))
	for i := range 4 {
		refs = append(refs, reg.Push(t, fmt.Sprintf("i%d:1", i), imageOf(t, shared, layerOf(t, tarOf(t, entry{name: "own", body: fmt.Sprint(i)})))))
	}
	dir := filepath.Join(t.TempDir(), "images")
	open := func() *image.Store {
		return image.Open(dir, image.Options{NoSync: true, Fetcher: fetcher(nil)})
	}
	ctx, stop := context.WithCancel(t.Context())
	var pruner, users sync.WaitGroup
	for range 2 {
		pruner.Go(func() {
			for ctx.Err() == nil {
				if _, err := open().Prune(context.Background(), image.PruneOptions{All: true}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 4 {
		users.Go(func() {
			s := open()
			for range 25 {
				l, err := s.Acquire(context.Background(), refs[i], plainHTTP)
				if err != nil {
					t.Error(err)
					return
				}
				for n, name := range []string{"own", "shared"} {
					if _, err := os.Stat(filepath.Join(l.Rootfs().Layers[n], name)); err != nil {
						t.Errorf("leased, and not there: %v", err)
					}
				}
				l.Release()
			}
		})
	}
	users.Wait()
	stop()
	pruner.Wait()
	s := open()
	if _, err := s.Prune(t.Context(), image.PruneOptions{All: true}); err != nil {
		t.Error(err)
	}
	wantEmpty(t, s)
}

// What a crash leaves is swept, what a living process makes is not.
func TestPruneSweepsWhatCrashesLeave(t *testing.T) {
	s := newStore(t, nil)
	tmp := filepath.Join(s.Dir(), "tmp")
	if err := os.MkdirAll(filepath.Join(tmp, "dead", "closed"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "dead", "closed", "f"), make([]byte, 10_000), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(tmp, "dead", "closed"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(tmp, "alive"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(tmp, "alive"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	p, err := s.Prune(t.Context(), image.PruneOptions{})
	if err != nil || p.Bytes == 0 {
		t.Errorf("pruned %+v, %v", p, err)
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) != 1 || left[0].Name() != "alive" {
		t.Errorf("left in tmp: %v, %v", left, err)
	}
}

// A lease of another process holds until that process dies, also by kill -9.
func TestLeaseEndsWithItsProcess(t *testing.T) {
	if dir := os.Getenv("SANDPIT_TEST_LEASE"); dir != "" {
		s := image.Open(dir, image.Options{Fetcher: fetcher(nil)})
		if _, err := s.Acquire(t.Context(), os.Getenv("SANDPIT_TEST_REF"), image.AcquireOptions{Pull: sandpit.PullNever}); err != nil {
			t.Fatal(err)
		}
		fmt.Println("leased")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		return
	}
	reg := imagetest.Registry(t, imagetest.RegistryOptions{})
	s := newStore(t, nil)
	ref := reg.Push(t, "x:1", randomImage(t, 10, 1))
	mustAcquire(t, s, ref, plainHTTP).Release()

	cmd := exec.Command(os.Args[0], "-test.run=^TestLeaseEndsWithItsProcess$", "-test.count=1")
	cmd.Env = append(os.Environ(), "SANDPIT_TEST_LEASE="+s.Dir(), "SANDPIT_TEST_REF="+ref)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "leased\n" {
		_ = cmd.Process.Kill()
		t.Fatalf("the other process said %q, %v", line, err)
	}
	_, err = s.Remove(t.Context(), ref)
	wantError(t, err, sandpit.ErrState, true)
	if p, err := s.Prune(t.Context(), image.PruneOptions{All: true}); err != nil || p.Images != 0 {
		t.Errorf("pruned %+v, %v", p, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if p, err := s.Prune(t.Context(), image.PruneOptions{All: true}); err != nil || p.Images != 1 || p.Layers != 1 {
		t.Errorf("pruned %+v, %v", p, err)
	}
	wantEmpty(t, s)
}

// The real thing: Debian from its own packages, through a registry with a
// password, into the store, and its Python runs.
func TestDebianThroughARegistry(t *testing.T) {
	archive := imagetest.Debian(t)
	dir := t.TempDir()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	untar(t, f, dir)
	reg := imagetest.Registry(t, imagetest.RegistryOptions{User: "u", Password: "p", Bearer: true})
	ref := reg.PushLayout(t, "debian-python:13", dir)
	config := t.TempDir()
	if err := os.WriteFile(filepath.Join(config, "config.json"), []byte(reg.DockerConfig()), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, map[string]string{"DOCKER_CONFIG": config})
	root := mustAcquire(t, s, ref, plainHTTP).Rootfs()
	testkit.NeedRoot(t, "to run it with chroot")
	out, err := exec.Command("chroot", root.Layers[0], "/usr/bin/python3", "-c", "import sys, ssl, json; print(6*7)").CombinedOutput()
	if err != nil || string(out) != "42\n" {
		t.Errorf("python3 in the image: %v: %s", err, out)
	}
}

func untar(t testing.TB, f *os.File, dir string) {
	t.Helper()
	tr := tar.NewReader(f)
	for {
		h, err := tr.Next()
		if err != nil {
			break
		}
		p := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		w, err := os.Create(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.ReadFrom(tr); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkAcquireStored(b *testing.B) {
	reg := imagetest.Registry(b, imagetest.RegistryOptions{})
	s := newStore(b, nil)
	ref := reg.Push(b, "x:1", randomImage(b, 10, 10))
	mustAcquire(b, s, ref, plainHTTP)
	b.ReportAllocs()
	for b.Loop() {
		l, err := s.Acquire(b.Context(), ref, image.AcquireOptions{})
		if err != nil {
			b.Fatal(err)
		}
		l.Release()
	}
}
