package image_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
	"github.com/sandpit-dev/sandpit/internal/image/imagetest"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// newStore opens a store that sees none of this machine's credentials.
func newStore(t testing.TB, env map[string]string) *image.Store {
	t.Helper()
	return image.Open(filepath.Join(t.TempDir(), "images"), image.Options{Fetcher: fetcher(env), NoSync: true})
}

// fetcher finds credentials by the variables of env alone.
func fetcher(env map[string]string) image.Fetcher {
	return fetch.New(fetch.Options{Getenv: func(k string) string { return env[k] }})
}

// randomImage makes an image for this machine.
func randomImage(t testing.TB, size int64, layers int64) v1.Image {
	t.Helper()
	img, err := random.Image(size, layers)
	if err != nil {
		t.Fatal(err)
	}
	return withConfig(t, img, image.DefaultPlatform(), v1.Config{})
}

func withConfig(t testing.TB, img v1.Image, platform string, config v1.Config) v1.Image {
	t.Helper()
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	p, err := v1.ParsePlatform(platform)
	if err != nil {
		t.Fatal(err)
	}
	cf.OS, cf.Architecture, cf.Variant, cf.Config = p.OS, p.Architecture, p.Variant, config
	img, err = mutate.ConfigFile(img, cf)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func digestOf(t testing.TB, img interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

var plainHTTP = image.AcquireOptions{PlainHTTP: true}

func mustAcquire(t testing.TB, s *image.Store, ref string, opt image.AcquireOptions) *image.Lease {
	t.Helper()
	l, err := s.Acquire(t.Context(), ref, opt)
	if err != nil {
		t.Fatalf("Acquire(%q): %v (hint: %s)", ref, err, sandpit.Hint(err))
	}
	t.Cleanup(l.Release)
	return l
}

// wantError checks the kind of an error, that it is one line, and that it has a hint if told so.
func wantError(t testing.TB, err, kind error, hint bool) {
	t.Helper()
	switch {
	case !errors.Is(err, kind):
		t.Errorf("the error is %v, want one of kind %q", err, kind)
	case strings.Contains(err.Error(), "\n"):
		t.Errorf("the error has several lines: %q", err)
	case hint && sandpit.Hint(err) == "":
		t.Errorf("the error %q has no hint", err)
	}
}

// wantEmpty checks that nothing but empty directories is in the store.
func wantEmpty(t testing.TB, s *image.Store) {
	t.Helper()
	err := filepath.WalkDir(s.Dir(), func(p string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err == nil && !d.IsDir() {
			t.Errorf("left in the store: %s", p)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestPullWithAndWithoutAuthentication(t *testing.T) {
	for _, c := range []struct {
		name string
		opt  imagetest.RegistryOptions
	}{
		{"anonymous", imagetest.RegistryOptions{}},
		{"anonymous token", imagetest.RegistryOptions{Bearer: true}},
		{"basic", imagetest.RegistryOptions{User: "u", Password: "p:w"}},
		{"token", imagetest.RegistryOptions{User: "u", Password: "p:w", Bearer: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg := imagetest.Registry(t, c.opt)
			img := withConfig(t, randomImage(t, 4096, 3), image.DefaultPlatform(), v1.Config{
				Env: []string{"A=b", "bad"}, Entrypoint: []string{"/e", "x y"}, Cmd: []string{}, WorkingDir: "w/../../x", User: "1:2",
				Volumes: map[string]struct{}{"/v/../../w": {}, "/": {}}, StopSignal: "SIGINT", Labels: map[string]string{"k": "v\n\"'"},
			})
			ref := reg.Push(t, "a/b:tag", img)

			if c.opt.User != "" {
				s := newStore(t, nil)
				_, err := s.Acquire(t.Context(), ref, plainHTTP)
				wantError(t, err, sandpit.ErrNotFound, true)
				wantEmpty(t, s)
			}
			config := filepath.Join(t.TempDir(), "config.json")
			if err := os.WriteFile(config, []byte(reg.DockerConfig()), 0o600); err != nil {
				t.Fatal(err)
			}
			s := newStore(t, map[string]string{"DOCKER_CONFIG": filepath.Dir(config)})
			var mu sync.Mutex
			done := map[string]int64{}
			opt := plainHTTP
			opt.Progress = func(p image.Progress) {
				if !mu.TryLock() {
					t.Error("two reports at once")
					return
				}
				defer mu.Unlock()
				if p.Phase == image.PhaseDone {
					done[p.Layer] = p.Done
				}
				if p.Done > p.Total || p.Count != 3 {
					t.Errorf("odd progress: %+v", p)
				}
			}
			root := mustAcquire(t, s, ref, opt).Rootfs()
			if len(done) != 3 {
				t.Errorf("%d layers were reported as done, want 3", len(done))
			}
			want := image.Config{
				Env: []string{"A=b"}, Entrypoint: []string{"/e", "x y"}, WorkingDir: "/x", User: "1:2",
				Volumes: []string{"/w"}, StopSignal: "SIGINT", Labels: map[string]string{"k": "v\n\"'"},
			}
			if diff := cmp.Diff(want, root.Config); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
			if root.Digest != digestOf(t, img) || len(root.Layers) != 3 {
				t.Errorf("unexpected root: %+v", root)
			}
			// The second time needs no registry, and gives the same.
			reg.Close()
			again := mustAcquire(t, s, ref, image.AcquireOptions{Pull: sandpit.PullNever}).Rootfs()
			if diff := cmp.Diff(root, again); diff != "" {
				t.Errorf("from the store (-first +second):\n%s", diff)
			}
			mustAcquire(t, s, reg.Host+"/other@"+root.Digest, image.AcquireOptions{Pull: sandpit.PullNever})
			mustAcquire(t, s, root.Digest, image.AcquireOptions{})
		})
	}
}

func TestPullTheTopmostLayerFirst(t *testing.T) {
	reg := imagetest.Registry(t, imagetest.RegistryOptions{})
	img := randomImage(t, 10, 2)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	// The lower layer once more on top: it is listed once, there.
	img, err = mutate.AppendLayers(img, layers[0])
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t, nil)
	root := mustAcquire(t, s, reg.Push(t, "x:1", img), plainHTTP).Rootfs()
	var want []string
	for _, l := range layers[:2] {
		d, err := l.DiffID()
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, filepath.Join(s.Dir(), "layers", d.Hex, "fs"))
	}
	if diff := cmp.Diff(want, root.Layers); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
}

func TestPullPicksThePlatform(t *testing.T) {
	reg := imagetest.Registry(t, imagetest.RegistryOptions{})
	imgs := map[string]v1.Image{}
	var index v1.ImageIndex = empty.Index
	for _, p := range []string{"linux/amd64", "linux/arm64/v8", "linux/arm/v6", "linux/arm/v7", "windows/amd64"} {
		imgs[p] = withConfig(t, randomImage(t, 10, 1), p, v1.Config{})
		plat, err := v1.ParsePlatform(p)
		if err != nil {
			t.Fatal(err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: imgs[p], Descriptor: v1.Descriptor{Platform: plat}})
	}
	nested := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}})
	docker := mutate.IndexMediaType(index, types.DockerManifestList)
	refs := []string{reg.Push(t, "multi:oci", index), reg.Push(t, "multi:docker", docker), reg.Host + "/multi@" + digestOf(t, index)}
	for _, ref := range refs {
		for want, got := range map[string]string{
			"linux/amd64": "linux/amd64", "linux/arm64": "linux/arm64/v8", "linux/arm/v7": "linux/arm/v7", "linux/arm/v6": "linux/arm/v6", "linux/arm": "linux/arm/v7",
		} {
			s := newStore(t, nil)
			root := mustAcquire(t, s, ref, image.AcquireOptions{PlainHTTP: true, Platform: want}).Rootfs()
			if root.Digest != digestOf(t, imgs[got]) {
				t.Errorf("%s for %s is not the image for %s", ref, want, got)
			}
			mustAcquire(t, s, ref, image.AcquireOptions{Pull: sandpit.PullNever, Platform: want})
		}
	}
	s := newStore(t, nil)
	mustAcquire(t, s, reg.Push(t, "nested:1", nested), image.AcquireOptions{PlainHTTP: true, Platform: "linux/amd64"})
	_, err := s.Acquire(t.Context(), refs[0], image.AcquireOptions{PlainHTTP: true, Platform: "linux/s390x"})
	wantError(t, err, sandpit.ErrNotFound, true)
	if !strings.Contains(sandpit.Hint(err), "linux/arm64") {
		t.Errorf("the hint does not list platforms: %q", sandpit.Hint(err))
	}
	single := reg.Push(t, "single:1", imgs["linux/arm/v6"])
	_, err = s.Acquire(t.Context(), single, image.AcquireOptions{PlainHTTP: true, Platform: "linux/amd64"})
	wantError(t, err, sandpit.ErrNotFound, true)
	_, err = s.Acquire(t.Context(), single, image.AcquireOptions{Platform: "amd64"})
	wantError(t, err, sandpit.ErrInvalid, true)
}

// A registry whose blobs come as a test wants them.
func brokenBlobs(f func(w http.ResponseWriter, req *http.Request, next http.Handler)) imagetest.RegistryOptions {
	return imagetest.RegistryOptions{Wrap: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/sha256:") {
				f(w, req, next)
				return
			}
			next.ServeHTTP(w, req)
		})
	}}
}

