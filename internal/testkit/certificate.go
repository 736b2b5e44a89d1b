package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certificate writes a certificate for the address of a HOST:PORT and its key to cert.pem and key.pem in a directory. The
// certificate is its own authority, and valid for a day.
func Certificate(t testing.TB, dir, address string) *x509.Certificate {
	t.Helper()
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.ParseIP(host)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	// The key last: a server that looks in between finds a pair that does not fit.
	for _, f := range []struct {
		name  string
		block pem.Block
	}{{"cert.pem", pem.Block{Type: "CERTIFICATE", Bytes: der}}, {"key.pem", pem.Block{Type: "EC PRIVATE KEY", Bytes: private}}} {
		if err := os.WriteFile(filepath.Join(dir, f.name), pem.EncodeToMemory(&f.block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
