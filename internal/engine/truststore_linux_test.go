package engine

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// newRoot returns a new certificate in PEM.
func newRoot(t *testing.T, subject pkix.Name) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: subject, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der})
}

// The hash of a certificate's subject is that of OpenSSL, whatever the strings are.
func TestSubjectHashIsOpenSSLs(t *testing.T) {
	testkit.NeedProgram(t, "openssl")
	name := filepath.Join(t.TempDir(), "c.pem")
	for _, subject := range []pkix.Name{
		{CommonName: "Plain"},
		{Organization: []string{"Sandpit"}, CommonName: "Sandpit: the authority of one sandbox"},
		{Country: []string{"DE"}, Organization: []string{"  Two   Spaces\tLtd. "}, OrganizationalUnit: []string{"B", "a"}, CommonName: "ÄÖ Straße É"},
	} {
		text := newRoot(t, subject)
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("openssl", "x509", "-noout", "-subject_hash", "-in", name).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if got, ok := subjectHash(certificatesIn(text)[0]); !ok || got != strings.TrimSpace(string(out)) {
			t.Errorf("%v: %s, want %s", subject, got, out)
		}
	}
	if got, ok := subjectHash([]byte("other")); ok {
		t.Errorf("what is not a certificate has the hash %s", got)
	}
}