func TestPullGoesOnWhereATransferBroke(t *testing.T) {
	const size = 400_000
	var ranges atomic.Int32
	reg := imagetest.Registry(t, brokenBlobs(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		if req.Header.Get("Range") != "" {
			ranges.Add(1)
		}
		rec := httptest.NewRecorder()
		next.ServeHTTP(rec, req)
		body := rec.Body.Bytes()
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(rec.Code)
		if len(body) > 100_000 { // then the connection breaks
			_, _ = w.Write(body[:100_000])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(body)
	}))
	img := randomImage(t, size, 1)
	ref := reg.Push(t, "x:1", img)
	mustAcquire(t, newStore(t, nil), ref, plainHTTP)
	if ranges.Load() < 3 {
		t.Errorf("%d transfers were taken up, want at least 3", ranges.Load())
	}

	// A pull that is broken off leaves what it has for the next one.
	s := newStore(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	opt := plainHTTP
	opt.Progress = func(p image.Progress) {
		if p.Done > 0 {
			cancel()
		}
	}
	if _, err := s.Acquire(ctx, ref, opt); !errors.Is(err, context.Canceled) {
		t.Fatalf("a cancelled pull says %v", err)
	}
	parts, err := filepath.Glob(filepath.Join(s.Dir(), "blobs", "*.partial"))
	if err != nil || len(parts) != 1 {
		t.Fatalf("partial blobs: %v, %v", parts, err)
	}
	before := ranges.Load()
	mustAcquire(t, s, ref, plainHTTP)
	if ranges.Load() == before {
		t.Error("the second pull started anew")
	}

	// A part that is not what it should be is noticed, and fetched anew.
	s = newStore(t, nil)
	if err := os.MkdirAll(filepath.Join(s.Dir(), "blobs"), 0o700); err != nil {
		t.Fatal(err)
	}
	part := filepath.Join(s.Dir(), "blobs", filepath.Base(parts[0]))
	if err := os.WriteFile(part, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustAcquire(t, s, ref, plainHTTP)
}

func TestPullWithoutRanges(t *testing.T) {
	var n atomic.Int32
	reg := imagetest.Registry(t, brokenBlobs(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		req.Header.Del("Range")
		rec := httptest.NewRecorder()
		next.ServeHTTP(rec, req)
		w.Header().Set("Content-Length", strconv.Itoa(rec.Body.Len()))
		body := rec.Body.Bytes()
		if n.Add(1)%2 == 1 {
			body = body[:len(body)/2]
		}
		_, _ = w.Write(body)
	}))
	mustAcquire(t, newStore(t, nil), reg.Push(t, "x:1", randomImage(t, 1<<20, 1)), plainHTTP)
}

func TestPullFailsCleanly(t *testing.T) {
	img := randomImage(t, 50_000, 2)
	for _, c := range []struct {
		name string
		opt  imagetest.RegistryOptions
		kind error
	}{
		{"other content", brokenBlobs(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, req)
			body := rec.Body.Bytes()
			body[len(body)/2] ^= 1
			_, _ = w.Write(body)
		}), sandpit.ErrIntegrity},
		{"more content", brokenBlobs(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, req)
			_, _ = w.Write(append(rec.Body.Bytes(), "more"...))
		}), sandpit.ErrIntegrity},
		{"endless content", brokenBlobs(func(w http.ResponseWriter, req *http.Request, _ http.Handler) {
			for req.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}), sandpit.ErrIntegrity},
		{"server errors", brokenBlobs(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			http.Error(w, "no", http.StatusBadGateway)
		}), sandpit.ErrUnavailable},
		{"too many requests", brokenBlobs(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Retry-After", "3600")
			http.Error(w, "no", http.StatusTooManyRequests)
		}), sandpit.ErrUnavailable},
		{"missing blobs", brokenBlobs(func(w http.ResponseWriter, req *http.Request, _ http.Handler) {
			http.NotFound(w, req)
		}), sandpit.ErrNotFound},
		{"huge manifest", imagetest.RegistryOptions{Wrap: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/manifests/") {
					_, _ = io.CopyN(w, zeros{}, 100<<20)
					return
				}
				next.ServeHTTP(w, req)
			})
		}}, sandpit.ErrInvalid},
		{"manifest is not what the header says", imagetest.RegistryOptions{Wrap: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/manifests/") {
					w = tamper{w, "Docker-Content-Digest", "sha256:" + strings.Repeat("0", 64)}
				}
				next.ServeHTTP(w, req)
			})
		}}, sandpit.ErrIntegrity},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			reg := imagetest.Registry(t, c.opt)
			ref := reg.Push(t, "x:1", img)
			s := newStore(t, nil)
			_, err := s.Acquire(t.Context(), ref, plainHTTP)
			wantError(t, err, c.kind, false)
			if _, err := s.Prune(t.Context(), image.PruneOptions{}); err != nil {
				t.Error(err)
			}
			wantEmpty(t, s)
		})
	}
	t.Run("wrong digest", func(t *testing.T) {
		reg := imagetest.Registry(t, imagetest.RegistryOptions{Wrap: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if strings.HasPrefix(req.URL.Path, "/v2/x/manifests/sha256:00") {
					req.URL.Path = "/v2/x/manifests/1"
				}
				next.ServeHTTP(w, req)
			})
		}})
		reg.Push(t, "x:1", img)
		s := newStore(t, nil)
		_, err := s.Acquire(t.Context(), reg.Host+"/x@sha256:"+strings.Repeat("0", 64), plainHTTP)
		wantError(t, err, sandpit.ErrIntegrity, false)
		wantEmpty(t, s)
	})
	t.Run("unknown image", func(t *testing.T) {
		reg := imagetest.Registry(t, imagetest.RegistryOptions{})
		s := newStore(t, nil)
		_, err := s.Acquire(t.Context(), reg.Host+"/no/such:tag", plainHTTP)
		wantError(t, err, sandpit.ErrNotFound, true)
		_, err = s.Acquire(t.Context(), "debian:13", image.AcquireOptions{Pull: sandpit.PullNever})
		wantError(t, err, sandpit.ErrNotFound, true)
		wantEmpty(t, s)
	})
	t.Run("unreachable registry", func(t *testing.T) {
		s := newStore(t, nil)
		_, err := s.Acquire(t.Context(), testkit.Address(t)+"/x:1", plainHTTP)
		wantError(t, err, sandpit.ErrUnavailable, true)
		wantEmpty(t, s)
	})
	t.Run("plain HTTP only when asked", func(t *testing.T) {
		reg := imagetest.Registry(t, imagetest.RegistryOptions{})
		ref := reg.Push(t, "x:1", img)
		_, err := newStore(t, nil).Acquire(t.Context(), ref, image.AcquireOptions{})
		wantError(t, err, sandpit.ErrUnavailable, true)
	})
	t.Run("unknown certificate", func(t *testing.T) {
		reg := imagetest.Registry(t, imagetest.RegistryOptions{TLS: true})
		_, err := newStore(t, nil).Acquire(t.Context(), reg.Host+"/x:1", image.AcquireOptions{})
		wantError(t, err, sandpit.ErrUnavailable, true)
		if !strings.Contains(sandpit.Hint(err), "certificate") {
			t.Errorf("hint is %q", sandpit.Hint(err))
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// tamper replaces a header.
type tamper struct {
	http.ResponseWriter
	key, value string
}

func (t tamper) WriteHeader(code int) {
	t.Header().Set(t.key, t.value)
	t.ResponseWriter.WriteHeader(code)
}

func (t tamper) Write(b []byte) (int, error) {
	t.Header().Set(t.key, t.value)
	return t.ResponseWriter.Write(b)
}

// Blobs are often elsewhere: who has them must not see the registry's
// credentials, and a registry must not send us to this machine.
func TestPullFollowsRedirectsWithoutCredentials(t *testing.T) {
	img := randomImage(t, 1000, 1)
	var leaked atomic.Bool
	store := imagetest.Registry(t, imagetest.RegistryOptions{Wrap: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Header.Get("Authorization") != "" || req.Header.Get("Referer") != "" {
				leaked.Store(true)
			}
			next.ServeHTTP(w, req)
		})
	}})
	store.Push(t, "x:1", img)
	redirect := brokenBlobs(func(w http.ResponseWriter, req *http.Request, _ http.Handler) {
		http.Redirect(w, req, store.URL+req.URL.Path, http.StatusTemporaryRedirect)
	})
	redirect.User, redirect.Password = "u", "p"
	reg := imagetest.Registry(t, redirect)
	ref := reg.Push(t, "x:1", img)
	config := t.TempDir()
	if err := os.WriteFile(filepath.Join(config, "config.json"), []byte(reg.DockerConfig()), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"DOCKER_CONFIG": config}
	mustAcquire(t, newStore(t, env), ref, plainHTTP)
	if leaked.Load() {
		t.Error("the Authorization header went along with a redirect")
	}

	for name, target := range map[string]string{
		"to this machine": "http://localhost:" + store.Port(),
		"to the metadata": "http://169.254.169.254",
		"endlessly":       "",
		"to a file":       "file:///etc/passwd?",
	} {
		t.Run(name, func(t *testing.T) {
			reg := imagetest.Registry(t, brokenBlobs(func(w http.ResponseWriter, req *http.Request, _ http.Handler) {
				http.Redirect(w, req, target+req.URL.Path, http.StatusFound)
			}))
			s := newStore(t, nil)
			_, err := s.Acquire(t.Context(), reg.Push(t, "x:1", img), plainHTTP)
			if err == nil {
				t.Fatal("the redirect was followed")
			}
			if strings.HasPrefix(name, "to ") {
				wantError(t, err, sandpit.ErrForbidden, false)
			}
		})
	}
}

