// Package imagetest makes real images and registries for tests.
package imagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// DebianName is what the image of Debian calls itself.
const DebianName = "docker.io/sandpit/debian-python:test"

// debianPackages are those of the image of Debian, besides the minimal base.
var debianPackages = []string{"python3", "python3-pip", "python3-venv", "procps", "ca-certificates"}

// recipe changes when what Debian makes does.
const recipe = "3"

// Debian returns an OCI archive of a real Debian with Python, made of Debian's
// own packages by mmdebstrap. It is made once per machine (a minute), and kept in
// the user's cache directory; the test is skipped where it can't be made. Its
// config has Env, Cmd (python3) and WorkingDir (/srv).
func Debian(t testing.TB) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	testkit.Need(t, "a cache directory", err)
	cache = filepath.Join(cache, "sandpit-test")
	testkit.Need(t, "a cache directory", os.MkdirAll(cache, 0o755))
	sum := sha256.Sum256([]byte(recipe + strings.Join(debianPackages, ",") + runtime.GOARCH))
	archive := filepath.Join(cache, fmt.Sprintf("debian-python-%x.oci.tar", sum[:6]))

	lock, err := os.OpenFile(archive+".lock", os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(archive); err == nil {
		return archive
	}
	rootfs := makeDebian(t, cache)
	defer os.Remove(rootfs)
	tmp := archive + ".tmp"
	defer os.Remove(tmp)
	if err := writeArchive(tmp, rootfs); err != nil {
		t.Fatalf("making the image of Debian: %v", err)
	}
	if err := os.Rename(tmp, archive); err != nil {
		t.Fatal(err)
	}
	return archive
}

// makeDebian returns a tar of a root file system.
func makeDebian(t testing.TB, cache string) string {
	t.Helper()
	testkit.NeedProgram(t, "mmdebstrap")
	mirror, codename := debianMirror(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	rootfs := filepath.Join(cache, fmt.Sprintf("debian-python-%d.tar", os.Getpid()))
	cmd := exec.CommandContext(ctx, "mmdebstrap", "--variant=minbase", "--include="+strings.Join(debianPackages, ","),
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		codename, rootfs, mirror)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute // it unmounts what it has mounted
	if out, err := cmd.CombinedOutput(); err != nil {
		os.Remove(rootfs)
		if out = bytes.TrimSpace(out); len(out) > 1000 {
			out = out[len(out)-1000:]
		}
		testkit.Need(t, "Debian's packages, which mmdebstrap installs", fmt.Errorf("%w: %s", err, out))
	}
	return rootfs
}

// debianMirror returns the mirror that this machine itself uses, and its release.
func debianMirror(t testing.TB) (mirror, codename string) {
	t.Helper()
	out, err := exec.Command("apt-get", "indextargets", "--format",
		"$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)|$(CODENAME)", "Created-By: Packages").Output()
	testkit.Need(t, "apt to find a mirror of Debian", err)
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) == 5 && f[0] == "Debian" && f[1] == "Debian" && f[2] == "main" && !strings.Contains(f[4], "-") {
			return f[3], f[4]
		}
	}
	testkit.Lacks(t, "a mirror of Debian that apt knows (apt-get update)")
	return "", ""
}

// writeArchive makes an OCI archive of one layer.
func writeArchive(name, rootfs string) error {
	in, err := os.Open(rootfs)
	if err != nil {
		return err
	}
	defer in.Close()
	layer, err := os.Create(name + ".layer")
	if err != nil {
		return err
	}
	defer os.Remove(layer.Name())
	defer layer.Close()
	packed, plain := sha256.New(), sha256.New()
	zw, err := gzip.NewWriterLevel(io.MultiWriter(layer, packed), gzip.BestSpeed)
	if err != nil {
		return err
	}
	if _, err := io.Copy(zw, io.TeeReader(in, plain)); err != nil {
		return err
	}
	if err := zw.Close(); err != nil {
		return err
	}
	size, err := layer.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	diffID := "sha256:" + hex.EncodeToString(plain.Sum(nil))
	layerDigest := "sha256:" + hex.EncodeToString(packed.Sum(nil))

	type m = map[string]any
	var errs error
	enc := func(v any) []byte {
		b, err := json.Marshal(v)
		errs = errors.Join(errs, err)
		return b
	}
	digest := func(b []byte) string {
		s := sha256.Sum256(b)
		return "sha256:" + hex.EncodeToString(s[:])
	}
	config := enc(m{
		"architecture": runtime.GOARCH, "os": "linux", "created": time.Now().UTC().Format(time.RFC3339),
		"config": m{
			"Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"},
			"Cmd": []string{"python3"}, "WorkingDir": "/srv",
		},
		"rootfs": m{"type": "layers", "diff_ids": []string{diffID}},
	})
	manifest := enc(m{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": m{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(config), "size": len(config)},
		"layers": []m{{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": layerDigest, "size": size}},
	})
	index := enc(m{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": []m{{
			"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest(manifest), "size": len(manifest),
			"platform":    m{"os": "linux", "architecture": runtime.GOARCH},
			"annotations": m{"org.opencontainers.image.ref.name": "test", "io.containerd.image.name": DebianName},
		}},
	})
	if errs != nil {
		return errs
	}

	out, err := os.Create(name)
	if err != nil {
		return err
	}
	defer out.Close()
	tw := tar.NewWriter(out)
	add := func(name string, size int64, r io.Reader) {
		if errs == nil {
			errs = tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Typeflag: tar.TypeReg})
		}
		if errs == nil {
			_, errs = io.Copy(tw, r)
		}
	}
	blob := func(d string) string { return "blobs/sha256/" + strings.TrimPrefix(d, "sha256:") }
	add("oci-layout", 30, strings.NewReader(`{"imageLayoutVersion":"1.0.0"}`))
	add("index.json", int64(len(index)), bytes.NewReader(index))
	add(blob(digest(manifest)), int64(len(manifest)), bytes.NewReader(manifest))
	add(blob(digest(config)), int64(len(config)), bytes.NewReader(config))
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return err
	}
	add(blob(layerDigest), size, layer)
	return errors.Join(errs, tw.Close(), out.Close())
}