// Java lists a store's certificates: those that were there, and the new one, also with the
// password that verifies the digest.
func TestJavaStores(t *testing.T) {
	if _, err := exec.LookPath("keytool"); err != nil {
		t.Log("no keytool: only the size of a store is checked")
		if n := len(wholeJavaStore(t, nil, nil, nil, nil)); n != len(javaHeader)+4+javaDigest {
			t.Errorf("an empty store has %d bytes", n)
		}
		return
	}
	old := newRoot(t, pkix.Name{CommonName: "The image's"})
	ours := newRoot(t, pkix.Name{CommonName: "Ours"})
	own := newRoot(t, pkix.Name{CommonName: "The sandbox's"})
	first := wholeJavaStore(t, nil, nil, old, nil)
	second := wholeJavaStore(t, imported(t, old), ours, nil, nil)
	third := wholeJavaStore(t, []byte("not a store"), ours, slices.Concat(old, ours), nil)
	fourth := wholeJavaStore(t, imported(t, old), ours, nil, own)
	for _, c := range []struct {
		store []byte
		want  []string
	}{{first, []string{"CN=The image's"}}, {second, []string{"CN=The image's", "CN=Ours"}}, {third, []string{"CN=The image's", "CN=Ours"}}, {fourth, []string{"CN=The image's", "CN=Ours", "CN=The sandbox's"}}} {
		name := filepath.Join(t.TempDir(), "store")
		if err := os.WriteFile(name, c.store, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("keytool", "-list", "-v", "-keystore", name, "-storepass", "changeit").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, want := range c.want {
			if !strings.Contains(string(out), "Owner: "+want) {
				t.Errorf("%s is missing\n%s", want, out)
			}
		}
	}
}

// wholeJavaStore returns a store with the certificates of an old one and others, the last of which are
// added at the end.
func wholeJavaStore(t *testing.T, old, certificates, bundle, last []byte) []byte {
	t.Helper()
	added := certificatesIn(last)
	s := newJavaStore(old, certificatesIn(certificates), bundle, len(added))
	var rest []byte
	for range 2 { // the first changes nothing
		var err error
		if rest, err = s.rest(added); err != nil {
			t.Fatal(err)
		}
	}
	return slices.Concat(s.begin, rest)
}

// imported returns a store that Java's own tool has made.
func imported(t *testing.T, text []byte) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/c.pem", text, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("keytool", "-importcert", "-noprompt", "-storetype", "JKS", "-alias", "theirs", "-file", dir+"/c.pem", "-keystore", dir+"/s", "-storepass", "changeit").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	store, err := os.ReadFile(dir + "/s")
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// The files that make programs trust a certificate are those that the distribution of the image
// has, with what it trusts; a link is left as it is.
func TestTrustedByDistribution(t *testing.T) {
	theirs, ours := newRoot(t, pkix.Name{CommonName: "Theirs"}), newRoot(t, pkix.Name{CommonName: "Ours"})
	hash, _ := subjectHash(certificatesIn(ours)[0])
	java := string(wholeJavaStore(t, nil, nil, theirs, nil))
	for name, c := range map[string]struct {
		files, links map[string]string
		dirs         []string
		want         []string
	}{
		"Debian": {
			files: map[string]string{"etc/ssl/certs/ca-certificates.crt": string(theirs), "etc/ssl/certs/java/cacerts": java},
			links: map[string]string{"etc/ssl/certs/" + hash + ".0": "another.pem"},
			want:  []string{"/etc/ssl/certs/" + hash + ".1", "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/certs/java/cacerts"},
		},
		"Fedora": {
			files: map[string]string{"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": string(theirs), "etc/pki/ca-trust/extracted/java/cacerts": java},
			links: map[string]string{"etc/ssl/certs": "../pki/tls/certs", "etc/pki/java": "../ca-trust/extracted/java"},
			dirs:  []string{"etc/pki/ca-trust/extracted/pem/directory-hash", "etc/pki/tls/certs", "etc/ssl"},
			want: []string{
				"/etc/pki/ca-trust/extracted/java/cacerts", "/etc/pki/ca-trust/extracted/pem/directory-hash/" + hash + ".0",
				"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/pki/tls/certs/" + hash + ".0",
			},
		},
		"Alpine": {
			files: map[string]string{"etc/ssl/certs/ca-certificates.crt": string(theirs)},
			links: map[string]string{"etc/ssl/cert.pem": "certs/ca-certificates.crt"},
			want:  []string{"/etc/ssl/certs/" + hash + ".0", "/etc/ssl/certs/ca-certificates.crt"},
		},
		"Nix": {
			files: map[string]string{"nix/store/x/ca-bundle.crt": string(theirs)},
			links: map[string]string{"etc/ssl/certs/ca-certificates.crt": "/nix/store/x/ca-bundle.crt", "etc/ssl/certs/ca-bundle.crt": "/nix/store/x/ca-bundle.crt"},
			dirs:  []string{"etc/ssl/certs"},
			want:  []string{"/etc/ssl/certs/" + hash + ".0", "/nix/store/x/ca-bundle.crt"},
		},
		"a directory that is a link": {
			files: map[string]string{"static/certs/ca-certificates.crt": string(theirs)},
			links: map[string]string{"etc/ssl": "../../../static"},
			dirs:  []string{"etc"},
			want:  []string{"/static/certs/" + hash + ".0", "/static/certs/ca-certificates.crt"},
		},
		"none": {want: []string{"/etc/ssl/certs/ca-certificates.crt"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, d := range c.dirs {
				if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for name, text := range c.files {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for name, to := range c.links {
				if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			root := image.Rootfs{Layers: []string{t.TempDir(), dir}}
			want := append(c.want, "/etc/sandpit/ca-certificates.crt", "/etc/sandpit/cacerts")
			slices.Sort(want)
			for _, own := range []bool{false, true} { // the operator's, or the sandbox's own
				operators, its := ours, []byte(nil)
				if own {
					operators, its = nil, ours
				}
				stores, err := newStores(root, operators, own)
				if err != nil {
					t.Fatal(err)
				}
				files, err := stores.files(root, its)
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, f := range files {
					names = append(names, f.Path)
					content := string(f.Data) + string(f.Rest)
					for _, text := range [][]byte{theirs, ours} {
						has := strings.Contains(content, string(text))
						if strings.HasSuffix(f.Path, "cacerts") {
							has = strings.Contains(content, string(certificatesIn(text)[0]))
						}
						if !has && (&text[0] == &ours[0] || name != "none" && !strings.Contains(f.Path, hash)) {
							t.Errorf("%s lacks a certificate", f.Path)
						}
					}
				}
				slices.Sort(names)
				if !slices.Equal(names, want) {
					t.Errorf("got  %v\nwant %v", names, want)
				}
			}
			env := trustEnv([]string{"JAVA_TOOL_OPTIONS=-Xmx1g"})
			if !slices.Contains(env, "JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=/etc/sandpit/cacerts -Xmx1g") || !slices.Contains(env, "SSL_CERT_FILE=/etc/sandpit/ca-certificates.crt") {
				t.Errorf("variables: %v", env)
			}
		})
	}
}

// Stores are made once for an image that never changes, and anew for every other image, bundle or
// directory.
func TestTrustCache(t *testing.T) {
	theirs, ours := newRoot(t, pkix.Name{CommonName: "Theirs"}), newRoot(t, pkix.Name{CommonName: "Ours"})
	image1, image2 := t.TempDir(), t.TempDir()
	for dir, text := range map[string][]byte{image1: theirs, image2: ours} {
		if err := os.MkdirAll(dir+"/etc/ssl/certs", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+trustStores[0], text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	storesOf := func(c *trustCache, root image.Rootfs, certificates []byte, own bool) *stores {
		t.Helper()
		s, err := c.storesOf(root, certificates, own)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	c := new(trustCache)
	stored := image.Rootfs{Digest: "sha256:1", Layers: []string{image1}}
	first := storesOf(c, stored, ours, false)
	if storesOf(c, stored, ours, false) != first {
		t.Error("the same is made twice")
	}
	bind := []image.Bind{{Source: "/usr", Target: "/usr"}}
	if host := (image.Rootfs{Reference: "host", Layers: []string{image1}, Binds: bind}); storesOf(c, host, ours, false) != first {
		t.Error("that of the host image, with the same layer, is made anew")
	}
	over := []image.Bind{{Source: image2 + "/etc/ssl", Target: "/etc/ssl"}}
	for name, other := range map[string]struct {
		root         image.Rootfs
		certificates []byte
		own          bool
	}{
		"another image":           {image.Rootfs{Digest: "sha256:2", Layers: []string{image2}}, ours, false},
		"another layer over it":   {image.Rootfs{Digest: "sha256:3", Layers: []string{image2, image1}}, ours, false},
		"another bundle":          {stored, theirs, false},
		"with an authority":       {stored, ours, true},
		"a directory":             {image.Rootfs{Reference: "dir:x", Layers: []string{image1}}, ours, false},
		"something bound over it": {image.Rootfs{Reference: "host", Layers: []string{image1}, Binds: over}, ours, false},
	} {
		c := new(trustCache)
		if first := storesOf(c, stored, ours, false); storesOf(c, other.root, other.certificates, other.own) == first {
			t.Errorf("%s has the same stores", name)
		}
	}
	for i := range 3 * maxCachedStores {
		root := image.Rootfs{Digest: "sha256:4", Layers: []string{image1, fmt.Sprint(i)}}
		if s := storesOf(c, root, ours, false); storesOf(c, root, ours, false) != s || len(c.all) > maxCachedStores {
			t.Errorf("of %d, %d are kept", i, len(c.all))
		}
	}

	// What one sandbox has of its own, no other gets.
	base := storesOf(c, stored, nil, true)
	for _, own := range [][]byte{theirs, ours, theirs} {
		files, err := base.files(stored, own)
		if err != nil {
			t.Fatal(err)
		}
		want, err := storesOf(new(trustCache), stored, nil, true).files(stored, own)
		if err != nil || !slices.EqualFunc(files, want, func(a, b driver.File) bool {
			return a.Path == b.Path && string(a.Data)+string(a.Rest) == string(b.Data)+string(b.Rest)
		}) {
			t.Errorf("the files of a sandbox depend on those before it: %v", err)
		}
	}
}

// Where this machine can't read an image, its stores are not made without what it may have, and nothing is kept.
func TestUnreadableImagesHaveNoStores(t *testing.T) {
	const layer = "no path \x00"
	root, c := image.Rootfs{Digest: "sha256:1", Layers: []string{layer}}, new(trustCache)
	ours := newRoot(t, pkix.Name{CommonName: "Ours"})
	for range 2 {
		s, err := c.storesOf(root, ours, true)
		if s != nil || !errors.Is(err, syscall.EINVAL) || strings.Contains(err.Error(), layer) || len(c.all) > 0 {
			t.Errorf("%+v, %v; %d are kept", s, err, len(c.all))
		}
	}
	s, err := newStores(image.Rootfs{Layers: []string{t.TempDir()}}, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	s.dirs = trustDirectories[:1]
	if files, err := s.files(root, ours); files != nil || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("the files of a sandbox: %d, %v", len(files), err)
	}
}