// A registry that somebody else names is asked in the public internet alone.
func TestPullForOthers(t *testing.T) {
	var asked atomic.Int64
	reg := imagetest.Registry(t, imagetest.RegistryOptions{Wrap: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			asked.Add(1)
			next.ServeHTTP(w, req)
		})
	}})
	ref := reg.Push(t, "x:1", randomImage(t, 1000, 1))
	asked.Store(0)
	opt := plainHTTP
	opt.PublicOnly = true
	for _, ref := range []string{ref, "localhost:" + reg.Port() + "/x:1", "[::1]:" + reg.Port() + "/x:1", "10.0.0.1/x:1", "169.254.169.254/x:1"} {
		_, err := newStore(t, nil).Acquire(t.Context(), ref, opt)
		wantError(t, err, sandpit.ErrForbidden, true)
		if !strings.HasPrefix(ref, "127.0.0.1") && strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("the error tells the address: %v", err)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the registry was asked %d times", n)
	}
	// A mirror is named by whoever runs this.
	opt.Mirrors = map[string][]string{"registry.invalid": {"http://" + reg.Host}}
	mustAcquire(t, newStore(t, nil), "registry.invalid/x:1", opt)
}

func TestPullFromMirrors(t *testing.T) {
	reg := imagetest.Registry(t, imagetest.RegistryOptions{})
	mirror := imagetest.Registry(t, imagetest.RegistryOptions{})
	img, other := randomImage(t, 1000, 1), randomImage(t, 1000, 1)
	mirror.Push(t, "x:1", img)
	reg.Push(t, "y:1", other)
	opt := plainHTTP
	opt.Mirrors = map[string][]string{reg.Host: {"http://" + mirror.Host}}
	s := newStore(t, nil)
	if got := mustAcquire(t, s, reg.Host+"/x:1", opt).Rootfs().Digest; got != digestOf(t, img) {
		t.Errorf("the mirror was not asked: %s", got)
	}
	if got := mustAcquire(t, s, reg.Host+"/y:1", opt).Rootfs().Digest; got != digestOf(t, other) {
		t.Errorf("the registry was not asked: %s", got)
	}
	opt.Mirrors[reg.Host] = []string{"ftp://x"}
	_, err := s.Acquire(t.Context(), reg.Host+"/z:1", opt)
	wantError(t, err, sandpit.ErrInvalid, true)
}

