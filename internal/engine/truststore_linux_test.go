package engine

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
		if n := len(javaStore(nil, nil, nil)); n != len(javaHeader)+4+javaDigest {
			t.Errorf("an empty store has %d bytes", n)
		}
		return
	}
	old := newRoot(t, pkix.Name{CommonName: "The image's"})
	ours := newRoot(t, pkix.Name{CommonName: "Ours"})
	first := javaStore(nil, nil, old)
	second := javaStore(imported(t, old), certificatesIn(ours), nil)
	third := javaStore([]byte("not a store"), certificatesIn(ours), slices.Concat(old, ours))
	for _, c := range []struct {
		store []byte
		want  []string
	}{{first, []string{"CN=The image's"}}, {second, []string{"CN=The image's", "CN=Ours"}}, {third, []string{"CN=The image's", "CN=Ours"}}} {
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
	java := string(javaStore(nil, nil, theirs))
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
			files, env := trusting(image.Rootfs{Layers: []string{t.TempDir(), dir}}, []string{"JAVA_TOOL_OPTIONS=-Xmx1g"}, ours)
			var names []string
			for _, f := range files {
				names = append(names, f.Path)
				if strings.HasSuffix(f.Path, "cacerts") {
					for _, text := range [][]byte{theirs, ours} {
						if has := strings.Contains(string(f.Data), string(certificatesIn(text)[0])); !has && (name != "none" || &text[0] == &ours[0]) {
							t.Errorf("%s lacks a certificate", f.Path)
						}
					}
				}
			}
			want := append(c.want, "/etc/sandpit/ca-certificates.crt", "/etc/sandpit/cacerts")
			slices.Sort(names)
			slices.Sort(want)
			if !slices.Equal(names, want) {
				t.Errorf("got  %v\nwant %v", names, want)
			}
			if !slices.Contains(env, "JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=/etc/sandpit/cacerts -Xmx1g") || !slices.Contains(env, "SSL_CERT_FILE=/etc/sandpit/ca-certificates.crt") {
				t.Errorf("variables: %v", env)
			}
		})
	}
}