func TestPullAlwaysFollowsATagThatMoves(t *testing.T) {
	reg := imagetest.Registry(t, imagetest.RegistryOptions{})
	a, b := randomImage(t, 1000, 1), randomImage(t, 1000, 1)
	ref := reg.Push(t, "x:1", a)
	s := newStore(t, nil)
	first := mustAcquire(t, s, ref, plainHTTP)
	reg.Push(t, "x:1", b)
	second := mustAcquire(t, s, ref, plainHTTP)
	if second.Rootfs().Digest != digestOf(t, a) {
		t.Error("an image in the store was pulled anew")
	}
	second.Release()
	opt := plainHTTP
	opt.Pull = sandpit.PullAlways
	if got := mustAcquire(t, s, ref, opt).Rootfs().Digest; got != digestOf(t, b) {
		t.Error("the moved tag was not followed")
	}
	reg.Push(t, "x:1", randomImage(t, 1000, 1))
	opt.Pull = sandpit.PullMissing
	if got, err := s.Pull(t.Context(), ref, opt); err != nil || got.Digest != digestOf(t, b) {
		t.Errorf("Pull of what is there, when only what is missing is asked for: %v, %v", got, err)
	}
	reg.Push(t, "x:1", b)
	// The first one is nameless now, but leased.
	p, err := s.Prune(t.Context(), image.PruneOptions{})
	if err != nil || p.Images != 0 || p.Layers != 0 {
		t.Errorf("pruned %+v, %v", p, err)
	}
	if _, err := os.Stat(first.Rootfs().Layers[0]); err != nil {
		t.Error(err)
	}
	first.Release()
	p, err = s.Prune(t.Context(), image.PruneOptions{})
	if err != nil || p.Images != 1 || p.Layers != 1 || p.Bytes == 0 {
		t.Errorf("pruned %+v, %v", p, err)
	}
}

func TestPullByManyAtOnce(t *testing.T) {
	var blobs atomic.Int32
	reg := imagetest.Registry(t, brokenBlobs(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		blobs.Add(1)
		next.ServeHTTP(w, req)
	}))
	ref := reg.Push(t, "x:1", randomImage(t, 100_000, 4))
	dir := filepath.Join(t.TempDir(), "images")
	pushed := blobs.Load()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s := image.Open(dir, image.Options{NoSync: true, Fetcher: fetcher(nil)})
			l, err := s.Acquire(t.Context(), ref, plainHTTP)
			if err != nil {
				t.Error(err)
				return
			}
			l.Release()
		})
	}
	wg.Wait()
	if n := blobs.Load() - pushed; n > 4+8 { // a config per pull at most
		t.Errorf("%d blobs were fetched for 4 layers", n)
	}
	left, err := os.ReadDir(filepath.Join(dir, "locks"))
	if err != nil || len(left) != 0 {
		t.Errorf("left in locks: %v, %v", left, err)
	}
}

func TestCredentialsAreFound(t *testing.T) {
	reg := imagetest.Registry(t, imagetest.RegistryOptions{User: "u", Password: "secret"})
	img := randomImage(t, 10, 1)
	ref := reg.Push(t, "org/x:1", img)
	good := `{"username":"u","password":"secret"}`
	encoded := `{"auth":"dTpzZWNyZXQ="}`
	bad := `{"username":"u","password":"wrong"}`
	for name, c := range map[string]struct {
		file, env, content string
		helper             string
		ok                 bool
	}{
		"docker":               {"config.json", "DOCKER_CONFIG", `{"auths":{"` + reg.Host + `":` + encoded + `}}`, "", true},
		"docker, as URL":       {"config.json", "DOCKER_CONFIG", `{"auths":{"https://` + reg.Host + `/v1/":` + good + `}}`, "", true},
		"podman":               {"containers/auth.json", "XDG_RUNTIME_DIR", `{"auths":{"` + reg.Host + `":` + encoded + `}}`, "", true},
		"podman, by namespace": {"containers/auth.json", "XDG_RUNTIME_DIR", `{"auths":{"` + reg.Host + `":` + bad + `,"` + reg.Host + `/org":` + encoded + `}}`, "", true},
		"file":                 {"f.json", "REGISTRY_AUTH_FILE", `{"auths":{"` + reg.Host + `":` + encoded + `}}`, "", true},
		"home":                 {".docker/config.json", "HOME", `{"auths":{"` + reg.Host + `":` + encoded + `}}`, "", true},
		"wrong":                {"config.json", "DOCKER_CONFIG", `{"auths":{"` + reg.Host + `":` + bad + `}}`, "", false},
		"broken":               {"config.json", "DOCKER_CONFIG", `{"auths":{"secret`, "", false},
		"helper":               {"config.json", "DOCKER_CONFIG", `{"credHelpers":{"` + reg.Host + `":"sandpittest"}}`, `{"Username":"u","Secret":"secret"}`, true},
		"store":                {"config.json", "DOCKER_CONFIG", `{"credsStore":"sandpittest"}`, `{"Username":"u","Secret":"secret"}`, true},
		"store without it":     {"config.json", "DOCKER_CONFIG", `{"credsStore":"sandpittest"}`, "", false},
		"missing helper":       {"config.json", "DOCKER_CONFIG", `{"credsStore":"sandpit-missing"}`, "", false},
		"impossible helper":    {"config.json", "DOCKER_CONFIG", `{"credsStore":"../x"}`, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, c.file)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			script := "#!/bin/sh\n[ \"$1\" = get ] && [ \"$(cat)\" = " + reg.Host + " ] || exit 1\necho '" + c.helper + "'\n"
			if c.helper == "" {
				script = "#!/bin/sh\necho credentials not found in native keychain\nexit 1\n"
			}
			if err := os.WriteFile(filepath.Join(dir, "docker-credential-sandpittest"), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			value := dir
			if c.env == "REGISTRY_AUTH_FILE" {
				value = file
			}
			_, err := newStore(t, map[string]string{c.env: value}).Acquire(t.Context(), ref, plainHTTP)
			if (err == nil) != c.ok {
				t.Errorf("Acquire: %v", err)
			}
			if err != nil && (strings.Contains(err.Error(), "secret") || sandpit.Hint(err) == "") {
				t.Errorf("the error tells a secret, or not what to do: %v", err)
			}
		})
	}
}
